"""What calls came to on a place that keeps jobs one by one, where some of the jobs could not be changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from jqueue.core.engine.engine import TRANSIENT
from jqueue.core.engine.requests import Outcome, Request, as_storage_error
from jqueue.domain.errors import ClaimLostError, JobNotFoundError, JQueueError, QueueFullError, StorageFatalError
from jqueue.domain.models import Claim, Job
from jqueue.domain.operations import Operation
from jqueue.formats.port import Full, Kept, Lost


def arriving(outcomes: Sequence[tuple[Request, Outcome]]) -> frozenset[str]:
    """The ids of jobs that come from another queue."""
    operations = (operation for request, _ in outcomes for operation in request.operations)
    return frozenset(job_id for operation in operations if operation.arrives for job_id in operation.job_ids())


def is_refusal(error: Exception) -> TypeGuard[JQueueError]:
    """Whether it would be the same at the next try."""
    return isinstance(error, JQueueError) and not (
        isinstance(error, TRANSIENT) and not isinstance(error, StorageFatalError)
    )


def seen(job: Job) -> tuple[Any, ...]:
    """What of a job tells whether it is another. Payload and headers are those of the moment when it is claimed."""
    said = job.entrypoint, job.max_attempts, job.error
    return job.status, job.attempt, job.failures, job.heartbeat_at, job.sequence, job.run_at, *said


def may_be_behind(operation: Operation, result: Any) -> bool:
    """Whether the result of an operation is another one where there are jobs, or claims, that the mirror misses."""
    if result is None or result.__class__ is Job:
        return False
    return isinstance(result, JQueueError) or operation.may_miss(result)


def _jobs_of(operation: Operation, result: Any) -> set[str]:
    """The jobs that an operation is about."""
    found = set(operation.job_ids())
    if isinstance(result, Job):
        found.add(result.id)
    elif isinstance(result, list):
        found.update(job.id for job in result if isinstance(job, Job))
    return found


def undone(
    outcomes: Sequence[tuple[Request, Outcome]], failed: Mapping[str, Exception], done: Mapping[str, int]
) -> list[list[dict[str, Exception]]]:
    """For each operation of each request, the jobs with which it was not done, and why.

    What comes before a claim may have been done where the claim was not: the operations move a job in their order.

    Args:
        outcomes: of the requests.
        failed: the jobs that are not where they should be, and why.
        done: how many steps were done with each of these.
    """
    moves: Counter[str] = Counter()
    found = []
    for request, outcome in outcomes:
        of_request = []
        for operation, result in zip(request.operations, outcome, strict=True) if isinstance(outcome, list) else ():
            lost = {}
            for job_id in _jobs_of(operation, result) & failed.keys() if not isinstance(result, Exception) else ():
                moves[job_id] += 1
                if operation.claims_jobs or moves[job_id] > done[job_id]:
                    lost[job_id] = failed[job_id]
            of_request.append(lost)
        found.append(of_request)
    return found


def without(operation: Operation, result: Any, lost: Mapping[str, Exception]) -> Any:
    """What an operation came to, one among others, if somebody else was quicker with some of its jobs."""
    others = [error for error in lost.values() if not isinstance(error, Lost)]
    if others and not operation.claims_jobs:
        if isinstance(others[0], Full):
            return QueueFullError(str(others[0]))
        return others[0] if isinstance(others[0], JQueueError) else as_storage_error(others[0])
    if operation.claims_jobs:
        return [job for job in result if job.id not in lost]
    for claim in operation.references():
        if isinstance(claim, Claim) and claim.job_id in lost:
            return ClaimLostError(*claim, "another program has the job, or has finished it")
    return JobNotFoundError(min(lost))


def as_it_stands(outcome: list[Any], now_there: Mapping[str, Any]) -> list[Any]:
    """The results, with the jobs in them as the store has them now."""
    return [_current(result, now_there) for result in outcome]


def _current(result: Any, now_there: Mapping[str, Any]) -> Any:
    if result.__class__ is Job:
        found = now_there.get(result.id)
        return found.job if found.__class__ is Kept else result
    return [_current(entry, now_there) for entry in result] if result.__class__ is list else result
