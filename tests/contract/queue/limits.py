"""Limits: how many jobs run at once or start in a time, for each key, and whose turn it is."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from jqueue.domain.operations.rules import Reset, SetLimits
from jqueue.testing.queue_contract import QueueFactory, ids
from tests.contract.queue.times import NOON, ClockedContract


class LimitsContract(ClockedContract):
    """Limits are exact for all queue objects together, and jobs of fair keys are served in turn."""

    async def test_limits_of_an_operator_stay_when_a_program_declares_its_own(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits"]) as [operator, program]:
            declared = SetLimits("work", running=2, by="program")
            await program.apply(declared)
            await operator.apply(SetLimits("work", running=1, by="operator"))
            [rules] = await program.apply(declared)
            assert (rules.max_running, rules.declared.max_running) == (1, 2)
            await self.several(program, 3)
            assert len(await program.dequeue("work", batch_size=3)) == 1
            assert await operator.apply(Reset("work"), Reset("work")) == [True, False]
            assert len(await program.dequeue("work", batch_size=3)) == 1, "the program's limit must hold again"

    async def test_jobs_of_fair_keys_are_served_in_turn(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits"]) as [queue, other]:
            for _ in range(5):
                await queue.enqueue("work", b"a", fair_key="a")
            [first] = await other.dequeue("work")
            for key in "bcbb":
                await other.enqueue("work", key.encode(), fair_key=key)
            for _ in range(2):
                await other.enqueue("work", b"-")
            await queue.nack(first)  # it goes behind those of its key
            turns: dict[int, str] = {}
            while jobs := await queue.dequeue("work"):
                turns[jobs[0].sequence] = turns.get(jobs[0].sequence, "") + jobs[0].payload.decode()
                await queue.ack(jobs[0])
            turns = {place - first.sequence: "".join(sorted(keys)) for place, keys in turns.items()}
            assert turns == {1: "-abc", 2: "-ab", 3: "ab", 4: "a", 5: "a"}
            assert not (await other.read_state()).fair, "nothing waits for a turn"

    async def test_a_key_with_a_weight_gets_a_turn_in_some_of_the_rounds(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits"]) as [queue, other]:
            for number in range(4):
                await queue.enqueue("work", b"%d" % number, fair_key="b", fair_weight=0.25)
            for _ in range(16):
                heavy = await other.enqueue("work", b"a", fair_key="a", fair_weight=1)
            assert heavy.fair_weight is None, "the usual weight is not kept"
            rounds = [[job for _ in range(5) for job in await queue.dequeue("work")] for _ in range(4)]
            light = [[job for job in claimed if job.fair_key == "b"] for claimed in rounds]
            assert [[job.payload for job in jobs] for jobs in light] == [[b"0"], [b"1"], [b"2"], [b"3"]]
            await other.enqueue("work", b"4", fair_key="b", fair_weight=0.25)
            await queue.nack(light[0][0])
            [first], [last] = await queue.dequeue("work"), await queue.dequeue("work")
            assert (first.payload, last.payload, last.sequence - first.sequence) == (b"4", b"0", 4)

    async def test_a_key_is_exact_for_queue_objects_that_claim_at_once(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits"]) as queues:
            enqueued = [
                (await queues[0].enqueue("ab"[number % 2], b"", concurrency_key="the-key", concurrency_limit=2)).id
                for number in range(8)
            ]
            done: list[str] = []
            while len(done) < len(enqueued):
                calls = [queue.dequeue(sought, batch_size=2) for queue in queues for sought in ("a", "b", None)]
                claimed = [job for jobs in await asyncio.gather(*calls) for job in jobs]
                assert len(claimed) == min(2, len(enqueued) - len(done)), (
                    "the number of claimed jobs is not what the limit allows"
                )
                done += ids(claimed)
                await asyncio.gather(*(queue.ack(job) for job, queue in zip(claimed, queues, strict=False)))
            assert sorted(done) == sorted(enqueued)

    async def test_a_rate_of_each_key_is_exact_and_holds_up_no_other_job(self, make_queue: QueueFactory) -> None:
        async with self.clocked(make_queue, 2) as (clock, [queue, other]):
            await queue.limit("work", key_rate=2, key_per=60)
            for _ in range(4):
                await queue.enqueue("work", b"a", concurrency_key="a", concurrency_limit=9, fair_key="b")
                await queue.enqueue("work", b"b", fair_key="b")
            await queue.enqueue("work", b"-")
            for begun, keys in ((0, "-aabb"), (30, ""), (61, "aabb"), (120, "")):
                clock.time = NOON + timedelta(seconds=begun)
                claims = await asyncio.gather(*(each.dequeue("work", batch_size=9) for each in (queue, other)))
                claimed = [job for jobs in claims for job in jobs]
                assert "".join(sorted(job.payload.decode() for job in claimed)) == keys, begun
                for job in claimed:
                    await other.ack(job)
            await queue.enqueue("work", b"a", concurrency_key="a")
            await queue.limit("work")
            assert await other.dequeue("work") != []
