"""The blob and the values returned: values are immutable, lines are kept as they are, payloads stay hidden."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.operations import Ack, Enqueue, Heartbeat, Nack
from jqueue.ports.queue import JobQueue
from jqueue.testing.queue_contract import (
    PAYLOAD,
    SPOKEN,
    QueueContractBase,
    QueueFactory,
    in_a_line,
)

"""Parts of the payload as they would look in a text."""


class ContentContract(QueueContractBase):
    """The blob is plain text, mendable and private. Reading it changes nothing."""

    async def test_polling_an_empty_queue_never_writes(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2) as queues:
            before = await self.fingerprint(queues[0])
            for queue in queues:
                for _ in range(3):
                    assert await queue.dequeue("work", batch_size=5) == []
                if queue.capabilities.wait:
                    assert await queue.dequeue(wait=self.moment) == []
                assert (await queue.read_state()).jobs == ()
            assert before == await self.fingerprint(queues[0])

    async def test_the_state_read_is_a_value_of_its_own(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["headers", "unique_keys"]) as [queue]:
            done = await self.one_job(queue, unique_key="the-key", unique_for=3600)
            await queue.ack(done)
            await queue.enqueue("work", b"payload", headers={"name": "text"})
            expected, state = await queue.read_state(), await queue.read_state()
            assert expected == state
            for table in (state.commits, state.finished, state.holds, state.extra):
                if isinstance(table, dict):
                    table.clear()
            with pytest.raises(ValueError, match="frozen"):
                state.jobs[0].payload = b"changed"
            with pytest.raises(TypeError):
                state.jobs[0].headers["name"] = "changed"  # type: ignore[index]
            assert expected == await queue.read_state()
            [job] = await queue.dequeue("work")
            assert (job.payload, dict(job.headers)) == (b"payload", {"name": "text"})

    async def test_the_state_reads_as_it_was_when_it_was_read(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue) as [queue]:
            await queue.enqueue("work", b"payload")
            before = await queue.read_state()
            kept = before.model_dump_json()
            [job] = await queue.dequeue()
            await queue.ack(job)
            assert kept == before.model_dump_json()
            assert (await queue.read_state()).version > before.version

    async def test_the_id_of_a_job_that_cannot_be_read_is_not_given_again(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["job_ids"]) as [queue]:
            await queue.enqueue("work", b"payload", job_id="the-id")
            await self.rewrite(queue, in_a_line(b'"work"', b"[5]"))
            before = await self.fingerprint(queue)
            with pytest.raises(InvalidJobError, match="the-id"):
                await queue.enqueue("work", b"another", job_id="the-id")
            assert before == await self.fingerprint(queue)

    async def test_no_repr_shows_a_payload(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue) as [queue]:
            enqueued = await queue.enqueue("work", PAYLOAD)
            [job] = await queue.dequeue()
            await queue.enqueue("broken", PAYLOAD)
            if hasattr(queue, "storage"):
                await self.rewrite(queue, in_a_line(b'"broken"', b"[5]"))
            state = await queue.read_state()
            operations = [Enqueue("work", PAYLOAD), Ack(job), Nack(job), Heartbeat((job,))]
            for value in (queue, enqueued, job, state, state.jobs, state.set_aside, await queue.stats(), operations):
                self.assert_private(repr(value))
                self.assert_private(str(value))

    async def test_no_error_and_no_log_shows_a_payload(
        self, make_queue: QueueFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        async with self.queues(make_queue, 2, ["fencing"], limits=Limits(payload_bytes=100)) as [queue, other]:
            job, taken, lost = [await self._claimed(queue, number) for number in range(3)]
            await other.nack(lost)
            raised: list[Exception] = []
            for provoke in self._provocations(queue, job, taken, lost):
                try:
                    await provoke()
                except Exception as refusal:  # other tests check its type
                    raised.append(refusal)
            if hasattr(queue, "storage"):
                for text, other_text in ((SPOKEN[1].encode(), PAYLOAD), (b'"entrypoint": "work"', b'"entrypoint": 5')):
                    await self.rewrite(queue, in_a_line(text, other_text))
                    await queue.dequeue("nobody")
                assert "set aside" in caplog.text
        for error in raised:
            self.assert_private(repr(error))
            self.assert_private("".join(traceback.format_exception(error)))
        for record in caplog.records:
            self.assert_private(f"{record.getMessage()} {record.__dict__!r}")
        self.assert_private(caplog.text)

    async def _claimed(self, queue: JobQueue, number: int) -> Job:
        await queue.enqueue("work", PAYLOAD + b"%d" % number)
        [job] = await queue.dequeue("work")
        return job

    def _provocations(self, queue: JobQueue, job: Job, taken: Job, lost: Job) -> list[Callable[[], Awaitable[object]]]:
        """Return calls that are refused, each with the payload among its arguments."""
        wrong: Any = PAYLOAD.decode()
        listed: Any = [wrong]
        several: Any = [job]
        mistaken: Any = job
        mapping: Any = {"payload": PAYLOAD}
        unknown = Job(entrypoint="work", payload=PAYLOAD, status=JobStatus.IN_PROGRESS, attempt=1)
        good = Enqueue("work", PAYLOAD)

        async def model(**fields: Any) -> Job:
            return Job(**fields)

        return [
            lambda: queue.enqueue("work", wrong),
            lambda: queue.enqueue("work", listed),
            lambda: queue.enqueue("work", PAYLOAD * 10),
            lambda: queue.enqueue("work", PAYLOAD, 2**40),
            lambda: queue.enqueue("", PAYLOAD),
            lambda: queue.enqueue("work", PAYLOAD, headers={"payload": mapping}),
            lambda: queue.ack(lost),
            lambda: queue.nack(lost, error=PAYLOAD.decode()),
            lambda: queue.heartbeat(lost),
            lambda: queue.ack(unknown),
            lambda: queue.ack(mapping),
            lambda: queue.ack(several),
            lambda: queue.cancel(mistaken),
            lambda: queue.cancel(taken.id),
            lambda: queue.redrive(taken.id),
            lambda: queue.apply(good, Ack(lost)),
            lambda: queue.apply(good, Enqueue("work", wrong)),
            lambda: queue.apply(Heartbeat(mistaken)),
            lambda: queue.apply(good, mistaken),
            lambda: queue.enqueue_many([good, Enqueue("work", PAYLOAD, 2**40)]),
            lambda: model(entrypoint=5, payload=PAYLOAD),
            lambda: model(entrypoint="work", payload=wrong),
            lambda: model(entrypoint="work", payload=[PAYLOAD]),
        ]
