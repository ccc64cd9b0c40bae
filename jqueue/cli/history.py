"""The command that lists the events of a queue, the newest first."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

import typer

from jqueue.cli import options
from jqueue.cli.columns import SAMPLE, Cell, Column, Layout, Terminal, write_lines
from jqueue.cli.help import RefusedError
from jqueue.cli.on_queue import URL, OneALine, OpenedQueue, on_queue
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import brief, moment
from jqueue.core.blob_queue import BlobQueue
from jqueue.core.shown import event_values
from jqueue.domain.errors import HistoryDamagedError, InvalidJobError
from jqueue.domain.events import HistoryEvent
from jqueue.domain.history import START
from jqueue.domain.job import JobStatus
from jqueue.domain.printable import printable
from jqueue.domain.transitions import Verb

PLAIN = frozenset((Verb.ENQUEUE, Verb.CLAIM, Verb.ACK))
"""The events that go without the new status of the job."""


def outcome(event: HistoryEvent) -> str:
    """Return the new status of a job after an event, with its error, its holder and its times, in words."""
    parts = []
    if event.verb not in PLAIN:
        parts.append("gone" if event.after is None and event.before is not None else _words(event.after))
    if event.error:
        error = " ".join(event.error.split())
        parts = [f"{parts[0]}: {error}" if parts else error]
    if event.holder:
        parts.append(f"by {event.holder}")
    if event.wait_seconds is not None:
        parts.append(f"waited {brief(event.wait_seconds)}")
    if event.run_seconds is not None:
        parts.append(f"ran {brief(event.run_seconds)}")
    return ", ".join(filter(None, parts))


def _words(status: JobStatus | None) -> str:
    return "" if status is None else status.replace("_", " ")


INCOMPLETE = 1
"""Exit code if events are missing."""

COLUMNS = (
    Column("time (UTC)"),
    Column("event"),
    Column("id", cut=True, least=9, early=True),
    Column("entrypoint", cut=True, least=10),
    Column("what happened", cut=True),
)

OFF = "this queue keeps no history: `jqueue configure URL --history 30d` switches it on, from then on"
STOPPED = "the history is switched off, and these are its events until then"


def history(
    url: URL,
    job_id: Annotated[str | None, argument("ID", "Only events of this job, or of ids that begin so.")] = None,
    entrypoint: Annotated[list[str] | None, option("NAME", "Only events of this entrypoint; may be repeated.")] = None,
    event: Annotated[
        list[str] | None,
        option(
            "EVENT", "Only these events: enqueue, dequeue, ack, nack, stale, cancel … Several: repeat, or use commas."
        ),
    ] = None,
    since: Annotated[str | None, option("TIME", "Only events since then: 2h ago, or 2026-11-23 in UTC.")] = None,
    until: Annotated[str | None, option("TIME", "Only events before then: 1h ago, or 2026-11-24T12:00.")] = None,
    limit: Annotated[int | None, option("N", "Number of events to list, at most. By default all.", min=1)] = None,
    as_json: OneALine = False,
) -> None:
    """List what happened to jobs, the newest event first.

    A queue keeps a history only if it was switched on: `jqueue configure URL --history 30d`. Jobs that were enqueued in
    bulk have one event together, without ids. No payload is shown. The number after "dequeue", "ack" or "nack" is the
    attempt.

    Exits with 1 if events are missing.
    """

    async def tell(opened: OpenedQueue) -> str | None:
        events = _events(opened, job_id, since, until)
        chosen = _chosen(events, frozenset(entrypoint or ()), _verbs(event or ()), limit)
        try:
            await _write(chosen, as_json=as_json)
        except HistoryDamagedError as error:
            return str(error)
        return None

    missing = on_queue(url, tell)
    if missing:
        typer.echo(f"jqueue: {printable(missing)}", err=True)
        raise typer.Exit(INCOMPLETE)


async def _events(
    opened: OpenedQueue, job_id: str | None, since: str | None, until: str | None
) -> AsyncIterator[HistoryEvent]:
    """Yield the events of a time, of one job or of all, the newest first."""
    queue, known, now = opened.queue, opened.view.header.history, opened.now()
    if not isinstance(queue, BlobQueue):
        raise InvalidJobError("the format of this queue has no history")
    first = None if since is None else options.past("--since", since, now)
    end = None if until is None else options.past("--until", until, now)
    if known is None:
        raise RefusedError(OFF)
    if known.stopped:
        typer.echo(f"jqueue: {STOPPED}", err=True)
    whole = None  # an id of the queue, which can then be searched for as it is
    if job_id and job_id.isprintable() and await opened.view.find(job_id) is not None:
        whole = job_id
    async for each in queue.history_of(opened.view, job_id=whole, since=first, until=end):
        if job_id is None or (each.job_id is not None and each.job_id.startswith(job_id)):
            yield each


def _verbs(names: Sequence[str]) -> frozenset[str]:
    """Return the events that were named.

    Raises:
        RefusedError: there is no such event.
    """
    wanted = {name.strip() for name in ",".join(names).split(",")} if names else set()
    known = {START, *(str(verb) for verb in Verb if verb is not Verb.HEARTBEAT)}
    if not wanted <= {*known, "uncharged"}:
        raise RefusedError(f"--event takes {', '.join(sorted({*known, 'uncharged'} - {str(Verb.HAND_BACK)}))}")
    return frozenset(str(Verb.HAND_BACK) if name == "uncharged" else name for name in wanted)


async def _chosen(
    events: AsyncIterator[HistoryEvent], entrypoints: frozenset[str], verbs: frozenset[str], limit: int | None
) -> AsyncIterator[HistoryEvent]:
    found = 0
    async for event in events:
        if (not entrypoints or event.entrypoint in entrypoints) and (not verbs or event.verb in verbs):
            yield event
            found += 1
            if found == limit:
                return


async def _write(events: AsyncIterator[HistoryEvent], *, as_json: bool) -> None:
    """Write events as they come, some at a time."""
    layout, some, is_empty = Layout(COLUMNS, Terminal.of_stdout()), list[HistoryEvent](), True

    def flush() -> None:
        nonlocal is_empty
        if some:
            is_empty = False
            write_lines([json.dumps(event_values(each)) for each in some] if as_json else layout.lines(map(_row, some)))
            some.clear()

    try:
        async for event in events:
            some.append(event)
            if len(some) == SAMPLE:
                flush()
    finally:
        flush()
    if is_empty and not as_json:
        write_lines(["no events"])


def _row(event: HistoryEvent) -> Sequence[Cell]:
    return (
        Cell(moment(event.at), "dim"),
        Cell(f"{event.verb} {event.attempt or ''}".rstrip(), "red" if event.error else ""),
        Cell(event.job_id or ("" if event.jobs == 1 else f"{event.jobs:,} jobs"), "bold"),
        Cell(event.entrypoint or ""),
        Cell(outcome(event)),
    )
