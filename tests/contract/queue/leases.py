"""Leases: jobs claimed as one, which a cancelled job among them leaves."""

from __future__ import annotations

from typing import Any

import pytest

from jqueue.domain.errors import ClaimLostError
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.segments import Lease
from jqueue.ports.queue import JobQueue, SupportsLeases
from jqueue.testing.queue_contract import QueueContractBase, QueueFactory

NEEDS = ("leases", "cancel_running", "heartbeat")

ENOUGH = 100
"""Number of jobs of which a queue moves some to a segment, if it keeps none of them in its object."""

DEEP: dict[str, Any] = {"limits": Limits(hot_bytes=1)}


class LeasesContract(QueueContractBase):
    """A job that is cancelled leaves its lease at once, and the lease goes on."""

    async def lease_of(self, queue: JobQueue) -> tuple[Any, Lease, list[Job]]:
        """Enqueue jobs, and lease some of them. Return the queue, typed as it is, the lease and the jobs."""
        assert isinstance(queue, SupportsLeases)
        await queue.enqueue_many(Enqueue("work", b"%d" % number) for number in range(ENOUGH))
        claims: list[Lease] = []

        async def is_claimed() -> bool:
            await queue.enqueue("other", b"")  # jobs move to segments with and between commits
            claim = await queue.claim_lease("work", 8, least=4)
            claims.extend([] if claim is None else [claim])
            return bool(claims)

        await self.until(is_claimed)
        return queue, claims[0], [job async for job in queue.read_lease(claims[0])]

    async def test_a_job_cancelled_in_a_lease_leaves_and_its_outcome_is_ignored(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, NEEDS, **DEEP) as [opened, operator]:
            queue, lease, jobs = await self.lease_of(opened)
            assert (await operator.cancel(jobs[1].id, running=True)).cancel_requested
            assert jobs[1].id not in {each.id async for each in operator.iterate_jobs()}
            assert [] == await queue.heartbeat_many([lease.claim])
            for call in (queue.ack, queue.nack):
                with pytest.raises(ClaimLostError, match="end_lease"):
                    await call(jobs[0])
            await queue.end_lease(lease, failed={job.id: "boom" for job in jobs[:2]})
            left = {each.id async for each in queue.iterate_jobs()}
            assert [True] + [False] * (len(jobs) - 1) == [job.id in left for job in jobs]

    async def test_a_lease_that_is_given_back_is_taken_again_as_it_was(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, NEEDS, **DEEP) as [opened, operator]:
            queue, lease, jobs = await self.lease_of(opened)
            await operator.requeue_stale(0)
            with pytest.raises(ClaimLostError):
                await queue.end_lease(lease)
            again = await queue.claim_lease("work", 8)
            assert again is not None
            read = [job async for job in queue.read_lease(again)]
            assert [(job.id, 2) for job in jobs] == [(job.id, job.attempt) for job in read]
            await queue.end_lease(again, worked_on=1)
            left = {each.id async for each in queue.iterate_jobs()}
            assert [False] + [True] * (len(jobs) - 1) == [job.id in left for job in jobs]
