"""Named claims, which can be found again by their name, and claims restricted to jobs that existed at some moment."""

from __future__ import annotations

from typing import Any

import pytest

from jqueue.domain.errors import ClaimLostError, InvalidJobError
from jqueue.domain.models import Claim, Job, JobStatus
from jqueue.domain.operations import Ack, Dequeue
from jqueue.ports.queue import JobQueue
from jqueue.testing.queue_contract import QueueContractBase, QueueFactory, ids

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
            texts = [
                "ValueError: no 3",
                "ValueError: no 4",
                "ValueError: no 5",
                dead.errors[3].text,
                "ValueError: no 7",
            ]
            assert [(error.attempt, error.text) for error in dead.errors] == list(enumerate(texts, 3))
            assert "stale" in dead.errors[3].text
            assert dead.errors[4].at == dead.dead_at
            assert dead.error == "ValueError: no 7"
            await operator.redrive(dead.id)
            [again] = await queue.dequeue("work")
            assert again.errors == dead.errors

    async def test_a_heartbeat_keeps_the_holder(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, (*NEEDS, "heartbeat")) as [queue]:
            await queue.enqueue("work", b"")
            [job] = await self.claim(queue, holder="me")
            await queue.heartbeat(job)
            assert (await self.held(queue, job)).holder == "me"

    async def test_every_end_of_a_claim_ends_the_holder(self, make_queue: QueueFactory) -> None:
        needs = (*NEEDS, "uncharged", "dead_letters", "results", "fencing")
        async with self.queues(make_queue, 2, needs) as [queue, operator]:
            for _ in range(5):
                await queue.enqueue("work", b"", keep_result=3600)
            nacked, back, dead, acked, stale = await self.claim(queue, batch_size=5, holder="me")
            await queue.nack(nacked)
            await queue.nack(back, charge=False)
            await queue.nack(dead, dead=True)
            await queue.ack(acked, result=1)
            assert ids(await self.held_under(operator, "me")) == [stale.id]
            await operator.requeue_stale(0)
            await operator.redrive(dead.id)
            assert await self.held_under(operator, "me") == []
            queued = [job for job in (await queue.read_state()).jobs if job.status is JobStatus.QUEUED]
            assert {(job.claimed_at, job.queued_at is None) for job in queued} == {(None, False)}
            claimed = await self.claim(operator, batch_size=9, holder="another")
            assert {job.holder for job in claimed} == {"another"}
            assert len(claimed) == 4

    async def test_a_job_to_be_stopped_keeps_its_holder_until_the_claim_ends(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, (*NEEDS, "cancel_running")) as [queue, operator]:
            await queue.enqueue("work", b"")
            [job] = await self.claim(queue, holder="me")
            await operator.cancel(job.id, running=True)
            assert ids(await self.held_under(operator, "me")) == [job.id]
            await queue.nack(job)
            assert await self.find(operator, job) is None

    async def test_only_jobs_up_to_a_place_are_claimed(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, (*NEEDS, "priority")) as [queue, other]:
            first = await queue.enqueue("work", b"1")
            second = await other.enqueue("work", b"2")
            urgent = await other.enqueue("work", b"urgent", -5)
            bound = (await self.held(queue, second)).sequence
            assert ids(await self.claim(queue, batch_size=9, through=bound)) == [first.id, second.id]
            assert await self.claim(queue, batch_size=9, through=bound) == []
            assert ids(await self.claim(other, None, batch_size=9)) == [urgent.id]

    async def test_acks_and_the_next_claim_are_one_commit(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            for number in range(4):
                await queue.enqueue("work", b"%d" % number)
            before = (await queue.read_state()).version
            claimed = await self.claim(queue, batch_size=2, holder="me")
            *nothing, more = await queue.apply_each(
                *(Ack(job) for job in claimed), Dequeue("work", batch_size=2, holder="me")
            )
            assert nothing == [None, None]
            assert [job.payload for job in more] == [b"2", b"3"]
            assert (await queue.read_state()).version == before + 2

    async def test_wrong_names_and_places_are_refused(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            await queue.enqueue("work", b"")
            for wrong in ({"holder": ""}, {"holder": "a\nb"}, {"holder": 5}, {"through": -1}, {"through": "1"}):
                with pytest.raises(InvalidJobError):
                    await self.claim(queue, **wrong)
