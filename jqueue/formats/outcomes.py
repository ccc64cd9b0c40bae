"""Results of calls when some of their jobs could not be changed in the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from jqueue.core.requests import Outcome, Request
from jqueue.core.tasks import TRANSIENT, as_storage_error
from jqueue.domain.errors import ClaimLostError, JobNotFoundError, JQueueError, QueueFullError, StorageFatalError
from jqueue.domain.job import Claim, JobRecord
from jqueue.domain.operations.base import Operation
from jqueue.formats.port import JobChangedError, StoredJob, StoreFullError


def transferred_ids(outcomes: Sequence[tuple[Request, Outcome]]) -> frozenset[str]:
    """Return the ids of the jobs that come from another queue, or go to one."""
    operations = (operation for request, _ in outcomes for operation in request.operations)
    return frozenset(job_id for operation in operations if operation.transfers for job_id in operation.job_ids())


def is_refusal(error: Exception) -> TypeGuard[JQueueError]:
    """Return True if a retry would give the same error."""
    return isinstance(error, JQueueError) and not (
        isinstance(error, TRANSIENT) and not isinstance(error, StorageFatalError)
    )


def comparable(job: JobRecord) -> tuple[Any, ...]:
    """Return the fields that show whether a job has changed. Payload and headers are left out: a claim reads both."""
    said = job.entrypoint, job.max_attempts, job.error
    return job.status, job.attempt, job.failures, job.heartbeat_at, job.sequence, job.run_at, *said


def may_be_behind(operation: Operation, result: Any) -> bool:
    """Return True if the result could differ because the mirror lacks some jobs or claims of the store."""
    if result is None or result.__class__ is JobRecord:
        return False
    return isinstance(result, JQueueError) or operation.may_miss(result)


def _jobs_of(operation: Operation, result: Any) -> set[str]:
    """Return the ids of the jobs in an operation and in its result."""
    found = set(operation.job_ids())
    if isinstance(result, JobRecord):
        found.add(result.id)
    elif isinstance(result, list):
        found.update(job.id for job in result if isinstance(job, JobRecord))
    return found


def failed_changes(
    outcomes: Sequence[tuple[Request, Outcome]], failed: Mapping[str, Exception], done: Mapping[str, int]
) -> list[list[dict[str, Exception]]]:
    """Return, for each operation of each request, the jobs that it could not change, with their errors.

    Operations change a job in their order. So an operation before a failed claim may have succeeded.

    Args:
        outcomes: the requests with their outcomes.
        failed: the jobs with a failed step, with their errors.
        done: number of steps made with each failed job.
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


def without_failed(operation: Operation, result: Any, lost: Mapping[str, Exception]) -> Any:
    """Return the result of an operation that could not change some of its jobs.

    A claim returns the other jobs. Any other operation returns the error that says which job or claim was lost.
    """
    others = [error for error in lost.values() if not isinstance(error, JobChangedError)]
    if others and not operation.claims_jobs:
        if isinstance(others[0], StoreFullError):
            return QueueFullError(str(others[0]))
        return others[0] if isinstance(others[0], JQueueError) else as_storage_error(others[0])
    if operation.claims_jobs:
        return [job for job in result if job.id not in lost]
    for claim in operation.references():
        if isinstance(claim, Claim) and claim.job_id in lost:
            return ClaimLostError(*claim, "another program has the job, or has finished it")
    return JobNotFoundError(min(lost))


def with_current_jobs(outcome: list[Any], now_there: Mapping[str, Any]) -> list[Any]:
    """Return the results, with each job in them as the store now has it."""
    return [_current(result, now_there) for result in outcome]


def _current(result: Any, now_there: Mapping[str, Any]) -> Any:
    if result.__class__ is JobRecord:
        found = now_there.get(result.id)
        return found.job if found.__class__ is StoredJob else result
    return [_current(entry, now_there) for entry in result] if result.__class__ is list else result
