"""Cancelling jobs in progress: the holder is told at its next heartbeat, and the job leaves when its claim ends."""

from __future__ import annotations

import pytest

from jqueue.domain.errors import ClaimLostError, JobCancelledError, JobNotFoundError, JobStateError
from jqueue.domain.models import JobStatus
from jqueue.testing.queue_contract import HOUR, QueueContractBase, QueueFactory, ids


class StoppingContract(QueueContractBase):
    """A holder that is told to stop keeps its claim until it ends it. Then the job is gone, or finished by an ack."""

    @pytest.mark.parametrize("ending", ["nack", "delay", "dead", "uncharged", "bare id"])
    async def test_a_cancelled_job_leaves_when_its_holder_gives_it_back(
        self, make_queue: QueueFactory, ending: str
    ) -> None:
        needs = {"delay": ["delay"], "dead": ["dead_letters"], "uncharged": ["uncharged"]}.get(ending, [])
        async with self.queues(make_queue, 2, ["cancel_running", *needs]) as [queue, operator]:
            job = await self.one_job(queue)
            await operator.cancel(job.id, running=True)
            if ending == "delay":
                await queue.nack(job, delay=HOUR)
            elif ending == "dead":
                await queue.nack(job, dead=True)
            elif ending == "uncharged":
                await queue.nack(job, charge=False)
            else:
                await queue.nack(job.id if ending == "bare id" else job)
            assert await self.find(operator, job) is None
            assert await queue.dequeue() == []
            with pytest.raises(ClaimLostError):
                await queue.ack(job)

    async def test_the_holder_may_give_a_cancelled_job_back_after_it_was_told(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["cancel_running", "heartbeat"]) as [queue, operator]:
            jobs = [await self.one_job(queue) for _ in range(3)]
            for job in jobs:
                await operator.cancel(job.id, running=True)
            with pytest.raises(JobCancelledError):
                await queue.heartbeat(jobs[0])
            await queue.nack(jobs[0].id)
            assert len(await queue.heartbeat_many(jobs[1:])) == 2
            assert await queue.nack_many(jobs[1:]) == []
            assert (await queue.read_state()).jobs == ()

    async def test_an_ack_finishes_a_cancelled_job(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["cancel_running", "results"]) as [queue, operator]:
            job = await self.one_job(queue, keep_result=HOUR)
            await operator.cancel(job.id, running=True)
            await queue.ack(job, result="done all the same")
            assert await operator.result(job) == "done all the same"
            kept = await self.held(queue, job)
            assert (kept.status, kept.cancel_requested) == (JobStatus.COMPLETED, False)

    async def test_a_cancelled_job_leaves_when_its_claim_is_revoked(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["cancel_running", "fencing"]) as [queue, operator]:
            job = await self.one_job(queue)
            await operator.cancel(job.id, running=True)
            assert await operator.requeue_stale(0) == 1
            assert await self.find(queue, job) is None
            with pytest.raises(ClaimLostError) as raised:
                await queue.ack(job)
            assert not isinstance(raised.value, JobCancelledError)

    async def test_a_cancelled_job_leaves_when_its_claim_gets_stale(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["cancel_running", "claim_timeout", "wait"]) as [queue, operator]:
            await queue.enqueue("work", b"payload")
            [job] = await queue.dequeue("work", claim_timeout=self.moment)
            await operator.cancel(job.id, running=True)

            async def is_gone() -> bool:
                assert await operator.dequeue("work") == [], "a cancelled job was served again"
                return await self.find(operator, job) is None

            await self.until(is_gone)

    async def test_a_cancelled_job_holds_its_key_until_it_leaves(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["cancel_running", "unique_keys"]) as [queue, operator]:
            job = await self.one_job(queue, unique_key="the-key", unique_for=HOUR)
            await operator.cancel(job.id, running=True)
            assert (await queue.enqueue("work", b"payload", unique_key="the-key")).id == job.id
            await queue.nack(job)
            new = await queue.enqueue("work", b"payload", unique_key="the-key", on_conflict="raise")
            assert [new.id] == ids(await queue.dequeue())

    async def test_a_cancelled_jobs_id_is_free_again_when_it_has_left(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["cancel_running", "job_ids", "fencing"]) as [queue, operator]:
            first = await self.one_job(queue, job_id="the-id")
            await operator.cancel("the-id", running=True)
            await queue.nack(first)
            again = await self.one_job(queue, job_id="the-id")
            assert again.attempt > first.attempt, "the attempt must grow, or an old claim would be valid again"
            assert again.cancel_requested is False
            await queue.ack(again)

    async def test_cancelling_twice_is_cancelling_once(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["cancel_running"]) as [queue, operator]:
            job = await self.one_job(queue)
            told = await operator.cancel(job.id, running=True)
            before = await self.fingerprint(queue)
            assert told == await queue.cancel(job.id, running=True)
            assert before == await self.fingerprint(queue)
            with pytest.raises(JobStateError, match="in_progress"):
                await operator.cancel(job.id)

    async def test_a_job_that_nobody_claimed_leaves_at_once(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["cancel_running"]) as [queue, operator]:
            job = await queue.enqueue("work", b"payload")
            assert job == await operator.cancel(job.id, running=True)
            assert await self.find(queue, job) is None
            with pytest.raises(JobNotFoundError, match=job.id):
                await operator.cancel(job.id, running=True)

    async def test_what_is_dead_or_finished_cannot_be_cancelled(self, make_queue: QueueFactory) -> None:
        needs = ["cancel_running", "dead_letters", "results"]
        async with self.queues(make_queue, 1, needs) as [queue]:
            dead = await self.one_job(queue)
            await queue.nack(dead, dead=True)
            done = await self.one_job(queue, keep_result=HOUR)
            await queue.ack(done)
            before = await self.fingerprint(queue)
            for job, status in ((dead, "dead"), (done, "completed")):
                with pytest.raises(JobStateError, match=status):
                    await queue.cancel(job.id, running=True)
            assert before == await self.fingerprint(queue)
