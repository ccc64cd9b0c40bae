"""The command that lists the events of a queue, the newest first."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated

import typer

from jqueue.cli import options
from jqueue.cli.columns import Cell, Column, Layout, Terminal, write_lines
from jqueue.cli.help import RefusedError
from jqueue.cli.on_queue import URL, OneALine, OpenedQueue, on_queue
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import length, moment, note
from jqueue.core.blob_queue import BlobQueue
from jqueue.core.json_views import event_values
from jqueue.core.view import in_chunks
from jqueue.domain.errors import HistoryDamagedError, InvalidJobError
from jqueue.domain.events import HistoryEvent
from jqueue.domain.history import START
from jqueue.domain.transitions import Verb

PLAIN = frozenset((Verb.ENQUEUE, Verb.CLAIM, Verb.ACK))
"""The events that go without the new status of the job."""


def outcome(event: HistoryEvent) -> str:
    """Return the new status of a job after an event, with its error, its holder and its times, in words."""
    parts = []
    if event.verb not in PLAIN:
        is_gone = event.after is None and event.before is not None
        parts.append("gone" if is_gone else (event.after or "").replace("_", " "))
    if event.error:
        error = " ".join(event.error.split())
        parts = [f"{parts[0]}: {error}" if parts else error]
    if event.holder:
        is_order = event.verb in (Verb.CANCEL, Verb.REVOKE)  # not the holder's
        parts.append(f"claimed by {event.holder}" if is_order else f"by {event.holder}")
    if event.asked_by:
        parts.append(f"asked for by {event.asked_by}")
    if event.wait_seconds is not None:
        parts.append(f"waited {length(event.wait_seconds)}")
    if event.run_seconds is not None:
        parts.append(f"ran {length(event.run_seconds)}")
    return ", ".join(filter(None, parts))


INCOMPLETE = 1
"""Exit code if events are missing."""

COLUMNS = (
    Column("time (UTC)"),
    Column("event"),
    Column("id", cut=True, least=9),
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
    since: Annotated[
        str | None, option("TIME", "Only events since then: 2h ago, or 2026-11-23 in UTC. By default all.")
    ] = None,
    until: Annotated[
        str | None, option("TIME", "Only events before then: 1h ago, or 2026-11-24T12:00. By default all.")
    ] = None,
    limit: Annotated[int | None, option("N", "Number of events to list, at most. By default all.", min=1)] = None,
    as_json: OneALine = False,
) -> None:
    """List what happened to jobs, the newest event first.

    A queue keeps a history only if it was switched on: `jqueue configure URL --history 30d`. Jobs that were enqueued in
    bulk have one event together, without ids. No payload is shown. The number after "dequeue", "ack" or "nack" is the
    attempt.

    Exits with 1 if events are missing.
    """
    verbs, ids = _verbs(event or ()), job_id or ""

    async def events(opened: OpenedQueue) -> AsyncGenerator[HistoryEvent, None]:
        queue, history_header, now = opened.queue, opened.view.header.history, opened.now()
        if not isinstance(queue, BlobQueue):
            raise InvalidJobError("the format of this queue has no history")
        first, end = options.past("--since", since, now), options.past("--until", until, now)
        if history_header is None:
            raise RefusedError(OFF)
        if history_header.stopped:
            note(STOPPED)
        # an id of the queue can be searched for as it is
        is_whole = ids != "" and ids.isprintable() and await opened.view.find(ids) is not None
        number = 0
        async for each in queue.history_of(opened.view, job_id=ids if is_whole else None, since=first, until=end):
            wanted = not ids or (each.job_id or "").startswith(ids)
            if wanted and (not entrypoint or each.entrypoint in entrypoint) and (not verbs or each.verb in verbs):
                yield each
                number += 1
                if number == limit:
                    return

    async def write(opened: OpenedQueue) -> None:
        layout, is_empty = Layout(COLUMNS, Terminal.of_stdout()), True
        try:
            async for some in in_chunks(events(opened)):
                is_empty = False
                write_lines(
                    [json.dumps(event_values(each)) for each in some] if as_json else layout.lines(map(_row, some))
                )
        except HistoryDamagedError as error:
            note(str(error))
            raise typer.Exit(INCOMPLETE) from None
        if is_empty and not as_json:
            write_lines(["no events"])

    on_queue(url, write)


def _verbs(names: Sequence[str]) -> frozenset[str]:
    """Return the events that were named.

    Raises:
        RefusedError: there is no such event.
    """
    wanted = {name.strip() for name in ",".join(names).split(",")} if names else set()
    event_names = {START, *(str(verb) for verb in Verb if verb is not Verb.HEARTBEAT)}
    if not wanted <= {*event_names, "uncharged"}:
        raise RefusedError(f"--event takes {', '.join(sorted({*event_names, 'uncharged'} - {str(Verb.HAND_BACK)}))}")
    return frozenset(str(Verb.HAND_BACK) if name == "uncharged" else name for name in wanted)


def _row(event: HistoryEvent) -> Sequence[Cell]:
    return (
        Cell(moment(event.at), "dim"),
        Cell(f"{event.verb} {event.attempt or ''}".rstrip(), "red" if event.error else ""),
        Cell(event.job_id or ("" if event.jobs == 1 else f"{event.jobs:,} jobs"), "bold"),
        Cell(event.entrypoint or ""),
        Cell(outcome(event)),
    )
