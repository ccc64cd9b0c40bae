"""Claims: which callers may ack, nack and heartbeat a job, and which error the others get."""

from __future__ import annotations

import itertools

import pytest

from jqueue.domain.errors import ClaimLostError, JobNotFoundError
from jqueue.domain.operations import Ack, Enqueue
from jqueue.testing.queue_contract import (
    REFERENCES,
    VERBS,
    QueueContractBase,
    QueueFactory,
    Reference,
    by_every_reference,
    by_every_verb,
)


class ClaimsContract(QueueContractBase):
    """Only the holder of a job's current claim ends or prolongs it. Former holders get an error and change nothing."""

    @by_every_reference
    async def test_a_claim_is_ended_by_job_by_claim_or_by_bare_id(
        self, make_queue: QueueFactory, refer: Reference
    ) -> None:
        async with self.queues(make_queue, 1, ["fencing"]) as [queue]:
            job = await self.one_job(queue)
            await queue.nack(refer(job))
            [job] = await queue.dequeue()
            await queue.ack(refer(job))
            assert await self.find(queue, job) is None

    @by_every_reference
    async def test_a_heartbeat_is_recorded_with_the_job(self, make_queue: QueueFactory, refer: Reference) -> None:
        async with self.queues(make_queue, 1, ["fencing", "heartbeat"]) as [queue]:
            job = await self.one_job(queue)
            beats = [job.heartbeat_at]
            for _ in range(3):
                await queue.heartbeat(refer(job))
                beats.append((await self.held(queue, job)).heartbeat_at)
            assert all(beat != last for last, beat in itertools.pairwise(beats)), "a heartbeat did not change the job"
            await queue.ack(job)

    @by_every_verb
    async def test_a_bare_id_is_no_claim_for_a_queue_object_that_did_not_hand_it_out(
        self, make_queue: QueueFactory, verb: str
    ) -> None:
        call, needs = self.verb(verb)
        async with self.queues(make_queue, 2, needs) as [queue, other]:
            job = await self.one_job(queue)
            before = await self.fingerprint(queue)
            with pytest.raises(ClaimLostError, match=job.id):
                await call(other, job.id)
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

    async def test_a_second_ack_by_bare_id_finds_no_job(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue) as [queue]:
            job = await self.one_job(queue)
            await queue.ack(job.id)
            with pytest.raises(JobNotFoundError) as raised:
                await queue.ack(job.id)
            assert not isinstance(raised.value, ClaimLostError)
            assert raised.value.job_id == job.id

    @by_every_verb
    async def test_a_bare_id_that_no_job_has_is_not_found(self, make_queue: QueueFactory, verb: str) -> None:
        call, needs = self.verb(verb)
        async with self.queues(make_queue, 1, needs) as [queue]:
            await queue.enqueue("work", b"payload")
            with pytest.raises(JobNotFoundError, match="no-such-job"):
                await call(queue, "no-such-job")

    @by_every_verb
    async def test_a_job_that_nobody_claimed_can_be_neither_ended_nor_kept_alive(
        self, make_queue: QueueFactory, verb: str
    ) -> None:
        call, needs = self.verb(verb)
        async with self.queues(make_queue, 1, needs) as [queue]:
            enqueued = await queue.enqueue("work", b"payload")
            for refer in REFERENCES.values():
                with pytest.raises(ClaimLostError):
                    await call(queue, refer(enqueued))
            assert enqueued == await self.find(queue, enqueued)

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

    async def test_a_claim_cannot_be_ended_twice(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["fencing"]) as [queue]:
            job = await self.one_job(queue)
            await queue.nack(job)
            for call in (queue.nack, queue.ack):
                with pytest.raises(ClaimLostError):
                    await call(job)
            [job] = await queue.dequeue()
            await queue.ack(job)
            with pytest.raises(ClaimLostError):
                await queue.nack(job)

    @pytest.mark.parametrize("verb", ["ack_many", "nack_many", "heartbeat_many"])
    async def test_of_many_claims_an_unknown_id_fails_alone(self, make_queue: QueueFactory, verb: str) -> None:
        async with self.queues(make_queue, 1, ["fencing", "heartbeat"]) as [queue]:
            held = [await self.one_job(queue) for _ in range(2)]
            errors = await getattr(queue, verb)([held[0], "no-such-job", held[1]])
            assert [(isinstance(error, JobNotFoundError), error.job_id) for error in errors] == [(True, "no-such-job")]
            state = await queue.read_state()
            assert all(job != state.find(job.id) for job in held), "a valid claim was skipped"

    @pytest.mark.parametrize("verb", ["ack_many", "nack_many", "heartbeat_many"])
    async def test_many_of_none_is_nothing(self, make_queue: QueueFactory, verb: str) -> None:
        async with self.queues(make_queue, 1, ["heartbeat"]) as [queue]:
            await queue.enqueue("work", b"payload")
            before = await self.fingerprint(queue)
            assert await getattr(queue, verb)([]) == []
            assert before == await self.fingerprint(queue)

    async def test_the_attempt_grows_with_every_claim_and_never_shrinks(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["fencing", "dead_letters", "uncharged"]) as [queue, other]:
            job = await self.one_job(queue)
            attempts = [job.attempt]
            for charge in (True, False, True):
                await queue.nack(job, charge=charge)
                [job] = await other.dequeue()
                attempts.append(job.attempt)
            await queue.nack(job, dead=True)
            assert await queue.redrive(job.id) == 1
            assert (await self.held(queue, job)).failures == 0
            [job] = await queue.dequeue()
            assert attempts == [1, 2, 3, 4]
            assert job.attempt == 5

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

    async def test_a_failed_apply_leaves_its_claims_as_they_were(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["fencing", "transactions"]) as [queue, other]:
            lost = await self.lost_claim(queue, other)
            assert len(await other.dequeue()) == 1
            job = await self.one_job(queue)
            with pytest.raises(ClaimLostError):
                await queue.apply(Ack(job), Enqueue("next", b"payload"), Ack(lost))
            assert job == await self.find(queue, job)
            await queue.ack(job.id)
