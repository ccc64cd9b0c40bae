"""Several operations in one commit, and changes by operators: all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from jqueue.domain.errors import DuplicateJobError, InvalidJobError
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.operator import Cancel
from jqueue.testing._storage_handles import cancel_at
from jqueue.testing.queue_contract import HOUR, QueueContractBase, QueueFactory, ids


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
                await cancel_at(waiting, number, self.cancellations, duration)
                enqueued = await enqueueing
                jobs = [] if waiting.cancelled() else waiting.result()
                jobs = jobs or await other.dequeue("work", wait=self.patience / 2)
                assert ids(jobs) == [enqueued.id], f"cancelled at moment {number}, the job stayed claimed"
                await other.ack(jobs[0])

    async def test_what_is_done_each_for_itself_is_one_commit(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["transactions", "fencing"]) as [queue, other]:
            jobs = [await self.one_job(queue) for _ in range(4)]
            before = (await queue.read_state()).version
            results = await queue.apply_each(*map(Ack, jobs[:2]), Cancel("no-such-job"), *map(Nack, jobs[2:]))
            assert [result is None for result in results] == [True, True, False, True, True]
            assert (await other.read_state()).version == before + 1


class ChangesContract(QueueContractBase):
    """A change that the state of a job does not allow is refused: the error names the state, and nothing changes."""

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

    async def test_a_dead_job_is_redriven_with_another_payload(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["dead_letters", "reschedule"]) as [queue]:
            dead = await self.dead_job(queue, "a")
            with pytest.raises(InvalidJobError, match="give its job_id"):
                await queue.redrive(payload=b"new")
            with pytest.raises(InvalidJobError):
                await queue.redrive(dead.id, payload=bytes(1 << 26))
            assert await queue.redrive(dead.id, payload=b"new") == 1
            [job] = await queue.dequeue()
            assert (job.id, job.payload, job.encoding, job.failures) == (dead.id, b"new", dead.encoding, 1)

    async def test_redriven_jobs_become_ready_after_a_delay(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["dead_letters", "delay", "reschedule"]) as [queue]:
            dead = [await self.dead_job(queue, name) for name in ("a", "b")]
            assert await queue.redrive(delay=HOUR) == 2
            first, second = [await self.held(queue, job) for job in dead]
            assert first.run_at is not None
            assert second.run_at is not None
            assert second.run_at == first.run_at
            assert await queue.dequeue() == []
            ready = await queue.reschedule(first.id, delay=0)
            assert ready.queued_at is not None
            assert ready.queued_at >= first.created_at
            assert ids(await queue.dequeue(batch_size=9)) == [first.id]

    async def test_a_job_that_waits_may_be_put_off(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["reschedule", "delay"]) as [queue, operator]:
            first, second = [await queue.enqueue("work", b"payload") for _ in range(2)]
            later = await operator.reschedule(first.id, delay=HOUR)
            assert later == await self.held(queue, first)
            assert later.run_at is not None
            assert later.run_at >= first.created_at + HOUR - timedelta(seconds=2)  # the two clocks may differ
            assert later.evolve(run_at=None) == first
            assert ids([second]) == ids(await queue.dequeue("work", batch_size=9))
            assert (await operator.stats()).scheduled == 1
