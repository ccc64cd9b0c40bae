"""Jobs for the page: a list by filters, a part at a time, and one job with its whole life."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from heapq import nsmallest
from typing import Any

from jqueue.domain.errors import InvalidJobError, JobsUnreadableError
from jqueue.domain.job import JobStatus
from jqueue.domain.models import AnyJob, Job
from jqueue.domain.selection import FirstItems, Phase, Selection, phase_of, since
from jqueue.runtime.threads import in_a_thread
from jqueue.server.view import View
from jqueue.server.waiting import are_few, waiting_jobs

Placed = tuple[Any, str, AnyJob | None]
"""A job as its key in an order, its id, and itself unless it is in the queue's object."""

PAGE = 50
"""Number of jobs in a page of a list."""

LISTS_KEPT = 8
"""Number of lists that one version of a queue keeps, for other pages and other viewers of the same list."""

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


@dataclass(frozen=True)
class Search:
    """The filters of a list of jobs.

    Attributes:
        selection: phases, entrypoints and holders, as for commands.
        text: part of an id, an entrypoint, a holder, a key or an error, in any case.
    """

    selection: Selection
    text: str = ""

    def matches(self, job: AnyJob, now: datetime) -> bool:
        """Return True if the filters pick a job."""
        return self.selection.matches(job, now) and (
            not self.text or any(self.text.casefold() in text.casefold() for text in _texts(job))
        )


def search_of(asked: Mapping[str, str]) -> Search:
    """Return the filters in the query of a URL.

    Raises:
        InvalidJobError: a phase is not known.
    """
    try:
        phases = frozenset(Phase(name) for name in asked.get("state", "").split(",") if name)
    except ValueError:
        raise InvalidJobError(f"there is no state of this name: the states are {', '.join(Phase)}") from None
    entrypoint, holder = asked.get("entrypoint"), asked.get("holder")
    chosen = Selection(phases, frozenset((entrypoint,) if entrypoint else ()), holder=holder or None)
    return Search(chosen, asked.get("text", ""))


def _texts(job: AnyJob) -> list[str]:
    found = (job.id, job.entrypoint, job.holder, job.unique_key, job.concurrency_key, job.error)
    return [text for text in found if text]


async def job_page(view: View, search: Search, order: str, start: int) -> dict[str, Any]:
    """Return some jobs of a list, and the number of all jobs in it.

    If very many jobs are not in the queue's object, only the next of them are listed: see `jqueue.server.waiting`.
    `listed` is the number of jobs that pages can show, and `beyond` that of the waiting jobs which were not looked at.

    Args:
        view: the queue.
        search: the filters.
        order: one of `ORDERS`.
        start: number of jobs to leave out at the beginning.

    Raises:
        InvalidJobError: there is no such order.
    """
    if order not in ORDERS:
        raise InvalidJobError(f"there is no order of this name: the orders are {', '.join(ORDERS)}")
    now, end = view.now, start + PAGE
    found = await in_a_thread(_found, view, search, order)
    others, beyond = await _others(view, search, order, end)
    first = [(key, job_id, None) for key, job_id in nsmallest(end, found)]
    shown = sorted((*first, *others.found()), key=_place)[start:end]
    jobs = (view.entries[job_id] if job is None else job for _, job_id, job in shown)
    return {
        "now": now.timestamp(),
        "total": len(found) + others.number + (0 if search.text else beyond),
        "listed": len(found) + others.number,
        "beyond": beyond,
        "start": start,
        "page": PAGE,
        "jobs": [row_of(job, now) for job in jobs],
    }


async def _others(view: View, search: Search, order: str, most: int) -> tuple[FirstItems[Placed], int]:
    """Return the first jobs that the filters pick of those that are not in the queue's object.

    Returns:
        The jobs, and the number of those that may fit and were not looked at.
    """
    kept = search, order, most
    known: tuple[FirstItems[Placed], int] | None = view.found.get(kept)
    if known is not None:
        return known
    key, first = ORDERS[order], FirstItems[Placed](most, _place)
    beyond = 0
    if are_few(view):
        statuses, names = frozenset(search.selection.statuses), search.selection.entrypoints
        try:
            async with view.queue.other_jobs(statuses, names) as others:
                async for job in others:
                    if search.matches(job, view.now):
                        first.add((key(job), job.id, job))
        except JobsUnreadableError as error:  # all others are listed
            view.damage.update(error.segments)
    elif search.selection.holder is None:  # no waiting job has a holder
        next_jobs, beyond = await waiting_jobs(view, search.selection)
        whole = None
        if search.text and search.text not in view.entries:
            try:
                whole = await view.job(search.text)
            except JobsUnreadableError as error:  # it may be there: the page says which segment cannot be read
                view.damage.update(error.segments)
        for job in {job.id: job for job in (*next_jobs, *filter(None, (whole,)))}.values():
            if search.matches(job, view.now):
                first.add((key(job), job.id, job))
    if len(view.found) < LISTS_KEPT:
        view.found[kept] = first, beyond
    return first, beyond


def _place(placed: Placed) -> tuple[Any, str]:
    return placed[0], placed[1]


def _found(view: View, search: Search, order: str) -> list[tuple[Any, str]]:
    """Return the jobs of the queue's object that the filters pick, each as its key in the order and its id."""
    known: list[tuple[Any, str]] | None = view.found.get((search, order))
    if known is not None:
        return known
    key = ORDERS[order]
    found: list[tuple[Any, str]] = []
    for job in view.entries.values():
        if search.matches(job, view.now):
            found.append((key(job), job.id))
    if len(view.found) < LISTS_KEPT:
        view.found[search, order] = found
    return found


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
