"""`jqueue reprioritise URL ID`: gives waiting jobs another priority."""

from __future__ import annotations

from typing import Annotated

import typer

from jqueue.cli.filters import selecting
from jqueue.cli.on_jobs import All, DryRun, JobChange, JobID, Yes, change_job, change_jobs, one_choice
from jqueue.cli.on_queue import URL, AsJSON
from jqueue.cli.printing import show, show_json
from jqueue.domain.job import JobStatus
from jqueue.domain.operations.operator import Reprioritise
from jqueue.domain.printable import printable
from jqueue.domain.selection import QUEUED, Selection


@selecting("holder")
def reprioritise(
    url: URL,
    job_id: JobID = None,
    selection: Selection = Selection(),  # noqa: B008 - an immutable value
    every: All = False,
    priority: Annotated[
        int, typer.Option("--priority", "-p", metavar="NUMBER", help="Lower is served first.", show_default=False)
    ] = ...,  # type: ignore[assignment]
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJSON = False,
) -> None:
    """Give waiting jobs another priority: one by its ID, several by filters, or --all.

    Among the jobs of that priority, a job keeps the place that it has by its age.

    Exits with 1 if some of the jobs had changed meanwhile.
    """
    one_choice(job_id, selection, every, as_json=as_json)
    change = JobChange(
        done="reprioritised",
        operation=lambda job: Reprioritise(job.id, priority),
        phases=QUEUED,
        refused={str(status): f"this job is {status.replace('_', ' ')}: it no longer waits" for status in JobStatus},
    )
    if job_id is None:
        change_jobs(url, selection, change, dry_run=dry_run, as_json=as_json)
        return
    job, _ = change_job(url, job_id, change, dry_run=dry_run, as_json=as_json)
    if as_json:
        show_json({"id": job.id, "entrypoint": job.entrypoint, "priority": priority})
    else:
        show(f"the job ({printable(job.entrypoint)}) has priority {priority}")
