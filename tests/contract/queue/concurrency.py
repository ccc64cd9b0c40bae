"""Concurrency keys: jobs that share a key, of any entrypoint, run together only up to a ceiling."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from jqueue.domain.models import JobStatus
from jqueue.testing.queue_contract import HOUR, QueueContractBase, QueueFactory, ids
from tests.contract.queue.limits import ENDINGS, by_every_ending


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

    async def test_a_job_says_how_many_with_its_key_may_run(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits"]) as [queue]:
            enqueued = [await self.keyed(queue, limit=3) for _ in range(5)]
            claimed = await queue.dequeue(batch_size=9)
            assert ids(claimed) == enqueued[:3]
            await queue.ack(claimed[1])
            assert ids(await queue.dequeue(batch_size=9)) == enqueued[3:4]

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

    async def test_jobs_with_other_keys_or_none_are_not_held_back(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits"]) as [queue]:
            held = [await self.keyed(queue) for _ in range(3)]
            others = [
                await self.keyed(queue, concurrency_key="another"),
                (await queue.enqueue("work", b"payload")).id,
                await self.keyed(queue, concurrency_key="a third"),
            ]
            assert [held[0], *others] == ids(await queue.dequeue("work", batch_size=9))

    async def test_jobs_held_back_keep_their_order(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits", "priority"]) as [queue, other]:
            running = await self.keyed(queue)
            [job] = await queue.dequeue(batch_size=9)
            assert job.id == running
            priorities = [3, 1, 2, 1, 3, -1]
            held = []
            for number, priority in enumerate(priorities):
                held.append(await self.keyed(queue, "ab"[number % 2], priority=priority))
                assert await other.dequeue(batch_size=9) == [], "a held-back job was served"
            served = []
            for _ in held:
                await queue.ack(job)
                [job] = await queue.dequeue(batch_size=9)
                served.append(job.id)
            assert served == [held[number] for number in sorted(range(len(held)), key=lambda one: priorities[one])]

    @by_every_ending
    async def test_a_key_is_free_when_a_claim_ends(self, make_queue: QueueFactory, ending: str) -> None:
        needs, end = ENDINGS[ending]
        async with self.queues(make_queue, 2, ["limits", *needs]) as [queue, other]:
            options: dict[str, Any] = {"keep_result": HOUR} if "results" in needs else {}
            enqueued = [await self.keyed(queue, **options) for _ in range(3)]
            [job] = await queue.dequeue(batch_size=9)
            assert await other.dequeue(batch_size=9) == []
            await end(queue, job)
            assert ids(await other.dequeue(batch_size=9)) == [enqueued[0 if ending == "hand back" else 1]]
            assert await queue.dequeue(batch_size=9) == []

    async def test_a_key_is_free_when_a_claim_gets_stale(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits", "claim_timeout", "wait"]) as [queue, other]:
            _, second = [await self.keyed(queue) for _ in range(2)]
            [_] = await queue.dequeue(batch_size=9, claim_timeout=timedelta(seconds=self.moment))
            assert [second] == ids(await other.dequeue("work", batch_size=9, wait=self.patience))

    @pytest.mark.parametrize("removal", ["cancel", "purge", "replace", "expire"])
    async def test_a_job_held_back_may_leave_without_those_behind_it(
        self, make_queue: QueueFactory, removal: str
    ) -> None:
        needs = ["limits", "dead_letters", "unique_keys", "expiry", "delay"]
        async with self.queues(make_queue, 2, needs) as [queue, other]:
            await self.keyed(queue)
            [job] = await queue.dequeue(batch_size=9)
            expiry = await self.time(queue) + timedelta(seconds=self.moment)
            await queue.purge(status=JobStatus.QUEUED)
            options: dict[str, dict[str, Any]] = {"replace": {"unique_key": "unique"}, "expire": {"expires_at": expiry}}
            leaves = await self.keyed(queue, "leaving", **options.get(removal, {}))
            behind = await self.keyed(queue)
            assert await other.dequeue(batch_size=9) == []
            if removal == "cancel":
                await other.cancel(leaves)
            elif removal == "purge":
                assert await other.purge(status=JobStatus.QUEUED, entrypoint="leaving") == 1
            elif removal == "replace":
                await other.enqueue("work", b"payload", unique_key="unique", on_conflict="replace", delay=HOUR)
            else:
                await self.until_after(queue, expiry)
            await queue.ack(job)
            assert [behind] == ids(await other.dequeue("work"))
            assert await self.find(queue, leaves) is None

    async def test_a_key_outlasts_the_queue_object_that_claimed(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits"]) as [first]:
            _, second = [await self.keyed(first) for _ in range(2)]
            [job] = await first.dequeue()
        async with self.queues(make_queue, 1) as [other]:
            assert await other.dequeue(batch_size=9) == []
            await other.ack(job)
            assert [second] == ids(await other.dequeue(batch_size=9))

    async def test_keys_and_limits_of_entrypoints_hold_together(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits"]) as [queue]:
            await queue.limit("a", running=1)
            await queue.pause("b")
            first = await self.keyed(queue, "b")
            second, third = [await self.keyed(queue, "a", limit=2) for _ in range(2)]
            fourth = await self.keyed(queue, "c", limit=2)
            claimed = await queue.dequeue(batch_size=9)
            assert ids(claimed) == [second, fourth], "a paused job used up a place of its key"
            await queue.resume("b")
            await queue.ack(claimed[1])
            assert await queue.dequeue(batch_size=9) == []
            await queue.ack(claimed[0])
            assert ids(await queue.dequeue(batch_size=9)) == [first, third], "two jobs must run under a limit of 2"

    async def test_a_waiting_dequeue_is_answered_when_its_key_is_free(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits", "wait"]) as [queue, other]:
            _, second = [await self.keyed(queue) for _ in range(2)]
            [job] = await other.dequeue()
            waiting = asyncio.create_task(queue.dequeue("work", wait=self.patience))
            await asyncio.wait([waiting], timeout=self.moment)
            assert not waiting.done(), "the dequeue ignored the limit of the key"
            await other.ack(job)
            assert [second] == ids(await waiting)

    async def test_a_limit_of_a_key_is_kept_with_its_job(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits"]) as [queue, other]:
            job = await self.held(other, await self.keyed(queue, limit=7))
            assert (job.concurrency_key, job.concurrency_limit) == ("the-key", 7)
            job = await self.held(other, await self.keyed(queue))
            assert (job.concurrency_key, job.concurrency_limit or 1) == ("the-key", 1)
