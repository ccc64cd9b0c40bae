"""`jqueue cancel URL ID`: removes a waiting job; with `--running`, also stops a job in progress."""

from __future__ import annotations

from typing import Annotated

import typer

from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, on_queue
from jqueue.cli.printing import show, show_json
from jqueue.domain.errors import JobStateError
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.printable import printable

HINTS = {
    JobStatus.IN_PROGRESS: "this job is in progress: add --running to tell its worker to stop",
    JobStatus.DEAD: "this job is already dead: remove dead jobs with `jqueue purge`",
    JobStatus.COMPLETED: "this job is already completed: only its result is kept",
}


def cancel(
    url: URL,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the job.", show_default=False)],
    running: Annotated[bool, typer.Option("--running", help="Also stop the job if it is in progress.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Remove a waiting job; with --running, also stop a job in progress.

    The worker of a job in progress sees the request at its next heartbeat, within a minute by default, and stops the
    handler. If the handler finishes first, the job is done.
    """

    async def remove(opened: OpenedQueue) -> Job:
        try:
            return await opened.queue.cancel(job_id, running=running)
        except JobStateError as error:
            raise RefusedError(HINTS[JobStatus(error.status)]) from None

    job = on_queue(url, remove, as_json=as_json)
    told = job.status is JobStatus.IN_PROGRESS
    if as_json:
        show_json({"id": job.id, "entrypoint": job.entrypoint, "cancelled": "told" if told else "removed"})
    elif told:
        show(f"the worker of this job ({printable(job.entrypoint)}) will be told to stop at its next heartbeat")
    else:
        show(f"the job ({printable(job.entrypoint)}) was removed")
