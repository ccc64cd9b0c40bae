"""Claims: who may end them, how they end, and what becomes of their jobs."""

from __future__ import annotations

from typing import Any

import pytest

from jqueue.domain.errors import (
    ClaimLostError,
    DuplicateJobError,
    InvalidJobError,
    JobNotFoundError,
    JobStateError,
)
from jqueue.domain.models import Claim, Job, JobStatus
from jqueue.domain.operations import Dequeue
from jqueue.ports.queue import JobQueue
from jqueue.testing.queue_contract import (
    HOUR,
    VERBS,
    QueueContractBase,
    QueueFactory,
    by_every_verb,
    ids,
)


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

    @pytest.mark.parametrize("ending", ["ack", "nack"])
    async def test_a_heartbeat_after_the_end_says_whether_the_claim_was_ended_here(
        self, make_queue: QueueFactory, ending: str
    ) -> None:
        async with self.queues(make_queue, 2, ["fencing", "heartbeat"]) as [queue, other]:
            job = await self.one_job(queue)
            await VERBS[ending](queue, job)
            for asked, ended_here in ((queue, True), (other, False), (queue, True)):
                with pytest.raises(ClaimLostError) as raised:
                    await asked.heartbeat(job)
                assert ended_here == raised.value.ended_here

    @pytest.mark.parametrize("leaving", ["cancel", "purge", "expiry"])
    async def test_an_old_claim_is_not_that_of_a_new_job_with_the_same_id(
        self, make_queue: QueueFactory, leaving: str
    ) -> None:
        needs = ["fencing", "job_ids", "dead_letters", "expiry"]
        async with self.queues(make_queue, 2, needs) as [queue, other]:
            old, expiry = await self.expiring_job(queue, job_id="the-id")
            await queue.nack(old, dead=leaving == "purge")
            if leaving == "cancel":
                await queue.cancel("the-id")
            elif leaving == "purge":
                assert await queue.purge() == 1
            else:
                await self.until_after(queue, expiry)
                await queue.dequeue("nobody")
            assert await self.find(queue, "the-id") is None
            await queue.enqueue("work", b"new", job_id="the-id")
            [new] = await other.dequeue("work")
            assert (new.id, new.payload) == ("the-id", b"new")
            assert new.attempt > old.attempt
            with pytest.raises(ClaimLostError):
                await queue.ack(old)
            await other.ack(new)


ERRORS: list[tuple[Any, str]] = [
    ("a text", "a text"),
    (ValueError("no such image"), "ValueError: no such image"),
    (TimeoutError(), "TimeoutError: "),
    ("x" * 5000, "x" * 2048),
    ("a" + "é" * 5000, "a" + "é" * 1023),
    ("a lone \udc80", "a lone ?"),
]


class RetriesContract(QueueContractBase):
    """A job given back is tried again, behind its equals, until its attempts are spent. Then operators decide."""

    async def test_a_job_handed_back_unharmed_keeps_its_place_and_its_failures(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["uncharged", "dead_letters"]) as [queue]:
            enqueued = [(await queue.enqueue("work", b"%d" % number, max_attempts=1)).id for number in range(3)]
            for attempt in (1, 2, 3):
                [job] = await queue.dequeue()
                assert (job.id, job.attempt, job.failures) == (enqueued[0], attempt, 1)
                await queue.nack(job, charge=False)
                handed_back = await self.held(queue, job)
                assert (handed_back.status, handed_back.attempt) == (JobStatus.QUEUED, attempt)
                assert handed_back.failures == 0
            assert enqueued == ids(await queue.dequeue(batch_size=9))

    async def test_a_nack_keeps_its_error_cut_at_two_kibibytes(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["errors"]) as [queue, other]:
            for error, kept in ERRORS:
                await queue.nack(await self.one_job(queue), error=error)
                [again] = await other.dequeue()
                assert kept == again.error, "the next claim must show the last error"
                await other.ack(again)

    async def test_a_dead_job_is_redriven_with_its_failures_forgotten(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["dead_letters", "fencing"]) as [queue, operator]:
            dead = await self.dead_job(queue, max_attempts=1)
            behind = await queue.enqueue("work", b"payload")
            assert await operator.redrive(dead.id) == 1
            redriven = await self.held(queue, dead)
            assert (redriven.status, redriven.failures, redriven.dead_at) == (JobStatus.QUEUED, 0, None)
            assert redriven.attempt == dead.attempt
            assert [behind.id, dead.id] == ids(await queue.dequeue(batch_size=9))

    async def test_a_redrive_onto_a_taken_key_is_refused(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["dead_letters", "unique_keys"]) as [queue]:
            dead = await self.dead_job(queue, unique_key="the-key")
            holder = await queue.enqueue("work", b"payload", unique_key="the-key")
            assert holder.id != dead.id, "a dead job must not hold its unique key"
            other = await self.dead_job(queue, "other")
            before = await self.fingerprint(queue)
            with pytest.raises(DuplicateJobError) as raised:
                await queue.redrive(dead.id)
            assert (raised.value.unique_key, raised.value.job_id) == ("the-key", holder.id)
            assert before == await self.fingerprint(queue)
            assert await queue.redrive() == 1, "redrive must queue the other dead job"
            assert (await self.held(queue, dead)).status is JobStatus.DEAD
            assert (await self.held(queue, other)).status is JobStatus.QUEUED
            await queue.cancel(holder.id)
            assert await queue.redrive(dead.id) == 1

    async def test_a_job_that_is_claimed_dead_or_gone_cannot_be_cancelled(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["dead_letters"]) as [queue]:
            dead = await self.dead_job(queue)
            claimed = await self.one_job(queue)
            before = await self.fingerprint(queue)
            for job, status in ((dead, "dead"), (claimed, "in_progress")):
                with pytest.raises(JobStateError, match=status) as raised:
                    await queue.cancel(job.id)
                assert (raised.value.job_id, raised.value.status) == (job.id, status)
            with pytest.raises(JobNotFoundError, match="no-such-job"):
                await queue.cancel("no-such-job")
            assert before == await self.fingerprint(queue)


class StoppingContract(QueueContractBase):
    """A holder that is told to stop keeps its claim until it ends it. Then the job is gone, or finished by an ack."""

    @pytest.mark.parametrize("options", [{}, {"delay": HOUR}, {"dead": True}, {"charge": False}], ids=str)
    async def test_a_cancelled_job_leaves_when_its_holder_gives_it_back(
        self, make_queue: QueueFactory, options: dict[str, Any]
    ) -> None:
        needs = ["cancel_running", "delay", "dead_letters", "uncharged"]
        async with self.queues(make_queue, 2, needs) as [queue, operator]:
            job = await self.one_job(queue)
            await operator.cancel(job.id, running=True)
            await queue.nack(job, **options)
            assert await self.find(operator, job) is None
            assert await queue.dequeue() == []
            with pytest.raises(ClaimLostError):
                await queue.ack(job)

    async def test_an_ack_finishes_a_cancelled_job(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["cancel_running", "results"]) as [queue, operator]:
            job = await self.one_job(queue, keep_result=HOUR)
            await operator.cancel(job.id, running=True)
            await queue.ack(job, result="done all the same")
            assert await operator.result(job) == "done all the same"
            kept = await self.held(queue, job)
            assert (kept.status, kept.cancel_requested) == (JobStatus.COMPLETED, False)


NEEDS = ("holders", "transactions")


class HoldersContract(QueueContractBase):
    """The queue shows a job's holder as long as the claim lasts, and no longer."""

    async def claim(self, queue: JobQueue, entrypoint: str | None = "work", **options: Any) -> list[Job]:
        """Claim jobs by an operation, since the verb `dequeue` has no option for a name."""
        [jobs] = await queue.apply(Dequeue(entrypoint, **options))
        assert isinstance(jobs, list)
        return jobs

    async def held_under(self, queue: JobQueue, name: str) -> list[Job]:
        """Return the jobs held under a name."""
        return [job for job in (await queue.read_state()).jobs if job.holder == name]

    async def test_who_lost_its_memory_finds_what_it_held(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, NEEDS) as [queue, later]:
            for _ in range(3):
                await queue.enqueue("work", b"payload")
            mine = await self.claim(queue, batch_size=2, holder="me, to be found again")
            await queue.dequeue("work")
            assert {job.holder for job in mine} == {"me, to be found again"}
            found = await self.held_under(later, "me, to be found again")
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

    async def test_the_errors_of_the_last_attempts_stay_with_the_job(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, (*NEEDS, "errors", "dead_letters", "fencing")) as [queue, operator]:
            await queue.enqueue("work", b"", max_attempts=7)
            for number in range(1, 8):
                [job] = await queue.dequeue("work")
                if number == 6:
                    await operator.requeue_stale(0)
                else:
                    await queue.nack(job, error=ValueError(f"no {number}"))
            [dead] = (await operator.read_state()).dead_jobs()
            assert [error.attempt for error in dead.errors] == [3, 4, 5, 6, 7]
            assert "stale" in dead.errors[3].text
            last = dead.errors[4]
            assert (last.text, last.at, dead.error) == ("ValueError: no 7", dead.dead_at, last.text)
            await operator.redrive(dead.id)
            [again] = await queue.dequeue("work")
            assert again.errors == dead.errors

    async def test_only_jobs_up_to_a_place_are_claimed(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, (*NEEDS, "priority")) as [queue, other]:
            first = await queue.enqueue("work", b"1")
            second = await other.enqueue("work", b"2")
            urgent = await other.enqueue("work", b"urgent", -5)
            bound = (await self.held(queue, second)).sequence
            assert ids(await self.claim(queue, batch_size=9, through=bound)) == [first.id, second.id]
            assert await self.claim(queue, batch_size=9, through=bound) == []
            assert ids(await self.claim(other, None, batch_size=9)) == [urgent.id]

    async def test_wrong_names_and_places_are_refused(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            await queue.enqueue("work", b"")
            for wrong in ({"holder": ""}, {"holder": "a\nb"}, {"holder": 5}, {"through": -1}, {"through": "1"}):
                with pytest.raises(InvalidJobError):
                    await self.claim(queue, **wrong)
