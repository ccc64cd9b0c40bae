"""`jqueue purge URL`: removes dead jobs for good."""

from __future__ import annotations

from msgspec.structs import replace

from jqueue.cli.filters import selecting
from jqueue.cli.on_jobs import ChosenJob, DryRun, JobChange, JobID, Yes, change_job, change_jobs
from jqueue.cli.on_queue import URL, AsJSON
from jqueue.cli.printing import refusal, show, show_json
from jqueue.cli.purge_waiting import purge_waiting
from jqueue.domain.job import JobStatus
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.operator import Purge
from jqueue.domain.printable import printable
from jqueue.domain.selection import QUEUED, Phase, Selection

REMOVABLE = frozenset({Phase.DEAD, Phase.COMPLETED})


def _removal(job: ChosenJob) -> Operation:
    ended = job.status is JobStatus.COMPLETED
    return Purge(JobStatus.COMPLETED if ended else JobStatus.DEAD, job_id=job.id)


CHANGE = JobChange(
    done="purged",
    operation=_removal,
    phases=REMOVABLE,
    question="Remove {jobs} for good?",
    refused={
        str(JobStatus.QUEUED): "this job waits: `jqueue cancel` removes it",
        str(JobStatus.IN_PROGRESS): "this job is in progress: `jqueue cancel --running` stops it",
    },
)


@selecting("holder")
def purge(
    url: URL,
    job_id: JobID = None,
    selection: Selection = Selection(),  # noqa: B008 - an immutable value
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJSON = False,
) -> None:
    """Remove dead jobs for good, with their payloads: one by its ID, several by filters, or all.

    With --status completed, it removes finished jobs whose results are kept; with --status queued, all waiting jobs, or
    those of some entrypoints, however many. Several jobs are counted first, and a question is asked on a terminal;
    elsewhere, --yes is needed.

    Exits with 1 if the answer is no, or if some of the jobs had changed meanwhile.
    """
    if job_id is not None and selection:
        raise refusal("choose the jobs: one ID, or filters such as --entrypoint NAME", as_json=as_json)
    if selection.phases == QUEUED and selection == Selection(QUEUED, selection.entrypoints):
        return purge_waiting(url, selection.entrypoints, yes=yes, dry_run=dry_run, as_json=as_json)
    if not selection.phases <= REMOVABLE:
        raise refusal(
            "purge takes dead and completed jobs, or --status queued with no filter but --entrypoint: `jqueue cancel` "
            "removes other waiting jobs",
            as_json=as_json,
        )
    if job_id is None:
        chosen = replace(selection, phases=selection.phases or frozenset({Phase.DEAD}))
        change_jobs(url, chosen, CHANGE, yes=yes, dry_run=dry_run, as_json=as_json)
        return
    job, _ = change_job(url, job_id, CHANGE, dry_run=dry_run, as_json=as_json)
    if as_json:
        show_json({"id": job.id, "entrypoint": job.entrypoint, "purged": 1})
    else:
        show(f"the job ({printable(job.entrypoint)}) was removed")
