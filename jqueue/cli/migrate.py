"""`jqueue migrate SOURCE DEST`: moves the jobs of one queue to another, between any stores and formats."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from enum import IntEnum
from typing import Annotated, Any

import typer
from msgspec import to_builtins
from rich.text import Text

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.cli.on_queue import FIRST_CALL_DEADLINE, AsJSON, RefusedError, place_of
from jqueue.cli.printing import jobs, refusal, show, show_json, table
from jqueue.cli.progress import jobs_counted
from jqueue.connect import connect_queue
from jqueue.core.direct import DirectQueue
from jqueue.core.migration import MigrationReport
from jqueue.core.migration import migrate as move
from jqueue.core.queue_base import is_same_place
from jqueue.domain.errors import JQueueError, StorageError
from jqueue.domain.printable import counted, printable
from jqueue.formats.queue import StoreQueue
from jqueue.ports.storage import describe

Queue = DirectQueue | StoreQueue


LEFT = ("ready", "scheduled", "in_progress", "dead", "completed")
"""The figures of jobs that are left at SOURCE."""


class Status(IntEnum):
    """Exit codes of the command."""

    COMPLETE = 0
    SOME_STAY = 1
    UNUSABLE = 2


def migrate(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="URL or path of the queue to move jobs from.", show_default=False),
    ],
    dest: Annotated[
        str,
        typer.Argument(
            metavar="DEST", help="URL or path of the queue to move them to, created if missing.", show_default=False
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the jobs that would move, and what they would lose.")
    ] = False,
    lossy: Annotated[
        bool,
        typer.Option("--lossy", help="Also move jobs that lose what DEST cannot store, such as a delay."),
    ] = False,
    create: Annotated[bool, typer.Option("--create", help="Create the folder of DEST if it is missing.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Move the jobs of one queue to another.

    They keep their ids, order, delays, attempts and errors, and dead jobs move too. Limits, settings and cron entries
    do not. Programs may use both queues meanwhile. If the move is interrupted, run the command again to finish it.

    Exits with 0 if all jobs have moved, 1 if some stay, 2 if the move cannot be done.
    """
    try:
        opened = connect_queue(source, DirectQueue), connect_queue(dest, DirectQueue, create=create)
    except (ValueError, ImportError, JQueueError) as error:  # messages of errors about a URL hold no secrets
        raise refusal(str(error), as_json=as_json) from None
    try:
        report, rules = asyncio.run(_perform(*opened, dry_run=dry_run, lossy=lossy))
    except StorageError as error:
        raise refusal(f"{error}. Run the command again to finish the move", as_json=as_json) from None
    except (JQueueError, ImportError, RefusedError) as error:
        raise refusal(str(error), as_json=as_json) from None
    names = _name(opened[0]), _name(opened[1])
    if as_json:
        show_json(as_values(report, rules, *names, dry_run=dry_run))
    else:
        _show(report, rules, *names, dry_run=dry_run)
    raise typer.Exit(Status.COMPLETE if report.complete else Status.SOME_STAY)


def _name(queue: Queue) -> str:
    return describe(place_of(queue))


async def _perform(source: Queue, dest: Queue, *, dry_run: bool, lossy: bool) -> tuple[MigrationReport, list[str]]:
    """Return the report, and the rules of SOURCE, which do not move."""
    if any(isinstance(place_of(queue), InMemoryStorage) for queue in (source, dest)):
        raise RefusedError("an in-memory queue is visible only to its own process: give the URL of a file or a store")
    if is_same_place(source, dest):
        raise RefusedError("SOURCE and DEST are the same queue: there is nothing to move")
    stop = asyncio.Event()
    _stop_on_signals(stop)
    async with source, dest:
        view = await source.view(deadline=FIRST_CALL_DEADLINE)
        if view.absent:
            raise RefusedError(f"there is no queue at {_name(source)}: check the URL")
        rules = [f"limits of {name}" for name in view.header.entrypoints]
        rules += [f"cron entry {name}" for name in view.header.schedules]
        rules += [f"setting {name}" for name in to_builtins(view.header.settings)]
        with jobs_counted("checking" if dry_run else "moving") as tell:
            return await move(source, dest, dry_run=dry_run, lossy=lossy, on_progress=tell, stop=stop), rules


def _stop_on_signals(stop: asyncio.Event) -> None:
    """On SIGINT or SIGTERM, finish the work under way and stop."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows; or not the main thread
            asyncio.get_running_loop().add_signal_handler(number, stop.set)


def as_values(report: MigrationReport, rules: list[str], source: str, dest: str, *, dry_run: bool) -> dict[str, Any]:
    """Return a report as JSON values."""
    left = {name: getattr(report.left, name) for name in LEFT}
    return {
        "source": source,
        "dest": dest,
        "dry_run": dry_run,
        "complete": report.complete,
        "stopped": report.stopped,
        "damaged": report.damaged,
        "moved": report.moved,
        "refused": [{"reason": reason, "ids": ids} for reason, ids in report.refused.items()],
        "left": {**left, "unreadable": report.left.unreadable},
        "rules_left": rules,
    }


def _show(report: MigrationReport, rules: list[str], source: str, dest: str, *, dry_run: bool) -> None:
    """Print a report for people."""
    show(Text(f"{source} to {dest}", "bold"), f"{jobs(report.moved)} {'would be ' if dry_run else ''}moved")
    if report.refused:
        made = table("not moved: the reason", "jobs", "such as", numbers=("jobs",))
        for reason, ids in report.refused.items():
            some = ", ".join(map(printable, ids[:2])) + (", …" if len(ids) > 2 else "")
            made.add_row(Text(printable(reason)), str(len(ids)), Text(some))
        show("", made)
        if any("the format of this queue has no" in reason for reason in report.refused):
            show("add --lossy to move the jobs that would lose something")
    for suffix, why in report.damaged.items():
        show(f"not moved: jobs of segment {suffix} that cannot be read: {printable(why)}")
    if report.damaged:
        show("restore what is damaged, or use `jqueue repair`, and run the command again")
    if report.left.unreadable:
        show(f"not moved: {counted(report.left.unreadable, 'line')} of SOURCE that cannot be read as jobs")
    if rules:
        show(f"not copied: {printable(', '.join(rules))}. Set them at DEST, best before the jobs move")
    if report.stopped:
        show("stopped before all jobs were moved: run the command again to finish")
    left = [f"{number} {name.replace('_', ' ')}" for name in LEFT if (number := getattr(report.left, name))]
    if left and not dry_run:
        show(f"left at SOURCE: {', '.join(left)}")
