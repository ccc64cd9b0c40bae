"""Limits of one entrypoint, common to all consumers: pauses, ceilings of running jobs, rates."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from jqueue.domain.models import Job, JobStatus
from jqueue.domain.operations import Enqueue, SetLimits
from jqueue.ports.queue import JobQueue
from jqueue.testing.queue_contract import HOUR, QueueContractBase, QueueFactory, ids

Ending = Callable[[JobQueue, Job], Awaitable[object]]


async def cancelled(queue: JobQueue, job: Job) -> None:
    """Cancel a job in progress, and have its holder nack it."""
    await queue.cancel(job.id, running=True)
    await queue.nack(job)


ENDINGS: dict[str, tuple[list[str], Ending]] = {
    "ack": ([], lambda queue, job: queue.ack(job)),
    "an ack with a result": (["results"], lambda queue, job: queue.ack(job, result=1)),
    "nack": ([], lambda queue, job: queue.nack(job)),
    "nack with a delay": (["delay"], lambda queue, job: queue.nack(job, delay=HOUR)),
    "death": (["dead_letters"], lambda queue, job: queue.nack(job, dead=True)),
    "hand back": (["uncharged"], lambda queue, job: queue.nack(job, charge=False)),
    "revoke": (["fencing"], lambda queue, job: queue.requeue_stale(0)),
    "cancel": (["cancel_running"], cancelled),
}
"""Ways in which a claim ends, each with the capabilities that it needs."""

SOUGHT: dict[str, str | Sequence[str] | None] = {
    "all": None,
    "one name": "work",
    "several names": ["other", "work"],
    "several names as a tuple": ("work", "nobody"),
}

by_every_ending = pytest.mark.parametrize("ending", ENDINGS)
by_everything_sought = pytest.mark.parametrize("sought", SOUGHT.values(), ids=SOUGHT)


class LimitsContract(QueueContractBase):
    """A limit holds at every commit, for every consumer. A job held back keeps its place, and no other job waits."""

    # Pauses

    @by_everything_sought
    async def test_no_job_of_a_paused_entrypoint_is_claimed_until_it_is_resumed(
        self, make_queue: QueueFactory, sought: str | Sequence[str] | None
    ) -> None:
        async with self.queues(make_queue, 2, ["limits"]) as [queue, operator]:
            enqueued = await self.several(queue, 2)
            await operator.pause("work")
            assert await queue.dequeue(sought, batch_size=9) == []
            enqueued += await self.several(queue, 1)
            await operator.resume("work")
            assert enqueued == ids(await queue.dequeue(sought, batch_size=9))

    async def test_a_pause_holds_back_no_other_entrypoint_and_no_job_in_progress(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 1, ["limits"]) as [queue]:
            claimed = await self.one_job(queue)
            await queue.pause("work")
            await self.several(queue, 1)
            others = await self.several(queue, 2, "other")
            assert others[:1] == ids(await queue.dequeue())
            assert others[1:] == ids(await queue.dequeue(["work", "other"], batch_size=9))
            await queue.ack(claimed)
            assert await queue.dequeue() == []

    async def test_a_waiting_dequeue_is_answered_when_its_entrypoint_is_resumed(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits", "wait"]) as [queue, operator]:
            await operator.pause("work")
            enqueued = await self.several(queue, 1)
            waiting = asyncio.create_task(queue.dequeue("work", wait=self.patience))
            await asyncio.wait([waiting], timeout=self.moment)
            assert not waiting.done(), "the dequeue ignored the pause"
            await operator.resume("work")
            assert enqueued == ids(await waiting)

    async def test_what_is_set_already_is_not_written_again(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits"]) as [queue, operator]:
            await queue.pause("work")
            await queue.limit("other", running=3, rate=5, per=60)
            await queue.configure(aging=60)
            before = await self.fingerprint(queue)
            for asked in (queue, operator):
                await asked.pause("work")
                await asked.limit("other", running=3, rate=5, per=timedelta(minutes=1))
                await asked.resume("nobody")
                await asked.limit("nobody")
                assert (await asked.configure(aging=timedelta(minutes=1))).aging == 60
                assert (await asked.configure()).aging == 60
            assert before == await self.fingerprint(queue)

    async def test_a_pause_outlasts_a_change_of_limits(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits"]) as [queue]:
            enqueued = await self.several(queue, 3)
            await queue.pause("work")
            await queue.limit("work", running=2)
            assert await queue.dequeue("work", batch_size=9) == []
            await queue.resume("work")
            assert enqueued[:2] == ids(await queue.dequeue("work", batch_size=9)), "the resume removed the limits"

    # Ceilings

    @by_everything_sought
    async def test_no_more_jobs_of_an_entrypoint_are_in_progress_than_its_ceiling(
        self, make_queue: QueueFactory, sought: str | Sequence[str] | None
    ) -> None:
        async with self.queues(make_queue, 2, ["limits"]) as [queue, operator]:
            await operator.limit("work", running=2)
            enqueued = await self.several(queue, 5)
            claimed = await queue.dequeue(sought, batch_size=9)
            assert enqueued[:2] == ids(claimed)
            assert await operator.dequeue(sought, batch_size=9) == []
            await operator.ack(claimed[0])
            assert enqueued[2:3] == ids(await operator.dequeue(sought, batch_size=9))

    async def test_workers_that_come_and_go_never_pass_a_ceiling(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 3, ["limits", "wait"]) as [observer, *queues]:
            await observer.limit("work", running=3)
            left = set(await self.several(observer, 12))

            async def work(queue: JobQueue) -> None:
                while left:
                    for job in await queue.dequeue("work", batch_size=2, wait=self.moment):
                        left.discard(job.id)
                        await queue.ack(job)

            async def observe() -> None:
                while left:
                    running = (await observer.read_state()).in_progress_jobs()
                    assert len(running) <= 3, "more jobs ran than the limit allows"
                    await asyncio.sleep(0)

            await asyncio.gather(observe(), *(work(queue) for queue in queues for _ in range(2)))

    @by_every_ending
    async def test_a_place_under_a_ceiling_is_free_when_a_claim_ends(
        self, make_queue: QueueFactory, ending: str
    ) -> None:
        needs, end = ENDINGS[ending]
        async with self.queues(make_queue, 2, ["limits", *needs]) as [queue, other]:
            await queue.limit("work", running=1)
            options: dict[str, Any] = {"keep_result": HOUR} if "results" in needs else {}
            enqueued = [(await queue.enqueue("work", b"%d" % number, **options)).id for number in range(3)]
            [job] = await queue.dequeue("work", batch_size=9)
            assert await other.dequeue(batch_size=9) == []
            await end(queue, job)
            assert ids(await other.dequeue(batch_size=9)) == [enqueued[0 if ending == "hand back" else 1]]
            assert await queue.dequeue(batch_size=9) == []

    async def test_a_place_under_a_ceiling_is_free_when_a_claim_gets_stale(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits", "claim_timeout", "wait"]) as [queue, other]:
            await queue.limit("work", running=1)
            _, second = await self.several(queue, 2)
            [_] = await queue.dequeue("work", batch_size=9, claim_timeout=timedelta(seconds=self.moment))
            assert [second] == ids(await other.dequeue("work", batch_size=9, wait=self.patience))

    async def test_jobs_at_their_ceiling_hold_back_no_others_and_keep_their_order(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 1, ["limits", "priority"]) as [queue]:
            await queue.limit("work", running=1)
            first, second, third = await self.several(queue, 3)
            others = await self.several(queue, 3, "other")
            urgent = (await queue.enqueue("work", b"urgent", -1)).id
            claimed = await queue.dequeue(batch_size=3)
            assert ids(claimed) == [urgent, *others[:2]]
            assert ids(await queue.dequeue(batch_size=3)) == others[2:]
            served = []
            for _ in range(3):
                await queue.ack(claimed[0])
                claimed = await queue.dequeue(batch_size=3)
                served += ids(claimed)
            assert served == [first, second, third]

    async def test_a_limit_can_be_raised_lowered_and_taken_away(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits"]) as [queue, operator]:
            enqueued = await self.several(queue, 8)
            await operator.limit("work", running=1)
            claimed = await queue.dequeue("work", batch_size=9)
            await operator.limit("work", running=3)
            claimed += await queue.dequeue("work", batch_size=9)
            assert ids(claimed) == enqueued[:3]
            await operator.limit("work", running=2)
            await queue.ack(claimed[0])
            assert await queue.dequeue("work", batch_size=9) == [], (
                "two jobs are still in progress, as many as the limit allows"
            )
            await queue.ack(claimed[1])
            assert ids(await queue.dequeue("work", batch_size=9)) == enqueued[3:4]
            await operator.limit("work", rate=1, per=HOUR)
            assert ids(await queue.dequeue("work", batch_size=9)) == enqueued[4:5], (
                "a new limit must replace the old ones"
            )
            await operator.limit("work")
            assert ids(await queue.dequeue("work", batch_size=9)) == enqueued[5:]

    async def test_jobs_in_progress_before_a_limit_was_set_count(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits"]) as [queue, operator]:
            enqueued = await self.several(queue, 4)
            claimed = await queue.dequeue("work", batch_size=2)
            await operator.limit("work", running=2)
            assert await queue.dequeue(batch_size=9) == []
            await queue.ack(claimed[1])
            assert ids(await queue.dequeue(batch_size=9)) == enqueued[2:3]

    async def test_a_purge_of_waiting_jobs_leaves_a_limit_as_it_is(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits", "dead_letters"]) as [queue]:
            await queue.limit("work", running=1)
            await self.several(queue, 3)
            [job] = await queue.dequeue("work", batch_size=9)
            assert await queue.purge(status=JobStatus.QUEUED) == 2
            new = await self.several(queue, 2)
            assert await queue.dequeue(batch_size=9) == []
            await queue.ack(job)
            assert ids(await queue.dequeue(batch_size=9)) == new[:1]

    async def test_limits_are_set_together_with_other_things_or_not_at_all(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits", "transactions", "unique_keys"]) as [queue]:
            await queue.enqueue("work", b"payload", unique_key="the-key")
            taken = Enqueue("work", b"payload", unique_key="the-key", on_conflict="raise")
            before = await self.fingerprint(queue)
            with pytest.raises(Exception, match="the-key"):
                await queue.apply(SetLimits("work", running=1), taken)
            assert before == await self.fingerprint(queue)
            await self.several(queue, 2)
            assert len(await queue.dequeue("work", batch_size=9)) == 3, "a refused limit held jobs back"

    # Rates

    @by_everything_sought
    async def test_no_more_jobs_are_claimed_than_the_rate_allows(
        self, make_queue: QueueFactory, sought: str | Sequence[str] | None
    ) -> None:
        async with self.queues(make_queue, 2, ["limits"]) as [queue, other]:
            await queue.limit("work", rate=3, per=HOUR)
            enqueued = await self.several(queue, 5)
            claimed = await queue.dequeue(sought, batch_size=2)
            await queue.ack(claimed[0])
            claimed += await other.dequeue(sought, batch_size=9)
            assert ids(claimed) == enqueued[:3]
            await other.ack(claimed[1])
            await other.nack(claimed[2])
            assert await queue.dequeue(sought, batch_size=9) == [], "an ended claim must still count for the rate"

    async def test_a_rate_is_not_passed_in_any_window_and_waiting_dequeues_wake(self, make_queue: QueueFactory) -> None:
        rate, per = 3, timedelta(seconds=3 * self.moment)
        async with self.queues(make_queue, 2, ["limits", "wait"]) as queues:
            await queues[0].limit("work", rate=rate, per=per)
            count = 4 * rate
            await self.several(queues[0], count)
            times: list[datetime] = []

            async def work(queue: JobQueue, batch_size: int) -> None:
                while len(times) < count:
                    jobs = await queue.dequeue("work", batch_size=batch_size, wait=4 * per)
                    times.extend(job.heartbeat_at for job in jobs if job.heartbeat_at is not None)
                    for job in jobs:
                        await queue.ack(job)

            workers = [asyncio.create_task(work(queue, size)) for queue in queues for size in (1, 2)]
            await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
            for worker in workers:  # the others would wait long for more jobs
                worker.cancel()
            for outcome in await asyncio.gather(*workers, return_exceptions=True):
                assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome
            times.sort()
            assert len(times) == count
            for first, last in zip(times, times[rate:], strict=False):
                assert last - first >= per, f"more than {rate} claims within {per}"

    async def test_a_rate_and_a_ceiling_hold_together(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits"]) as [queue]:
            await queue.limit("work", running=2, rate=3, per=HOUR)
            enqueued = await self.several(queue, 9)
            others = await self.several(queue, 2, "other")
            claimed = await queue.dequeue(batch_size=9)
            assert ids(claimed) == [*enqueued[:2], *others]
            await queue.ack_many(claimed)
            assert Counter(job.entrypoint for job in await queue.dequeue(batch_size=9)) == {"work": 1}
