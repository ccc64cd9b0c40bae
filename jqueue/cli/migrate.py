"""`jqueue migrate SOURCE DEST`: moves the jobs of one queue to another, between any stores and formats."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.adapters.storage.names import describe
from jqueue.cli.on_queue import FIRST_CALL_DEADLINE, AsJSON, RefusedError, place_of
from jqueue.cli.printing import jobs, refusal, show, show_json, table
from jqueue.cli.progress import jobs_counted
from jqueue.connect import connect_queue
from jqueue.core.direct import DirectQueue
from jqueue.core.migration.mover import MigrationReport, SourceDamagedError
from jqueue.core.migration.mover import migrate as move
from jqueue.core.migration.plan import Tally
from jqueue.core.sets.same_place import is_same_place
from jqueue.domain.errors import JQueueError, StorageError
from jqueue.domain.printable import counted, printable
from jqueue.formats.queue import StoreQueue

Queue = DirectQueue | StoreQueue


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

    They keep their order, delays, attempts and errors, and dead jobs move too. Programs may use both queues meanwhile.
    If the move is interrupted at any moment, run the command again to finish it.

    Exits with 0 if all jobs have moved, 1 if some stay, 2 if the move cannot be done.
    """
    try:
        opened = connect_queue(source, DirectQueue), connect_queue(dest, DirectQueue, create=create)
    except (ValueError, ImportError, JQueueError) as error:  # messages of errors about a URL hold no secrets
        raise refusal(str(error), as_json=as_json) from None
    try:
        report = asyncio.run(_perform(*opened, dry_run=dry_run, lossy=lossy))
    except SourceDamagedError as error:  # all others have moved
        report = error.report
    except StorageError as error:
        raise refusal(f"{error}. Run the command again to finish the move", as_json=as_json) from None
    except (JQueueError, ImportError, RefusedError) as error:
        raise refusal(str(error), as_json=as_json) from None
    if as_json:
        show_json(as_values(report, *map(_name, opened)))
    else:
        _show(report, *map(_name, opened))
    raise typer.Exit(Status.COMPLETE if report.complete else Status.SOME_STAY)


def _name(queue: Queue) -> str:
    return describe(place_of(queue))


async def _perform(source: Queue, dest: Queue, *, dry_run: bool, lossy: bool) -> MigrationReport:
    if any(isinstance(place_of(queue), InMemoryStorage) for queue in (source, dest)):
        raise RefusedError("an in-memory queue is visible only to its own process: give the URL of a file or a store")
    if is_same_place(source, dest):
        raise RefusedError("SOURCE and DEST are the same queue: there is nothing to move")
    stop = asyncio.Event()
    _stop_on_signals(stop)
    async with source, dest:
        if (await source.view(deadline=FIRST_CALL_DEADLINE)).absent:
            raise RefusedError(f"there is no queue at {_name(source)}: check the URL")
        with jobs_counted("checking" if dry_run else "moving") as tell:
            return await move(source, dest, dry_run=dry_run, lossy=lossy, on_progress=tell, stop=stop)


def _stop_on_signals(stop: asyncio.Event) -> None:
    """On SIGINT or SIGTERM, finish the work under way and stop."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows; or not the main thread
            asyncio.get_running_loop().add_signal_handler(number, stop.set)


def as_values(report: MigrationReport, source: str, dest: str) -> dict[str, Any]:
    """Return a report as JSON values."""
    return {
        "source": source,
        "dest": dest,
        "dry_run": report.dry_run,
        "complete": report.complete,
        "stopped": report.stopped,
        "damaged": report.damaged,
        "moved": report.moved,
        "resumed": report.resumed,
        "lost": _tallies(report.lost),
        "refused": _tallies(report.refused),
        "in_progress": report.in_progress,
        "results": report.results,
        "unreadable": report.unreadable,
        "keys_held": report.keys_held,
        "rules_taken": list(report.rules_taken),
        "rules_kept": list(report.rules_kept),
    }


def _tallies(tallies: Mapping[str, Tally]) -> list[dict[str, Any]]:
    return [{"what": what, "jobs": tally.count, "ids": tally.ids} for what, tally in tallies.items()]


def _show(report: MigrationReport, source: str, dest: str) -> None:
    """Print a report for people."""
    would = "would be " if report.dry_run else ""
    again = f", {report.resumed} of them from an interrupted move" if report.resumed else ""
    show(Text(f"{source} to {dest}", "bold"), f"{jobs(report.moved)} {would}moved{again}")
    if report.lost:
        show("", _table("lost in the move", report.lost))
    if report.refused:
        show("", _table("not moved: the reason", report.refused))
        if not report.dry_run and any("would be lost" in why for why in report.refused):
            show("add --lossy to move the jobs that would lose something")
    if report.in_progress:
        running = counted(report.in_progress, "job is", "jobs are")
        show(f"{running} in progress and not moved: run the command again later")
    if report.results:
        show(f"{counted(report.results, 'finished job stays', 'finished jobs stay')} at SOURCE, for the results")
    if report.unreadable:
        show(f"not moved: {counted(report.unreadable, 'line')} of SOURCE that cannot be read as jobs")
    if report.keys_held:
        keys = counted(report.keys_held, "unique key of a finished job is", "unique keys of finished jobs are")
        show(f"{keys} remembered only at SOURCE")
    if report.rules_taken:
        show(f"{would}copied to DEST: {_listed(report.rules_taken)}")
    if report.rules_kept:
        show(f"not copied, as DEST has its own or cannot store them: {_listed(report.rules_kept)}")
    for suffix, why in report.damaged.items():
        show(f"not moved: jobs of segment {suffix} that cannot be read: {printable(why)}")
    if report.damaged:
        show(
            "restore what is damaged from a backup, or give it up with `jqueue drop-segment`, and run the command again"
        )
    if report.stopped:
        show("stopped before all jobs were moved: run the command again to finish")


def _listed(names: tuple[str, ...]) -> str:
    return printable(", ".join(names))


def _table(title: str, tallies: Mapping[str, Tally]) -> Table:
    made = table(title, "jobs", "such as", numbers=("jobs",))
    for what, tally in tallies.items():
        ids = ", ".join(map(printable, tally.ids[:2])) + (", …" if tally.count > 2 else "")
        made.add_row(Text(printable(what)), str(tally.count), Text(ids))
    return made
