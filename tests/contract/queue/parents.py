"""Jobs after jobs: a job is claimed after its parents, and what the end of a parent means for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from jqueue.domain.errors import InvalidJobError, JobStateError
from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job
from jqueue.domain.operations.ends import Ack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.leases import EndLease
from jqueue.domain.operations.operator import Purge
from jqueue.ports.queue import JobQueue
from jqueue.testing.queue_contract import QueueFactory, ids
from tests.contract.queue.leases import DEEP, LeasesContract

NEEDS = ("parents", "transactions", "dead_letters", "results", "cancel_running", "expiry")


async def _dies(queue: JobQueue, parent: Job) -> None:
    [job] = await queue.dequeue("parent")
    await queue.nack(job, dead=True)


async def _is_cancelled_in_progress(queue: JobQueue, parent: Job) -> None:
    [job] = await queue.dequeue("parent")
    await queue.cancel(parent.id, running=True)
    await queue.nack(job)


async def _expires(queue: JobQueue, parent: Job) -> None:
    assert parent.expires_at is not None
    while (await queue.enqueue("clock", b"")).created_at < parent.expires_at:
        await asyncio.sleep(0.1)
    assert await queue.dequeue("parent") == []


async def _is_cancelled(queue: JobQueue, parent: Job) -> None:
    await queue.cancel(parent.id)


async def _is_purged(queue: JobQueue, parent: Job) -> None:
    await _dies(queue, parent)
    await queue.purge(status=JobStatus.DEAD, entrypoint="parent")


async def _is_purged_waiting(queue: JobQueue, parent: Job) -> None:
    await queue.purge(status=JobStatus.QUEUED, entrypoint="parent")


async def _is_replaced(queue: JobQueue, parent: Job) -> None:
    await queue.enqueue("parent", b"", unique_key="key", on_conflict="replace")


ENDS: dict[str, Callable[[JobQueue, Job], Awaitable[None]]] = {
    "dead": _dies,
    "cancelled": _is_cancelled,
    "cancelled in progress": _is_cancelled_in_progress,
    "expired": _expires,
    "purged": _is_purged,
    "purged waiting": _is_purged_waiting,
    "replaced": _is_replaced,
}


class ParentsContract(LeasesContract):
    """A job is claimed once its parents are done, wherever they are, and no sooner."""

    async def test_the_last_parent_to_be_acked_makes_a_job_ready_in_its_place(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, NEEDS) as [queue, other]:
            parents = [await queue.enqueue("parent", b"%d" % number) for number in range(3)]
            child = await queue.enqueue("work", b"child", after=[parents[0], *ids(parents[1:]), parents[0].id])
            later = await queue.enqueue("work", b"later")
            assert child.after == child.waits_for == tuple(ids(parents))
            claimed = await other.dequeue("parent", batch_size=3)
            for job in claimed[:2]:
                await queue.dequeue("nothing")
                await other.ack(job)
            assert (await self.held(queue, child)).waits_for == (parents[2].id,)
            assert [] == [job for job in await queue.dequeue("work", batch_size=5) if job.id == child.id]
            await queue.requeue_stale(0)
            [job] = await queue.dequeue("parent")
            await queue.ack(job)
            [first, *_] = await other.dequeue("work", batch_size=5)
            assert first.id == child.id, f"before {later.id}, which was enqueued after it"
            assert first.after == tuple(ids(parents))
            assert first.tries == 1

    async def test_a_waiting_dequeue_gets_the_child_with_the_ack(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            parent = await self.one_job(queue)
            child = await queue.enqueue("child", b"", after=[parent], delay=timedelta(seconds=self.moment))
            await queue.ack(parent)
            assert (await self.held(queue, child)).waits_for == ()
            [job] = await queue.dequeue("child", wait=self.patience)
            assert job.id == child.id
            assert child.run_at is not None
            assert await self.time(queue) >= child.run_at, "its delay holds beside its parents"

    @pytest.mark.parametrize(
        ("end", "on_dead"),
        [
            *((end, None) for end in ENDS),
            *((end, on_dead) for end in ("dead", "expired") for on_dead in ("cancel", "run")),
        ],
    )
    async def test_a_parent_that_is_not_done_decides_as_on_dead_says(
        self, make_queue: QueueFactory, end: str, on_dead: Any
    ) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            expires_at = await self.time(queue) + timedelta(seconds=self.moment) if end == "expired" else None
            await queue.purge(status=JobStatus.QUEUED)
            parent = await queue.enqueue("parent", b"", expires_at=expires_at, unique_key="key")
            child = await queue.enqueue("child", b"", after=[parent], on_dead=on_dead)
            grandchild = await queue.enqueue("grandchild", b"", after=[child], on_dead=on_dead)
            await ENDS[end](queue, parent)
            found = await self.find(queue, child)
            if on_dead == "cancel":
                assert found is None
                assert await self.find(queue, grandchild) is None, "cancelled with it"
                return
            assert found is not None
            if on_dead is None and end == "dead":
                assert (found.status, found.waits_for) == (JobStatus.QUEUED, (parent.id,))
                await queue.redrive(parent.id)
                [again] = await queue.dequeue("parent")
                await queue.ack(again)
            elif on_dead is None:
                assert found.status is JobStatus.DEAD
                assert parent.id in (found.error or "")
                assert (await self.held(queue, grandchild)).waits_for == (child.id,)
                await queue.redrive(child.id)
            [job] = await queue.dequeue("child")
            await queue.ack(job)
            assert ids(await queue.dequeue("grandchild")) == [grandchild.id]

    async def test_a_result_is_kept_as_long_as_a_child_needs_it(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, NEEDS) as [queue, other]:
            parent = await self.one_job(queue)
            children = [await queue.enqueue("child", b"%d" % number, after=[parent]) for number in range(2)]
            await queue.apply(Ack(parent, {"rows": 3}))
            late = await queue.enqueue("child", b"late", after=[parent])
            assert late.waits_for == ()
            with pytest.raises(JobStateError, match="needs its result"):
                await queue.apply(Purge(JobStatus.COMPLETED, job_id=parent.id))
            assert await queue.purge(status=JobStatus.COMPLETED) == 0
            for child in (*children, late):
                assert await other.result(parent.id) == {"rows": 3}
                [job] = await other.dequeue("child")
                assert job.id == child.id
                await other.ack(job)
            await queue.dequeue("nothing")
            assert await self.find(queue, parent) is None
            after = await queue.enqueue("child", b"", after=[parent])
            assert ids(await queue.dequeue("child")) == [after.id], "a parent that is only remembered is done"

    async def test_several_jobs_of_one_commit_follow_each_other(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            names = [f"step-{number}" for number in range(5)]
            chain = [
                Enqueue("step", b"", job_id=name, after=[before] if before else [])
                for before, name in zip([None, *names], names, strict=False)
            ]
            assert ids(await queue.enqueue_many(chain)) == names
            for name in names:
                [job] = await queue.dequeue("step", batch_size=9)
                assert job.id == name
                await queue.ack(job)
            with pytest.raises(InvalidJobError, match="b-"):
                await queue.enqueue_many([Enqueue("step", job_id="a-", after=["b-"]), Enqueue("step", job_id="b-")])
            assert await self.find(queue, "a-") is None

    async def test_a_long_chain_leaves_at_once(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            first = await queue.enqueue("parent", b"")
            chain = [
                Enqueue("step", job_id=f"{number}", after=[f"{number - 1}" if number else first], on_dead="cancel")
                for number in range(900)
            ]
            await queue.enqueue_many(chain)
            await queue.cancel(first.id)
            assert (await queue.read_state()).jobs == ()

    async def test_an_unknown_parent_is_named_and_a_hundred_are_taken(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            with pytest.raises(InvalidJobError, match="'no-such-job', which the queue does not know"):
                await queue.enqueue("work", b"", after=["no-such-job"])
            parents = await queue.enqueue_many([Enqueue("parent")] * 100)
            child = await queue.enqueue("work", b"", after=parents)
            with pytest.raises(InvalidJobError, match="101 jobs; the limit is 100"):
                await queue.enqueue("work", b"", after=[*parents, child])
            dead = await self.dead_job(queue, "other")
            with pytest.raises(InvalidJobError, match="which is dead"):
                await queue.enqueue("work", b"", after=[dead], on_dead="cancel")
            assert (await queue.enqueue("work", b"", after=[dead], on_dead="run")).waits_for == ()

    async def test_a_child_that_waits_can_be_changed_and_cancelled(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, (*NEEDS, "reschedule")) as [queue]:
            parent = await queue.enqueue("parent", b"")
            child, cancelled, replaced = [
                await queue.enqueue("child", b"", after=[parent], unique_key=f"key-{number}") for number in range(3)
            ]
            await queue.reprioritise(child.id, -5)
            await queue.reschedule(child.id, delay=0)
            await queue.cancel(cancelled.id)
            other = await queue.enqueue("child", b"", unique_key="key-2", on_conflict="replace", after=[parent])
            assert (await queue.enqueue("child", b"", unique_key="key-0")).id == child.id, "it holds its key"
            assert await queue.dequeue("child") == []
            [job] = await queue.dequeue("parent")
            await queue.ack(job)
            assert ids(await queue.dequeue("child", batch_size=5)) == [child.id, other.id]
            assert await self.find(queue, replaced) is None

    async def test_the_end_of_a_lease_counts_for_each_of_its_jobs(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, (*NEEDS, "leases"), **DEEP) as [opened, other]:
            queue, claim, jobs = await self.lease_of(opened)
            done = await other.enqueue("done", b"", after=jobs[:2])
            failed = await other.enqueue("failed", b"", after=[jobs[2]])
            left = await other.enqueue("left", b"", after=[jobs[-1]])
            rest = [job async for job in queue.iterate_jobs(JobStatus.QUEUED) if job.entrypoint == "work"]
            gone = await other.enqueue("gone", b"", after=[rest[-1]])
            await queue.end_lease(claim, failed={jobs[2].id: "failed"}, worked_on=len(jobs) - 1)
            for child, is_ready in ((done, True), (failed, False), (left, False)):
                assert bool(await other.dequeue(child.entrypoint)) == is_ready, child.entrypoint
            await queue.purge(status=JobStatus.QUEUED, entrypoint="work")
            for child in (failed, left, gone):
                assert (await self.held(queue, child)).status is JobStatus.DEAD, child.entrypoint

    async def test_rows_are_handed_back_if_a_job_needs_a_result_that_the_end_of_their_lease_withholds(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, (*NEEDS, "leases"), **DEEP) as [opened, other]:
            queue, claim, jobs = await self.lease_of(opened)
            children = [await other.enqueue("child", b"", after=[job]) for job in jobs[:2]]
            results = {jobs[1].id: (17, None), jobs[2].id: (18, None)}
            await queue.apply(EndLease(claim, results=results, withheld=True))
            [child] = await other.dequeue("child", batch_size=2)
            assert child.id == children[1].id
            assert await other.result(jobs[1]) == 17
            assert await self.find(other, jobs[2]) is None, "no job needs its result"
            back = await self.held(other, jobs[0])
            assert (back.status, back.failures) == (JobStatus.QUEUED, 0)

    async def test_a_parent_that_an_editor_removed_counts_as_gone(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, NEEDS) as [queue, other]:
            await queue.enqueue("parent", b"", job_id="the-parent")
            child = await queue.enqueue("child", b"", after=["the-parent"])

            def without_parent(content: bytes) -> bytes:
                blob = json.loads(content)
                blob["jobs"].pop("the-parent", None)
                blob["segments"] = {}
                return json.dumps(blob).encode()

            await self.rewrite(queue, without_parent)
            assert await other.dequeue("nothing") == []
            found = await self.held(other, child)
            assert found.status is JobStatus.DEAD
            assert "the-parent" in (found.error or "")
