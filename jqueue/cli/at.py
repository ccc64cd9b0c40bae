"""`jqueue at URL TIME`: the queue as it was at an earlier time, found by its history. It only reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer

from jqueue.cli import values
from jqueue.cli.columns import SAMPLE, Cell, Column, Layout, Terminal, lines_of, write_lines
from jqueue.cli.filters import selecting
from jqueue.cli.history import OFF
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, on_queue
from jqueue.cli.printing import instant, moment, refusal, show_json, show_lines
from jqueue.cli.progress import Counted, reading
from jqueue.core.blob_queue import BlobQueue
from jqueue.domain.counting import counted
from jqueue.domain.errors import InvalidJobError, JobsUnreadableError
from jqueue.domain.models import JobStatus
from jqueue.domain.replay import ReplayedJob
from jqueue.domain.selection import QUEUED, Phase, Selection

COUNTS = {
    JobStatus.QUEUED: "queued",
    JobStatus.IN_PROGRESS: "in progress",
    JobStatus.DEAD: "dead",
    JobStatus.COMPLETED: "completed",
}
LISTED = (Column("id"), Column("entrypoint"), Column("status"), Column("attempt", right=True))
COUNTED = (Column("entrypoint"), *(Column(title, right=True) for title in COUNTS.values()))


Counts = Counter[tuple[str, JobStatus]]
"""Numbers of jobs by entrypoint and status."""


@dataclass(frozen=True, slots=True)
class Past:
    """The queue at an earlier time, without its jobs.

    Attributes:
        at: the time.
        counts: numbers of the jobs that were chosen.
        damage: names segments whose jobs could not be read.
    """

    at: datetime
    counts: Counts
    damage: JobsUnreadableError | None = None


@selecting("older_than", "newer_than", "holder", "key", "error")
def at(
    url: URL,
    time: Annotated[
        str,
        typer.Argument(metavar="TIME", help="The time: 2h ago, 30d, 2026-11-23T08:00 (in UTC).", show_default=False),
    ],
    selection: Selection,
    jobs: Annotated[bool, typer.Option("--list", help="List the jobs instead of counting them.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Show a queue as it was at an earlier time.

    The present jobs are taken back event by event, as far as the history of the queue reaches. Scheduled jobs are
    queued, too. With --json and --list, each job is an object on a line of its own.
    """

    async def look_back(opened: OpenedQueue) -> Past:
        if not isinstance(opened.queue, BlobQueue):
            raise InvalidJobError("the format of this queue has no history")
        try:
            then = values.past("TIME", time, opened.now())
        except ValueError as error:
            raise RefusedError(str(error)) from None
        opened.queue.capabilities.require("history")
        if (history := opened.view.header.history) is None or history.stopped:
            raise RefusedError(OFF)
        counts, listed, damage = Counts(), List(then, Terminal.of_stdout(), as_json=as_json), None
        with reading(opened.view, names=selection.entrypoints) as (view, progress):
            try:
                async for job_id, job in opened.queue.past_jobs(then, view=view):
                    if _fits(job_id, job, selection):
                        counts[job.entrypoint, job.status] += 1
                        if jobs:
                            listed.add(job_id, job, progress)
            except JobsUnreadableError as error:  # all others were found
                damage = error
            if jobs:
                listed.end(counts.total(), progress)
        return Past(then, counts, damage)

    past = on_queue(url, look_back, as_json=as_json)
    if not as_json and not jobs:
        write_lines(_lines(past, Terminal.of_stdout()))
    elif not jobs:
        show_json({"at": instant(past.at), "jobs": past.counts.total(), "entrypoints": _by_entrypoint(past.counts)})
    if past.damage is not None:
        raise refusal(str(past.damage), as_json=as_json)


class List:
    """A list of jobs that is written as they come."""

    def __init__(self, at: datetime, terminal: Terminal, *, as_json: bool) -> None:
        self._at = at
        self._terminal = terminal
        self._as_json = as_json
        self._layout: Layout | None = None
        self._held: list[tuple[str, ReplayedJob]] = []

    def add(self, job_id: str, job: ReplayedJob, progress: Counted) -> None:
        """Add a job, and write some if they are many."""
        self._held.append((job_id, job))
        if len(self._held) == SAMPLE:
            self._write(progress)

    def end(self, number: int, progress: Counted) -> None:
        """Write the last jobs, and the number of all."""
        self._write(progress)
        if not self._as_json:
            with progress.away():
                write_lines(["", self._terminal.styled(_title(self._at, number), "bold")])

    def _write(self, progress: Counted) -> None:
        held, self._held = self._held, []
        with progress.away():
            if self._as_json:
                show_lines(_values(*each) for each in held)
                return
            rows = [_row(*each) for each in held]
            if self._layout is None and rows:
                self._layout = Layout(LISTED, rows, self._terminal)
                write_lines([self._layout.titles])
            if self._layout is not None:
                write_lines(map(self._layout.line, rows))


def _fits(job_id: str, job: ReplayedJob, selection: Selection) -> bool:
    phases = QUEUED if job.status is JobStatus.QUEUED else {Phase(job.status)}
    return (
        (not selection.phases or not selection.phases.isdisjoint(phases))
        and (not selection.entrypoints or job.entrypoint in selection.entrypoints)
        and job_id.startswith(selection.id_prefix or "")
    )


def _values(job_id: str, job: ReplayedJob) -> dict[str, Any]:
    return {"id": job_id, "entrypoint": job.entrypoint, "status": job.status, "attempt": job.attempt}


def _row(job_id: str, job: ReplayedJob) -> tuple[Cell, ...]:
    return Cell(job_id, "bold"), Cell(job.entrypoint), Cell(COUNTS[job.status]), Cell(str(job.attempt))


def _by_entrypoint(counts: Counts) -> dict[str, dict[str, int]]:
    """Return the number of jobs by entrypoint and status."""
    names = sorted({name for name, _ in counts})
    return {name: {str(status): counts[name, status] for status in COUNTS} for name in names}


def _title(at: datetime, number: int) -> str:
    return f"{moment(at)} UTC: {counted(number, 'job')}"


def _lines(past: Past, terminal: Terminal) -> Iterator[str]:
    yield terminal.styled(_title(past.at, past.counts.total()), "bold")
    if not past.counts:
        return
    yield ""
    rows = (
        (Cell(name), *(Cell(f"{number:,}", "" if number else "dim") for number in each.values()))
        for name, each in _by_entrypoint(past.counts).items()
    )
    yield from lines_of(COUNTED, rows, terminal)
