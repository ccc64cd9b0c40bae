"""Jobs that are given back: when they are tried again, when they are dead, and how operators can act on them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jqueue.domain.errors import ClaimLostError, DuplicateJobError, JobNotFoundError, JobStateError
from jqueue.domain.models import JobStatus
from jqueue.testing.queue_contract import HOUR, QueueContractBase, QueueFactory, ids

ERRORS: list[tuple[Any, str]] = [
    ("a text", "a text"),
    (ValueError("no such image"), "ValueError: no such image"),
    (TimeoutError(), "TimeoutError: "),
    ("x" * 5000, "x" * 2048),
    ("é" * 5000, "é" * 1024),
    ("a" + "é" * 5000, "a" + "é" * 1023),
    ("a lone \udc80", "a lone ?"),
]


class RetriesContract(QueueContractBase):
    """A job given back is tried again, behind its equals, until its attempts are spent. Then operators decide."""

    async def test_a_job_given_back_goes_behind_its_equals(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue) as [queue]:
            enqueued = [(await queue.enqueue("work", b"%d" % number)).id for number in range(3)]
            [job] = await queue.dequeue()
            await queue.nack(job)
            assert [*enqueued[1:], enqueued[0]] == ids(await queue.dequeue(batch_size=9))

    async def test_a_job_given_back_keeps_its_priority(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["priority"]) as [queue]:
            urgent = await queue.enqueue("work", b"urgent", -1)
            await queue.enqueue("work", b"payload")
            [job] = await queue.dequeue()
            await queue.nack(job)
            assert [urgent.id] == ids(await queue.dequeue())

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

    async def test_a_nack_may_say_when_to_try_again(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["delay", "wait"]) as [queue]:
            job = await self.one_job(queue)
            await queue.nack(job, delay=HOUR)
            assert await queue.dequeue() == []
            assert (await queue.stats()).scheduled == 1
            await queue.cancel(job.id)
            job = await self.one_job(queue)
            await queue.nack(job, delay=timedelta(seconds=self.moment))
            assert [job.id] == ids(await queue.dequeue(wait=self.patience))

    @pytest.mark.parametrize(("error", "kept"), ERRORS, ids=lambda value: repr(value)[:20])
    async def test_a_nack_keeps_its_error_cut_at_two_kibibytes(
        self, make_queue: QueueFactory, error: BaseException | str, kept: str
    ) -> None:
        async with self.queues(make_queue, 2, ["errors"]) as [queue, other]:
            job = await self.one_job(queue)
            await queue.nack(job, error=error)
            assert kept == (await self.held(other, job)).error
            [again] = await other.dequeue()
            assert kept == again.error, "the next claim must show the last error"

    async def test_a_nack_without_an_error_leaves_the_last_one(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["errors"]) as [queue]:
            job = await self.one_job(queue)
            await queue.nack(job, error="the first")
            [job] = await queue.dequeue()
            await queue.nack(job)
            assert (await self.held(queue, job)).error == "the first"

    async def test_a_job_without_max_attempts_is_tried_for_ever(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue) as [queue]:
            enqueued = await queue.enqueue("work", b"payload")
            for _ in range(8):
                [job] = await queue.dequeue()
                assert enqueued.id == job.id
                await queue.nack(job)

    async def test_a_nack_may_say_that_a_job_shall_not_be_tried_again(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["dead_letters", "errors"]) as [queue]:
            job = await self.one_job(queue, max_attempts=100)
            await queue.nack(job, dead=True, error="it is not an image")
            dead = await self.held(queue, job)
            assert (dead.status, dead.error) == (JobStatus.DEAD, "it is not an image")

    async def test_a_dead_job_is_redriven_with_its_failures_forgotten(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["dead_letters", "fencing"]) as [queue, operator]:
            dead = await self.dead_job(queue, max_attempts=1)
            behind = await queue.enqueue("work", b"payload")
            assert await operator.redrive(dead.id) == 1
            redriven = await self.held(queue, dead)
            assert (redriven.status, redriven.failures, redriven.dead_at) == (JobStatus.QUEUED, 0, None)
            assert redriven.attempt == dead.attempt
            assert [behind.id, dead.id] == ids(await queue.dequeue(batch_size=9))

    async def test_only_a_dead_job_can_be_redriven(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["dead_letters"]) as [queue]:
            queued = await queue.enqueue("work", b"payload")
            before = await self.fingerprint(queue)
            with pytest.raises(JobStateError, match="queued") as raised:
                await queue.redrive(queued.id)
            assert (raised.value.job_id, raised.value.status) == (queued.id, "queued")
            with pytest.raises(JobNotFoundError, match="no-such-job"):
                await queue.redrive("no-such-job")
            assert before == await self.fingerprint(queue)

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

    async def test_of_dead_jobs_with_one_key_one_is_redriven_and_the_others_are_named(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 1, ["dead_letters", "unique_keys"]) as [queue]:
            dead = [await self.dead_job(queue, unique_key="the-key") for _ in range(3)]
            redriven = await queue.redrive()
            assert (redriven, redriven.left) == (1, {job.id: dead[0].id for job in dead[1:]})
            assert [dead[0].id] == ids(await queue.dequeue(batch_size=9))

    async def test_purge_may_spare_what_is_young(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["dead_letters"]) as [queue]:
            for moments in (2, 6, 18):  # a program that stands still for that long before its purge proves nothing
                age = timedelta(seconds=moments * self.moment)
                dead = await self.dead_job(queue)
                assert dead.dead_at is not None
                await self.until_after(queue, dead.dead_at + age)
                young = await self.dead_job(queue)
                purged = await queue.purge(older_than=age)
                if purged == 1:
                    break
            assert purged == 1
            assert await self.find(queue, dead) is None
            assert await self.find(queue, young) is not None

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

    async def test_an_operator_can_revoke_claims_older_than_a_time(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["fencing"]) as [queue, operator]:
            job = await self.one_job(queue)
            assert await operator.requeue_stale(HOUR) == 0
            assert await operator.requeue_stale(0) == 1
            assert await operator.requeue_stale(0) == 0
            with pytest.raises(ClaimLostError):
                await queue.ack(job)
            [again] = await operator.dequeue()
            assert (again.id, again.attempt, again.failures) == (job.id, 2, 2)

    async def test_a_revoked_claim_counts_as_a_failure(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["dead_letters"]) as [queue]:
            job = await self.one_job(queue, max_attempts=1)
            assert await queue.requeue_stale(0) == 1
            assert (await self.held(queue, job)).status is JobStatus.DEAD
