"""`jqueue workers URL`: the workers of a queue, and other holders of its jobs. It only reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jqueue.cli.columns import Cell, Column, Terminal, lines_of, write_lines
from jqueue.cli.on_queue import URL, OneALine, OpenedQueue, on_queue
from jqueue.cli.printing import age, instant, show_lines
from jqueue.core.view import QueueView
from jqueue.domain.header import WorkerRecord, by_name

COLUMNS = (
    Column("holder"),
    Column("jobs", right=True),
    Column("oldest", right=True),
    Column("seen", right=True),
    Column("runs for", right=True),
    Column("version"),
    Column("entrypoints", cut=True),
)


@dataclass(frozen=True, slots=True)
class Holder:
    """A worker, or another holder of jobs.

    Attributes:
        name: name of the holder, as claims have it.
        jobs: number of its jobs in progress.
        oldest: time of its oldest claim; None without claims.
        record: its record; None if it is not a worker, or has not committed within the last hour.
    """

    name: str
    jobs: int
    oldest: datetime | None
    record: WorkerRecord | None


def workers(url: URL, as_json: OneALine = False) -> None:
    """List the workers of a queue, and other holders of its jobs.

    A worker commits at least once a minute, and removes itself when it ends. One that was not seen for two minutes is
    shown as lost, for an hour: it has died, or cannot reach the store. Its jobs are claimed again when its claims time
    out.

    The column "jobs" has the number of jobs in progress, and the number that the worker can run at once.
    """

    async def read(opened: OpenedQueue) -> tuple[list[Holder], datetime]:
        return find_holders(opened.view), opened.now()

    found, now = on_queue(url, read, as_json=as_json)
    if as_json:
        show_lines(_values(holder, now) for holder in found)
    else:
        write_lines(_lines(found, now, Terminal.of_stdout()))


def find_holders(view: QueueView) -> list[Holder]:
    """Return the workers of a queue by name, and the other holders of jobs after them."""
    claims, known = view.holders(), []
    for record in by_name(view.header.workers.values()):
        jobs, oldest = claims.get(record.holder, (0, None))
        known.append(Holder(record.holder, jobs, oldest, record))
    others = sorted(claims.keys() - {each.name for each in known})
    return [*known, *(Holder(name, *claims[name], None) for name in others)]


def _values(holder: Holder, now: datetime) -> dict[str, Any]:
    record = holder.record
    return {
        "holder": holder.name,
        "worker": record is not None,
        "jobs": holder.jobs,
        "lost": record and record.is_lost(now.timestamp()),
        "oldest_claim_at": instant(holder.oldest),
        "name": record and record.name,
        "host": record and record.host,
        "pid": record and record.pid,
        "slots": record and record.slots,
        "last_commit_at": record and instant(record.last_seen),
        "last_commit_seconds": record and round(now.timestamp() - record.at, 3),
        "runs_seconds": record and round(now.timestamp() - record.started, 3),
        "entrypoints": record and list(record.entrypoints),
        "version": record and record.version,
    }


def _lines(found: Sequence[Holder], now: datetime, terminal: Terminal) -> Iterator[str]:
    if not found:
        yield "no worker was seen within the last hour, and no job is in progress"
        return
    yield from lines_of(COLUMNS, (_row(holder, now) for holder in found), terminal)


def _row(holder: Holder, now: datetime) -> Sequence[Cell]:
    record = holder.record
    jobs = Cell(str(holder.jobs) if record is None else f"{holder.jobs} of {record.slots}")
    oldest = Cell("" if holder.oldest is None else age(now - holder.oldest))
    if record is None:
        return (Cell(holder.name), jobs, oldest, *map(Cell, ("", "", "")), Cell("(no record of a worker)", "dim"))
    started = age(now.timestamp() - record.started)
    names = ", ".join(record.entrypoints)
    last = seen_cell(record, now)
    return (Cell(holder.name), jobs, oldest, last, Cell(started), Cell(record.version), Cell(names))


def seen_cell(record: WorkerRecord, now: datetime) -> Cell:
    """Return when a worker was last seen, and that it is lost if it is."""
    seen = f"{age(now.timestamp() - record.at)} ago"
    return Cell(f"lost, {seen}", "red") if record.is_lost(now.timestamp()) else Cell(seen)
