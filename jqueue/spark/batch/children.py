"""Jobs done in child processes, so that a handler which ends its process costs its own job an attempt, and no other's.

A child does all jobs, as many at a time as its worker does. If it ends early, the jobs that it had begun are done
again, one at a time. A job that ends a process in which no other job has run is to blame, and is charged; the others
are done. A handler that was seen to block the event loop past its timeout is to blame at once, and is not run again.
Jobs that were not begun go to another child, together. Without fork (Windows) there are no children: handlers run in
the task itself, and a handler that ends the process fails the task.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from jqueue.domain.errors import JQueueError
from jqueue.domain.models import Job
from jqueue.domain.printable import counted
from jqueue.ports.log import logger_of
from jqueue.spark.batch.child import WorkInstructions, work
from jqueue.spark.batch.child_listener import ChildReport, ChildTimeouts, run_child
from jqueue.spark.batch.outcomes import Outcome
from jqueue.spark.batch.partition_rows import DONE, NEW, PartitionRows

logger = logger_of("jqueue.spark")


class WorkFailed(JQueueError):
    """The jobs of a partition cannot be done, for a reason common to all: the worker cannot be made, or fails.

    Attributes:
        outcomes: what became of the jobs that were done before.
    """

    def __init__(self, why: str, outcomes: Sequence[Outcome]) -> None:
        super().__init__(why)
        self.outcomes = outcomes


def do_rows(
    instructions: WorkInstructions, rows: PartitionRows, timeouts: ChildTimeouts | None = None
) -> dict[str, Outcome]:
    """Do jobs in child processes. Return the outcomes of those that are not marked as done, by their ids.

    Raises:
        WorkFailed: the worker cannot be made, or fails.
    """
    known: dict[str, Outcome] = {}
    suspects: list[int] = []
    rest = list(range(len(rows)))
    alone = False  # True once a process of suspects has ended, and none of them was done
    while suspects or rest:
        one_by_one = bool(suspects)
        batch = (suspects[:1] if alone else suspects) or rest
        report = _run_rows(instructions, rows, batch, one_by_one, timeouts or ChildTimeouts())
        known.update(report.outcomes)
        marks = rows.marks[:]
        left = [place for place in batch if marks[place] != DONE and rows.ids[place] not in known]
        begun = [place for place in left if marks[place] != NEW]
        later = [place for place in left if marks[place] == NEW]
        number = len(batch) - len(later)
        why = report.failure
        if report.is_cut_short and not number:
            why = f"{report.death} before it began a job"
        if why is not None and left:
            raise WorkFailed(why, list(known.values()))
        if not report.is_cut_short:
            if report.is_stopped or not number:  # its worker wants no more jobs
                begun, later = left, []
            known.update((rows.ids[place], Outcome(*rows.job(place).claim, "handed_back")) for place in begun)
            begun = []
        elif report.is_sure:
            overdue = [place for place in left if rows.ids[place] in report.overdue]
            known.update((rows.ids[place], _killed(rows.job(place), report)) for place in overdue)
            begun, later = [], [place for place in left if rows.ids[place] not in report.overdue]
        elif one_by_one and number == 1:
            known.update((rows.ids[place], _killed(rows.job(place), report)) for place in begun)
            begun = []
        elif begun:
            again = counted(len(begun), "job")
            logger.warning("%s; %s that it had begun will be done again, one by one", report.death, again)
        alone = one_by_one and number > 1 and len(left) == len(batch)
        suspects, rest = (begun + later + suspects[len(batch) :], rest) if one_by_one else (begun, later)
    return known


def _run_rows(
    instructions: WorkInstructions,
    rows: PartitionRows,
    places: Sequence[int],
    one_by_one: bool,
    timeouts: ChildTimeouts,
) -> ChildReport:
    if one_by_one:
        instructions = replace(instructions, concurrency=1)
    if hasattr(os, "fork"):
        return run_child(instructions, rows, places, timeouts)
    report = ChildReport()
    rows.begin(places)
    work(instructions, rows, report.receive)
    return report


def _killed(job: Job, report: ChildReport) -> Outcome:
    """Return the outcome of a job that is to blame for the end of its process."""
    if job.id in report.overdue:
        return Outcome(*job.claim, "overdue")
    return Outcome(*job.claim, "killed", error=report.death)


def in_order(rows: PartitionRows, known: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes that are known, those of jobs marked as done among them, in the order of the jobs."""
    told = {outcome.job_id: outcome for outcome in known}
    marks, found = rows.marks[:], []
    for place, job_id in enumerate(rows.ids):
        if (outcome := told.get(job_id)) is not None:
            found.append(outcome)
        elif marks[place] == DONE:
            found.append(Outcome(*rows.job(place).claim, "done"))
    return found
