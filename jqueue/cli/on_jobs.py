"""A change of jobs that an operator has chosen: one by its id, some by filters, or all.

The chosen jobs are counted first, and a question is asked before any is destroyed. The changes are committed in
chunks. Each job is checked against the filters again in its commit, so a job that a worker has claimed meanwhile is
left alone.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from jqueue.cli.chosen_jobs import one_job
from jqueue.cli.on_queue import OpenedQueue, RefusedError, certain, on_queue
from jqueue.cli.printing import UNUSABLE, jobs, note, refusal, show, show_json
from jqueue.cli.progress import jobs_counted, reading
from jqueue.domain.errors import (
    ChangedMeanwhileError,
    DuplicateJobError,
    InvalidJobError,
    JobNotFoundError,
    JobStateError,
    JobsUnreadableError,
    JQueueError,
    UnknownOutcomeError,
)
from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import Guarded
from jqueue.domain.printable import counted, printable
from jqueue.domain.selection import Phase, Selection, phase_of

CHUNK = 1_000
"""Number of jobs to change in one commit."""

APART = 16_384
"""Largest distance of the jobs that one commit changes in a segment: it loads the rows around each of them."""

NAMED = 5
"""Largest number of entrypoints to name in a question."""

NOT_ALL = 1
"""Exit code if not all chosen jobs were changed, or if the answer is no."""

JobID = Annotated[str | None, typer.Argument(metavar="ID", help="Id of one job, or its beginning.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="All jobs of the queue that can be changed like this.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the number of jobs.")]


@dataclass(frozen=True)
class JobChange:
    """A change that can be made to many jobs.

    Attributes:
        done: the past participle of its verb, such as "cancelled", for texts and JSON.
        operation: makes the operation that changes a job.
        phases: phases of the jobs that can be changed.
        question: a question to ask before jobs are destroyed, with a place for their number; empty if none are.
        others: a sentence about chosen jobs that cannot be changed, with a place for their number; empty for none.
        refused: reasons why one job is refused, by its status.
        stops: True if it only tells the workers of jobs in progress to stop.
    """

    done: str
    operation: Callable[[ChosenJob], Operation]
    phases: frozenset[Phase]
    question: str = ""
    others: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    stops: bool = False


class ChosenJob(NamedTuple):
    """The fields of a job that a change needs."""

    id: str
    status: JobStatus
    sequence: int
    entrypoint: str


class Chosen(NamedTuple):
    """The numbers of the jobs that were chosen.

    Attributes:
        jobs: number of jobs that can be changed, by entrypoint.
        others: number of jobs that match, and cannot be changed.
        last: largest sequence number of the jobs that can be changed: jobs that come later are left alone.
        damage: the error if segments are missing or damaged: jobs of theirs are not counted.
    """

    jobs: Counter[str]
    others: int = 0
    last: int = 0
    damage: JobsUnreadableError | None = None

    @property
    def number(self) -> int:
        """Number of jobs that can be changed."""
        return self.jobs.total()


@dataclass
class Tally:
    """The numbers of jobs at the end.

    Attributes:
        running: number of the changed jobs that are still in progress.
        taken: jobs whose unique key is taken: the id of each, and of the job that has the key.
    """

    changed: int = 0
    running: int = 0
    meanwhile: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    taken: dict[str, str] = field(default_factory=dict)


def change_job(url: str, job_id: str, change: JobChange, *, dry_run: bool, as_json: bool) -> tuple[Job, Any]:
    """Change one job. Return the job as it was found, and the result of the operation.

    Args:
        url: of the queue.
        job_id: its id, or the beginning of it.
        change: the change.
        dry_run: True if nothing is changed, and only the number of jobs that would be is printed: one.
        as_json: True if an error is printed as JSON.

    Raises:
        typer.Exit: with 2, there is no such job, or it cannot be changed; with 0, after a dry run.
    """

    async def do(opened: OpenedQueue) -> tuple[Job, Any]:
        job = await one_job(opened.view, opened.now(), job_id)
        if dry_run and phase_of(job, opened.now()) in change.phases:
            return job, None
        if dry_run:
            raise RefusedError(change.refused.get(job.status, f"the job would not be {change.done}"))
        [result] = await certain(opened.queue.apply_each(change.operation(_chosen(job))))
        if isinstance(result, JobStateError) and result.status in change.refused:
            raise RefusedError(change.refused[result.status])
        if isinstance(result, Exception):
            raise result
        return job, result

    found, result = on_queue(url, do, as_json=as_json)
    if dry_run:
        _show_chosen(Chosen(Counter([found.entrypoint])), change, dry_run=True, as_json=as_json)
        raise typer.Exit
    return found, result


def change_jobs(
    url: str, selection: Selection, change: JobChange, *, yes: bool = True, dry_run: bool = False, as_json: bool = False
) -> None:
    """Change the jobs of a selection, print their numbers, and exit.

    Args:
        url: of the queue.
        selection: the filters. An empty selection chooses all jobs.
        change: the change.
        yes: True if no question is asked.
        dry_run: True if only the number of jobs is printed.
        as_json: True if JSON is printed.

    Raises:
        typer.Exit: with 1, not all chosen jobs were changed, or the answer is no; with 2, it could not be done.
    """
    within = msgspec.structs.replace(selection, phases=(selection.phases & change.phases) or change.phases)
    counts_others = bool(change.others) or (bool(selection.phases) and selection.phases.isdisjoint(change.phases))

    async def find(opened: OpenedQueue) -> Chosen:
        opened.queue.capabilities.require(*_needs(change, opened))
        now, able, others, last, damage = opened.now(), Counter[str](), 0, 0, None
        try:
            with reading(opened.view, "counting", names=selection.entrypoints) as (view, _):
                async for job in view.jobs(now, selection if counts_others else within):
                    if phase_of(job, now) in change.phases:
                        able[job.entrypoint] += 1
                        last = max(last, job.sequence)
                    else:
                        others += 1
        except JobsUnreadableError as error:  # all others were found
            if not able:
                raise
            damage = error
        return Chosen(able, others, last, damage)

    chosen = on_queue(url, find, as_json=as_json)
    if dry_run or not chosen.jobs:
        _show_chosen(chosen, change, dry_run=dry_run, as_json=as_json)
        if chosen.damage is not None:
            raise typer.Exit(UNUSABLE) if as_json else refusal(str(chosen.damage))
        return
    if change.question and not yes:
        ask(chosen.jobs, change.question, as_json=as_json)
    tally = on_queue(url, lambda opened: _change_all(opened, chosen, within, change), as_json=as_json)
    _show_tally(tally, chosen, change, as_json=as_json)
    if tally.changed < chosen.number:
        raise typer.Exit(NOT_ALL)


def one_choice(job_id: str | None, selection: Selection, every: bool, *, as_json: bool) -> None:
    """Check that jobs were chosen in exactly one way.

    Raises:
        typer.Exit: they were not.
    """
    if (job_id is not None) + bool(selection) + every != 1:
        raise refusal("choose the jobs: one ID, filters such as --entrypoint NAME, or --all", as_json=as_json)


def _chosen(job: Job) -> ChosenJob:
    return ChosenJob(job.id, job.status, job.sequence, sys.intern(job.entrypoint))


def _needs(change: JobChange, opened: OpenedQueue) -> Sequence[str]:
    """Return the capabilities that the change of any job needs, so that it is refused before a question."""
    example = _chosen(Job.new("any"))
    return tuple(change.operation(example).needs(0.0))


async def _change_all(opened: OpenedQueue, chosen: Chosen, selection: Selection, change: JobChange) -> Tally:
    """Change the jobs in commits of bounded size, as they are read.

    Raises:
        RefusedError: not all jobs could be changed. The message has the number of changed jobs.
    """
    tally, seen = Tally(), 0
    with jobs_counted("working") as tell:
        try:
            async for chunk in _chunks(opened, selection, chosen.last):
                tell(seen, chosen.number)
                await _change_some(opened, chunk, selection, change, tally)
                seen += len(chunk)
        except JobsUnreadableError as error:  # all others were changed
            raise RefusedError(f"{error}. {_so_far(tally, change)}") from None
    tally.meanwhile += max(0, chosen.number - seen)
    return tally


async def _chunks(opened: OpenedQueue, selection: Selection, last: int) -> AsyncIterator[list[ChosenJob]]:
    """Yield the chosen jobs, some at a time."""
    chunk: list[ChosenJob] = []
    async with aclosing(opened.view.jobs(opened.now(), selection)) as found:
        try:
            async for job in found:
                if job.sequence > last:
                    continue
                if len(chunk) == CHUNK or (chunk and abs(job.sequence - chunk[0].sequence) > APART):
                    yield chunk
                    chunk = []
                chunk.append(_chosen(job))
        except JobsUnreadableError:
            if chunk:
                yield chunk
            raise
    if chunk:
        yield chunk


async def _change_some(
    opened: OpenedQueue, chunk: Sequence[ChosenJob], selection: Selection, change: JobChange, tally: Tally
) -> None:
    """Change a chunk of jobs in one commit, each for itself."""
    guarded = [Guarded(change.operation(job), job_id=job.id, selection=selection) for job in chunk]
    try:
        results = await certain(opened.queue.apply_each(*guarded))
    except UnknownOutcomeError:
        raise RefusedError(
            f"the outcome is unknown for {jobs(len(chunk))}: the connection failed before it was certain "
            f"whether they were {change.done}. {_so_far(tally, change)}. Look at the queue before you repeat it"
        ) from None
    except asyncio.CancelledError:  # Ctrl-C
        note(_so_far(tally, change))
        raise
    except JQueueError as error:
        raise RefusedError(f"{error}. {_so_far(tally, change)}. Run the command again for the rest") from None
    for job, result in zip(chunk, results, strict=True):
        _count(tally, result)
        if isinstance(result, DuplicateJobError):
            tally.taken[job.id] = result.job_id


def _so_far(tally: Tally, change: JobChange) -> str:
    return f"{counted(tally.changed, 'job was', 'jobs were')} {change.done} before"


def _count(tally: Tally, result: Any) -> None:
    """Count the result of one operation.

    Raises:
        InvalidJobError: the operation is wrong, and so are all others.
    """
    if isinstance(result, InvalidJobError):
        raise result
    if isinstance(result, ChangedMeanwhileError | JobNotFoundError | JobStateError):
        tally.meanwhile += 1
    elif isinstance(result, DuplicateJobError):
        tally.refused["another job has taken the unique key"] += 1
    elif isinstance(result, Exception):
        tally.refused[str(result)] += 1
    else:
        tally.changed += 1
        tally.running += isinstance(result, Job) and result.status is JobStatus.IN_PROGRESS


def ask(found: Counter[str], question: str, *, as_json: bool) -> None:
    """Ask before jobs are destroyed.

    Args:
        found: the number of jobs of each entrypoint.
        question: the question, with a place for the number of jobs.
        as_json: True if an error is printed as JSON.

    Raises:
        typer.Exit: the answer is no, or there is no terminal to ask at.
    """
    by_entrypoint, total = found.most_common(), found.total()
    named = [f"{printable(name)} {number:,}" for name, number in by_entrypoint[:NAMED]]
    more = f" and {counted(len(by_entrypoint) - NAMED, 'other entrypoint')}" if len(by_entrypoint) > NAMED else ""
    if not sys.stdin.isatty():
        raise refusal(
            f"{counted(total, 'job matches', 'jobs match')}, and there is no terminal to ask at: add --yes to go "
            "ahead, or --dry-run to only count",
            as_json=as_json,
        )
    if not typer.confirm(f"{question.format(jobs=jobs(total))} ({', '.join(named)}{more})", err=True):
        note("nothing was changed")
        raise typer.Exit(NOT_ALL)


def _show_chosen(chosen: Chosen, change: JobChange, *, dry_run: bool, as_json: bool) -> None:
    number = chosen.number
    if as_json:
        values = {"matched": number, change.done: 0, **({"dry_run": True} if dry_run else {})}
        show_json(values if chosen.damage is None else {**values, "error": printable(str(chosen.damage))})
        return
    if number:
        show(f"{jobs(number)} would be {change.done}")
    else:
        why = "" if chosen.others and change.others else ": none matches"
        show(f"no job {'would be' if dry_run else 'was'} {change.done}{why}")
    _show_others(chosen, change)


def _show_others(chosen: Chosen, change: JobChange) -> None:
    if chosen.others and change.others:
        show(change.others.format(jobs=counted(chosen.others, "job matches", "jobs match")))


def _show_tally(tally: Tally, chosen: Chosen, change: JobChange, *, as_json: bool) -> None:
    if as_json:
        told = {"told": tally.running} if change.stops else {}
        numbers = {"changed_meanwhile": tally.meanwhile, "refused": tally.refused.total()}
        taken = {"taken": tally.taken} if tally.taken else {}
        show_json({"matched": chosen.number, change.done: tally.changed, **told, **numbers, **taken})
        return
    show(f"{counted(tally.changed, 'job was', 'jobs were')} {change.done}")
    if tally.running:
        are = counted(tally.running, "of them is", "of them are")
        show(f"{are} still in progress: their workers are told to stop at the next heartbeat")
    if tally.meanwhile:
        show(f"left alone: {counted(tally.meanwhile, 'job')} that had changed meanwhile")
    for reason, number in tally.refused.items():
        show(f"not {change.done}: {jobs(number)}: {printable(reason)}")
    for job_id, holder in islice(tally.taken.items(), NAMED):
        show(f"  {printable(job_id)}: job {printable(holder)} has its unique key")
    if len(tally.taken) > NAMED:
        show(f"  {len(tally.taken) - NAMED:,} more: see --json")
    _show_others(chosen, change)
