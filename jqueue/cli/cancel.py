"""`jqueue cancel URL ID`: removes waiting jobs; with `--running`, also stops jobs in progress."""

from __future__ import annotations

from typing import Annotated

import typer

from jqueue.cli.filters import selecting
from jqueue.cli.on_jobs import All, DryRun, JobChange, JobID, Yes, change_job, change_jobs, one_choice
from jqueue.cli.on_queue import URL, AsJSON
from jqueue.cli.printing import show, show_json
from jqueue.domain.job import JobStatus
from jqueue.domain.operations.operator import Cancel
from jqueue.domain.printable import printable
from jqueue.domain.selection import QUEUED, Phase, Selection

HINTS = {
    JobStatus.IN_PROGRESS: "this job is in progress: add --running to tell its worker to stop",
    JobStatus.DEAD: "this job is already dead: remove dead jobs with `jqueue purge`",
    JobStatus.COMPLETED: "this job is already completed: only its result is kept",
}


@selecting()
def cancel(
    url: URL,
    job_id: JobID = None,
    selection: Selection = Selection(),  # noqa: B008 - an immutable value
    every: All = False,
    running: Annotated[bool, typer.Option("--running", help="Also stop jobs that are in progress.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJSON = False,
) -> None:
    """Remove waiting jobs; with --running, also stop jobs in progress.

    Choose one job by its ID, several by filters, or --all. Several are counted first, and a question is asked on a
    terminal; elsewhere, --yes is needed. A job that a worker claims before it is removed is left alone, unless
    --running is given.

    The worker of a job in progress sees the request at its next heartbeat, within a minute by default, and stops the
    handler. If the handler finishes first, the job is done.

    Exits with 1 if the answer is no, or if some of the jobs had changed meanwhile.
    """
    one_choice(job_id, selection, every, as_json=as_json)
    change = JobChange(
        done="cancelled",
        operation=lambda job: Cancel(job.id, running),
        phases=QUEUED | {Phase.IN_PROGRESS} if running else QUEUED,
        question="Cancel {jobs}?",
        others="" if running else "{jobs} but were left alone: running jobs need --running, dead ones `jqueue purge`",
        refused={str(status): hint for status, hint in HINTS.items()},
        stops=True,
    )
    if job_id is None:
        change_jobs(url, selection, change, yes=yes, dry_run=dry_run, as_json=as_json)
        return
    job, _ = change_job(url, job_id, change, dry_run=dry_run, as_json=as_json)
    told = job.status is JobStatus.IN_PROGRESS
    if as_json:
        show_json({"id": job.id, "entrypoint": job.entrypoint, "cancelled": "told" if told else "removed"})
    elif told:
        show(f"the worker of this job ({printable(job.entrypoint)}) will be told to stop at its next heartbeat")
    else:
        show(f"the job ({printable(job.entrypoint)}) was removed")
