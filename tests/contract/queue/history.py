"""The history of a queue: every transition once, in order, also after it was moved beside the queue."""

from __future__ import annotations

import pytest

from jqueue.domain.errors import HistoryDamagedError, InvalidJobError
from jqueue.domain.history import EVENTS_PER_OBJECT
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Enqueue
from jqueue.ports.queue import SupportsHistory
from jqueue.ports.storage import SupportsObjects
from jqueue.testing.queue_contract import QueueContractBase, QueueFactory, events_of
from tests.contract.queue.refusals import BAD_DURATIONS, BAD_NAMES, RefusalsContract

NEEDS = ("history", "transactions", "errors")
QUEUED, IN_PROGRESS, DEAD = JobStatus.QUEUED, JobStatus.IN_PROGRESS, JobStatus.DEAD


class HistoryContract(RefusalsContract, QueueContractBase):
    """A queue that is told to keeps the history of its jobs."""

    async def test_the_history_can_be_searched(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            await queue.configure(history=3600, history_payloads=True)
            first = await queue.enqueue("mail", b"payload")
            second = await queue.enqueue("resize", b"")
            [claimed] = await queue.dequeue("mail")
            every = await events_of(queue)
            assert await events_of(queue, job_id=first.id) == [every[1], every[3]]
            assert await events_of(queue, entrypoint="resize") == [every[2]]
            time = every[2].at
            assert await events_of(queue, since=time) == [event for event in every if event.at >= time]
            assert await events_of(queue, until=time) == [event for event in every if event.at < time]
            assert await events_of(queue, job_id="unknown") == []
            assert [event.payload for event in every] == [None, b"payload", b"", None]
            assert "payload=" not in repr(every[1])
            assert (second.id, claimed.id) == (every[2].job_id, every[3].job_id)

    async def test_a_damaged_object_hides_nothing_else(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            storage = self.storage_of(queue)
            assert isinstance(storage, SupportsObjects)
            await queue.configure(history=3600)
            for count in range(1, 4):
                await queue.enqueue_many([Enqueue("work", b"") for _ in range(EVENTS_PER_OBJECT + 1)])
                await self.until_moved(queue, count)
            _, second, third = [each.suffix for each in await storage.list_beside(".history/")]
            content = await storage.read_object(second)
            await storage.remove_object(second)
            await storage.create_object(second, content[:-5])
            await storage.remove_object(third)
            await queue.enqueue("work", b"")
            found = []
            assert isinstance(queue, SupportsHistory)
            with pytest.raises(HistoryDamagedError) as refused:
                async for event in queue.history():
                    found.append(event.number)
            assert found == [3 * EVENTS_PER_OBJECT + 5, *range(EVENTS_PER_OBJECT + 2, 0, -1)]
            numbers = range(2, 3 * EVENTS_PER_OBJECT + 6, EVENTS_PER_OBJECT + 1)
            spans = [f"(events {first} to {first + EVENTS_PER_OBJECT})" for first in numbers[1:3]]
            damaged, missing = sorted(refused.value.objects)
            assert damaged.startswith(f"{second} {spans[0]}: its checksum does not match")
            assert missing == f"{third} {spans[1]}: it is missing"

    async def test_a_history_that_was_switched_off_can_still_be_read(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            await queue.enqueue("work", b"")
            assert await events_of(queue) == []
            await queue.configure(history=3600)
            await queue.enqueue("work", b"")
            await queue.configure(history=None)
            await queue.enqueue("work", b"")
            assert [event.verb for event in await events_of(queue)] == ["start", "enqueue"]
            await queue.configure(history=60)
            await queue.enqueue("work", b"")
            events = await events_of(queue)
            assert [event.verb for event in events] == ["start", "enqueue", "start", "enqueue"]
            assert [event.number for event in events] == [1, 2, 3, 4]

    async def test_wrong_settings_of_a_history_are_refused(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            await queue.enqueue("work", b"payload")
            assert isinstance(queue, SupportsHistory)
            bad = {"history": [*BAD_DURATIONS, 0], "history_bytes": [0, -1, 1.5, "5"], "history_payloads": [None, 1]}
            assert await self.refuse(queue, self.calls(queue.configure, {}, bad)) == ""
            for name, values in {"job_id": BAD_NAMES, "entrypoint": BAD_NAMES, "since": [5, "now"]}.items():
                for value in values:
                    with pytest.raises(InvalidJobError):
                        queue.history(**{name: value})
