"""The commands that look at jobs: `jqueue ls` and `jqueue show`. They only read."""

from __future__ import annotations

import json
from base64 import b64encode
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain
from tempfile import gettempdir
from typing import Annotated, Any

import typer

from jqueue.cli.columns import SAMPLE, Cell, Column, Layout, Terminal, cut, lines_of, write_lines
from jqueue.cli.history import outcome
from jqueue.cli.live import Draw, Interval, live
from jqueue.cli.on_queue import URL, AsJSON, OneALine, OpenedQueue, RefusedError, on_queue
from jqueue.cli.options import selecting
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import age, ago, length, moment, refusal, show_json, size
from jqueue.cli.progress import DEEP, Counted, number_in_segments, reading
from jqueue.core.blob_queue import BlobQueue
from jqueue.core.shown import ShownLife, event_values, job_values
from jqueue.core.verbs.producer import payload_of
from jqueue.core.view import QueueView
from jqueue.domain.errors import HistoryDamagedError, InvalidJobError, JobNotFoundError, JobsUnreadableError
from jqueue.domain.events import HistoryEvent
from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job
from jqueue.domain.printable import counted, printable
from jqueue.domain.selection import FirstItems, Phase, Selection, phase_of, place_of, since

NAMED = 3
"""Largest number of ids to name in an error about an id that is not clear."""


async def one_job(view: QueueView, now: datetime, job_id: str) -> Job:
    """Return the job with an id, or the only job whose id begins with it.

    Args:
        view: the queue.
        now: the time by its clock.
        job_id: an id, or the beginning of one.

    Raises:
        JobNotFoundError: no id begins like this.
        JobsUnreadableError: it may be in a segment that is missing or damaged.
        InvalidJobError: several ids do, or the id is empty.
    """
    if not job_id:
        raise InvalidJobError("the id of the job is empty")
    prefix = job_id.removesuffix("…")  # of an id that was cut to fit a terminal
    if (whole := await view.find(prefix)) is not None:
        return whole
    first: list[Job] = []
    number = 0
    with reading(view, "looking") as (told, _):
        async for job in told.jobs(now, Selection(id_prefix=prefix)):
            number += 1
            if number <= NAMED:
                first.append(job)
    if not first:
        raise JobNotFoundError(prefix)
    if number > 1:
        shown = ", ".join(printable(job.id) for job in first)
        raise InvalidJobError(
            f"{counted(number, 'job')} have ids that begin like this: give more of the id. "
            f"{'They are' if number <= NAMED else 'The first are'} {shown}"
        )
    return first[0]


SHORTEST = 8
"""Smallest number of characters of a short id."""


class ShortIds:
    """Finds a short id for each of some ids: a beginning that no other id of the queue has, of 8 characters at least.

    Memory grows with the ids to shorten only, whatever the number of ids in the queue.

    Args:
        shown: the ids to shorten.
    """

    def __init__(self, shown: Iterable[str]) -> None:
        self._ordered = sorted(shown)
        self._shared = [0] * len(self._ordered)

    def meet(self, job_id: str) -> None:
        """Note an id of the queue. All of them must be noted, those to shorten too."""
        ordered, place = self._ordered, bisect_left(self._ordered, job_id)
        for beside in range(max(0, place - 1), min(len(ordered), place + 2)):
            if ordered[beside] != job_id:
                self._shared[beside] = max(self._shared[beside], _shared(ordered[beside], job_id))

    def found(self) -> dict[str, str]:
        """Return the short id of each id."""
        pairs = zip(self._ordered, self._shared, strict=True)
        return {job_id: job_id[: max(SHORTEST, shared + 1)] for job_id, shared in pairs}


def _shared(one: str, other: str) -> int:
    """Return the number of characters with which both begin."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


TEXT_BYTES = 64 << 10
"""Largest payload that is shown in full, if it is text."""

HEX_BYTES = 512
"""Number of bytes shown of a payload that is not text."""

ROW = 16


def lines_of_bytes(content: bytes) -> Iterator[str]:
    """Yield the lines that show some bytes, each behind a bar, so that none looks like another part of the page."""
    if not content:
        yield "  (empty)"
        return
    text = _text(content[:TEXT_BYTES])
    if text is None:
        yield from _hexadecimal(content[:HEX_BYTES])
        shown = HEX_BYTES
    else:
        for line in text.splitlines():
            yield f"  | {printable(line.expandtabs())}"
        shown = TEXT_BYTES
    if len(content) > shown:
        yield f"  … {size(len(content) - shown)} more; --json has them all"


def _text(content: bytes) -> str | None:
    """Return bytes as text; None if they are not UTF-8, or hold control characters other than line breaks and tabs."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        if error.start < len(content) - 3 or len(content) < TEXT_BYTES:  # a character may be cut at the end
            return None
        text = content[: error.start].decode()
    return None if any(char < " " and char not in "\n\r\t" for char in text) else text


def _hexadecimal(content: bytes) -> Iterator[str]:
    for start in range(0, len(content), ROW):
        row = content[start : start + ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"  | {start:04x}  {row.hex(' '):<{3 * ROW - 1}}  {letters}"


WIDE = 120
"""Width of a terminal from which on ids are shown in full."""

TITLES = 3
"""Number of lines beside the jobs."""

STYLES = {
    Phase.IN_PROGRESS: "green",
    Phase.DEAD: "red",
    Phase.EXPIRED: "yellow",
    Phase.SCHEDULED: "dim",
    Phase.COMPLETED: "dim",
}

COLUMNS = (
    Column("id"),
    Column("entrypoint", cut=True),
    Column("status"),
    Column("for", right=True),
    Column("attempts", right=True),
    Column("holder or error", cut=True),
)


SIZE = Column("size", right=True)
"""The column that is added to a list by size."""


Row = Callable[[Job, datetime, "Order | None"], Any]
"""Makes the row of a job: its cells, or a line of JSON. It is given the time by the queue's clock, and the order."""


class Order(StrEnum):
    """Values by which the jobs can be sorted."""

    AGE = "age"
    ATTEMPTS = "attempts"
    CREATED = "created"
    DUE = "due"
    ENTRYPOINT = "entrypoint"
    ID = "id"
    PRIORITY = "priority"
    RUN_TIME = "run-time"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Found:
    """The jobs that were found, in their order.

    Attributes:
        rows: a row for each job.
        view: the version of the queue that has them.
        now: the time by the queue's clock.
        sort: the order, if one was chosen.
        more: number of jobs that fit, but are beyond the limit.
        damage: names segments that are missing or damaged, and whose jobs are not among the found ones.
    """

    rows: Sequence[Any]
    view: QueueView
    now: datetime
    sort: Order | None
    more: int = 0
    damage: JobsUnreadableError | None = None


@selecting()
def ls(
    url: URL,
    selection: Selection,
    sort: Annotated[
        Order | None,
        typer.Option(
            help="Order of the jobs: the oldest, largest, most tried or soonest due first. By default running jobs "
            "come first, then ready ones in the order in which they will be served.",
            show_default=False,
        ),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Reverse the order.")] = False,
    limit: Annotated[int | None, option("N", "Number of jobs to list at most.", min=1)] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show the list live, until Ctrl-C.")] = False,
    interval: Interval = 1.0,
    as_json: OneALine = False,
) -> None:
    """List jobs: ready, running, dead; by entrypoint, age, holder, key or error.

    The column "for" has the time for which a job has had its status. On a narrow terminal, ids are cut to the
    beginnings that tell them apart, unless the queue is deep; every command that takes an id takes such a beginning.

    This command only reads, and shows no payloads.
    """
    if watch and as_json:
        raise refusal("choose --watch or --json", as_json=True)
    if watch:
        return live(url, _drawing(selection, sort, limit, reverse=reverse), interval, instead="jqueue ls")

    terminal = Terminal.of_stdout()

    async def find(opened: OpenedQueue) -> tuple[Found, Mapping[str, str]] | None:
        now, row = opened.now(), _json_row if as_json else _row
        with reading(opened.view, names=selection.entrypoints) as (view, progress):
            if limit is not None:
                found = await _first(view, now, selection, sort, limit, row, reverse=reverse)
            else:
                listed = LongList(_columns(sort), terminal, progress, as_json=as_json)
                rows, damage = list[Any](), None
                try:
                    async for each in _all(view, now, selection, sort, row, reverse=reverse):
                        rows.append(each)
                        if len(rows) == SAMPLE:
                            listed.write(rows)
                            rows = []
                except JobsUnreadableError as error:  # all others were found
                    damage = error
                if listed.written:
                    listed.end(rows)
                    if damage is not None:
                        raise damage
                    return None
                found = Found(rows, view, now, sort, damage=damage)
            return found, {} if as_json else await _short_names(found, terminal)

    answer = on_queue(url, find, as_json=as_json)
    if answer is None:
        return
    found, names = answer
    write_lines(found.rows if as_json else _listing(found, names, terminal, every=not selection))
    if found.damage is not None:
        raise refusal(str(found.damage), as_json=as_json)


def _drawing(selection: Selection, sort: Order | None, limit: int | None, *, reverse: bool) -> Draw:
    """Return what draws the list that fits a screen. The arguments are as for `_first`."""

    async def draw(opened: OpenedQueue, terminal: Terminal, room: int) -> Iterator[str]:
        most = max(1, room - TITLES)
        most = min(limit or most, most)
        found = await _first(opened.view, opened.now(), selection, sort, most, _row, reverse=reverse)
        lines = _listing(found, await _short_names(found, terminal), terminal, every=not selection)
        if found.damage is None:
            return lines
        return chain([terminal.styled(cut(printable(str(found.damage)), terminal.width or WIDE), "red")], lines)

    return draw


class LongList:
    """A list that is written as its rows come. The first of them decide the widths of the columns.

    Args:
        columns: the columns.
        terminal: the place to write to.
        progress: it is cleared while rows are written.
        as_json: True if the rows are lines of JSON.

    Attributes:
        written: number of rows that were written.
    """

    def __init__(self, columns: Sequence[Column], terminal: Terminal, progress: Counted, *, as_json: bool) -> None:
        self.written = 0
        self._columns = columns
        self._terminal = terminal
        self._progress = progress
        self._as_json = as_json
        self._layout: Layout | None = None

    def write(self, rows: Sequence[Any]) -> None:
        """Write rows."""
        self.written += len(rows)
        with self._progress.away():
            if self._as_json:
                write_lines(rows)
                return
            if self._layout is None:
                self._layout = Layout(self._columns, rows, self._terminal)
                write_lines([self._layout.titles])
            write_lines(map(self._layout.line, rows))

    def end(self, rows: Sequence[Any]) -> None:
        """Write the last rows, and on a terminal the number of all."""
        self.write(rows)
        if self._terminal.width is not None and not self._as_json:
            write_lines(["", self._terminal.styled(counted(self.written, "job"), "dim")])


async def _all(
    view: QueueView, now: datetime, selection: Selection, sort: Order | None, row: Row, *, reverse: bool
) -> AsyncIterator[Any]:
    """Yield the rows of all chosen jobs, in an order. Memory is bounded. The arguments are as for `_first`.

    Raises:
        RefusedError: there is no space for a temporary file.
        JobsUnreadableError: at the end, if segments are missing or damaged.
    """
    if (sort, reverse) == (None, False):
        async with aclosing(view.jobs(now, selection, in_order=True)) as jobs:
            async for job in jobs:
                yield row(job, now, sort)
        return
    from jqueue.cli.sorted_rows import SortedRows  # what it needs is slow to import

    place, damage = _place_of(sort, now), None
    with closing(SortedRows[Any](reverse=reverse)) as rows:
        try:
            async for job in view.jobs(now, selection):
                rows.add(place(job), row(job, now, sort))
        except JobsUnreadableError as error:  # all others were found
            damage = error
        except OSError as error:
            raise RefusedError(
                f"the list cannot be sorted in a temporary file in {gettempdir()!r}: {error.strerror}. Set TMPDIR to a "
                "folder with more space, or give a --limit"
            ) from None
        for each in rows:
            yield each
    if damage is not None:
        raise damage


async def _first(
    view: QueueView, now: datetime, selection: Selection, sort: Order | None, limit: int, row: Row, *, reverse: bool
) -> Found:
    """Return the first of the chosen jobs, in order. Memory grows with the limit, not with the queue.

    Args:
        view: the queue.
        now: the time by its clock.
        selection: chooses the jobs.
        sort: their order; None for the order in which they run, will be served, and ended.
        limit: maximum number of jobs.
        row: makes the row of a job.
        reverse: True to reverse the order.
    """
    damage: JobsUnreadableError | None = None
    if sort is None and not reverse:
        jobs, more, segments = await view.first_jobs(limit, now, selection)
        damage, number = JobsUnreadableError(segments) if segments else None, len(jobs)
        try:
            number = await view.count(now, selection) if more else number
        except JobsUnreadableError as error:
            damage = error
    else:
        first = FirstItems(limit, _place_of(sort, now), reverse=reverse)
        try:
            async for job in view.jobs(now, selection):
                first.add(job)
        except JobsUnreadableError as error:  # all others were found
            damage = error
        jobs, number = first.found(), first.number
    return Found([row(job, now, sort) for job in jobs], view, now, sort, max(0, number - len(jobs)), damage)


def _place_of(sort: Order | None, now: datetime) -> Callable[[Job], Any]:
    return (lambda job: place_of(job, now)) if sort is None else _KEYS[sort](now)


async def _short_names(found: Found, terminal: Terminal) -> Mapping[str, str]:
    """Return short ids of the jobs for a narrow terminal; nothing for another place, where ids are shown in full.

    They are shown in full in a deep queue, too: all of its ids would have to be read.
    """
    if not found.rows or terminal.width is None or terminal.width >= WIDE or number_in_segments(found.view) >= DEEP:
        return {}
    names = ShortIds(row[0].text for row in found.rows)
    with suppress(JobsUnreadableError):  # an id of a job that cannot be read may begin like a short one
        async for job in found.view.jobs(found.now):
            names.meet(job.id)
    return names.found()


def _listing(found: Found, names: Mapping[str, str], terminal: Terminal, *, every: bool) -> Iterator[str]:
    """Yield the lines of a list of jobs.

    Args:
        found: the jobs.
        names: their short ids, or nothing if ids are shown in full.
        terminal: the place where the lines will be written.
        every: True if no filter was given.
    """
    if not found.rows:
        yield "no jobs" if every else "no job matches"
        return
    rows = ((Cell(names.get(job_id.text, job_id.text), job_id.style), *rest) for job_id, *rest in found.rows)
    yield from lines_of(_columns(found.sort), rows, terminal)
    if terminal.width is not None:
        total = counted(len(found.rows) + found.more, "job")
        yield ""
        yield terminal.styled(f"{total}, {found.more:,} of them not shown" if found.more else total, "dim")


def _columns(sort: Order | None) -> Sequence[Column]:
    return (*COLUMNS[:-1], SIZE, COLUMNS[-1]) if sort is Order.SIZE else COLUMNS


def _json_row(job: Job, now: datetime, _: Order | None) -> str:
    return json.dumps(job_values(job, now))


def _row(job: Job, now: datetime, sort: Order | None) -> Sequence[Cell]:
    phase = phase_of(job, now)
    seconds = (now - since(job)).total_seconds()
    return (
        Cell(job.id, "bold"),
        Cell(job.entrypoint),
        Cell(phase.replace("_", " "), STYLES.get(phase, "")),
        Cell(f"in {age(-seconds)}" if seconds < 0 else age(seconds)),
        Cell(str(job.tries), "" if job.tries else "dim"),
        *([Cell(size(_size_of(job)))] if sort is Order.SIZE else []),
        Cell(job.holder or "?") if phase is Phase.IN_PROGRESS else Cell(job.error or "", "dim"),
    )


def _size_of(job: Job) -> int:
    return job.payload_object.size if job.payload_object else len(job.payload)


_KEYS: Mapping[Order, Callable[[datetime], Callable[[Job], Any]]] = {
    Order.AGE: lambda _: since,
    Order.ATTEMPTS: lambda _: lambda job: -job.tries,
    Order.CREATED: lambda _: lambda job: job.created_at,
    Order.DUE: lambda _: lambda job: job.run_at or job.created_at,
    Order.ENTRYPOINT: lambda _: lambda job: job.entrypoint,
    Order.ID: lambda _: lambda job: job.id,
    Order.PRIORITY: lambda _: lambda job: (job.priority, job.sequence),
    Order.RUN_TIME: lambda now: lambda job: job.claimed_at or now,
    Order.SIZE: lambda _: lambda job: -_size_of(job),
}


BEFORE = timedelta(minutes=1)
"""Time before the creation of a job from which on its events are looked for: clocks may disagree."""

ABOUT = 10
"""Width of an event and its attempt."""

JobID = Annotated[str, argument("ID", "Id of the job, or the beginning of it.")]


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
        show_json(_life_values(life, with_payload=payload))
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


def _life_values(life: Life, *, with_payload: bool) -> dict[str, Any]:
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
