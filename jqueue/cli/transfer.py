"""The commands that carry jobs from one queue to another: `jqueue export`, `import` and `migrate`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from msgspec import to_builtins

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.cli.help import RefusedError
from jqueue.cli.on_queue import IN_MEMORY, URL, AsJSON, OpenedQueue, certain, direct, on_queue
from jqueue.cli.options import selecting
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import jobs, note, tell
from jqueue.cli.progress import jobs_counted, reading
from jqueue.connect import connect
from jqueue.core.blob.lines import export_line, import_line
from jqueue.core.migration import MigrationReport, arriving, parts
from jqueue.core.migration import migrate as move
from jqueue.core.queue_base import is_same_place
from jqueue.domain.errors import InvalidJobError, JobStateError, JQueueError, StorageError
from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job
from jqueue.domain.operations.enqueue import Arrive
from jqueue.domain.operations.lookups import Find
from jqueue.domain.printable import counted, printable
from jqueue.domain.selection import Selection
from jqueue.ports.queue import payload_of
from jqueue.ports.storage import describe, storage_of


@selecting()
def export(
    url: URL,
    selection: Selection,
    output: Annotated[
        Path | None, option("FILE", "New file to write to. By default the standard output.", "--output", "-o")
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Write the jobs of a queue as JSON lines, with their payloads: a backup of the jobs alone.

    Each line is one job with all its fields; the payload is in base64. The jobs come in the order in which they would
    be served, and `jqueue import` adds them to a queue in that order. The lines hold all payloads, headers and results:
    keep them as secret as these are.

    Limits, settings, cron entries, groups and the history are not in it, and `jqueue import` refuses a job if one of
    its parents is done, as the result of that stays behind. A whole backup is a copy: first of the queue's object, and
    then of the folders beside it, whose names begin with that of the object. Restored, it is the queue again.

    With --output, --json prints the number of jobs as an object.
    """

    async def write(opened: OpenedQueue) -> int:
        with ExitStack() as closing:
            out = sys.stdout
            if output is not None:
                only_ours = partial(os.open, mode=0o600)  # it holds payloads
                out = closing.enter_context(_file(output, "x", "made", encoding="ascii", opener=only_ours))
            count, shown = 0, output is not None or not sys.stdout.isatty()
            view, _ = closing.enter_context(reading(opened.view, "exporting", selection, shown=shown))
            async for job in view.jobs(opened.now(), selection, in_order=True):
                if job.payload_apart:
                    job = job.evolve(payload=b"".join([piece async for piece in payload_of(opened.queue, job)]))
                result = None if job.result_object is None else await opened.queue.result(job.id)
                if any(step.result_object for step in job.steps):
                    steps = [(step, await opened.queue.step_result(job, step)) for step in job.steps]
                    whole = tuple(step._replace(result=value, result_object=None) for step, value in steps)
                    job = job.evolve(steps=whole)
                out.write(export_line(job, result) + "\n")
                count += 1
            out.flush()
            return count

    count = on_queue(url, write)
    if output is not None:
        tell({"exported": count}, f"{jobs(count)} exported", as_json=as_json)


def _file(path: Path, mode: str, task: str, **options: Any) -> IO[Any]:
    """Open a file.

    Raises:
        RefusedError: it cannot be opened, or exists but must be new.
    """
    try:
        return open(path, mode, **options)
    except FileExistsError:
        raise RefusedError(f"the file {str(path)!r} exists already: choose another name, or remove it") from None
    except OSError as error:
        raise RefusedError(f"the file {str(path)!r} cannot be {task}: {error.strerror}") from None


BATCH = 2000
"""Largest number of jobs in a commit. Small ones make many small segments, which are merged again and again."""

BATCH_BYTES = 8 << 20
"""Size of their lines above which a commit takes no more jobs."""

NOT_ALL = 1
"""Exit code if a line was refused, or if some jobs stay."""

NAMED = 5
"""Largest number of refused lines that are named."""


LEFT_OUT = {
    "there": "left alone: jobs with these ids are in the queue",
    "finished": "left alone: jobs with these ids have finished in the queue",
    "completed": "left out: they were completed",
    "refused": "refused",
}
"""Counts of jobs that an import did not add, and why."""


def import_(
    url: URL,
    file: Annotated[Path, argument("FILE", "File of an export; - reads the standard input.")],
    create: Annotated[bool, typer.Option("--create", help="Create the queue if there is none.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the lines and count the jobs.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Add the jobs of an export to a queue.

    A job keeps its id, payload, attempts and times, and goes behind the jobs of its priority. A job that was running is
    ready again. A job whose id is in the queue, or has finished there lately, is left alone, so an interrupted import
    can be repeated. Completed jobs are left out. A job with parents comes after them.

    Exits with 1 if a line was refused.
    """
    counts, wrong = Counter[str](), list[tuple[int, str]]()

    async def add(opened: OpenedQueue) -> None:
        if opened.view.absent and not create:
            raise RefusedError(f"there is no queue at {opened.name}: check the URL, or add --create to make the queue")
        try:
            with ExitStack() as closing:
                lines = sys.stdin.buffer if str(file) == "-" else closing.enter_context(_file(file, "rb", "read"))
                progress = closing.enter_context(jobs_counted("checking" if dry_run else "importing"))
                done = 0
                for batch in parts(_numbered(lines, counts, wrong), lambda each: each[1].payload, BATCH, BATCH_BYTES):
                    done += len(batch)
                    looks = [Find(job.id) for _, job in batch]
                    new = _unknown(await opened.queue.apply_each(*looks), batch, counts, wrong)
                    if new and not dry_run:
                        now = opened.now()
                        arrivals = [Arrive(arriving(job, now)) for _, job in new]
                        new = _unknown(await certain(opened.queue.apply_each(*arrivals)), new, counts, wrong)
                    counts["added"] += len(new)
                    progress(done)
        except JQueueError as error:
            raise RefusedError(f"{error}. {jobs(counts['added'])} added before: repeat the import") from error

    on_queue(url, add, create=True)
    refused = [{"line": number, "reason": printable(reason)} for number, reason in wrong]
    values = {
        **{name: counts[name] for name in ("added", "there", "finished", "completed")},
        "refused": refused,
        "dry_run": dry_run,
    }
    counts["refused"] = len(wrong)
    others = [f"{jobs(counts[name])} {words}" for name, words in LEFT_OUT.items() if counts[name]]
    tell(values, f"{jobs(counts['added'])} {'would be added' if dry_run else 'added'}", *others, as_json=as_json)
    if not as_json:
        for number, reason in wrong[:NAMED]:
            note(f"line {number}: {reason}")
        if len(wrong) > NAMED:
            note(f"and {len(wrong) - NAMED:,} more; --json lists them all")
    if wrong:
        raise typer.Exit(NOT_ALL)


Numbered = tuple[int, Job]
"""A job, with the number of its line."""


def _numbered(lines: Iterable[bytes], counts: Counter[str], wrong: list[tuple[int, str]]) -> Iterator[Numbered]:
    """Yield the jobs of the lines that have not completed. The others are counted, or noted as wrong.

    Jobs that have parents come last, each after its parents.
    """
    children = dict[str, Numbered]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            job = import_line(line)
        except InvalidJobError as error:
            wrong.append((number, str(error)))
            continue
        if job.status is JobStatus.COMPLETED:
            counts["completed"] += 1
        elif not job.after:
            yield number, job
        elif children.setdefault(job.id, (number, job))[0] != number:
            wrong.append((number, "another line has its id"))
    parents = {job.id: [each for each in job.after if each in children] for _, job in children.values()}
    try:
        yield from [children[each] for each in TopologicalSorter(parents).static_order()]
    except CycleError:
        wrong += [(number, "it waits for a job that waits for it") for number, _ in children.values()]


def _unknown(
    answers: Sequence[Any], batch: list[Numbered], counts: Counter[str], wrong: list[tuple[int, str]]
) -> list[Numbered]:
    """Return the jobs of a batch that the queue does not have, or has just got. The others are counted, or refused.

    Args:
        answers: of the queue to a `Find` or an `Arrive` for each job.
        batch: the jobs.
        counts: the jobs that are left out.
        wrong: the lines that are refused.
    """
    unknown = []
    for (number, job), answer in zip(batch, answers, strict=True):
        result = answer[0] if isinstance(answer, list) and answer else answer
        if isinstance(result, JQueueError) and not isinstance(result, JobStateError):
            wrong.append((number, str(result)))
        elif isinstance(answer, JobStateError) or result is not answer:
            counts["finished" if result.status is JobStatus.COMPLETED else "there"] += 1
        else:
            unknown.append((number, job))
    return unknown


LEFT = ("ready", "scheduled", "waiting", "in_progress", "dead", "completed")
"""The figures of jobs that are left at SOURCE."""


def migrate(
    source: Annotated[str, argument("SOURCE", "URL or path of the queue to move jobs from; JQUEUE_URL is not used.")],
    dest: Annotated[str, argument("DEST", "URL or path of the queue to move them to, created if missing.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the jobs that would move.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Create the folder of DEST if it is missing.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Move the jobs of one queue to another.

    They keep their ids, order, delays, attempts and errors, and dead jobs move too. Limits, settings and cron entries
    do not. Programs may use both queues meanwhile. Jobs in progress stay at SOURCE: run the command again once they
    have ended. Do the same if the move is interrupted.

    Exits with 0 if all jobs have moved, 1 if some stay, 2 if the move cannot be done.
    """

    async def perform(opened: OpenedQueue) -> tuple[MigrationReport, list[str], str, str]:
        target = connect(dest, direct, create=create)
        name, header = describe(storage_of(target)), opened.view.header
        if isinstance(storage_of(target), InMemoryStorage):
            raise RefusedError(IN_MEMORY)
        if is_same_place(opened.queue, target):
            raise RefusedError("SOURCE and DEST are the same queue: there is nothing to move")
        from jqueue.worker.signals import handle_signals  # slow to import

        stop = asyncio.Event()
        rules = [f"limits of {each}" for each in header.entrypoints]
        rules += [f"cron entry {each}" for each in header.schedules]
        rules += [f"setting {each}" for each in to_builtins(header.settings)]
        try:
            async with target:
                with handle_signals(stop.set), jobs_counted("checking" if dry_run else "moving") as progress:
                    moved = await move(opened.queue, target, dry_run=dry_run, on_progress=progress, stop=stop)
                    return moved, rules, opened.name, name
        except StorageError as error:
            raise RefusedError(f"{error}. Run the command again to finish the move") from None

    report, rules, *names = on_queue(source, perform)
    left = {name: getattr(report.left, name) for name in LEFT}
    values = {
        **dict(zip(("source", "dest"), names, strict=True)),
        "dry_run": dry_run,
        **{name: getattr(report, name) for name in ("complete", "stopped", "damaged", "moved")},
        "refused": [{"reason": reason, "ids": ids} for reason, ids in report.refused.items()],
        "left": {**left, "unreadable": report.left.unreadable},
        "rules_left": rules,
    }
    tell(values, *_lines(report, rules, left, *names, dry_run=dry_run), as_json=as_json)
    if not report.complete:
        raise typer.Exit(NOT_ALL)


def _lines(
    report: MigrationReport, rules: list[str], left: dict[str, int], source: str, dest: str, *, dry_run: bool
) -> Iterator[str]:
    """Yield the lines of a report for people."""
    yield f"{source} to {dest}"
    yield f"{jobs(report.moved)} {'would be ' if dry_run else ''}moved"
    for reason, ids in report.refused.items():
        some = ", ".join(map(printable, ids[:2])) + (", …" if len(ids) > 2 else "")
        yield f"not moved: {jobs(len(ids))} ({some}): {printable(reason)}"
    for suffix, why in report.damaged.items():
        yield f"not moved: jobs of segment {suffix} that cannot be read: {printable(why)}"
    if report.damaged:
        yield "restore what is damaged, or use `jqueue repair`, and run the command again"
    if report.left.unreadable:
        yield f"not moved: {counted(report.left.unreadable, 'line')} of SOURCE that cannot be read as jobs"
    if rules:
        yield f"not copied: {printable(', '.join(rules))}. Set them at DEST, best before the jobs move"
    if report.stopped:
        yield "stopped before all jobs were moved: run the command again to finish"
    if any(left.values()) and not dry_run:
        numbers = [f"{number} {name.replace('_', ' ')}" for name, number in left.items() if number]
        yield f"left at SOURCE: {', '.join(numbers)}"
