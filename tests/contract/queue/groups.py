"""Groups: members that come late, groups that are cancelled, and the results of members."""

from __future__ import annotations

import asyncio

import pytest

from jqueue.domain.operations.ends import Ack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.testing.queue_contract import HOUR, QueueContractBase, QueueFactory


class GroupsContract(QueueContractBase):
    """A group ends when its last member has ended, and says what became of each."""

    async def test_a_member_adds_members_with_its_ack_after_the_group_was_closed(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, ["groups"]) as [queue, other]:
            async with queue.group(then=Enqueue("sum")) as group:
                await group.enqueue(Enqueue("work", b"first"))
            waiting = asyncio.create_task(other.group(group.id).wait())
            for _ in range(2):
                [job] = await other.dequeue("work")
                await other.apply(Ack(job), Enqueue("work", b"next", group=group.id))
                assert not waiting.done()
            assert await other.dequeue("sum") == []
            [job] = await other.dequeue("work")
            await other.ack(job)
            status = await waiting
            assert (status.added, status.done, status.ended) == (3, 3, True)
            assert len(await other.dequeue("sum")) == 1

    async def test_a_cancelled_group_ends_without_its_job(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["groups", "cancel_running"]) as [queue, other]:
            with pytest.raises(RuntimeError, match="the block fails"):
                async with queue.group(then=Enqueue("sum"), on_end=Enqueue("after")) as group:
                    await group.enqueue_many(Enqueue("work", b"%d" % number) for number in range(3))
                    [job] = await other.dequeue("work")
                    raise RuntimeError("the block fails")
            status = await other.group(group.id).status()
            assert (status.gone, status.waiting, status.ended, status.cancelled) == (2, 1, False, True)
            await other.nack(job)
            assert [each.entrypoint for each in await other.dequeue(batch_size=9)] == ["after"]
            assert (await group.wait()).gone == 3

    async def test_results_of_a_group_are_those_of_its_members(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["groups", "results"]) as [queue, other]:
            async with queue.group() as group:
                for number in range(3):
                    await group.enqueue("work", b"%d" % number, keep_result=HOUR)
            await queue.enqueue("work", b"9", keep_result=HOUR)
            for job in await other.dequeue("work", batch_size=4):
                await other.ack(job, result=int(job.payload) * 10)
            assert sorted([job.result async for job in group.results()]) == [0, 10, 20]
