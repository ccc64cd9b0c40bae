"""Limits common to all consumers: pauses, ceilings, rates, concurrency keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from jqueue.domain.models import Job
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

    async def test_a_limit_can_be_raised_lowered_replaced_and_taken_away(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits"]) as [queue, operator]:
            enqueued, claimed = await self.several(queue, 8), []
            for running, count in ((1, 1), (3, 3), (2, 3)):
                await operator.limit("work", running=running)
                claimed += await queue.dequeue("work", batch_size=9)
                assert ids(claimed) == enqueued[:count]
            await queue.ack_many(claimed)
            await operator.limit("work", rate=1, per=HOUR)
            assert ids(await queue.dequeue("work", batch_size=9)) == enqueued[3:4]
            await operator.limit("work")
            assert ids(await queue.dequeue("work", batch_size=9)) == enqueued[4:]

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


class ConcurrencyContract(QueueContractBase):
    """A job is claimed while fewer jobs with its key are in progress than it allows. Until then others go first."""

    async def test_jobs_that_share_a_key_run_one_after_another_over_all_entrypoints(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, ["limits"]) as [queue, other]:
            names = ["a", "b", "a", "c"]
            enqueued = [await self.keyed(queue, name) for name in names]
            for number, name in enumerate(names):
                [job] = await queue.dequeue(batch_size=9)
                assert (job.id, job.entrypoint, job.concurrency_key) == (enqueued[number], name, "the-key")
                for sought in (None, "a", ["a", "b", "c"]):
                    assert await other.dequeue(sought, batch_size=9) == []
                await other.ack(job)

    async def test_of_differing_limits_each_job_goes_by_its_own(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits"]) as [queue]:
            limits = [1, 3, 1, 3, 3, 2]
            enqueued = [await self.keyed(queue, limit=limit) for limit in limits]
            claimed = await queue.dequeue(batch_size=9)
            assert ids(claimed) == [enqueued[0], enqueued[1], enqueued[3]]
            await queue.ack(claimed[0])
            [fifth] = await queue.dequeue(batch_size=9)
            assert fifth.id == enqueued[4], "with two in progress, only the limit of 3 has room"
            await queue.ack_many([claimed[1], claimed[2]])
            [last] = await queue.dequeue(batch_size=9)
            assert last.id == enqueued[5], "with one in progress, the limit of 2 has room"
            await queue.ack_many([fifth, last])
            assert ids(await queue.dequeue(batch_size=9)) == [enqueued[2]]
