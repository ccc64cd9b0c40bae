"""`jqueue redrive URL`: queues dead jobs again, with all their attempts."""

from __future__ import annotations

from typing import Annotated

import typer

from jqueue.cli.on_queue import URL, AsJSON, Opened, RefusedError, on_queue
from jqueue.cli.printing import jobs, refusal, show, show_json
from jqueue.domain.errors import JobStateError


def redrive(
    url: URL,
    job_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Only the job with this id.", show_default=False)
    ] = None,
    entrypoint: Annotated[
        str | None, typer.Option(metavar="NAME", help="The dead jobs of this entrypoint.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All dead jobs.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Queue dead jobs again: one by its id, those of an entrypoint, or all.

    A job stays dead if another job has taken its unique key meanwhile.
    """
    if (job_id is not None) + (entrypoint is not None) + every != 1:
        raise refusal("say which dead jobs to queue again: one ID, --entrypoint NAME, or --all", as_json=as_json)

    async def queue_again(opened: Opened) -> tuple[int, int]:
        try:
            redriven = await opened.queue.redrive(job_id, entrypoint=entrypoint)
        except JobStateError as error:
            raise RefusedError(f"this job is {error.status}: only a dead one can be queued again") from None
        if job_id is not None:
            return redriven, 0
        now = await opened.queue.stats()
        left = now if entrypoint is None else (now.entrypoints or {}).get(entrypoint)
        return redriven, left.dead if left else 0

    redriven, left = on_queue(url, queue_again, as_json=as_json)
    if as_json:
        show_json({"redriven": redriven, "dead": left})
        return
    again = f"{jobs(redriven)} queued again" if redriven or left else "there was no dead job to queue again"
    show(f"{again}; {left} still dead, as another job has the same unique key" if left else again)
