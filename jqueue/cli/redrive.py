"""`jqueue redrive URL`: queues dead jobs again, with all their attempts."""

from __future__ import annotations

from typing import Annotated

import typer

from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, on_queue
from jqueue.cli.printing import jobs, refusal, show, show_json
from jqueue.domain.counting import counted
from jqueue.domain.errors import JobStateError


def redrive(
    url: URL,
    job_id: Annotated[str | None, typer.Argument(metavar="ID", help="Id of one dead job.", show_default=False)] = None,
    entrypoint: Annotated[
        str | None, typer.Option(metavar="NAME", help="All dead jobs of this entrypoint.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All dead jobs of the queue.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Queue dead jobs again: one job, all of an entrypoint, or all of the queue.

    A job stays dead if another job has taken its unique key meanwhile.
    """
    if (job_id is not None) + (entrypoint is not None) + every != 1:
        raise refusal("choose the dead jobs to queue again: one ID, --entrypoint NAME, or --all", as_json=as_json)

    async def queue_again(opened: OpenedQueue) -> tuple[int, int]:
        try:
            redriven = await opened.queue.redrive(job_id, entrypoint=entrypoint)
        except JobStateError as error:
            raise RefusedError(f"this job is {error.status}: only a dead job can be queued again") from None
        if job_id is not None:
            return redriven, 0
        now = await opened.queue.stats()
        left = now if entrypoint is None else (now.entrypoints or {}).get(entrypoint)
        return redriven, left.dead if left else 0

    redriven, left = on_queue(url, queue_again, as_json=as_json)
    if as_json:
        show_json({"redriven": redriven, "dead": left})
        return
    again = f"{jobs(redriven)} queued again" if redriven or left else "there are no dead jobs to queue again"
    still = counted(left, "job stays dead: its unique key is taken", "jobs stay dead: their unique keys are taken")
    show(f"{again}; {still}" if left else again)
