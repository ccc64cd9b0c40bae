"""`jqueue ls URL`: the jobs of a queue, by filters. It only reads."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from jqueue.cli.filters import selecting
from jqueue.cli.on_queue import URL, OneALine, OpenedQueue, on_queue
from jqueue.cli.printing import instant, length, show, show_line, table
from jqueue.domain.counting import counted
from jqueue.domain.models import Job
from jqueue.domain.printable import printable
from jqueue.domain.selection import Phase, Selection, phase_of, since


@selecting()
def ls(url: URL, selection: Selection, as_json: OneALine = False) -> None:
    """List jobs: ready, running, dead; by entrypoint, age, holder, key or error.

    This command only reads, and shows no payloads.
    """

    async def find(opened: OpenedQueue) -> list[tuple[Job, Phase, float]]:
        now = opened.now()
        jobs = [job for job in (await opened.queue.read_state()).jobs if selection.matches(job, now)]
        return [(job, phase_of(job, now), (now - since(job)).total_seconds()) for job in jobs]

    found = on_queue(url, find, as_json=as_json)
    if as_json:
        for job, phase, _ in found:
            show_line(_as_values(job, phase))
    elif found:
        show(_table(found), f"\n{counted(len(found), 'job')}")
    else:
        show("no job matches" if selection else "no jobs")


def _as_values(job: Job, phase: Phase) -> dict[str, Any]:
    return {
        "id": job.id,
        "entrypoint": job.entrypoint,
        "status": phase.value,
        "since": instant(since(job)),
        "attempts": job.tries,
        "holder": job.holder,
        "error": job.error,
    }


def _table(found: list[tuple[Job, Phase, float]]) -> Table:
    made = table("id", "entrypoint", "status", "for", "attempts", numbers=("for", "attempts"))
    for job, phase, age in found:
        made.add_row(
            Text(printable(job.id)),
            Text(printable(job.entrypoint)),
            phase.replace("_", " "),
            f"in {length(-age)}" if age < 0 else length(age),
            str(job.tries),
        )
    return made
