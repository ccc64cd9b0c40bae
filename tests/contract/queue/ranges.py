"""Ranges: jobs claimed as one, which a cancelled job among them does not stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jqueue.domain.errors import ClaimLostError, JobCancelledError
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.segments import RangeClaim
from jqueue.ports.queue import JobQueue, SupportsRanges
from jqueue.testing.queue_contract import QueueContractBase, QueueFactory

NEEDS = ("ranges", "cancel_running", "heartbeat")

ENOUGH = 100
"""Number of jobs of which a queue moves some to a segment, if it keeps none of them in its object."""

DEEP: dict[str, Any] = {"limits": Limits(hot_bytes=1)}

LEAVES: dict[str, Callable[[Job], dict[str, Any]]] = {
    "failed": lambda job: {"failed": {job.id: "told to stop"}},
    "nothing done": lambda job: {"worked_on": 0},
}
"""Options of `end_range`, by name, with which a cancelled job leaves."""


class RangesContract(QueueContractBase):
    """The claim of a range goes on when a job of it is cancelled, and the end of the range decides about that job."""

    async def range_of(self, queue: JobQueue) -> tuple[Any, RangeClaim, list[Job]]:
        """Enqueue jobs, and claim some of them as a range. Return the queue, typed as it is, the claim and the jobs."""
        assert isinstance(queue, SupportsRanges)
        await queue.enqueue_many(Enqueue("work", b"%d" % number) for number in range(ENOUGH))
        claims: list[RangeClaim] = []

        async def is_claimed() -> bool:
            await queue.enqueue("other", b"")  # jobs move to segments with and between commits
            claim = await queue.claim_range("work", 8, least=4)
            claims.extend([] if claim is None else [claim])
            return bool(claims)

        await self.until(is_claimed)
        return queue, claims[0], [job async for job in queue.read_range(claims[0])]

    async def in_range(self, queue: JobQueue, job: Job) -> Job | None:
        """Return a job, which may be in a segment, as the queue holds it now; None if it has left."""
        found = [each async for each in queue.iterate_jobs() if each.id == job.id]
        return found[0] if found else None

    async def test_what_the_error_of_a_cancelled_job_of_a_range_advises_works(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, NEEDS, **DEEP) as [opened, operator]:
            queue, claim, jobs = await self.range_of(opened)
            cancelled = jobs[1]
            await operator.cancel(cancelled.id, running=True)
            with pytest.raises(JobCancelledError, match=r"heartbeat_many.*end_range.*failed=") as raised:
                await queue.heartbeat(claim.claim)
            told = raised.value
            assert "nack" not in str(told), "a job of a range cannot be nacked"
            assert (told.job_id, told.range_id, told.attempt) == (cancelled.id, claim.id, claim.attempt)
            [again] = await queue.heartbeat_many([claim.claim])
            assert isinstance(again, JobCancelledError)
            assert (again.job_id, again.range_id) == (cancelled.id, claim.id)
            for call in (queue.ack, queue.nack):
                with pytest.raises(ClaimLostError, match="end_range"):
                    await call(cancelled)
            await queue.end_range(claim, failed={cancelled.id: None})
            assert await self.in_range(operator, cancelled) is None

    @pytest.mark.parametrize("ending", LEAVES)
    async def test_a_cancelled_job_leaves_at_the_end_of_its_range(self, make_queue: QueueFactory, ending: str) -> None:
        async with self.queues(make_queue, 2, NEEDS, **DEEP) as [opened, operator]:
            queue, claim, jobs = await self.range_of(opened)
            await operator.cancel(jobs[1].id, running=True)
            await queue.end_range(claim, **LEAVES[ending](jobs[1]))
            assert await self.in_range(operator, jobs[1]) is None
            is_there = await self.in_range(operator, jobs[0]) is not None
            assert is_there == (ending == "nothing done"), "the other jobs end as the call says"
