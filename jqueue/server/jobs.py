"""Jobs for the page: a list by filters, a part at a time, dead ones by their error, and one job with its whole life."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import reduce
from typing import Any

import msgspec
from msgspec.structs import replace as replace_fields

from jqueue.core.json_views import ShownLife, instant, job_values
from jqueue.domain.errors import InvalidJobError, JobsUnreadableError
from jqueue.domain.job import JobStatus
from jqueue.domain.models import AnyJob, Job
from jqueue.domain.selection import FirstItems, Phase, Selection, since
from jqueue.ports.clock import Clock
from jqueue.server.payloads import text_of
from jqueue.server.view import View

PAGE = 50
"""Number of jobs in a page of a list."""

FEW = 10_000
"""Number of jobs in segments up to which all of them are looked at."""

LISTED = 1000
"""Number of ready jobs that are listed otherwise: the next to be served. As many scheduled jobs are."""

LISTED_BYTES = 8 << 20
"""Bytes of their payloads at which the list ends before."""

ERROR_SHOWN = 200
"""Characters of an error in a list of jobs."""

PREVIEW = 300
"""Bytes of a payload in a list of jobs."""

SEARCHED = 10_000
"""Maximum number of jobs whose payloads one list searches."""

SEARCHED_BYTES = 32 << 20
"""Bytes of payloads after which the search ends before."""

SEARCHES = 4
"""Number of searches of all payloads at a time."""

SEARCH_KEPT = 30.0
"""Seconds for which such a search goes on, and its result is kept, after a page has looked at it."""

SEARCH_ANSWER = 0.5
"""Seconds after which the page is told how far it has come."""

GROUPS_SHOWN = 200
"""Maximum number of groups of dead jobs in the page, the largest first."""

ORDERS: Mapping[str, Callable[[AnyJob], Any]] = {
    "served": lambda job: (job.priority, job.sequence),
    "oldest": lambda job: (since(job), job.sequence),
    "newest": lambda job: (-since(job).timestamp(), -job.sequence),
    "attempts": lambda job: (-job.tries, job.sequence),
    "id": lambda job: job.id,
}
"""The orders of a list, each by the key of a job."""


@dataclass(frozen=True)
class Query:
    """The filters of a list.

    Attributes:
        selection: the filters that the queue itself knows.
        pattern: the pattern of the error that the jobs have died of; None for any.
        payload: a part of the payloads, in lower case; empty for any. It must come from an operator.
        args: values in payloads of JSON, by the names to each: "order.id". They must come from an operator.
    """

    selection: Selection = field(default_factory=Selection)
    pattern: str | None = None
    payload: bytes = field(default=b"", repr=False)
    args: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def reads_payloads(self) -> bool:
        """True if payloads must be searched."""
        return bool(self.payload or self.args)

    def within(self, phases: frozenset[Phase]) -> Query:
        """Return the query with fewer phases.

        Raises:
            InvalidJobError: none of its phases is among them.
        """
        both = phases & (self.selection.phases or phases)
        if not both:
            raise InvalidJobError(f"this is for jobs that are {' or '.join(sorted(phases)).replace('_', ' ')}")
        return replace(self, selection=replace_fields(self.selection, phases=both))

    def matches(self, job: Job) -> bool:
        """Return True if a job has the pattern, the payload and the values in it."""
        return (
            (self.pattern is None or pattern_of(job) == self.pattern)
            and self.payload in job.payload.lower()
            and (not self.args or self._has_args(job.payload))
        )

    def _has_args(self, payload: bytes) -> bool:
        def at(path: str) -> str:
            value = reduce(lambda at, name: at.get(name) if isinstance(at, dict) else None, path.split("."), whole)
            return value if isinstance(value, str) else json.dumps(value)

        with suppress(msgspec.DecodeError, ValueError, RecursionError):
            whole = msgspec.json.decode(payload)
            return all(at(path) == wanted for path, wanted in self.args.items())
        return False


def query_of(filters: Any) -> Query:
    """Return the filters in the query of a URL, or in a body.

    Raises:
        InvalidJobError: they are not texts by their names, a phase is not known, or an age is not a number.
    """
    try:
        asked = msgspec.convert(filters, dict[str, str])
    except msgspec.ValidationError:
        raise InvalidJobError("the filters of a list must be texts") from None
    try:
        phases = frozenset(Phase(name) for name in asked.get("state", "").split(",") if name)
    except ValueError:
        raise InvalidJobError(f"there is no state of this name: the states are {', '.join(Phase)}") from None
    try:
        older = float(asked["older"]) if asked.get("older") else None
    except ValueError:
        raise InvalidJobError("'older' must be a number of seconds") from None
    names = frozenset(filter(None, (asked.get("entrypoint"),)))
    texts: dict[str, Any] = {name: asked.get(name) or None for name in ("holder", "key", "error", "text", "group")}
    selection = Selection(phases, names, older_than=older, **texts)
    args = {name.removeprefix("args."): value for name, value in asked.items() if name.startswith("args.")}
    return Query(selection, asked.get("pattern"), asked.get("payload", "").encode("utf-8", "replace").lower(), args)


@dataclass
class Search:
    """The jobs that all filters pick, one by one. Other tasks run in between.

    Attributes:
        view: the queue.
        query: the filters.
        now: the time at which they pick.
        whole: True if no number of payloads is too many.
        first: the first jobs that were found, in the order of a list.
        looked: number of the jobs that were looked at.
        stopped: True if more payloads than a list searches would have had to be searched.
        looked_at: time of the last look at a search that goes on between the polls of a page.
        task: that search.
    """

    view: View
    query: Query
    now: datetime
    whole: bool = False
    first: FirstItems[Job] = field(default_factory=lambda: FirstItems[Job](0, lambda job: job.id))
    looked: int = 0
    stopped: bool = False
    looked_at: float = 0.0
    task: asyncio.Task[None] | None = None

    async def jobs(self, *, hot: bool = False) -> AsyncGenerator[Job, None]:
        """Yield them, or only those in the object itself."""
        query, size = self.query, 0
        async with aclosing(self.view.queue.jobs(self.now, query.selection, hot=hot)) as jobs:
            async for job in jobs:
                if query.reads_payloads and not self.whole and (self.looked == SEARCHED or size > SEARCHED_BYTES):
                    self.stopped = True
                    return
                self.looked, size = self.looked + 1, size + len(job.payload)
                if query.matches(job):
                    yield job
                if self.looked % 256 == 0:
                    await asyncio.sleep(0)

    async def run(self, *, hot: bool = False) -> None:
        """Find the first jobs. Those of a segment that cannot be read are left out, and the page names it."""
        with suppress(JobsUnreadableError):
            async with aclosing(self.jobs(hot=hot)) as jobs:
                async for job in jobs:
                    self.first.add(job)

    async def unseen(self) -> int:
        """Return the number of jobs of these states and entrypoints that were not looked at."""
        selection = self.query.selection
        plain = Selection(selection.phases, selection.entrypoints)
        return max(0, await self.view.queue.count(self.now, plain) - self.looked)


class Searches:
    """Searches of more payloads than one answer waits for. They go on while pages look at them.

    Args:
        clock: tells when a page has last looked.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._searches: dict[str, Search] = {}

    async def look(self, view: View, query: Query, order: str) -> Search:
        """Return a search as far as it has come.

        Raises:
            InvalidJobError: too many others go on.
            JQueueError: the queue cannot be read.
        """
        now, key = self._clock.monotonic(), repr((query.selection, query.pattern, query.payload, query.args, order))
        for name, each in list(self._searches.items()):
            if each.looked_at < now - SEARCH_KEPT:
                del self._searches[name]
                if each.task is not None:
                    each.task.cancel()
        search = self._searches.get(key)
        if search is None:
            if len(self._searches) == SEARCHES:
                raise InvalidJobError("other searches of all payloads go on: try again in a minute")
            search = Search(view, query, view.now, whole=True, first=_first_items(LISTED, order))
            search.task, self._searches[key] = asyncio.create_task(search.run()), search
        search.looked_at = now
        assert search.task is not None
        await asyncio.wait([search.task], timeout=SEARCH_ANSWER)
        if search.task.done() and (error := search.task.exception()) is not None:
            del self._searches[key]
            raise error
        return search


async def job_page(
    view: View, query: Query, order: str, start: int, searches: Searches | None = None
) -> dict[str, Any]:
    """Return some jobs of a list, and the number of all jobs in it.

    `listed` is the number of jobs that pages can show, and `beyond` that of the jobs which were not looked at.
    `searched` is the number of jobs whose payloads were searched; None without such a filter.

    Args:
        view: the queue.
        query: the filters.
        order: one of `ORDERS`.
        start: number of jobs to leave out at the beginning.
        searches: the searches of all payloads, if this is one of them.

    Raises:
        InvalidJobError: there is no such order.
    """
    if order not in ORDERS:
        raise InvalidJobError(f"there is no order of this name: the orders are {', '.join(ORDERS)}")
    if searches is not None and query.reads_payloads:
        search = await searches.look(view, query, order)
        first, searched = search.first, search.looked
        beyond = 0 if search.task is None or search.task.done() else await search.unseen()
    else:
        first, beyond, searched = await first_jobs(view, query, order, start + PAGE)
    only = query != Query(Selection(query.selection.phases, query.selection.entrypoints))
    return {
        "now": view.now.timestamp(),
        "total": first.number + (0 if only else beyond),
        "listed": min(first.number, LISTED) if searches is not None else first.number,
        "beyond": beyond,
        "searched": searched if query.reads_payloads else None,
        "start": start,
        "page": PAGE,
        "jobs": [row_of(job, view.now) for job in first.found()[start : start + PAGE]],
    }


def _first_items(most: int, order: str) -> FirstItems[Job]:
    place = ORDERS[order]
    return FirstItems[Job](most, lambda job: (place(job), job.id))


async def first_jobs(view: View, query: Query, order: str, most: int) -> tuple[FirstItems[Job], int, int]:
    """Return the first jobs that the filters pick, and the numbers of jobs that were not and that were looked at.

    A page is drawn again at each change of the queue, and a look at a million jobs would take longer than that. So if
    very many jobs are in segments, only the next of them are looked at.
    """
    queue, now, selection = view.queue, view.now, query.selection
    few = view.stats.segment_jobs <= FEW
    search = Search(view, query, now, first=_first_items(most, order))
    await search.run(hot=not few and not query.reads_payloads)
    first = search.first
    if few or query.reads_payloads or selection.holder is not None:  # no waiting job has a holder
        return first, await search.unseen() if search.stopped else 0, search.looked
    next_jobs, plain = dict[str, Job](), Selection(selection.phases, selection.entrypoints)
    for phase in {Phase.READY, Phase.SCHEDULED} & (plain.phases or frozenset(Phase)):
        listing = await queue.first_jobs(LISTED, now, replace_fields(plain, phases=frozenset({phase})), LISTED_BYTES)
        next_jobs |= {job.id: job for job in listing.jobs if job.id not in queue.records}
    count_here = sum([1 async for _ in queue.jobs(now, plain, hot=True)]) + len(next_jobs)
    beyond = max(0, await queue.count(now, plain) - count_here)
    with suppress(JobsUnreadableError):  # it may be there
        if selection.text and (whole := await queue.find(selection.text)) and whole.id not in queue.records:
            next_jobs[whole.id] = whole
    for job in next_jobs.values():
        if selection.matches(job, now) and query.matches(job):
            first.add(job)
    return first, beyond, search.looked


_VARYING = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9]+")


def pattern_of(job: AnyJob) -> str:
    """Return the first line of a job's error, with a sign in place of each number and id."""
    lines = (job.error or "").strip().splitlines()
    return _VARYING.sub("#", lines[0][:ERROR_SHOWN]) if lines else ""


async def dead_groups(view: View) -> dict[str, Any]:
    """Return the groups of dead jobs by entrypoint and pattern of the error, the largest first."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    total = 0
    async for job in view.queue.jobs(view.now, Selection(frozenset({Phase.DEAD}))):
        total += 1
        at = instant(job.dead_at or job.created_at) or ""  # such texts are in the order of their times
        key = job.entrypoint, pattern_of(job)
        group = groups.setdefault(
            key, {"entrypoint": key[0], "pattern": key[1], "jobs": 0, "first": at, "last": at, "example": job.id}
        )
        group["jobs"] += 1
        if at >= group["last"]:
            group["last"], group["example"] = at, job.id
        group["first"] = min(group["first"], at)
    largest = sorted(groups.values(), key=lambda group: (-group["jobs"], group["entrypoint"], group["pattern"]))
    return {"now": view.now.timestamp(), "total": total, "groups_total": len(groups), "groups": largest[:GROUPS_SHOWN]}


def row_of(job: Job, now: datetime) -> dict[str, Any]:
    """Return a job as a row of a list, with the beginnings of its error and, as `text`, of its payload."""
    values, text = job_values(job, now), text_of(job.payload[:PREVIEW], whole=False)
    return {**values, "error": job.error and job.error[:ERROR_SHOWN], "text": text, "seen": seen_of(job)}


def seen_of(job: AnyJob) -> list[Any]:
    """Return what the page sends back with an action: the job is changed only if this still holds."""
    run_at = None if job.run_at is None else job.run_at.isoformat()
    return [job.status.value, job.attempt, job.sequence, job.priority, run_at, job.cancel_requested]


def job_details(job: Job, now: datetime) -> dict[str, Any]:
    """Return all that a queue knows of a job, except its payload and its result."""
    return {
        **job_values(job, now, ShownLife),
        "now": now.timestamp(),
        "headers": dict(job.headers),
        "pattern": pattern_of(job),
        "has_result": job.status is JobStatus.COMPLETED and (job.result is not None or job.result_object is not None),
        "seen": seen_of(job),
    }
