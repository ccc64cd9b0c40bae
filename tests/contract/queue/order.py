"""Enqueue and dequeue: jobs come back as they were put in, and in the right order."""

from __future__ import annotations

import pytest

from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Enqueue
from jqueue.testing.queue_contract import QueueContractBase, QueueFactory, ids

PAYLOADS = [
    b"",
    b"\0",
    b"\r\n",
    b"text with an \xc3\xa9 and a \xff",
    b'"quoted": {}]},\n',
    bytes(range(256)),
    bytes(range(256)) * 400,
]


class OrderContract(QueueContractBase):
    """Jobs are served by priority, then in commit order, and come back unchanged."""

    async def test_jobs_of_one_priority_are_served_in_commit_order(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2) as [queue, worker]:
            enqueued = [(await queue.enqueue("work", b"%d" % number)).id for number in range(self.in_order)]
            assert enqueued == [job.id for _ in enqueued for job in await worker.dequeue("work")]

    async def test_a_job_that_left_the_middle_of_the_line_never_comes_back(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2) as [queue, worker]:
            enqueued = [(await queue.enqueue("work", b"%d" % number)).id for number in range(self.in_order)]
            for place in (8, 4, 5):  # each in a commit of its own, and by either queue object
                await (queue if place % 2 else worker).cancel(enqueued.pop(place))
            first = await worker.dequeue("work", batch_size=2)
            async with self.queues(make_queue) as [reopened]:
                served = ids(first)
                for asked in (reopened, queue, worker):
                    served += ids(await asked.dequeue("work", batch_size=2))
                served += ids(await reopened.dequeue("work", batch_size=self.in_order))
                assert enqueued == served
                for asked in (reopened, queue, worker):
                    assert await asked.dequeue("work") == []
            stats = await queue.stats()
            assert (0, len(enqueued)) == (stats.ready, stats.in_progress)

    async def test_a_lower_priority_is_served_first(self, make_queue: QueueFactory) -> None:
        priorities = [0, 5, -1, 2**31 - 1, 5, 0, -(2**31), -1]
        async with self.queues(make_queue, 1, ["priority"]) as [queue]:
            for number, priority in enumerate(priorities):
                await queue.enqueue("work", b"%d" % number, priority)
            served = [int(job.payload) for _ in priorities for job in await queue.dequeue("work")]
            assert served == sorted(range(len(priorities)), key=lambda number: priorities[number])

    async def test_a_batch_is_as_many_as_asked_for_or_as_there_are(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue) as [queue]:
            enqueued = [(await queue.enqueue("work", b"%d" % number)).id for number in range(5)]
            assert enqueued[:3] == ids(await queue.dequeue("work", batch_size=3))
            assert enqueued[3:] == ids(await queue.dequeue("work", batch_size=3))
            assert await queue.dequeue("work", batch_size=3) == []

    async def test_a_dequeue_takes_one_job_unless_told_otherwise(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue) as [queue]:
            for number in range(2):
                await queue.enqueue("work", b"%d" % number)
            assert len(await queue.dequeue()) == 1

    async def test_a_dequeue_takes_jobs_of_the_entrypoints_it_names(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue) as [queue]:
            for name in ("resize", "mail", "sum", "mail"):
                await queue.enqueue(name, b"payload")
            assert await queue.dequeue("nobody") == []
            assert [job.entrypoint for job in await queue.dequeue("mail")] == ["mail"]
            several = await queue.dequeue(["mail", "resize", "nobody"], batch_size=9)
            assert [job.entrypoint for job in several] == ["resize", "mail"]
            assert [job.entrypoint for job in await queue.dequeue(batch_size=9)] == ["sum"]

    async def test_several_entrypoints_are_served_in_one_order(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["priority"]) as [queue]:
            for name, priority in (("a", 1), ("b", 0), ("a", 0), ("b", 1), ("c", -9)):
                await queue.enqueue(name, f"{name}{priority}".encode(), priority)
            served = await queue.dequeue(("b", "a"), batch_size=9)
            assert [job.payload for job in served] == [b"b0", b"a0", b"a1", b"b1"]
            assert [job.entrypoint for job in await queue.dequeue(None, batch_size=9)] == ["c"]

    @pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: f"{len(payload)} bytes")
    async def test_a_payload_comes_back_byte_for_byte(self, make_queue: QueueFactory, payload: bytes) -> None:
        async with self.queues(make_queue, 2) as [queue, other]:
            await queue.enqueue("work", payload)
            [job] = await other.dequeue("work")
            assert (type(job.payload), job.payload == payload) == (bytes, True)

    async def test_a_job_without_a_payload_has_an_empty_one(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue) as [queue]:
            await queue.enqueue("work")
            if queue.capabilities.transactions:
                await queue.enqueue_many([Enqueue("work")])
                await queue.apply(Enqueue("work"))
            jobs = await queue.dequeue(batch_size=9)
            assert [job.payload for job in jobs] == [b""] * (3 if queue.capabilities.transactions else 1)

    @pytest.mark.parametrize("kind", [bytearray, memoryview])
    async def test_anything_bytes_like_is_a_payload(
        self, make_queue: QueueFactory, kind: type[bytearray] | type[memoryview]
    ) -> None:
        async with self.queues(make_queue) as [queue]:
            buffer = bytearray(b"payload")
            await queue.enqueue("work", kind(buffer))  # type: ignore[arg-type]
            buffer[:] = b"changed"
            [job] = await queue.dequeue("work")
            assert job.payload == b"payload"

    async def test_a_job_id_recently_finished_is_not_done_again(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["job_ids"]) as [queue, other]:
            await queue.ack(await self.one_job(queue, job_id="the-id"))
            for asked in (queue, other):
                finished = await asked.enqueue("work", b"payload", job_id="the-id")
                assert (finished.id, finished.status) == ("the-id", JobStatus.COMPLETED)
            assert await queue.dequeue() == []

    async def test_ids_are_given_where_none_is_asked_for(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2) as queues:
            given = {(await queue.enqueue("work", b"payload")).id for queue in queues for _ in range(5)}
            assert len(given) == 10
