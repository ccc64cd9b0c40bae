"""The commands that change jobs an operator has chosen: one by its id, some by filters, or all.

The chosen jobs are counted first, and a question is asked before any is destroyed. The changes are committed in
chunks. Each job is checked against the filters again in its commit, so a job that a worker has claimed meanwhile is
left alone.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, NamedTuple

import typer
from msgspec.structs import replace

from jqueue.cli.jobs import one_job
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, certain, on_queue
from jqueue.cli.options import duration, selecting, time
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import UNUSABLE, instant, jobs, moment, note, refusal, show, show_json, tell
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
from jqueue.domain.operations.operator import Cancel, Purge, Redrive, Reprioritise, Reschedule
from jqueue.domain.printable import counted, printable
from jqueue.domain.selection import QUEUED, Phase, Selection, phase_of

CHUNK = 1_000
"""Number of jobs to change in one commit."""

APART = 16_384
"""Largest distance of the jobs that one commit changes in a segment: it loads the rows around each of them."""

NAMED = 5
"""Largest number of entrypoints to name in a question."""

NOT_ALL = 1
"""Exit code if not all chosen jobs were changed, or if the answer is no."""

JobID = Annotated[str | None, argument("ID", "Id of one job, or its beginning.")]
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


def _change(
    url: str,
    job_id: str | None,
    selection: Selection,
    change: JobChange,
    answer: Callable[[Job, Any], tuple[Mapping[str, Any], str]],
    *,
    yes: bool = True,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change the job with an id, or the jobs of a selection, and print the outcome.

    Args:
        url: of the queue.
        job_id: id of one job, or the beginning of it; None for the jobs of the selection.
        selection: the filters. An empty selection chooses all jobs.
        change: the change.
        answer: returns the outcome for one job, as values for JSON and as a sentence, given the job as it was found and
            the result of the operation.
        yes: True if no question is asked.
        dry_run: True if only the number of jobs is printed.
        as_json: True if JSON is printed.

    Raises:
        typer.Exit: not all jobs were changed, or after a dry run.
    """
    if job_id is None:
        _change_jobs(url, selection, change, yes=yes, dry_run=dry_run, as_json=as_json)
        return
    found, result = _change_job(url, job_id, change, dry_run=dry_run, as_json=as_json)
    values, sentence = answer(found, result)
    tell({"id": found.id, "entrypoint": found.entrypoint, **values}, sentence, as_json=as_json)


def _change_job(url: str, job_id: str, change: JobChange, *, dry_run: bool, as_json: bool) -> tuple[Job, Any]:
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


def _change_jobs(url: str, selection: Selection, change: JobChange, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Change the jobs of a selection, and print their numbers. The arguments are as for `_change`.

    Raises:
        typer.Exit: with 1, not all chosen jobs were changed, or the answer is no; with 2, it could not be done.
    """
    within = replace(selection, phases=(selection.phases & change.phases) or change.phases)
    counts_others = bool(change.others) or (bool(selection.phases) and selection.phases.isdisjoint(change.phases))

    async def find(opened: OpenedQueue) -> Chosen:
        example = change.operation(_chosen(Job.new("any")))
        opened.queue.capabilities.require(*example.needs(0.0))  # any job needs them: say so before a question
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


def _check_choice(job_id: str | None, selection: Selection, every: bool, *, as_json: bool) -> None:
    """Check that jobs were chosen in exactly one way.

    Raises:
        typer.Exit: they were not.
    """
    if (job_id is not None) + bool(selection) + every != 1:
        raise refusal("choose the jobs: one ID, filters such as --entrypoint NAME, or --all", as_json=as_json)


def _chosen(job: Job) -> ChosenJob:
    return ChosenJob(job.id, job.status, job.sequence, sys.intern(job.entrypoint))


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


# Commands

STOPPED = {
    str(JobStatus.IN_PROGRESS): "this job is in progress: add --running to tell its worker to stop",
    str(JobStatus.DEAD): "this job is already dead: remove dead jobs with `jqueue purge`",
    str(JobStatus.COMPLETED): "this job is already completed: only its result is kept",
}
REMOVABLE = frozenset({Phase.DEAD, Phase.COMPLETED})


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
    _check_choice(job_id, selection, every, as_json=as_json)
    change = JobChange(
        done="cancelled",
        operation=lambda job: Cancel(job.id, running),
        phases=QUEUED | {Phase.IN_PROGRESS} if running else QUEUED,
        question="Cancel {jobs}?",
        others="" if running else "{jobs} but were left alone: running jobs need --running, dead ones `jqueue purge`",
        refused=STOPPED,
        stops=True,
    )

    def answer(job: Job, _: Any) -> tuple[Mapping[str, Any], str]:
        if job.status is not JobStatus.IN_PROGRESS:
            return {"cancelled": "removed"}, f"the job ({printable(job.entrypoint)}) was removed"
        told = f"the worker of this job ({printable(job.entrypoint)}) will be told to stop at its next heartbeat"
        return {"cancelled": "told"}, told

    _change(url, job_id, selection, change, answer, yes=yes, dry_run=dry_run, as_json=as_json)


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
    _check_choice(job_id, selection, every, as_json=as_json)
    change = JobChange(
        done="redriven",
        operation=lambda job: Redrive(job.id),
        phases=frozenset({Phase.DEAD}),
        refused=_refused("only a dead job can be queued again"),
    )

    def answer(job: Job, _: Any) -> tuple[Mapping[str, Any], str]:
        return {"redriven": 1}, f"the job ({printable(job.entrypoint)}) is queued again"

    _change(url, job_id, selection, change, answer, dry_run=dry_run, as_json=as_json)


@selecting("holder")
def update(
    url: URL,
    job_id: JobID = None,
    selection: Selection = Selection(),  # noqa: B008 - an immutable value
    every: All = False,
    delay: Annotated[str | None, option("DURATION", "Time from now: 60, 90s, 15m, 12h; 0 for at once.")] = None,
    at: Annotated[str | None, option("TIME", "A time such as 2026-11-23T08:00, in UTC.", "--at")] = None,
    priority: Annotated[int | None, option("NUMBER", "Lower is served first.", "--priority", "-p")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJSON = False,
) -> None:
    """Give waiting jobs another time or priority: one by its ID, several by filters, or --all.

    Give one of --delay, --at and --priority. --delay 0 makes scheduled jobs ready. No worker claims a job before its
    time. Among the jobs of a priority, a job keeps the place that it has by its age.

    Exits with 1 if some of the jobs had changed meanwhile.
    """
    _check_choice(job_id, selection, every, as_json=as_json)
    if sum(each is not None for each in (delay, at, priority)) != 1:
        raise refusal("give one of --delay DURATION, --at TIME and --priority NUMBER", as_json=as_json)
    try:
        seconds = None if delay is None else duration("--delay", delay)
        run_at = None if at is None else time("--at", at)
    except ValueError as error:
        raise refusal(str(error), as_json=as_json) from None

    def operation(job: ChosenJob) -> Operation:
        return Reschedule(job.id, delay=seconds, run_at=run_at) if priority is None else Reprioritise(job.id, priority)

    def answer(job: Job, after: Job) -> tuple[Mapping[str, Any], str]:
        what = f"is scheduled for {moment(after.run_at)} UTC" if after.run_at is not None else "is ready"
        what = what if priority is None else f"has priority {priority}"
        values = {"run_at": instant(after.run_at), "priority": after.priority}
        return values, f"the job ({printable(job.entrypoint)}) {what}"

    change = JobChange("updated", operation, QUEUED, refused=_refused("it no longer waits"))
    _change(url, job_id, selection, change, answer, dry_run=dry_run, as_json=as_json)


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
        return _purge_waiting(url, selection.entrypoints, yes=yes, dry_run=dry_run, as_json=as_json)
    if not selection.phases <= REMOVABLE:
        raise refusal(
            "purge takes dead and completed jobs, or --status queued with no filter but --entrypoint: `jqueue cancel` "
            "removes other waiting jobs",
            as_json=as_json,
        )

    def removal(job: ChosenJob) -> Operation:
        ended = job.status is JobStatus.COMPLETED
        return Purge(JobStatus.COMPLETED if ended else JobStatus.DEAD, job_id=job.id)

    def answer(job: Job, _: Any) -> tuple[Mapping[str, Any], str]:
        return {"purged": 1}, f"the job ({printable(job.entrypoint)}) was removed"

    change = JobChange(
        done="purged",
        operation=removal,
        phases=REMOVABLE,
        question="Remove {jobs} for good?",
        refused={
            str(JobStatus.QUEUED): "this job waits: `jqueue cancel` removes it",
            str(JobStatus.IN_PROGRESS): "this job is in progress: `jqueue cancel --running` stops it",
        },
    )
    chosen = replace(selection, phases=selection.phases or frozenset({Phase.DEAD}))
    _change(url, job_id, chosen, change, answer, yes=yes, dry_run=dry_run, as_json=as_json)


def _refused(reason: str) -> Mapping[str, str]:
    """Return the reason why one job is refused, for each status."""
    return {str(status): f"this job is {status.replace('_', ' ')}: {reason}" for status in JobStatus}


def _purge_waiting(url: str, entrypoints: Set[str], *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove all waiting jobs, and print their number. They are not looked at one by one, however many they are.

    Args:
        url: of the queue.
        entrypoints: their entrypoints; all if empty.
        yes: True if no question is asked.
        dry_run: True if only the number of jobs is printed.
        as_json: True if JSON is printed.

    Raises:
        typer.Exit: with 1, the answer is no; with 2, it could not be done.
    """

    async def count(opened: OpenedQueue) -> Counter[str]:
        found = (await opened.view.stats(opened.now())).entrypoints or {}
        numbers = {name: each.ready + each.scheduled for name, each in found.items()}
        return Counter({name: number for name, number in numbers.items() if not entrypoints or name in entrypoints})

    async def remove(opened: OpenedQueue) -> int:
        names: list[str | None] = [*sorted(entrypoints)] or [None]
        return sum([await certain(opened.queue.purge(status=JobStatus.QUEUED, entrypoint=name)) for name in names])

    found = +on_queue(url, count, as_json=as_json)
    if not dry_run and not yes and found:
        ask(found, "Remove {jobs} for good?", as_json=as_json)
    purged = 0 if dry_run or not found else on_queue(url, remove, as_json=as_json)
    if as_json:
        show_json({"matched": found.total(), "purged": purged, **({"dry_run": True} if dry_run else {})})
    elif dry_run and found:
        show(f"{jobs(found.total())} would be purged")
    elif purged:
        show(f"{counted(purged, 'job was', 'jobs were')} purged")
    else:
        show(f"no job {'would be' if dry_run else 'was'} purged: none matches")
