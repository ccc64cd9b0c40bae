"""Groups: the job that a group brings when it ends, members that come late, and the results of members."""

from __future__ import annotations

import asyncio

import pytest

from jqueue.domain.errors import GroupEndedError
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
                    await group.enqueue_many(Enqueue("work", b"%d" % number) for number in range(4))
                    done, job = await other.dequeue("work", batch_size=2)
                    await other.ack(done)
                    raise RuntimeError("the block fails")
            status = await other.group(group.id).status()
            assert (status.done, status.gone, status.waiting) == (1, 2, 1)
            assert (status.ended, status.cancelled) == (False, True)
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

    async def test_the_last_member_of_a_group_brings_its_job_in_that_very_commit(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, ["groups", "job_ids"]) as [queue, other]:
            async with queue.group("parts", then=Enqueue("sum"), on_end=Enqueue("after")) as group:
                for number in (0, 1, 2, 2):
                    await group.enqueue("work", b"%d" % number, job_id=f"{number}")
            jobs = [job for name in ("work", "work", "work") for job in await other.dequeue(name)]
            await queue.ack(jobs[0])
            await other.nack(jobs[1], dead=True)
            status = await other.group("parts").status()
            assert (status.added, status.done, status.dead, status.waiting) == (3, 1, 1, 1)
            assert not status.ended
            assert await other.dequeue(["sum", "after"]) == []
            before = (await queue.read_state()).version
            await queue.ack(jobs[2])
            assert (await other.read_state()).version == before + 1
            assert [job.entrypoint for job in await other.dequeue(["sum", "after"], batch_size=9)] == ["after"]
            assert await other.group("parts").redrive() == 1
            [job] = await other.dequeue("work")
            await queue.ack(job)
            await queue.ack(job)
            [summary] = await other.dequeue(["sum", "after"], batch_size=9)
            status = await queue.group("parts").status()
            assert (summary.entrypoint, summary.id) == ("sum", status.then_id)
            assert (status.done, status.dead, status.ended, status.then_enqueued) == (3, 0, True, True)
            with pytest.raises(GroupEndedError, match="closed and has ended"):
                await group.enqueue("work")
            with pytest.raises(GroupEndedError, match="was closed before"):
                await other.group("parts").__aenter__()
            with pytest.raises(GroupEndedError, match="not known"):
                await queue.enqueue("work", group="never opened")

    async def test_of_racing_acks_one_brings_the_job_of_their_group(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 3, ["groups"]) as queues:
            async with queues[0].group(then=Enqueue("sum")) as group:
                await group.enqueue_many(Enqueue("work", b"%d" % number) for number in range(12))
            jobs = await queues[1].dequeue("work", batch_size=12)
            await asyncio.gather(*(queues[number % 3].ack(job) for number, job in enumerate(jobs)))
            assert len(await queues[2].dequeue("sum", batch_size=9)) == 1
            assert (await group.wait()).done == 12
