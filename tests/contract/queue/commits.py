"""Several operations in one commit, changes by operators, staged jobs: all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from jqueue.core.blob.staged_object import StagedWriter, read_staged
from jqueue.domain.errors import DuplicateJobError, InvalidJobError, JobNotFoundError, JobStateError
from jqueue.domain.operations import (
    Enqueue,
    EnqueueStaged,
    LastTransaction,
    StagedJobs,
    StagedReceipt,
)
from jqueue.ports.queue import JobQueue
from jqueue.testing.queue_contract import QueueContractBase, QueueFactory, ids


class TogetherContract(QueueContractBase):
    """Operations of one call are done together. A cancelled call is done once or not at all."""

    async def test_an_async_iterable_that_fails_adds_nothing(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["transactions"]) as [queue]:
            before = await self.fingerprint(queue)

            async def failing() -> AsyncIterator[Enqueue]:
                yield Enqueue("many", b"good")
                raise LookupError

            with pytest.raises(LookupError):
                await queue.enqueue_many(failing())
            assert before == await self.fingerprint(queue)

    async def test_a_waiting_dequeue_cancelled_when_its_job_comes_leaves_it_to_others(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, ["wait"]) as [queue, other]:
            loop = asyncio.get_running_loop()
            began = loop.time()
            await queue.ack(await self.one_job(queue))
            duration = loop.time() - began
            for number in range(self.cancellations):
                waiting = asyncio.create_task(queue.dequeue("work", wait=self.patience))
                await asyncio.sleep(0)
                enqueueing = asyncio.create_task(queue.enqueue("work", b"%d" % number))
                await self._cancel_at(waiting, number, duration)
                enqueued = await enqueueing
                jobs = [] if waiting.cancelled() else waiting.result()
                jobs = jobs or await other.dequeue("work", wait=self.patience / 2)
                assert ids(jobs) == [enqueued.id], f"cancelled at moment {number}, the job stayed claimed"
                await other.ack(jobs[0])


class ChangesContract(QueueContractBase):
    """A change that the state of a job does not allow is refused: the error names the state, and nothing changes."""

    async def test_only_a_job_that_waits_can_be_changed_or_cancelled(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["reschedule", "dead_letters"]) as [queue]:
            dead, claimed = await self.dead_job(queue), await self.one_job(queue)
            verbs: list[Callable[[str], Awaitable[object]]] = [
                queue.cancel,
                lambda job_id: queue.reschedule(job_id, delay=5),
                lambda job_id: queue.reprioritise(job_id, 5),
            ]
            before = await self.fingerprint(queue)
            for verb in verbs:
                for job, status in ((dead, "dead"), (claimed, "in_progress")):
                    with pytest.raises(JobStateError, match=status) as raised:
                        await verb(job.id)
                    assert (raised.value.job_id, raised.value.status) == (job.id, status)
                with pytest.raises(JobNotFoundError, match="no-such-job"):
                    await verb("no-such-job")
            assert before == await self.fingerprint(queue)

    @pytest.mark.parametrize("state", ["queued", "dead", "acked"])
    async def test_an_id_that_is_taken_is_refused_if_asked(self, make_queue: QueueFactory, state: str) -> None:
        async with self.queues(make_queue, 2, ["job_ids", "unique_keys", "dead_letters"]) as [queue, other]:
            await queue.enqueue("work", b"payload", job_id="the-id")
            if state != "queued":
                [job] = await queue.dequeue()
                await (queue.ack(job) if state == "acked" else queue.nack(job, dead=True))
            before = await self.fingerprint(queue)
            with pytest.raises(DuplicateJobError, match="Job id 'the-id' is taken: that job ") as raised:
                await other.enqueue("work", b"another", job_id="the-id", on_conflict="raise")
            assert (raised.value.unique_key, raised.value.job_id) == (None, "the-id")
            with pytest.raises(DuplicateJobError):
                await other.enqueue_many(
                    [Enqueue("work", job_id=name, on_conflict="raise") for name in ("a", "the-id")]
                )
            assert before == await self.fingerprint(queue)

    async def test_of_several_things_an_invalid_one_is_refused_for_itself(self, make_queue: QueueFactory) -> None:
        wrong: Any = "text"
        async with self.queues(make_queue, 1, ["transactions"]) as [queue]:
            results = await queue.apply_each(Enqueue("work", b"1"), Enqueue("work", wrong), Enqueue("work", b"2"))
            assert isinstance(results[1], InvalidJobError)
            assert ids([results[0], results[2]]) == ids(await queue.dequeue("work", batch_size=9))


NEEDS = ("staged", "transactions")


def staged(*named: str, entrypoint: str = "work", **details: Any) -> StagedJobs:
    """Return the jobs staged by one task, as the commit reads them."""
    writer = StagedWriter()
    for name in named:
        writer.add(name, entrypoint, b"payload of " + name.encode(), **details)
    return read_staged(writer.finish())


class StagedContract(QueueContractBase):
    """A caller that stages jobs and repeats failed calls adds each job once."""

    async def add(self, queue: JobQueue, *blocks: StagedJobs, **options: Any) -> StagedReceipt:
        """Add staged jobs, alone in their call, and return the receipt."""
        [receipt] = await queue.apply(EnqueueStaged(blocks, **options))
        assert isinstance(receipt, StagedReceipt)
        return receipt

    async def last(self, queue: JobQueue, app_id: str) -> int | None:
        """Return the version of an application's last transaction; None if there is none."""
        [version] = await queue.apply(LastTransaction(app_id))
        assert version is None or isinstance(version, int)
        return version

    async def test_staged_jobs_are_added_in_one_commit_behind_all_others(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, NEEDS) as [queue, other]:
            first = await queue.enqueue("work", b"first")
            before = (await queue.read_state()).version
            receipt = await self.add(queue, staged("a", "b"), staged("c"), transaction=("app", 1))
            assert receipt == StagedReceipt(added=3)
            state = await other.read_state()
            assert state.version == before + 1
            assert state.transactions["app"].version == 1
            last = await other.enqueue("work", b"last")
            claimed = await other.dequeue("work", batch_size=9)
            assert ids(claimed) == [first.id, "a", "b", "c", last.id]
            assert claimed[1].payload == b"payload of a"

    async def test_a_transaction_is_added_once_whoever_repeats_it(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, NEEDS) as [queue, other]:
            assert await self.last(queue, "app") is None
            await self.add(queue, staged("a"), transaction=("app", 5))
            before = await self.fingerprint(queue)
            for repeating in (queue, other):
                for version in (5, 4, 0):
                    receipt = await self.add(repeating, staged("again"), transaction=("app", version))
                    assert receipt == StagedReceipt(repeated=True, version=5)
                assert await self.last(repeating, "app") == 5
            assert before == await self.fingerprint(other)
            assert await self.add(other, staged("b"), transaction=("app", 6)) == StagedReceipt(added=1, version=5)
            assert await self.add(queue, staged("c"), transaction=("other", 1)) == StagedReceipt(added=1)
            assert ids(await queue.dequeue(batch_size=9)) == ["a", "b", "c"]

    async def test_a_key_that_is_taken_leaves_its_job_out_or_undoes_all(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, (*NEEDS, "unique_keys")) as [queue]:
            await queue.enqueue("work", b"holder", unique_key="taken")
            before = await self.fingerprint(queue)
            blocks = [staged("a"), staged("b", unique_key="taken"), staged("c", unique_key="free")]
            with pytest.raises(DuplicateJobError):
                await self.add(queue, *blocks, transaction=("app", 1), on_conflict="raise")
            assert before == await self.fingerprint(queue)
            assert await self.add(queue, *blocks, transaction=("app", 1)) == StagedReceipt(added=2, taken=1)
            payloads = [job.payload for job in await queue.dequeue(batch_size=9)]
            assert payloads == [b"holder", b"payload of a", b"payload of c"]
