"""`jqueue show URL ID`: one job with its whole life. Its payload and its result are shown on request only."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from jqueue.cli.chosen_jobs import one_job
from jqueue.cli.columns import Terminal, write_lines
from jqueue.cli.event_values import outcome
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, on_queue
from jqueue.cli.printing import age, ago, length, moment, show_json, size
from jqueue.cli.raw_bytes import lines_of_bytes
from jqueue.core.blob_queue import BlobQueue
from jqueue.core.shown import ShownLife, event_values, job_values
from jqueue.core.verbs.producer import payload_of
from jqueue.domain.errors import HistoryDamagedError, JobNotFoundError
from jqueue.domain.events import HistoryEvent
from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job
from jqueue.domain.printable import counted, printable
from jqueue.domain.selection import Phase, phase_of, since

BEFORE = timedelta(minutes=1)
"""Time before the creation of a job from which on its events are looked for: clocks may disagree."""

ABOUT = 10
"""Width of an event and its attempt."""

JobID = Annotated[str, typer.Argument(metavar="ID", help="Id of the job, or the beginning of it.", show_default=False)]


@dataclass(slots=True)
class Life:
    """Everything that is known of a job.

    Attributes:
        job: the job.
        now: the time by the queue's clock.
        events: its events, the oldest first; None if the queue has no history.
        missing: the reason why events are missing; None if none is.
        payload: its payload; None if it was not asked for.
        result: its result, a JSON value; None if there is none, or it was not asked for.
    """

    job: Job
    now: datetime
    events: list[HistoryEvent] | None = None
    missing: str | None = None
    payload: bytes | None = None
    result: Any = None


def show(
    url: URL,
    job_id: JobID,
    payload: Annotated[bool, typer.Option("--payload", help="Show its payload, and its result if it has one.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Show one job with its whole life: attempts, errors, holder, times, events.

    The beginning of an id is enough if no other id begins like it. The payload and the result are hidden unless
    --payload is given; with --json, the payload is then in base64. Of the headers, only the names are shown.

    If the queue keeps a history, the events of the job are listed, too.
    """

    async def read(opened: OpenedQueue) -> Life:
        job, queue = await _found(opened, job_id), opened.queue
        life = Life(job, opened.now())
        if isinstance(queue, BlobQueue) and opened.view.header.history is not None:
            life.events = []
            try:
                wanted = job.id if job.id.isprintable() else None  # an id that was edited by hand is not searched for
                async for event in queue.history_of(opened.view, job_id=wanted, since=job.created_at - BEFORE):
                    if event.job_id == job.id:
                        life.events.append(event)
                life.events.reverse()
            except HistoryDamagedError as error:
                life.missing = str(error)
        if payload:
            life.payload = b"".join([piece async for piece in payload_of(queue, job)])
            life.result = job.result if job.result_object is None else await queue.result(job.id)
        return life

    life = on_queue(url, read, as_json=as_json)
    if as_json:
        show_json(_values(life, with_payload=payload))
    else:
        write_lines(_lines(life, Terminal.of_stdout()))


async def _found(opened: OpenedQueue, job_id: str) -> Job:
    """Return the job.

    Raises:
        RefusedError: there is none, but the history may tell what became of it.
        JobNotFoundError: there is none.
        InvalidJobError: several ids begin like this.
    """
    try:
        return await one_job(opened.view, opened.now(), job_id)
    except JobNotFoundError:
        if opened.view.header.history is None:
            raise
        missing = f"there is no job with this id in {opened.name}: it may have finished. `jqueue history URL ID` tells"
        raise RefusedError(missing) from None


def _values(life: Life, *, with_payload: bool) -> dict[str, Any]:
    job = life.job
    values = {
        **job_values(job, life.now, ShownLife),
        "headers": sorted(job.headers),
        "events_missing": life.missing,
        "events": None if life.events is None else [event_values(event) for event in life.events],
    }
    if with_payload:
        values |= {"payload": b64encode(life.payload or b"").decode("ascii"), "result": life.result}
    return values


def _lines(life: Life, terminal: Terminal) -> Iterator[str]:
    """Yield the lines for people."""
    job, now = life.job, life.now
    yield terminal.styled(printable(job.id), "bold")
    facts = list(_facts(job, now, hidden=life.payload is None))
    widest = max(len(name) for name, _ in facts)
    for name, value in facts:
        yield f"{terminal.styled(name.ljust(widest), 'dim')}  {printable(value)}"
    yield from _errors(job, terminal)
    if life.events:
        yield terminal.styled("\nevents (UTC)", "dim")
        for event in life.events:
            about = f"{event.verb} {event.attempt or ''}".ljust(ABOUT)
            yield f"  {moment(event.at)}  {printable(f'{about} {outcome(event)}').rstrip()}"
    if life.missing:
        yield terminal.styled(f"  {printable(life.missing)}", "yellow")
    if life.payload is not None:
        yield terminal.styled("\npayload", "dim")
        yield from lines_of_bytes(life.payload)
        if job.status is JobStatus.COMPLETED:
            yield terminal.styled("\nresult", "dim")
            yield f"  | {printable(json.dumps(life.result, ensure_ascii=False))}"


def _facts(job: Job, now: datetime, *, hidden: bool) -> Iterator[tuple[str, str]]:
    """Yield the names and the values of the facts about a job. The values need not be printable."""
    yield "entrypoint", job.entrypoint
    yield "status", _status(job, now)
    yield "enqueued", ago(job.created_at, now)
    yield "attempts", _attempts(job)
    if job.holder is not None:
        yield "holder", job.holder
    for name, time in (("claimed", job.claimed_at), ("last heartbeat", job.heartbeat_at), ("requeued", job.queued_at)):
        if time is not None:
            yield name, ago(time, now)
    if job.claim_timeout is not None:
        yield "claim lost after", f"{length(job.claim_timeout)} without a heartbeat"
    waits = job.status is JobStatus.QUEUED  # the times of other jobs no longer have an effect
    for name, time in (
        ("runs at", job.run_at if waits else None),
        ("expires", job.expires_at if waits else None),
        ("dead", job.dead_at),
    ):
        if time is not None:
            yield name, ago(time, now)
    if job.finished_at is not None:
        yield "finished", ago(job.finished_at, now)
    yield "priority", str(job.priority)
    if job.unique_key is not None:
        yield "unique key", job.unique_key
    if job.concurrency_key is not None:
        yield "concurrency key", f"{job.concurrency_key} (at most {job.concurrency_limit or 1} at once)"
    if job.headers:
        yield "headers", f"{', '.join(sorted(job.headers))} (values are hidden)"
    if job.cancel_requested:
        yield "cancelled", "its worker will be told to stop at its next heartbeat"
    stored = job.payload_object
    where = "" if stored is None else ", in an object of its own"
    hint = "; --payload shows it" if hidden else ""
    yield "payload", f"{size(len(job.payload) if stored is None else stored.size)}{where}{hint}"


def _status(job: Job, now: datetime) -> str:
    phase, begun = phase_of(job, now), since(job)
    if phase is Phase.SCHEDULED:
        return f"scheduled, ready in {age(begun - now)}"
    return f"{phase.replace('_', ' ')} for {age(now - begun)}"


def _attempts(job: Job) -> str:
    """Return the number of attempts in words."""
    text = f"{job.tries}, {job.failed_tries} failed" if job.failed_tries else str(job.tries)
    return text if job.max_attempts is None else f"{text}; dead after {counted(job.max_attempts, 'failure')}"


def _errors(job: Job, terminal: Terminal) -> Iterator[str]:
    """Yield the errors of the attempts, the latest in full."""
    earlier = [each for each in job.errors if each.text != job.error]
    if earlier:
        yield terminal.styled("\nerrors of earlier attempts (UTC)" if job.error else "\nerrors (UTC)", "dim")
        for each in earlier:
            yield f"  {moment(each.at)}  attempt {each.attempt}: {printable(' '.join(each.text.split()))}"
    if job.error:
        yield terminal.styled("\nlast error", "dim")
        for line in job.error.splitlines():
            yield f"  | {terminal.styled(printable(line), 'red')}"
    if job.error_dropped:
        yield f"  {size(job.error_dropped)} more were dropped: the queue had no room"
    if job.traceback:
        yield terminal.styled("\ntraceback, the innermost call last", "dim")
        for line in job.traceback.splitlines():
            yield f"  | {printable(line)}"
