"""`jqueue purge URL`: removes dead jobs for good. On a terminal, it asks before."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Annotated

import typer

from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, on_queue
from jqueue.cli.printing import refusal, show, show_json
from jqueue.domain.counting import counted
from jqueue.domain.durations import parse_duration

DECLINED = 1
"""Exit code if the answer is no."""


def purge(
    url: URL,
    entrypoint: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only jobs of this entrypoint.", show_default=False)
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Only jobs dead for longer: 90s, 15m, 12h, 30d, 2w.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Remove dead jobs for good, with their payloads.

    On a terminal, the command shows the number of jobs and asks first; elsewhere it does not ask.

    Exits with 1 if the answer is no.
    """
    seconds = None if older_than is None else parse_duration(older_than)
    if older_than is not None and seconds is None:
        raise refusal("--older-than takes a number with a unit: 90s, 15m, 12h, 30d or 2w", as_json=as_json)

    async def count(opened: OpenedQueue) -> int:
        state = await opened.queue.read_state()
        cutoff = None if seconds is None else opened.now() - timedelta(seconds=seconds)
        return sum(
            entrypoint in (None, job.entrypoint) and (cutoff is None or (job.dead_at or job.created_at) < cutoff)
            for job in state.dead_jobs()
        )

    async def remove(opened: OpenedQueue) -> int:
        return await opened.queue.purge(entrypoint=entrypoint, older_than=seconds)

    if not yes and sys.stdin.isatty():
        doomed = on_queue(url, count, as_json=as_json)
        if doomed and not typer.confirm(f"Remove {counted(doomed, 'dead job')} for good?", err=True):
            typer.echo("jqueue: nothing was removed", err=True)
            raise typer.Exit(DECLINED)
        removed = on_queue(url, remove, as_json=as_json) if doomed else 0
    else:
        removed = on_queue(url, remove, as_json=as_json)
    if as_json:
        show_json({"purged": removed})
    else:
        show(f"{counted(removed, 'dead job')} removed" if removed else "no dead job matches: nothing was removed")
