"""Claims: who may end them, and under which name they are held."""

from __future__ import annotations

from typing import Any

import pytest

from jqueue.domain.errors import ClaimLostError, JobCancelledError
from jqueue.domain.job import Claim, JobStatus
from jqueue.domain.models import Job
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.ports.queue import JobQueue
from jqueue.testing.queue_contract import QueueContractBase, QueueFactory, by_every_verb, ids


class ClaimsContract(QueueContractBase):
    """Only the holder of a job's current claim ends or prolongs it. Former holders get an error and change nothing."""

    @by_every_verb
    async def test_neither_a_bare_id_from_elsewhere_nor_a_job_that_nobody_claimed_is_a_claim(
        self, make_queue: QueueFactory, verb: str
    ) -> None:
        call, needs = self.verb(verb)
        async with self.queues(make_queue, 2, needs) as [queue, other]:
            job = await self.one_job(queue)
            unclaimed = await queue.enqueue("work", b"payload")
            before = await self.fingerprint(queue)
            with pytest.raises(ClaimLostError, match=job.id):
                await call(other, job.id)
            with pytest.raises(ClaimLostError):
                await call(queue, unclaimed)
            assert before == await self.fingerprint(queue)
            await call(queue, job.id)

    @by_every_verb
    async def test_while_two_claims_of_a_job_are_remembered_its_bare_id_names_neither(
        self, make_queue: QueueFactory, verb: str
    ) -> None:
        call, needs = self.verb(verb)
        async with self.queues(make_queue, 2, needs) as [queue, other]:
            lost = await self.lost_claim(queue, other)
            [current] = await queue.dequeue()
            assert (lost.id, lost.attempt + 1) == (current.id, current.attempt)
            before = await self.fingerprint(queue)
            for _ in range(2):  # asking again does not settle which of the two claims is meant
                with pytest.raises(ClaimLostError):
                    await call(queue, current.id)
            assert before == await self.fingerprint(queue)
            with pytest.raises(ClaimLostError):
                await call(queue, lost)
            await call(queue, current.id)  # the lost claim is known to be lost, so the id means the current one

    async def test_the_holder_of_a_cancelled_job_is_told_at_its_heartbeat(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["cancel_running", "heartbeat"]) as [queue, operator]:
            job, other = await self.one_job(queue), await self.one_job(queue)
            told = await operator.cancel(job.id, running=True)
            assert (told.id, told.status, told.cancel_requested) == (job.id, JobStatus.IN_PROGRESS, True)
            for _ in range(2):
                with pytest.raises(JobCancelledError, match=job.id) as raised:
                    await queue.heartbeat(job)
                assert (raised.value.job_id, raised.value.attempt) == (job.id, job.attempt)
                assert isinstance(raised.value, ClaimLostError)
            before = (await self.held(queue, job)).heartbeat_at
            [error] = await queue.heartbeat_many([other, job])
            assert isinstance(error, JobCancelledError)
            assert (await self.held(queue, job)).heartbeat_at != before, (
                "the heartbeat of a job to be cancelled must count"
            )
            await queue.heartbeat(other)


NEEDS = ("holders", "transactions")


class HoldersContract(QueueContractBase):
    """The queue shows a job's holder as long as the claim lasts, and no longer."""

    async def claim(self, queue: JobQueue, entrypoint: str | None = "work", **options: Any) -> list[Job]:
        """Claim jobs by an operation, since the verb `dequeue` has no option for a name."""
        [jobs] = await queue.apply(Dequeue(entrypoint, **options))
        assert isinstance(jobs, list)
        return jobs

    async def test_who_lost_its_memory_finds_what_it_held(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, NEEDS) as [queue, later]:
            for _ in range(3):
                await queue.enqueue("work", b"payload")
            mine = await self.claim(queue, batch_size=2, holder="me, to be found again")
            await queue.dequeue("work")
            assert {job.holder for job in mine} == {"me, to be found again"}
            found = [job for job in (await later.read_state()).jobs if job.holder == "me, to be found again"]
            assert sorted(ids(found)) == sorted(ids(mine))
            for job in found:
                await later.ack(job)
            assert len((await queue.read_state()).jobs) == 1

    async def test_a_claim_tells_who_holds_it_and_since_when(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, (*NEEDS, "heartbeat", "fencing")) as [queue, operator]:
            job = await self.one_job(queue)
            assert job.holder, "a claim that gives no name has the name of its queue object, or of its process"
            assert job.claimed_at == job.heartbeat_at
            await queue.heartbeat(job)
            held = await self.held(operator, job)
            assert (held.holder, held.claimed_at) == (job.holder, job.claimed_at)
            with pytest.raises(ClaimLostError) as lost:
                await operator.ack(Claim(job.id, job.attempt + 1))
            assert job.holder in str(lost.value)

    async def test_an_error_with_half_a_letter_is_kept_without_it(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["errors"]) as [queue]:
            await queue.nack(await self.one_job(queue), error="a lone \udc80")
            [again] = await queue.dequeue()
            assert again.error == "a lone ?"
