"""`jqueue import URL FILE`: adds the jobs of an export to a queue. Repeating it adds no job twice."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, certain, on_queue
from jqueue.cli.printing import jobs, show_json
from jqueue.cli.progress import jobs_counted
from jqueue.core.blob.lines import import_line
from jqueue.core.migration import arriving
from jqueue.domain.errors import InvalidJobError, JobStateError, JQueueError
from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job
from jqueue.domain.operations.enqueue import Arrive
from jqueue.domain.operations.lookups import Find
from jqueue.domain.printable import printable

BATCH = 2000
"""Largest number of jobs in a commit. Small ones make many small segments, which are merged again and again."""

BATCH_BYTES = 8 << 20
"""Size of their lines above which a commit takes no more jobs."""

NOT_ALL = 1
"""Exit code if a line was refused."""

NAMED = 5
"""Largest number of refused lines that are named."""


@dataclass(slots=True)
class Report:
    """The result of an import.

    Attributes:
        added: number of jobs that were added.
        there: number of jobs that were left alone, because a job with their id is in the queue.
        finished: number of jobs that were left alone, because a job with their id has finished lately.
        completed: number of completed jobs that were left out: there is nothing to do for them.
        refused: the numbers of the other lines, and why they were refused.
    """

    added: int = 0
    there: int = 0
    finished: int = 0
    completed: int = 0
    refused: list[tuple[int, str]] = field(default_factory=list)


def import_(
    url: URL,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="File of an export; - is the input.", show_default=False),
    ],
    create: Annotated[bool, typer.Option("--create", help="Create the queue if there is none.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the lines and count the jobs.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Add the jobs of an export to a queue.

    A job keeps its id, payload, attempts and times, and goes behind the jobs of its priority. A job that was running is
    ready again. A job whose id is in the queue, or has finished there lately, is left alone, so an interrupted import
    can be repeated. Completed jobs are left out.

    Exits with 1 if a line was refused.
    """
    report = Report()

    async def add(opened: OpenedQueue) -> None:
        if opened.view.absent and not create:
            raise RefusedError(f"there is no queue at {opened.name}: check the URL, or add --create to make the queue")
        try:
            with ExitStack() as closing:
                lines = sys.stdin.buffer if str(file) == "-" else closing.enter_context(_opened(file))
                tell = closing.enter_context(jobs_counted("checking" if dry_run else "importing"))
                done = 0
                for batch in _batches(_jobs(lines, report)):
                    done += len(batch)
                    new = await _without_known(opened, batch, report)
                    if dry_run:
                        report.added += len(new)
                    else:
                        await _add(opened, new, report)
                    tell(done)
        except JQueueError as error:
            raise RefusedError(f"{error}. {jobs(report.added)} added before: repeat the import") from error

    on_queue(url, add, as_json=as_json, create=True)
    _show(report, dry_run=dry_run, as_json=as_json)
    if report.refused:
        raise typer.Exit(NOT_ALL)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise RefusedError(f"the file {str(path)!r} cannot be read: {error.strerror}") from None


def _jobs(lines: Iterable[bytes], report: Report) -> Iterator[tuple[int, Job]]:
    """Yield the jobs of the lines that have not completed, with the numbers of their lines. The others are reported."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            job = import_line(line)
        except InvalidJobError as error:
            report.refused.append((number, str(error)))
            continue
        if job.status is JobStatus.COMPLETED:
            report.completed += 1
        else:
            yield number, job


def _batches(found: Iterable[tuple[int, Job]]) -> Iterator[list[tuple[int, Job]]]:
    batch: list[tuple[int, Job]] = []
    size = 0
    for each in found:
        batch.append(each)
        size += len(each[1].payload)
        if len(batch) == BATCH or size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _without_known(opened: OpenedQueue, batch: list[tuple[int, Job]], report: Report) -> list[tuple[int, Job]]:
    """Return the jobs whose ids are not in the queue, and have not finished there lately. The others are reported."""
    answers = await opened.queue.apply_each(*(Find(job.id) for _, job in batch))
    new = []
    for (number, job), answer in zip(batch, answers, strict=True):
        if isinstance(answer, JQueueError):
            report.refused.append((number, str(answer)))
        elif not answer:
            new.append((number, job))
        elif answer[0].status is JobStatus.COMPLETED:
            report.finished += 1
        else:
            report.there += 1
    return new


async def _add(opened: OpenedQueue, batch: list[tuple[int, Job]], report: Report) -> None:
    """Add jobs in one commit, each for itself."""
    if not batch:
        return
    queue, now = opened.queue, opened.now()
    arrivals = [Arrive(arriving(job, now)) for _, job in batch]
    for (number, _), answer in zip(batch, await certain(queue.apply_each(*arrivals)), strict=True):
        if not isinstance(answer, JQueueError):
            report.added += 1
        elif isinstance(answer, JobStateError) and answer.status is JobStatus.COMPLETED:
            report.finished += 1
        elif isinstance(answer, JobStateError):
            report.there += 1
        else:
            report.refused.append((number, str(answer)))


def _show(report: Report, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        refused = [{"line": number, "reason": printable(reason)} for number, reason in report.refused]
        values: dict[str, Any] = {name: getattr(report, name) for name in ("added", "there", "finished", "completed")}
        show_json({**values, "refused": refused, "dry_run": dry_run})
        return
    typer.echo(f"{jobs(report.added)} {'would be added' if dry_run else 'added'}")
    for number, said in (
        (report.there, "left alone: jobs with these ids are in the queue"),
        (report.finished, "left alone: jobs with these ids have finished in the queue"),
        (report.completed, "left out: they were completed"),
        (len(report.refused), "refused"),
    ):
        if number:
            typer.echo(f"{jobs(number)} {said}")
    for number, reason in report.refused[:NAMED]:
        typer.echo(f"jqueue: line {number}: {printable(reason)}", err=True)
    if len(report.refused) > NAMED:
        typer.echo(f"jqueue: and {len(report.refused) - NAMED:,} more; --json lists them all", err=True)
