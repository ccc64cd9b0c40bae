"""Several operations in one commit, changes by operators, staged jobs: all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from jqueue.core.blob.staged_object import StagedWriter, read_staged
from jqueue.domain.errors import (
    ClaimLostError,
    DuplicateJobError,
    InvalidJobError,
    JobNotFoundError,
    JobStateError,
)
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import (
    Ack,
    Cancel,
    Enqueue,
    EnqueueStaged,
    LastTransaction,
    Nack,
    StagedJobs,
    StagedReceipt,
)
from jqueue.ports.queue import JobQueue
from jqueue.testing.queue_contract import HOUR, QueueContractBase, QueueFactory, ids


class TogetherContract(QueueContractBase):
    """Operations of one call are done together. A cancelled call is done once or not at all."""

    async def test_enqueue_many_is_one_commit(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["transactions", "priority"]) as [queue, other]:
            await queue.enqueue("work", b"payload")
            before = (await queue.read_state()).version
            jobs = await queue.enqueue_many(Enqueue("many", b"%d" % number, -number) for number in range(20))
            assert (await other.read_state()).version == before + 1
            assert [job.payload for job in jobs] == [b"%d" % number for number in range(20)]
            assert ids(jobs)[::-1] == ids(await other.dequeue("many", batch_size=99))

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
    """A waiting job may get another time or priority. A dead job leaves when its retention is over."""

    async def test_a_job_put_off_may_be_brought_forward_to_its_place(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["reschedule", "delay"]) as [queue, operator]:
            first = await queue.enqueue("work", b"payload", delay=HOUR)
            second = await queue.enqueue("work", b"payload")
            third = await queue.enqueue("work", b"payload", delay=HOUR)
            past = await self.time(queue) - timedelta(seconds=5)  # past by any of the clocks
            await operator.reschedule(third.id, run_at=past)
            await operator.reschedule(first.id, delay=0)
            assert ids([first, second, third]) == ids(await queue.dequeue("work", batch_size=9))

    async def test_a_job_that_waits_may_get_another_priority_and_keeps_its_place_in_it(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, ["reschedule", "priority"]) as [queue, operator]:
            enqueued = [await queue.enqueue("work", b"payload", priority) for priority in (0, 0, 5, 0)]
            after = await operator.reprioritise(enqueued[1].id, 7)
            assert after == enqueued[1].evolve(priority=7) == await self.held(queue, after)
            await operator.reprioritise(enqueued[2].id, 0)
            await operator.reprioritise(enqueued[3].id, -1)
            expected = [enqueued[number].id for number in (3, 0, 2, 1)]
            assert expected == ids(await queue.dequeue(batch_size=9))

    async def test_only_a_job_that_waits_can_be_changed(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["reschedule", "dead_letters"]) as [queue]:
            dead, claimed = await self.dead_job(queue), await self.one_job(queue)
            before = await self.fingerprint(queue)
            for job, status in ((dead, "dead"), (claimed, "in_progress")):
                for call in (queue.reschedule(job.id, delay=5), queue.reprioritise(job.id, 5)):
                    with pytest.raises(JobStateError, match=status) as raised:
                        await call
                    assert (raised.value.job_id, raised.value.status) == (job.id, status)
            for call in (queue.reschedule("no-such-job", delay=5), queue.reprioritise("no-such-job", 5)):
                with pytest.raises(JobNotFoundError, match="no-such-job"):
                    await call
            assert before == await self.fingerprint(queue)

    # Retention

    async def test_dead_jobs_leave_when_they_were_kept_for_long_enough(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["retention", "dead_letters"]) as [queue, operator]:
            dead = await self.one_job(queue)
            await queue.nack(dead, dead=True)
            assert (
                await operator.configure(dead_retention=timedelta(seconds=self.moment))
            ).dead_retention == self.moment

            async def is_gone() -> bool:
                await queue.dequeue("work")
                return await self.find(operator, dead) is None

            await self.until(is_gone)
            with pytest.raises(JobNotFoundError):
                await operator.redrive(dead.id)

    # Independent operations

    async def test_of_several_things_each_is_done_or_refused_for_itself_and_in_order(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, ["fencing"]) as [queue, operator]:
            lost = await self.lost_claim(queue, operator)
            assert len(await operator.dequeue()) == 1
            acked, given_back = await self.one_job(queue), await self.one_job(queue)
            wrong: Any = "text"
            results = await queue.apply_each(
                Ack(lost),
                Enqueue("next", b"first"),
                Enqueue("next", wrong),
                Ack(acked),
                Cancel("no-such-job"),
                Nack(given_back),
                Enqueue("next", b"second"),
            )
            refusals = {0: ClaimLostError, 2: InvalidJobError, 4: JobNotFoundError}
            kinds = {place: type(result) for place, result in enumerate(results) if isinstance(result, Exception)}
            assert kinds == refusals
            assert [results[3], results[5]] == [None, None]
            assert [results[1].payload, results[6].payload] == [b"first", b"second"]
            assert ids([results[1], results[6]]) == ids(await queue.dequeue("next", batch_size=9))
            assert await self.find(queue, acked) is None
            assert (await self.held(queue, given_back)).status is JobStatus.QUEUED


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

    async def test_of_many_who_add_the_same_transaction_at_once_one_does(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 4, NEEDS) as queues:
            calls = [
                self.add(queue, staged(f"{n}-a", f"{n}-b"), transaction=("app", 1)) for n, queue in enumerate(queues)
            ]
            receipts = await asyncio.gather(*calls)
            assert sorted(receipt.added for receipt in receipts) == [0, 0, 0, 2]
            assert sorted(receipt.repeated for receipt in receipts) == [False, True, True, True]
            [winner] = {job.id.split("-")[0] for job in (await queues[0].read_state()).jobs}
            assert receipts[int(winner)].added == 2

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
