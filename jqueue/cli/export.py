"""`jqueue export URL`: the jobs of a queue as JSON lines, with their payloads. It only reads."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TextIO

import typer

from jqueue.cli.filters import selecting
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, on_queue
from jqueue.cli.printing import jobs, show_json
from jqueue.cli.progress import reading
from jqueue.core.blob.lines import export_line
from jqueue.core.verbs.producer import payload_of
from jqueue.domain.models import Job
from jqueue.domain.selection import Selection

ONLY_OURS = 0o600
"""Permissions of the file: it holds payloads."""


@selecting()
def export(
    url: URL,
    selection: Selection,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="New file to write to.", show_default=False),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Write the jobs of a queue as JSON lines, with their payloads.

    Each line is one job with all its fields; the payload is in base64. The jobs come in the order in which they would
    be served, and `jqueue import` adds them to a queue in that order. The lines hold all payloads, headers and results:
    keep them as secret as these are.

    With --output, --json prints the number of jobs as an object.
    """

    async def write(opened: OpenedQueue) -> int:
        with ExitStack() as closing:
            out: TextIO = sys.stdout if output is None else closing.enter_context(_new_file(output))
            count, shown = 0, output is not None or not sys.stdout.isatty()
            view, _ = closing.enter_context(reading(opened.view, "exporting", names=selection.entrypoints, shown=shown))
            async for line in _lines(replace(opened, view=view), selection):
                out.write(line + "\n")
                count += 1
            out.flush()
            return count

    count = on_queue(url, write, as_json=as_json)
    if output is not None and as_json:
        show_json({"exported": count})
    elif output is not None:
        typer.echo(f"{jobs(count)} exported")


async def _lines(opened: OpenedQueue, selection: Selection) -> AsyncIterator[str]:
    """Yield the lines of the jobs, in the order of the queue."""
    async for job in opened.view.jobs(opened.now(), selection, in_order=True):
        yield await _line(opened, job)


async def _line(opened: OpenedQueue, job: Job) -> str:
    """Return the line of a job, with the values that are in objects."""
    if job.payload_apart:
        job = job.evolve(payload=b"".join([piece async for piece in payload_of(opened.queue, job)]))
    return export_line(job, None if job.result_object is None else await opened.queue.result(job.id))


def _new_file(path: Path) -> TextIO:
    """Open a file that does not exist yet.

    Raises:
        RefusedError: it exists, or cannot be made.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, ONLY_OURS)
    except FileExistsError:
        raise RefusedError(f"the file {str(path)!r} exists already: choose another name, or remove it") from None
    except OSError as error:
        raise RefusedError(f"the file {str(path)!r} cannot be made: {error.strerror}") from None
    return os.fdopen(descriptor, "w", encoding="ascii")
