"""`jqueue dead URL`: the dead jobs of a queue, and their last errors."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jqueue.cli.chosen_jobs import ShortIds
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, on_queue
from jqueue.cli.printing import instant, moment, show, show_json, table
from jqueue.domain.models import Job
from jqueue.domain.printable import counted, printable
from jqueue.domain.selection import Phase, Selection

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

SHORT_ID = 36
"""Largest number of characters of an id that is not folded."""

ERROR_SHOWN = 200
"""Largest number of characters of an error in the table. JSON has all that the queue keeps."""


def dead(
    url: URL,
    entrypoint: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only jobs of this entrypoint.", show_default=False)
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """List dead jobs and their last errors, the latest last.

    A job is dead if it used up its attempts, or if its worker gave it up. This command only reads, and shows no
    payloads. `jqueue redrive` queues dead jobs again, `jqueue purge` removes them.

    With --json, `max_attempts` is the job's own limit, or null if it has none. `given_up_by` is "limit" if the job
    used up that limit, and "worker" if its worker gave it up, at the limit of its handler or at once.
    """

    async def find_dead(opened: OpenedQueue) -> tuple[str, list[Job]]:
        names = frozenset(() if entrypoint is None else (entrypoint,))
        dead_jobs = opened.view.jobs(opened.now(), Selection(frozenset({Phase.DEAD}), names))
        found = [job.evolve(payload=b"") async for job in dead_jobs]
        return opened.name, sorted(found, key=lambda job: (instant(job.dead_at) or "", job.sequence))

    name, found = on_queue(url, find_dead, as_json=as_json)
    if as_json:
        show_json({"queue": name, "dead": [_as_values(job) for job in found]})
    elif found:
        show(_table(found), f"\n{counted(len(found), 'job is', 'jobs are')} dead")
    else:
        show("no job is dead" if entrypoint is None else "no job of this entrypoint is dead")


def _as_values(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "entrypoint": job.entrypoint,
        "attempts": job.tries,
        "failures": job.failures,
        "max_attempts": job.max_attempts,
        "given_up_by": "limit" if _used_up(job) else "worker",
        "created_at": instant(job.created_at),
        "dead_at": instant(job.dead_at),
        "error": job.error,
    }


def _used_up(job: Job) -> bool:
    return job.max_attempts is not None and job.failures >= job.max_attempts


def _table(found: Sequence[Job]) -> Table:
    from rich.text import Text

    made = table("job and its last error", "entrypoint", "attempts", "died (UTC)", numbers=("attempts",))
    made.columns[3].width = len("2026-11-21")
    names = ShortIds(job.id for job in found)
    for job in found:
        names.meet(job.id)
    beginnings = names.found()
    for job in found:
        made.add_row(
            _about(job, beginnings[job.id]), Text(printable(job.entrypoint)), str(job.tries), moment(job.dead_at)
        )
    return made


def _about(job: Job, beginning: str) -> Group:
    """Return the id of a job and its error. The error is indented, so that no line of it looks like another job."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    name = Text(_as_argument(job.id, beginning), "bold")
    return Group(name, Padding(Text(_cut(job.error)), (0, 0, 0, 2))) if job.error else Group(name)


def _as_argument(job_id: str, beginning: str) -> str:
    """Return an id as a command takes it: in quotes if it has spaces, and then cut, as it would be folded there."""
    if " " in job_id and len(job_id) > SHORT_ID:
        kept = job_id[: max(len(beginning), SHORT_ID)]
        job_id = job_id if kept == job_id else f"{kept}…"
    return quote(printable(job_id)) if " " in job_id else printable(job_id)


def _cut(error: str) -> str:
    line = printable(" ".join(error.split()))
    return line if len(line) <= ERROR_SHOWN else f"{line[: ERROR_SHOWN - 1]}…"
