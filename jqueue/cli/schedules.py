"""`jqueue schedules URL`: the cron entries of a queue. It only reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from jqueue.cli.columns import Cell, Column, Terminal, lines_of, write_lines
from jqueue.cli.on_queue import URL, OneALine, OpenedQueue, on_queue
from jqueue.cli.printing import instant, length, moment, show_lines
from jqueue.domain.rules import Schedule, as_shown

COLUMNS = (
    Column("name", cut=True),
    Column("entrypoint", cut=True),
    Column("when", cut=True),
    Column("next (UTC)"),
    Column("in", right=True),
)


def schedules(url: URL, as_json: OneALine = False) -> None:
    """List the cron entries of a queue, the next one first.

    Each entry enqueues a job at its times, as long as any worker of the queue runs. No payload is shown.
    """

    async def read(opened: OpenedQueue) -> tuple[list[Schedule], datetime]:
        opened.queue.capabilities.require("schedules")
        now = opened.now()
        shown = (as_shown(each, now) for each in opened.view.header.schedules.values())
        return sorted(shown, key=lambda schedule: (schedule.next_at, schedule.name)), now

    found, now = on_queue(url, read, as_json=as_json)
    if as_json:
        show_lines(_values(schedule, now) for schedule in found)
    else:
        write_lines(_lines(found, now, Terminal.of_stdout()))


def _values(schedule: Schedule, now: datetime) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "entrypoint": schedule.entrypoint,
        "next_at": instant(schedule.next_at),
        "seconds": round((schedule.next_at - now).total_seconds(), 3),
        "priority": schedule.priority,
        "max_attempts": schedule.max_attempts,
        "unique_key": schedule.unique_key,
        "concurrency_key": schedule.concurrency_key,
        "headers": sorted(schedule.headers),
        "payload_bytes": len(schedule.payload),
    }


def _lines(found: Sequence[Schedule], now: datetime, terminal: Terminal) -> Iterator[str]:
    if not found:
        yield "no cron entries"
        return
    rows = (
        (
            Cell(schedule.name, "bold"),
            Cell(schedule.entrypoint),
            Cell(f"{schedule.cron} {schedule.timezone}"),
            Cell(moment(schedule.next_at)),
            Cell(length(max(0.0, (schedule.next_at - now).total_seconds()))),
        )
        for schedule in found
    )
    yield from lines_of(COLUMNS, rows, terminal)
