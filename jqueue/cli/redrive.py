"""`jqueue redrive URL`: queues dead jobs again, with all their attempts."""

from __future__ import annotations

from jqueue.cli.filters import selecting
from jqueue.cli.on_jobs import All, DryRun, JobChange, JobID, Yes, change_job, change_jobs, one_choice
from jqueue.cli.on_queue import URL, AsJSON
from jqueue.cli.printing import show, show_json
from jqueue.domain.job import JobStatus
from jqueue.domain.operations.operator import Redrive
from jqueue.domain.printable import printable
from jqueue.domain.selection import Phase, Selection

CHANGE = JobChange(
    done="redriven",
    operation=lambda job: Redrive(job.id),
    phases=frozenset({Phase.DEAD}),
    refused={
        str(status): f"this job is {status.replace('_', ' ')}: only a dead job can be queued again"
        for status in JobStatus
    },
)


@selecting("status", "holder")
def redrive(
    url: URL,
    job_id: JobID = None,
    selection: Selection = Selection(),  # noqa: B008 - an immutable value
    every: All = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJSON = False,
) -> None:
    """Queue dead jobs again: one by its ID, several by filters, or --all.

    A job stays dead if another job has taken its unique key meanwhile.

    Exits with 1 if some of the jobs stay dead, or had changed meanwhile.
    """
    one_choice(job_id, selection, every, as_json=as_json)
    if job_id is None:
        change_jobs(url, selection, CHANGE, dry_run=dry_run, as_json=as_json)
        return
    job, _ = change_job(url, job_id, CHANGE, dry_run=dry_run, as_json=as_json)
    if as_json:
        show_json({"id": job.id, "entrypoint": job.entrypoint, "redriven": 1})
    else:
        show(f"the job ({printable(job.entrypoint)}) is queued again")
