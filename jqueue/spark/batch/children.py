"""Jobs done in child processes, so that a handler which ends its process costs its own job an attempt, and no other's.

A child does all jobs, as many at a time as its worker does. If it ends early, the jobs that it had begun are done
again, one at a time. A job that ends a process in which no other job has run is to blame, and is charged; the others
are done. A handler that was seen to block the event loop past its timeout is to blame at once, and is not run again.
Jobs that were not begun go to another child, together. Without fork (Windows) there are no children: handlers run in
the task itself, and a handler that ends the process fails the task.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from jqueue.domain.counting import counted
from jqueue.domain.errors import JQueueError
from jqueue.domain.models import Job
from jqueue.ports.log import logger_of
from jqueue.spark.batch.child import WorkInstructions, work
from jqueue.spark.batch.child_listener import ChildReport, ChildTimeouts, run_child
from jqueue.spark.batch.outcomes import Outcome

logger = logger_of("jqueue.spark")


class WorkFailed(JQueueError):
    """The jobs of a partition cannot be done, for a reason common to all: the worker cannot be made, or fails.

    Attributes:
        outcomes: what became of the jobs that were done before.
    """

    def __init__(self, why: str, outcomes: Sequence[Outcome]) -> None:
        super().__init__(why)
        self.outcomes = outcomes


def do_jobs(
    instructions: WorkInstructions, jobs: Sequence[Job], timeouts: ChildTimeouts | None = None
) -> list[Outcome]:
    """Do jobs in child processes, and return the outcome of each, in their order.

    Raises:
        WorkFailed: the worker cannot be made, or fails.
    """
    known: dict[str, Outcome] = {}
    suspects: list[Job] = []
    rest = list(jobs)
    while suspects or rest:
        one_by_one = bool(suspects)
        batch = suspects or rest
        report = _run_jobs(instructions, batch, one_by_one, timeouts or ChildTimeouts())
        known.update(report.outcomes)
        left = [job for job in batch if job.id not in known]
        begun = [job for job in left if job.id in report.begun]
        later = [job for job in left if job.id not in report.begun]
        why = report.failure
        if report.is_cut_short and not report.begun:
            why = f"{report.death} before it began a job"
        if why is not None and left:
            raise WorkFailed(why, _in_order(jobs, known))
        if not report.is_cut_short:
            if report.is_stopped or not report.begun:  # its worker wants no more jobs
                begun, later = left, []
            known.update((job.id, Outcome(*job.claim, "handed_back")) for job in begun)
            begun = []
        elif report.is_sure:
            known.update((job.id, _killed(job, report)) for job in begun if job.id in report.overdue)
            begun, later = [], [job for job in left if job.id not in report.overdue]
        elif one_by_one and len(report.begun) == 1:
            known.update((job.id, _killed(job, report)) for job in begun)
            begun = []
        elif begun:
            again = counted(len(begun), "job")
            logger.warning("%s; %s that it had begun will be done again, one by one", report.death, again)
        suspects, rest = (begun + later, rest) if one_by_one else (begun, later)
    return _in_order(jobs, known)


def _run_jobs(
    instructions: WorkInstructions, jobs: Sequence[Job], one_by_one: bool, timeouts: ChildTimeouts
) -> ChildReport:
    if one_by_one:
        instructions = replace(instructions, concurrency=1)
    if hasattr(os, "fork"):
        return run_child(instructions, jobs, timeouts)
    report = ChildReport()
    work(instructions, jobs, report.receive)
    return report


def _killed(job: Job, report: ChildReport) -> Outcome:
    """Return the outcome of a job that is to blame for the end of its process."""
    if job.id in report.overdue:
        return Outcome(*job.claim, "overdue")
    return Outcome(*job.claim, "killed", error=report.death)


def _in_order(jobs: Sequence[Job], known: dict[str, Outcome]) -> list[Outcome]:
    return [known[job.id] for job in jobs if job.id in known]
