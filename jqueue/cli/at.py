"""`jqueue at URL TIME`: the queue as it was at an earlier time, found by its history. It only reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer

from jqueue.cli import values
from jqueue.cli.columns import Cell, Column, Terminal, lines_of, write_lines
from jqueue.cli.filters import selecting
from jqueue.cli.history import OFF
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, on_queue
from jqueue.cli.printing import instant, moment, show_json, show_lines
from jqueue.core.blob_queue import BlobQueue
from jqueue.domain.counting import counted
from jqueue.domain.errors import InvalidJobError
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


@dataclass(frozen=True, slots=True)
class Past:
    """The queue at an earlier time.

    Attributes:
        at: the time.
        jobs: the jobs that are chosen, by id.
    """

    at: datetime
    jobs: Mapping[str, ReplayedJob]


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
        found = await opened.queue.jobs_at(then, view=opened.view)
        return Past(then, {job_id: job for job_id, job in found.items() if _fits(job_id, job, selection)})

    past = on_queue(url, look_back, as_json=as_json)
    if not as_json:
        write_lines(_lines(past, Terminal.of_stdout(), listed=jobs))
    elif jobs:
        show_lines(_values(job_id, job) for job_id, job in past.jobs.items())
    else:
        counts = _counts(past.jobs)
        show_json({"at": instant(past.at), "jobs": len(past.jobs), "entrypoints": counts})


def _fits(job_id: str, job: ReplayedJob, selection: Selection) -> bool:
    phases = QUEUED if job.status is JobStatus.QUEUED else {Phase(job.status)}
    return (
        (not selection.phases or not selection.phases.isdisjoint(phases))
        and (not selection.entrypoints or job.entrypoint in selection.entrypoints)
        and job_id.startswith(selection.id_prefix or "")
    )


def _values(job_id: str, job: ReplayedJob) -> dict[str, Any]:
    return {"id": job_id, "entrypoint": job.entrypoint, "status": job.status, "attempt": job.attempt}


def _counts(jobs: Mapping[str, ReplayedJob]) -> dict[str, dict[str, int]]:
    """Return the number of jobs by entrypoint and status."""
    found = Counter((job.entrypoint, job.status) for job in jobs.values())
    return {
        name: {str(status): found[name, status] for status in COUNTS}
        for name in sorted({job.entrypoint for job in jobs.values()})
    }


def _lines(past: Past, terminal: Terminal, *, listed: bool) -> Iterator[str]:
    yield terminal.styled(f"{moment(past.at)} UTC: {counted(len(past.jobs), 'job')}", "bold")
    if not past.jobs:
        return
    yield ""
    if listed:
        rows = (
            (Cell(job_id, "bold"), Cell(job.entrypoint), Cell(COUNTS[job.status]), Cell(str(job.attempt)))
            for job_id, job in past.jobs.items()
        )
        yield from lines_of(LISTED, rows, terminal)
    else:
        counts = _counts(past.jobs)
        lines = (
            (Cell(name), *(Cell(f"{number:,}", "" if number else "dim") for number in each.values()))
            for name, each in counts.items()
        )
        yield from lines_of(COUNTED, lines, terminal)
