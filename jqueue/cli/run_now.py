"""`jqueue run-now URL ID`: makes a scheduled job ready; with `--schedule`, enqueues a job of a cron entry now."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from jqueue.cli.chosen_jobs import one_job
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, certain, on_queue
from jqueue.cli.printing import refusal, show, show_json
from jqueue.domain.errors import JobStateError
from jqueue.domain.models import Job
from jqueue.domain.operations.rules import RunSchedule
from jqueue.domain.printable import printable


def run_now(
    url: URL,
    job_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Id of the job, or its beginning.", show_default=False)
    ] = None,
    schedule: Annotated[
        str | None, typer.Option("--schedule", metavar="NAME", help="Name of a cron entry.", show_default=False)
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Make a scheduled job ready; of a cron entry, enqueue a job now.

    The next worker that is free takes it, after ready jobs of a better priority. The times of a cron entry stay as
    they are.
    """
    if (job_id is None) == (schedule is None):
        raise refusal("give the ID of a scheduled job, or --schedule NAME for a cron entry", as_json=as_json)

    async def run(opened: OpenedQueue) -> Job:
        queue = opened.queue
        if schedule is not None:
            [added] = await certain(queue.apply_each(RunSchedule(schedule)))
            if isinstance(added, Exception):
                raise added
            return _job(added)
        job = await one_job(opened.view, opened.now(), job_id or "")
        try:
            return await certain(queue.reschedule(job.id, delay=0))
        except JobStateError as error:
            raise RefusedError(
                f"this job is {error.status.replace('_', ' ')}: only a queued job can be run now"
            ) from None

    job = on_queue(url, run, as_json=as_json)
    if as_json:
        show_json({"id": job.id, "entrypoint": job.entrypoint, "schedule": schedule})
    elif schedule is None:
        show(f"the job ({printable(job.entrypoint)}) is ready")
    else:
        show(f"enqueued job {printable(job.id)} ({printable(job.entrypoint)})")


def _job(found: Any) -> Job:
    assert isinstance(found, Job)
    return found
