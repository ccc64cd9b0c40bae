"""`jqueue reschedule URL ID`: gives waiting jobs another time."""

from __future__ import annotations

from typing import Annotated

import typer

from jqueue.cli.filters import selecting
from jqueue.cli.on_jobs import All, ChosenJob, DryRun, JobChange, JobID, Yes, change_job, change_jobs, one_choice
from jqueue.cli.on_queue import URL, AsJSON
from jqueue.cli.printing import instant, moment, refusal, show, show_json
from jqueue.cli.values import duration, time
from jqueue.domain.job import JobStatus
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.operator import Reschedule
from jqueue.domain.printable import printable
from jqueue.domain.selection import QUEUED, Selection


@selecting("holder")
def reschedule(
    url: URL,
    job_id: JobID = None,
    selection: Selection = Selection(),  # noqa: B008 - an immutable value
    every: All = False,
    delay: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Time from now: 60, 90s, 15m, 12h; 0 for at once.", show_default=False),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="A time such as 2026-11-23T08:00, in UTC.", show_default=False),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJSON = False,
) -> None:
    """Give waiting jobs another time: one by its ID, several by filters, or --all.

    No worker claims a job before its time. Jobs in progress, dead and completed jobs have no time.

    Exits with 1 if some of the jobs had changed meanwhile.
    """
    one_choice(job_id, selection, every, as_json=as_json)
    if (delay is None) == (at is None):
        raise refusal("give one time: either --delay DURATION or --at TIME", as_json=as_json)
    try:
        seconds = None if delay is None else duration("--delay", delay)
        run_at = None if at is None else time("--at", at)
    except ValueError as error:
        raise refusal(str(error), as_json=as_json) from None

    def operation(job: ChosenJob) -> Operation:
        return Reschedule(job.id, delay=seconds, run_at=run_at)

    change = JobChange(
        done="rescheduled",
        operation=operation,
        phases=QUEUED,
        refused={str(status): f"this job is {status.replace('_', ' ')}: it has no time" for status in JobStatus},
    )
    if job_id is None:
        change_jobs(url, selection, change, dry_run=dry_run, as_json=as_json)
        return
    _, after = change_job(url, job_id, change, dry_run=dry_run, as_json=as_json)
    if as_json:
        show_json({"id": after.id, "entrypoint": after.entrypoint, "run_at": instant(after.run_at)})
    elif after.run_at is None:
        show(f"the job ({printable(after.entrypoint)}) is ready")
    else:
        show(f"the job ({printable(after.entrypoint)}) is scheduled for {moment(after.run_at)} UTC")
