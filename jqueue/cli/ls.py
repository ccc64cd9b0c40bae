"""`jqueue ls URL`: the jobs of a queue, by filters. It only reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import chain, islice
from tempfile import gettempdir
from typing import Annotated, Any

import typer

from jqueue.cli.chosen_jobs import ShortIds
from jqueue.cli.columns import SAMPLE, Cell, Column, Layout, Terminal, cut, lines_of, write_lines
from jqueue.cli.filters import selecting
from jqueue.cli.live import Draw, Interval, live
from jqueue.cli.on_queue import URL, OneALine, OpenedQueue, RefusedError, on_queue
from jqueue.cli.printing import age, lines_of_json, refusal, show_lines, size
from jqueue.cli.progress import DEEP, Counted, number_in_segments, reading
from jqueue.core.view import QueueView
from jqueue.domain.errors import JobsUnreadableError
from jqueue.domain.models import Job
from jqueue.domain.printable import counted, printable
from jqueue.domain.selection import FirstItems, Phase, Selection, phase_of, place_of, since

WIDE = 120
"""Width of a terminal from which on ids are shown in full."""

TITLES = 3
"""Number of lines beside the jobs."""

STYLES = {
    Phase.IN_PROGRESS: "green",
    Phase.DEAD: "red",
    Phase.EXPIRED: "yellow",
    Phase.SCHEDULED: "dim",
    Phase.COMPLETED: "dim",
}

COLUMNS = (
    Column("id"),
    Column("entrypoint", cut=True),
    Column("status"),
    Column("for", right=True),
    Column("attempts", right=True),
    Column("holder or error", cut=True),
)


SIZE = Column("size", right=True)
"""The column that is added to a list by size."""


class Order(StrEnum):
    """Values by which the jobs can be sorted."""

    AGE = "age"
    ATTEMPTS = "attempts"
    CREATED = "created"
    DUE = "due"
    ENTRYPOINT = "entrypoint"
    ID = "id"
    PRIORITY = "priority"
    RUN_TIME = "run-time"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Found:
    """The jobs that were found, in their order.

    Attributes:
        jobs: the jobs.
        view: the version of the queue that has them.
        now: the time by the queue's clock.
        more: number of jobs that fit, but are beyond the limit.
        sort: the order, if one was chosen.
        damage: names segments that are missing or damaged, and whose jobs are not among the found ones.
    """

    jobs: Sequence[Job]
    view: QueueView
    now: datetime
    more: int
    sort: Order | None = None
    damage: JobsUnreadableError | None = None


@selecting()
def ls(
    url: URL,
    selection: Selection,
    sort: Annotated[
        Order | None,
        typer.Option(
            help="Order of the jobs: the oldest, largest, most tried or soonest due first. By default running jobs "
            "come first, then ready ones in the order in which they will be served.",
            show_default=False,
        ),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Reverse the order.")] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of jobs to list at most.", show_default=False)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show the list live, until Ctrl-C.")] = False,
    interval: Interval = 1.0,
    as_json: OneALine = False,
) -> None:
    """List jobs: ready, running, dead; by entrypoint, age, holder, key or error.

    The column "for" has the time for which a job has had its status. On a narrow terminal, ids are cut to the
    beginnings that tell them apart, unless the queue is deep; every command that takes an id takes such a beginning.

    This command only reads, and shows no payloads.
    """
    if watch and as_json:
        raise refusal("choose --watch or --json", as_json=True)
    if watch:
        return live(url, drawing(selection, sort, limit, reverse=reverse), interval, instead="jqueue ls")

    terminal = Terminal.of_stdout()

    async def find(opened: OpenedQueue) -> tuple[Found, Mapping[str, str]] | None:
        now = opened.now()
        with reading(opened.view, names=selection.entrypoints) as (view, progress):
            listed = LongList(now, terminal, progress, sort, as_json=as_json)
            found: Found | None
            if limit is not None:
                found = await find_jobs(view, now, selection, sort, limit, reverse=reverse)
            elif (sort, reverse) == (None, False):
                found = await write_as_found(view, selection, now, listed)
            else:
                found = await write_sorted(view, selection, now, sort, listed, reverse=reverse)
            if found is None:
                return None
            return found, {} if as_json else await short_names(found, terminal)

    answer = on_queue(url, find, as_json=as_json)
    if answer is None:
        return
    found, names = answer
    if as_json:
        show_lines(_values(found.jobs, found.now))
    else:
        write_lines(listing(found, names, terminal, every=not selection))
    if found.damage is not None:
        raise refusal(str(found.damage), as_json=as_json)


def drawing(selection: Selection, sort: Order | None, limit: int | None, *, reverse: bool) -> Draw:
    """Return what draws the list that fits a screen. The arguments are as for `find_jobs`."""

    async def draw(opened: OpenedQueue, terminal: Terminal, room: int) -> Iterator[str]:
        most = max(1, room - TITLES)
        found = await find_jobs(opened.view, opened.now(), selection, sort, min(limit or most, most), reverse=reverse)
        lines = listing(found, await short_names(found, terminal), terminal, every=not selection)
        if found.damage is None:
            return lines
        return chain([terminal.styled(cut(printable(str(found.damage)), terminal.width or WIDE), "red")], lines)

    return draw


class LongList:
    """A list that is written as its rows come. The first of them decide the widths of the columns.

    Args:
        now: the time by the queue's clock.
        terminal: the place to write to.
        progress: it is cleared while rows are written.
        sort: the order of the list, if one was chosen.
        as_json: True for JSON.
    """

    def __init__(
        self, now: datetime, terminal: Terminal, progress: Counted, sort: Order | None, *, as_json: bool
    ) -> None:
        self._now = now
        self._sort = sort
        self._terminal = terminal
        self._progress = progress
        self._as_json = as_json
        self._layout: Layout | None = None
        self._written = 0

    def row_of(self, job: Job) -> Any:
        """Return the row of a job: a line of JSON, or its cells."""
        return next(lines_of_json(_values([job], self._now))) if self._as_json else _row(job, {}, self._now, self._sort)

    def write(self, rows: Sequence[Any]) -> None:
        """Write rows."""
        self._written += len(rows)
        with self._progress.away():
            if self._as_json:
                write_lines(rows)
                return
            if self._layout is None:
                self._layout = Layout(_columns(self._sort), rows, self._terminal)
                write_lines([self._layout.titles])
            write_lines(map(self._layout.line, rows))

    def end(self) -> None:
        """Write the number of rows, on a terminal."""
        if self._terminal.width is not None and not self._as_json:
            write_lines(["", self._terminal.styled(counted(self._written, "job"), "dim")])


async def write_as_found(view: QueueView, selection: Selection, now: datetime, listed: LongList) -> Found | None:
    """Write all jobs that are chosen, as they are read. Return them instead if they are few."""
    first: list[Job] = []
    long, damage = False, None
    async with aclosing(view.jobs(now, selection, in_order=True)) as jobs:
        try:
            async for job in jobs:
                first.append(job)
                if len(first) == SAMPLE:
                    long = True
                    listed.write([listed.row_of(each) for each in first])
                    first = []
        except JobsUnreadableError as error:  # all others were found
            damage = error
    if not long:
        return Found(first, view, now, 0, damage=damage)
    listed.write([listed.row_of(each) for each in first])
    listed.end()
    if damage is not None:
        raise damage
    return None


async def write_sorted(
    view: QueueView, selection: Selection, now: datetime, sort: Order | None, listed: LongList, *, reverse: bool
) -> Found | None:
    """Write all jobs that are chosen, in an order. Return them instead if they are few. Memory is bounded.

    Raises:
        RefusedError: there is no space for a temporary file.
        JobsUnreadableError: at the end, if segments are missing or damaged.
    """
    from jqueue.cli.sorted_rows import SortedRows  # what it needs is slow to import

    place, first, damage = _place_of(sort, now), list[Job](), None
    with closing(SortedRows[Any](reverse=reverse)) as rows:
        try:
            async for job in view.jobs(now, selection):
                if rows.number < SAMPLE:
                    first.append(job)
                rows.add(place(job), listed.row_of(job))
        except JobsUnreadableError as error:  # all others were found
            damage = error
        except OSError as error:
            raise RefusedError(
                f"the list cannot be sorted in a temporary file in {gettempdir()!r}: {error.strerror}. Set TMPDIR to a "
                "folder with more space, or give a --limit"
            ) from None
        if rows.number <= SAMPLE:
            return Found(sorted(first, key=place, reverse=reverse), view, now, 0, sort, damage)
        coming = iter(rows)
        while some := list(islice(coming, SAMPLE)):
            listed.write(some)
    listed.end()
    if damage is not None:
        raise damage
    return None


def _values(jobs: Sequence[Job], now: datetime) -> Iterator[Mapping[str, Any]]:
    from jqueue.core.shown import job_values

    return (job_values(job, now) for job in jobs)


async def find_jobs(
    view: QueueView, now: datetime, selection: Selection, sort: Order | None, limit: int | None, *, reverse: bool
) -> Found:
    """Return the jobs of a queue that are chosen, in order. Memory grows with their limit, not with the queue.

    Args:
        view: the queue.
        now: the time by its clock.
        selection: chooses the jobs.
        sort: their order; None for the order in which they run, will be served, and ended.
        limit: maximum number of jobs; None for all.
        reverse: True to reverse the order.
    """
    if limit is not None and sort is None and not reverse:
        jobs, more, segments = await view.first_jobs(limit, now, selection)
        damage, number = JobsUnreadableError(segments) if segments else None, len(jobs)
        try:
            number = await view.count(now, selection) if more else number
        except JobsUnreadableError as error:
            damage = error
        return Found(jobs, view, now, max(0, number - len(jobs)), sort, damage)
    first, damage = FirstItems(limit, _place_of(sort, now), reverse=reverse), None
    try:
        async for job in view.jobs(now, selection):
            first.add(job)
    except JobsUnreadableError as error:  # all others were found
        damage = error
    jobs = first.found()
    return Found(jobs, view, now, first.number - len(jobs), sort, damage)


def _place_of(sort: Order | None, now: datetime) -> Callable[[Job], Any]:
    return (lambda job: place_of(job, now)) if sort is None else _KEYS[sort](now)


async def short_names(found: Found, terminal: Terminal) -> Mapping[str, str]:
    """Return short ids of the jobs for a narrow terminal; nothing for another place, where ids are shown in full.

    They are shown in full in a deep queue, too: all of its ids would have to be read.
    """
    if not found.jobs or terminal.width is None or terminal.width >= WIDE or number_in_segments(found.view) >= DEEP:
        return {}
    names = ShortIds(job.id for job in found.jobs)
    with suppress(JobsUnreadableError):  # an id of a job that cannot be read may begin like a short one
        async for job in found.view.jobs(found.now):
            names.meet(job.id)
    return names.found()


def listing(found: Found, names: Mapping[str, str], terminal: Terminal, *, every: bool) -> Iterator[str]:
    """Yield the lines of a list of jobs.

    Args:
        found: the jobs.
        names: their short ids, or nothing if ids are shown in full.
        terminal: the place where the lines will be written.
        every: True if no filter was given.
    """
    if not found.jobs:
        yield "no jobs" if every else "no job matches"
        return
    rows = (_row(job, names, found.now, found.sort) for job in found.jobs)
    yield from lines_of(_columns(found.sort), rows, terminal)
    if terminal.width is not None:
        total = counted(len(found.jobs) + found.more, "job")
        yield ""
        yield terminal.styled(f"{total}, {found.more:,} of them not shown" if found.more else total, "dim")


def _columns(sort: Order | None) -> Sequence[Column]:
    return (*COLUMNS[:-1], SIZE, COLUMNS[-1]) if sort is Order.SIZE else COLUMNS


def _row(job: Job, shown: Mapping[str, str], now: datetime, sort: Order | None) -> Sequence[Cell]:
    phase = phase_of(job, now)
    seconds = (now - since(job)).total_seconds()
    return (
        Cell(shown.get(job.id, job.id), "bold"),
        Cell(job.entrypoint),
        Cell(phase.replace("_", " "), STYLES.get(phase, "")),
        Cell(f"in {age(-seconds)}" if seconds < 0 else age(seconds)),
        Cell(str(job.tries), "" if job.tries else "dim"),
        *([Cell(size(_size_of(job)))] if sort is Order.SIZE else []),
        Cell(job.holder or "?") if phase is Phase.IN_PROGRESS else Cell(job.error or "", "dim"),
    )


def _size_of(job: Job) -> int:
    return job.payload_object.size if job.payload_object else len(job.payload)


_KEYS: Mapping[Order, Callable[[datetime], Callable[[Job], Any]]] = {
    Order.AGE: lambda _: since,
    Order.ATTEMPTS: lambda _: lambda job: -job.tries,
    Order.CREATED: lambda _: lambda job: job.created_at,
    Order.DUE: lambda _: lambda job: job.run_at or job.created_at,
    Order.ENTRYPOINT: lambda _: lambda job: job.entrypoint,
    Order.ID: lambda _: lambda job: job.id,
    Order.PRIORITY: lambda _: lambda job: (job.priority, job.sequence),
    Order.RUN_TIME: lambda now: lambda job: job.claimed_at or now,
    Order.SIZE: lambda _: lambda job: -_size_of(job),
}
