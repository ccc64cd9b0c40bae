"""Jobs for the page: a list by filters, a part at a time, and one job with its whole life."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from jqueue.domain.errors import InvalidJobError, JobsUnreadableError
from jqueue.domain.job import JobStatus
from jqueue.domain.models import AnyJob, Job
from jqueue.domain.selection import FirstItems, Phase, Selection, phase_of, since
from jqueue.server.view import View

PAGE = 50
"""Number of jobs in a page of a list."""

LISTS_KEPT = 8
"""Number of lists that one version of a queue keeps, for other pages and other viewers of the same list."""

FEW = 10_000
"""Number of jobs in segments up to which all of them are looked at."""

LISTED = 1000
"""Number of ready jobs that are listed otherwise: the next to be served. As many scheduled jobs are."""

LISTED_BYTES = 8 << 20
"""Bytes of their payloads at which the list ends before."""

ERROR_SHOWN = 200
"""Characters of an error in a list of jobs."""

ORDERS: Mapping[str, Callable[[AnyJob], Any]] = {
    "served": lambda job: (job.priority, job.sequence),
    "oldest": lambda job: (since(job), job.sequence),
    "newest": lambda job: (-since(job).timestamp(), -job.sequence),
    "attempts": lambda job: (-job.tries, job.sequence),
    "id": lambda job: job.id,
}
"""The orders of a list, each by the key of a job."""


def selection_of(asked: Mapping[str, str]) -> Selection:
    """Return the filters in the query of a URL.

    Raises:
        InvalidJobError: a phase is not known.
    """
    try:
        phases = frozenset(Phase(name) for name in asked.get("state", "").split(",") if name)
    except ValueError:
        raise InvalidJobError(f"there is no state of this name: the states are {', '.join(Phase)}") from None
    names = frozenset(filter(None, (asked.get("entrypoint"),)))
    return Selection(phases, names, holder=asked.get("holder") or None, text=asked.get("text") or None)


async def job_page(view: View, selection: Selection, order: str, start: int) -> dict[str, Any]:
    """Return some jobs of a list, and the number of all jobs in it.

    `listed` is the number of jobs that pages can show, and `beyond` that of the waiting jobs which were not looked at.

    Args:
        view: the queue.
        selection: the filters.
        order: one of `ORDERS`.
        start: number of jobs to leave out at the beginning.

    Raises:
        InvalidJobError: there is no such order.
    """
    if order not in ORDERS:
        raise InvalidJobError(f"there is no order of this name: the orders are {', '.join(ORDERS)}")
    asked = selection, order, start + PAGE
    if asked not in view.lists:
        found = await first_jobs(view, *asked)
        if len(view.lists) < LISTS_KEPT:
            view.lists[asked] = found
    first, beyond = view.lists.get(asked) or found
    return {
        "now": view.now.timestamp(),
        "total": first.number + (0 if selection.text else beyond),
        "listed": first.number,
        "beyond": beyond,
        "start": start,
        "page": PAGE,
        "jobs": [row_of(job, view.now) for job in first.found()[start:]],
    }


async def first_jobs(view: View, selection: Selection, order: str, most: int) -> tuple[FirstItems[Job], int]:
    """Return the first jobs that the filters pick, and the number of those that may fit and were not looked at.

    A page is drawn again at each change of the queue, and a look at a million jobs would take longer than that. So if
    very many jobs are in segments, only the next of them are looked at.
    """
    queue, now, place = view.queue, view.now, ORDERS[order]
    first, few = FirstItems[Job](most, lambda job: (place(job), job.id)), view.stats.segment_jobs <= FEW
    with suppress(JobsUnreadableError):  # all others are listed, and the page says which segment cannot be read
        async for job in queue.jobs(now, selection, hot=not few):
            first.add(job)
    if few or selection.holder is not None:  # no waiting job has a holder
        return first, 0
    plain, next_jobs = Selection(selection.phases, selection.entrypoints), dict[str, Job]()
    for phase in {Phase.READY, Phase.SCHEDULED} & (plain.phases or frozenset(Phase)):
        found = await queue.first_jobs(LISTED, now, replace(plain, phases=frozenset({phase})), LISTED_BYTES)
        next_jobs |= {job.id: job for job in found.jobs if job.id not in queue.records}
    known = sum([1 async for _ in queue.jobs(now, plain, hot=True)]) + len(next_jobs)
    beyond = max(0, await queue.count(now, plain) - known)
    with suppress(JobsUnreadableError):  # it may be there
        if selection.text and (whole := await queue.find(selection.text)) and whole.id not in queue.records:
            next_jobs[whole.id] = whole
    for job in next_jobs.values():
        if selection.matches(job, now):
            first.add(job)
    return first, beyond


def row_of(job: AnyJob, now: datetime) -> dict[str, Any]:
    """Return a job as a row of a list. It has no payload, no result and no whole error."""
    return {
        "id": job.id,
        "entrypoint": job.entrypoint,
        "state": phase_of(job, now),
        "since": since(job).timestamp(),
        "priority": job.priority,
        "tries": job.tries,
        "failed": job.failed_tries,
        "max_attempts": job.max_attempts,
        "holder": job.holder,
        "error": None if job.error is None else job.error[:ERROR_SHOWN],
        "cancel_requested": job.cancel_requested,
        "seen": seen_of(job),
    }


def seen_of(job: AnyJob) -> list[Any]:
    """Return what the page sends back with an action: the job is changed only if this still holds."""
    run_at = None if job.run_at is None else job.run_at.isoformat()
    return [job.status.value, job.attempt, job.sequence, job.priority, run_at, job.cancel_requested]


_TIMES = ("created_at", "run_at", "expires_at", "queued_at", "claimed_at", "heartbeat_at", "dead_at", "finished_at")
_PLAIN = (
    "attempt", "sequence", "unique_key", "unique_for", "claim_timeout", "concurrency_key",
    "concurrency_limit", "keep_result", "error_dropped", "result_dropped",
    "traceback",
)  # fmt: skip


def job_details(job: Job, now: datetime) -> dict[str, Any]:
    """Return all that a queue knows of a job, except its payload and its result."""
    times = {name: getattr(job, name) for name in _TIMES}
    return {
        **row_of(job, now),
        "now": now.timestamp(),
        "times": {name: None if time is None else time.timestamp() for name, time in times.items()},
        **{name: getattr(job, name) for name in _PLAIN},
        "error": job.error,
        "errors": [{"attempt": each.attempt, "at": each.at.timestamp(), "text": each.text} for each in job.errors],
        "headers": dict(job.headers),
        "payload_bytes": len(job.payload) if job.payload_object is None else job.payload_object.size,
        "has_result": job.status is JobStatus.COMPLETED and (job.result is not None or job.result_object is not None),
    }
