"""The commands that change jobs an operator has chosen: one by its id, some by filters, or all.

The chosen jobs are counted first, and a question is asked before any is destroyed. The changes are committed in
chunks. Each job is checked against the filters again in its commit, so a job that a worker has claimed meanwhile is
left alone.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from msgspec.structs import replace

from jqueue.cli.help import RefusedError
from jqueue.cli.jobs import one_job
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, on_queue
from jqueue.cli.options import (
    FILTERS,
    STDIN,
    duration,
    expanding,
    seconds_apart,
    selection_of,
    time,
    unreadable_payload,
)
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import UNUSABLE, instant, jobs, moment, note, show, show_json, tell
from jqueue.cli.progress import jobs_counted, reading
from jqueue.core.view import in_chunks
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
from jqueue.domain.operations.ends import RequeueStale
from jqueue.domain.operations.operator import Cancel, Purge, Redrive, Reprioritise, Reschedule
from jqueue.domain.printable import counted, printable
from jqueue.domain.selection import QUEUED, Phase, Selection, phase_of

APART = 16_384
"""Largest distance of the jobs that one commit changes in a segment: it loads the rows around each of them."""

NAMED = 5
"""Largest number of entrypoints to name in a question."""

NOT_ALL = 1
"""Exit code if not all chosen jobs were changed, or if the answer is no."""

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the number of jobs.")]

JobID = Annotated[str | None, argument("ID", "Id of one job, or its beginning.")]


class Choice(NamedTuple):
    """The jobs that an operator has chosen, and how to change them.

    Attributes:
        job_id: id of one job, or the beginning of it; None for the jobs of the selection.
        selection: the filters. An empty selection chooses all jobs.
        every: True if all jobs are chosen.
        yes: True if no question is asked.
        dry_run: True if only the number of jobs is printed.
        as_json: True if JSON is printed.
    """

    job_id: str | None
    selection: Selection
    every: bool
    yes: bool
    dry_run: bool
    as_json: bool

    @property
    def ways(self) -> int:
        """Number of ways in which jobs are chosen, which must be one."""
        return (self.job_id is not None) + bool(self.selection) + self.every


def choosing(kind: str, *without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an ID, filters, --all, --yes, --dry-run and --json. Its parameter `choice` receives the `Choice`.

    Args:
        kind: the jobs that --all chooses, for its help, such as "waiting".
        without: names of options that this command does not take.
    """

    def read(values: dict[str, Any]) -> Choice:
        flags = (bool(values.get(name)) for name in ("every", "yes", "dry_run", "as_json"))
        return Choice(values["job_id"], selection_of(values), *flags)

    every = Annotated[bool, typer.Option("--all", help=f"All {kind} jobs.")]
    options = {"job_id": JobID, **FILTERS, "every": every, "yes": Yes, "dry_run": DryRun, "as_json": AsJSON}
    return expanding("choice", {name: options[name] for name in options if name not in without}, read)


@dataclass(frozen=True)
class JobChange:
    """A change that can be made to many jobs.

    Attributes:
        done: the past participle of its verb, such as "cancelled", for texts and JSON.
        operation: makes the operation that changes a job, given the number of jobs that are changed before it.
        phases: phases of the jobs that can be changed.
        answer: returns the outcome for one job, as values for JSON and as the end of a sentence, given the job as it
            was found and the result of the operation.
        question: a question to ask before several jobs are changed, with a place for their number.
        others: a sentence about chosen jobs that cannot be changed, with a place for their number; empty for none.
        refused: reasons why one job is refused, by its status, if commands can tell more than the operation.
        stops: True if it only tells the workers of jobs in progress to stop.
    """

    done: str
    operation: Callable[[Job, int], Operation]
    phases: frozenset[Phase]
    answer: Callable[[Job, Any], tuple[Mapping[str, Any], str]]
    question: str
    others: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    stops: bool = False


@dataclass
class Tally:
    """Numbers of jobs.

    Attributes:
        matched: number of jobs that can be changed, by entrypoint.
        others: number of jobs that match, and cannot be changed.
        last: largest sequence number of the jobs that can be changed: jobs that come later are left alone.
        damage: the error if segments are missing or damaged: jobs of theirs are not counted.
        changed: number of jobs that were changed.
        running: number of the changed jobs that are still in progress.
        meanwhile: number of jobs that had changed before.
        refused: number of jobs that were not changed, by the reason.
        taken: jobs whose unique key is taken: the id of each, and of the job that has the key.
    """

    matched: Counter[str] = field(default_factory=Counter)
    others: int = 0
    last: int = 0
    damage: JobsUnreadableError | None = None
    changed: int = 0
    running: int = 0
    meanwhile: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    taken: dict[str, str] = field(default_factory=dict)

    def count(self, job: Job, result: Any) -> None:
        """Count the result of one operation.

        Raises:
            InvalidJobError: the operation is wrong, and so are all others.
        """
        if isinstance(result, InvalidJobError):
            raise result
        if isinstance(result, ChangedMeanwhileError | JobNotFoundError | JobStateError):
            self.meanwhile += 1
        elif isinstance(result, DuplicateJobError):
            self.refused["another job has taken the unique key"] += 1
            self.taken[job.id] = result.job_id
        elif isinstance(result, Exception):
            self.refused[str(result)] += 1
        else:
            self.changed += 1
            self.running += isinstance(result, Job) and result.status is JobStatus.IN_PROGRESS


def change_jobs(url: str, choice: Choice, change: JobChange) -> None:
    """Change the chosen jobs, and print the outcome.

    Raises:
        RefusedError: it could not be done.
        typer.Exit: with 1, not all chosen jobs were changed, or the answer is no; with 2, it could not be done.
    """
    if choice.ways != 1:
        raise RefusedError("choose the jobs: one ID, filters such as --entrypoint NAME, or --all")
    if choice.job_id is not None:
        _change_one(url, choice.job_id, choice, change)
        return
    within = replace(choice.selection, phases=(choice.selection.phases & change.phases) or change.phases)
    tally = on_queue(url, lambda opened: _counted(opened, choice.selection, within, change))
    _change_counted(
        choice, change, tally, lambda: on_queue(url, lambda opened: _change_all(opened, tally, within, change))
    )


def _change_counted(choice: Choice, change: JobChange, tally: Tally, work: Callable[[], None]) -> None:
    """Ask if need be, change the jobs that were counted, and print the outcome."""
    if choice.dry_run or not tally.matched:
        _show(tally, change, choice)
        if tally.damage is not None:
            raise typer.Exit(UNUSABLE) if choice.as_json else RefusedError(str(tally.damage))
        return
    if not choice.yes:
        ask(tally.matched, change.question)
    work()
    _show(tally, change, choice)
    if tally.changed < tally.matched.total():
        raise typer.Exit(NOT_ALL)


def _change_one(url: str, job_id: str, choice: Choice, change: JobChange) -> None:
    """Change the job with an id, or with the beginning of one, and print the outcome."""

    async def do(opened: OpenedQueue) -> tuple[Job, Any]:
        try:
            job = await one_job(opened.view, opened.now(), job_id)
        except JobNotFoundError:
            if job_id not in ((await opened.stats()).entrypoints or {}):
                raise
            raise RefusedError(
                "no job has this id, but an entrypoint has this name: --entrypoint NAME chooses its jobs"
            ) from None
        if choice.dry_run:
            if phase_of(job, opened.now()) not in change.phases:
                raise RefusedError(change.refused.get(job.status, f"the job would not be {change.done}"))
            return job, None
        try:
            return job, await opened.apply(change.operation(job, 0))
        except JobStateError as error:
            raise RefusedError(change.refused.get(error.status, str(error))) from None

    job, result = on_queue(url, do)
    if choice.dry_run:
        _show(Tally(Counter([job.entrypoint])), change, choice)
        return
    values, sentence = change.answer(job, result)
    line = f"the job ({printable(job.entrypoint)}) {sentence}"
    tell({"id": job.id, "entrypoint": job.entrypoint, **values}, line, as_json=choice.as_json)


async def _counted(opened: OpenedQueue, selection: Selection, within: Selection, change: JobChange) -> Tally:
    """Count the jobs of a selection: those `within` the phases of the change, and others if they are to be named.

    Raises:
        JobsUnreadableError: segments are missing or damaged, and no other job can be changed.
    """
    example = change.operation(Job.new("any"), 1)
    opened.queue.capabilities.require(*example.needs(0.0))  # any job needs them: say so before a question
    counts_others = bool(change.others) or (bool(selection.phases) and selection.phases.isdisjoint(change.phases))
    now, tally = opened.now(), Tally()
    try:
        with reading(opened.view, "counting", selection) as (view, _):
            async for job in view.jobs(now, selection if counts_others else within):
                if phase_of(job, now) in change.phases:
                    tally.matched[job.entrypoint] += 1
                    tally.last = max(tally.last, job.sequence)
                else:
                    tally.others += 1
    except JobsUnreadableError as error:  # all others were found
        if not tally.matched:
            raise
        tally.damage = error
    return tally


async def _change_all(opened: OpenedQueue, tally: Tally, selection: Selection, change: JobChange) -> None:
    """Change the jobs in commits of bounded size, as they are read, each for itself.

    Raises:
        RefusedError: not all jobs could be changed. The message has the number of changed jobs.
    """
    seen, number = 0, tally.matched.total()
    those = (job async for job in opened.view.jobs(opened.now(), selection) if job.sequence <= tally.last)
    try:
        with jobs_counted("working") as progress:
            async for chunk in in_chunks(those, apart=lambda first, job: abs(job.sequence - first.sequence) > APART):
                progress(seen, number)
                guarded = [
                    Guarded(change.operation(job, before), job_id=job.id, selection=selection)
                    for before, job in enumerate(chunk, seen)
                ]
                for job, result in zip(chunk, await opened.apply_each(*guarded), strict=True):
                    tally.count(job, result)
                seen += len(chunk)
    except UnknownOutcomeError:
        raise RefusedError(
            f"the outcome is unknown for {jobs(len(chunk))}: the connection failed before it was certain "
            f"whether they were {change.done}. {_so_far(tally, change)}. Look at the queue before you repeat it"
        ) from None
    except asyncio.CancelledError:  # Ctrl-C
        note(_so_far(tally, change))
        raise
    except JobsUnreadableError as error:  # all others were changed
        raise RefusedError(f"{error}. {_so_far(tally, change)}") from None
    except JQueueError as error:
        raise RefusedError(f"{error}. {_so_far(tally, change)}. Run the command again for the rest") from None
    tally.meanwhile += max(0, number - seen)


def _so_far(tally: Tally, change: JobChange) -> str:
    return f"{counted(tally.changed, 'job was', 'jobs were')} {change.done} before"


def ask(matched: Counter[str], question: str) -> None:
    """Ask before several jobs are changed.

    Args:
        matched: the number of jobs of each entrypoint.
        question: the question, with a place for the number of jobs.

    Raises:
        RefusedError: there is no terminal to ask at.
        typer.Exit: the answer is no.
    """
    by_entrypoint, total = matched.most_common(), matched.total()
    named = [f"{printable(name)} {number:,}" for name, number in by_entrypoint[:NAMED]]
    more = f" and {counted(len(by_entrypoint) - NAMED, 'other entrypoint')}" if len(by_entrypoint) > NAMED else ""
    words = f"{question.format(jobs=jobs(total))} ({', '.join(named)}{more})"
    confirm(words, counted(total, "job matches", "jobs match"))


def confirm(question: str, finding: str) -> None:
    """Ask a question before something is destroyed; `finding` says what was found. Errors are those of `ask`."""
    if not sys.stdin.isatty():
        advice = "add --yes to go ahead, or --dry-run to only count"
        raise RefusedError(f"{finding}, and there is no terminal to ask at: {advice}")
    if not typer.confirm(question, err=True):
        note("nothing was changed")
        raise typer.Exit(NOT_ALL)


def _show(tally: Tally, change: JobChange, choice: Choice) -> None:
    """Print the numbers of a change, of a dry run, or of a change for which no job was found."""
    number, done, dry_run = tally.matched.total(), change.done, choice.dry_run
    if choice.as_json:
        values: dict[str, Any] = {"matched": number, done: tally.changed}
        if dry_run or not number:
            values |= {"dry_run": True} if dry_run else {}
            values |= {} if tally.damage is None else {"error": printable(str(tally.damage))}
        else:
            values |= {"told": tally.running} if change.stops else {}
            values |= {"changed_meanwhile": tally.meanwhile, "refused": tally.refused.total()}
            values |= {"taken": tally.taken} if tally.taken else {}
        show_json(values)
        return
    others = change.others.format(jobs=counted(tally.others, "job matches", "jobs match")) if tally.others else ""
    if not number:
        show(f"no job {'would be' if dry_run else 'was'} {done}{'' if others else ': none matches'}")
    elif dry_run:
        show(f"{jobs(number)} would be {done}")
    else:
        show(f"{counted(tally.changed, 'job was', 'jobs were')} {done}")
    if tally.running:
        are = counted(tally.running, "of them is", "of them are")
        show(f"{are} still in progress: their workers are told to stop at the next heartbeat")
    if tally.meanwhile:
        show(f"left alone: {jobs(tally.meanwhile)} that had changed meanwhile")
    for reason, refused in tally.refused.items():
        show(f"not {done}: {jobs(refused)}: {printable(reason)}")
    for job_id, holder in islice(tally.taken.items(), NAMED):
        show(f"  {printable(job_id)}: job {printable(holder)} has its unique key")
    if len(tally.taken) > NAMED:
        show(f"  {len(tally.taken) - NAMED:,} more: see --json")
    if others:
        show(others)


# Commands

REMOVABLE = frozenset({Phase.DEAD, Phase.COMPLETED})


@choosing("waiting")
def cancel(
    url: URL,
    choice: Choice,
    running: Annotated[bool, typer.Option("--running", help="Also stop jobs that are in progress.")] = False,
) -> None:
    """Remove waiting jobs; with --running, also stop jobs in progress.

    Choose one job by its ID, several by filters, or --all. Several are counted first, and a question is asked on a
    terminal; elsewhere, --yes is needed. A job that a worker claims before it is removed is left alone, unless
    --running is given.

    The worker of a job in progress sees the request at its next heartbeat, within a minute by default, and stops the
    handler. If the handler finishes first, the job is done.

    Exits with 1 if the answer is no, or if some of the jobs had changed meanwhile.
    """

    def answer(job: Job, _: Any) -> tuple[Mapping[str, Any], str]:
        if job.status is not JobStatus.IN_PROGRESS:
            return {"cancelled": "removed"}, "was removed"
        return {"cancelled": "told"}, "is in progress: its worker will be told to stop at its next heartbeat"

    change = JobChange(
        done="cancelled",
        operation=lambda job, _: Cancel(job.id, running),
        phases=QUEUED | {Phase.IN_PROGRESS} if running else QUEUED,
        answer=answer,
        question="Cancel {jobs}?",
        others="" if running else "{jobs} but were left alone: running jobs need --running, dead ones `jqueue purge`",
        refused={
            str(JobStatus.IN_PROGRESS): "this job is in progress: add --running to tell its worker to stop",
            str(JobStatus.DEAD): "this job is already dead: remove dead jobs with `jqueue purge`",
            str(JobStatus.COMPLETED): "this job is already completed: only its result is kept",
        },
        stops=True,
    )
    change_jobs(url, choice, change)


def _content_of(file: str) -> bytes:
    """Return the content of a file, or of the standard input.

    Raises:
        RefusedError: it cannot be read.
    """
    try:
        return sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    except OSError as error:
        raise unreadable_payload(file, error) from None


@choosing("dead", "status", "holder", "payload")
def redrive(
    url: URL,
    choice: Choice,
    payload: Annotated[
        str | None,
        option(
            "FILE|TEXT",
            "With an ID: a file with a new payload for the job, or - for the standard input. Without an ID: only jobs "
            "whose payload has this text in it. By default as it was, and any.",
        ),
    ] = None,
    stale: Annotated[
        str | None,
        option(
            "AGE",
            "Instead revoke all claims whose workers gave no sign for this time: 10m, 2h. No filter goes with it.",
        ),
    ] = None,
    worker: Annotated[
        str | None,
        option("NAME", "With --stale: only claims of this worker, its name or name@host:pid. By default all."),
    ] = None,
    delay: Annotated[
        str | None, option("DURATION", "Time from now until the first is ready: 90s, 10m. By default 0.")
    ] = None,
    rate: Annotated[
        str | None, option("RATE", "Ready one after the other: 5/s, 10/min, 100/h. By default all at once.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do their finished steps again, too.")] = False,
) -> None:
    """Queue dead jobs again: by ID, filters or --all; with --stale, the jobs of dead workers.

    Several are counted first, and a question is asked on a terminal; elsewhere, --yes is needed.

    A job whose payload does not fit its handler can get another one: ID --payload FILE. It keeps its encoding.

    A job stays dead if another job has taken its unique key meanwhile. With --delay and --rate, a service that has just
    come back does not get all of them at once.

    Workers queue the jobs of a dead worker again by themselves, once its claims time out: after five minutes by
    default. --stale 2m does it now, for all jobs in progress without a heartbeat in the last two minutes. A live worker
    sends one every minute, or every third of a shorter claim timeout: with a shorter AGE its jobs run twice. A job
    without attempts left becomes dead.

    Exits with 1 if some of the jobs stay dead, or had changed meanwhile.
    """
    content = None
    if payload is not None and choice.job_id is None:
        choice = choice._replace(
            selection=replace(choice.selection, payload=selection_of({"payload": payload}).payload)
        )
    elif payload is not None:
        content = _content_of(payload)
    if stale is not None:
        if delay is not None or rate is not None or fresh:
            raise RefusedError("--stale revokes claims at once: give it without --delay, --rate and --fresh")
        return _requeue_stale(url, choice, RequeueStale(duration("--stale", stale), worker=worker))
    if worker is not None:
        raise RefusedError("--worker goes with --stale AGE: `--stale 0` takes back every claim of the worker")
    first = 0.0 if delay is None else duration("--delay", delay)
    apart = 0.0 if rate is None else seconds_apart("--rate", rate)
    change = JobChange(
        done="redriven",
        operation=lambda job, before: Redrive(job.id, delay=first + apart * before, fresh=fresh, payload=content),
        phases=frozenset({Phase.DEAD}),
        answer=lambda *_: ({"redriven": 1}, "is queued again"),
        question="Queue {jobs} again?",
    )
    change_jobs(url, choice, change)


def _requeue_stale(url: str, choice: Choice, order: RequeueStale) -> None:
    """Revoke the claims without a heartbeat for some time, and print their number."""
    if choice.ways:
        raise RefusedError("--stale is for all jobs without a heartbeat: give it without an ID, filters and --all")

    async def requeue(opened: OpenedQueue) -> int:
        if not choice.dry_run:
            return int(await opened.apply(order))
        now, running = opened.now(), Selection(frozenset({Phase.IN_PROGRESS}))
        return len([job async for job in opened.view.jobs(now, running) if order.holds(job, now)])

    number = on_queue(url, requeue)
    if choice.dry_run:
        values = {"matched": number, "requeued": 0, "dry_run": True}
        return tell(values, f"{jobs(number)} would be queued again", as_json=choice.as_json)
    tell({"requeued": number}, f"revoked: {counted(number, 'stale claim')}", as_json=choice.as_json)


@choosing("waiting", "holder")
def update(
    url: URL,
    choice: Choice,
    delay: Annotated[str | None, option("DURATION", "Time from now: 60, 90s, 15m, 12h; 0 for at once.")] = None,
    run_at: Annotated[str | None, option("TIME", "A time such as 2026-11-23T08:00, in UTC.")] = None,
    priority: Annotated[int | None, option("NUMBER", "Lower is served first.", "--priority", "-p")] = None,
) -> None:
    """Give waiting jobs another time or priority: one by its ID, several by filters, or --all.

    Give one of --delay, --run-at and --priority. --delay 0 makes scheduled jobs ready. No worker claims a job before
    its time. Among the jobs of a priority, a job keeps the place that it has by its age.

    Several jobs are counted first, and a question is asked on a terminal; elsewhere, --yes is needed.

    Exits with 1 if some of the jobs had changed meanwhile.
    """
    if sum(each is not None for each in (delay, run_at, priority)) != 1:
        raise RefusedError("give one of --delay DURATION, --run-at TIME and --priority NUMBER")
    seconds = None if delay is None else duration("--delay", delay)
    at = None if run_at is None else time("--run-at", run_at)

    def operation(job: Job, _: int) -> Operation:
        return Reschedule(job.id, delay=seconds, run_at=at) if priority is None else Reprioritise(job.id, priority)

    def answer(_: Job, after: Job) -> tuple[Mapping[str, Any], str]:
        what = f"is scheduled for {moment(after.run_at)} UTC" if after.run_at is not None else "is ready"
        values = {"run_at": instant(after.run_at), "priority": after.priority}
        return values, what if priority is None else f"has priority {priority}"

    change_jobs(url, choice, JobChange("updated", operation, QUEUED, answer, "Update {jobs}?"))


@choosing("dead", "holder")
def purge(url: URL, choice: Choice) -> None:
    """Remove dead jobs for good, with their payloads: one by its ID, several by filters, or --all.

    With --status completed, it removes finished jobs whose results are kept; with --status queued, all waiting jobs, or
    those of some entrypoints, however many. Several jobs are counted first, and a question is asked on a terminal;
    elsewhere, --yes is needed.

    Exits with 1 if the answer is no, or if some of the jobs had changed meanwhile.
    """

    def removal(job: Job, _: int) -> Operation:
        ended = job.status is JobStatus.COMPLETED
        return Purge(JobStatus.COMPLETED if ended else JobStatus.DEAD, job_id=job.id)

    selection = choice.selection
    change = JobChange(
        done="purged",
        operation=removal,
        phases=REMOVABLE if choice.job_id is not None or selection.phases else frozenset({Phase.DEAD}),
        answer=lambda *_: ({"purged": 1}, "was removed"),
        question="Remove {jobs} for good?",
        refused={
            str(JobStatus.QUEUED): "this job waits: `jqueue cancel` removes it",
            str(JobStatus.IN_PROGRESS): "this job is in progress: `jqueue cancel --running` stops it",
        },
    )
    if choice.ways == 1 and selection == Selection(QUEUED, selection.entrypoints):
        return _purge_waiting(url, choice, change)
    if not selection.phases <= REMOVABLE:
        raise RefusedError(
            "purge takes dead and completed jobs, or --status queued with no filter but --entrypoint: `jqueue cancel` "
            "removes other waiting jobs"
        )
    change_jobs(url, choice, change)


def _purge_waiting(url: str, choice: Choice, change: JobChange) -> None:
    """Remove all waiting jobs, or those of some entrypoints. They are not looked at one by one, however many they are.

    Raises:
        typer.Exit: with 1, the answer is no; with 2, it could not be done.
    """
    names = choice.selection.entrypoints

    async def count(opened: OpenedQueue) -> Counter[str]:
        figures = ((await opened.stats()).entrypoints or {}).items()
        waiting = {name: each.ready + each.scheduled + each.waiting for name, each in figures}
        return +Counter({name: number for name, number in waiting.items() if not names or name in names})

    async def remove(opened: OpenedQueue) -> int:
        wanted: list[str | None] = [*sorted(names)] or [None]
        return sum([await opened.apply(Purge(JobStatus.QUEUED, name)) for name in wanted])

    tally = Tally(on_queue(url, count))

    def work() -> None:
        tally.changed = on_queue(url, remove)
        tally.meanwhile = max(0, tally.matched.total() - tally.changed)

    _change_counted(choice, change, tally, work)
