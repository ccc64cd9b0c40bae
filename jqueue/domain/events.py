"""The events of a history: made from the transitions of a commit as JSON text, and read again.

The events of one commit are a *batch*: one text, which is encoded once. A commit with very many has several. In an
object of the history, each event is a line of its own, a `HistoryEvent` in JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Raw

from jqueue.domain.fields import Count, Tries
from jqueue.domain.history import batch_of
from jqueue.domain.job import JobRecord, JobStatus, ready_since
from jqueue.domain.limits import cut_error
from jqueue.domain.segments import Span
from jqueue.domain.transitions import BulkMove, Move, Verb

PAYLOAD_BYTES = 64 << 10
"""Size of the largest payload that an event keeps."""

ERROR_BYTES = 256
"""Size of the largest error text that an event keeps."""

MOST_SPANS = 256
"""Largest number of spans of rows that an event keeps. An event of more keeps none."""

EVENTS_PER_BATCH = 1000
"""Largest number of events in a batch."""

_WITH_ERROR = frozenset((Verb.NACK, Verb.REVOKE))
_ENDS_CLAIM = frozenset((Verb.ACK, Verb.NACK, Verb.HAND_BACK, Verb.REVOKE, Verb.DEPART))


Places = tuple[tuple[str, tuple[Span, ...]], ...]
"""Names of segments, each with spans of row numbers."""


class SegmentSpans(msgspec.Struct, frozen=True):
    """Jobs of a bulk enqueue or of a lease.

    Attributes:
        segment: name of their segment.
        spans: first row of each span, and the row behind its last.
    """

    segment: str
    spans: tuple[Span, ...]


class HistoryEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event in the history of a queue. Times are aware and in UTC.

    Attributes:
        number: grows by one with every event of the queue.
        at: time of the commit.
        verb: what happened: a `Verb` such as "enqueue", "dequeue", "ack" or "stale". "start" is no transition: the
            history was switched on.
        job_id: id of the job; None for jobs of a bulk enqueue or of a lease, and for "start".
        entrypoint: of the job.
        before: status before the event; None if the job was not in the queue.
        after: status after it; None if the job has left.
        attempt: the attempt of the job after the event; if it has left, before it.
        holder: holder of the claim that the event made or ended.
        wait_seconds: of a claim, the time for which the job was ready.
        run_seconds: of the end of a claim, the time for which it lasted.
        created_at: of an event by which a job leaves, the time of its enqueue; of the enqueue of many jobs, theirs if
            it is another than `at`.
        error: of a failure, the error, cut at 256 bytes. It begins with the class if it was an exception.
        payload: of an enqueue, if the history keeps payloads. Not shown by `repr`.
        jobs: number of jobs; more than 1 only for a bulk enqueue and for leases.
        rows: of a bulk enqueue and of leases, the rows of the jobs. Not shown by `repr`.
        asked_by: person or program that ordered it, such as a token's name or `user@host`; None if it is not known.
        group: id of the group that the job belongs to, or that all of the jobs belong to; None if there is none.
    """

    number: int
    at: datetime
    verb: str
    job_id: str | None = None
    entrypoint: str | None = None
    before: JobStatus | None = None
    after: JobStatus | None = None
    attempt: int = msgspec.field(default_factory=int)  # in JSON even if it is 0
    holder: str | None = None
    wait_seconds: float | None = None
    run_seconds: float | None = None
    created_at: datetime | None = None
    error: str | None = None
    payload: bytes | None = None
    jobs: int = msgspec.field(default_factory=lambda: 1)  # so that a sum is right
    rows: tuple[SegmentSpans, ...] = ()
    asked_by: str | None = None
    group: str | None = None

    def __repr__(self) -> str:
        shown = (name for name in self.__struct_fields__ if name not in ("payload", "rows"))
        return f"HistoryEvent({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class Kind(NamedTuple):
    """The fields that several events of a batch share: see `HistoryEvent`."""

    entrypoint: str | None
    verb: str
    before: JobStatus | None = None
    after: JobStatus | None = None
    holder: str | None = None
    asked_by: str | None = None
    group: str | None = None


class EventRow(NamedTuple):
    """The other fields of an event: see `HistoryEvent`.

    Attributes:
        kind: place of its kind in the batch.
        seconds: `wait_seconds` of a claim, or `run_seconds` of the end of one.
        age: seconds from `created_at` to the time of the batch.
    """

    kind: Annotated[int, Meta(ge=0)]
    job_id: str | None = None
    attempt: Tries = 0
    seconds: float | None = None
    age: float | None = None
    error: str | None = None
    payload: bytes | None = None
    jobs: Count = 1
    rows: Places = ()


class Batch(NamedTuple):
    """The events of a commit, or a part of them.

    Attributes:
        first: number of the first event. The others follow.
        size: number of the events.
        timestamp: time of all of them, in seconds since 1970.
        kinds: the kinds of the events.
        events: the events.
    """

    first: Tries
    size: int
    timestamp: Annotated[float, Meta(ge=-62135596800.0, lt=253402300800.0)]  # the years 1 to 9999
    kinds: Sequence[Kind]
    events: Sequence[EventRow]

    @property
    def at(self) -> datetime:
        """Time of all events."""
        return datetime.fromtimestamp(self.timestamp, UTC)


_decode = msgspec.json.Decoder(Batch).decode


def read_batch(text: Raw) -> Batch:
    """Return a batch of events.

    Raises:
        ValueError: the text is not a batch of events.
    """
    try:
        batch = _decode(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not a batch of events: {error}") from None
    if max([event.kind for event in batch.events], default=-1) >= len(batch.kinds):
        raise ValueError("it is not a batch of events: one has a kind that the batch lacks")
    ages = [event.age for event in batch.events if event.age is not None]
    try:
        for age in ages and (min(ages), max(ages)):
            batch.at - timedelta(seconds=age)
    except OverflowError:
        raise ValueError("an event of it has an age that is out of range") from None
    if len(batch.events) != batch.size:
        raise ValueError(f"it has {len(batch.events)} events, and should have {batch.size}")
    return batch


def events_in(text: Raw) -> list[HistoryEvent]:
    """Return the events of a batch, in order.

    Raises:
        ValueError: the text is not a batch of events.
    """
    batch = read_batch(text)
    at, kinds, events = batch.at, batch.kinds, list[HistoryEvent]()
    for number, row in enumerate(batch.events, batch.first):
        kind, job_id, attempt, seconds, age, error, payload, jobs, rows = row
        entrypoint, verb, before, after, holder, asked_by, group = kinds[kind]
        waited, ran = (seconds, None) if verb == Verb.CLAIM else (None, seconds)
        created_at = None if age is None else at - timedelta(seconds=age)
        shared = number, at, verb, job_id, entrypoint, before, after, attempt, holder
        named = tuple(SegmentSpans(*each) for each in rows) if rows else ()
        events.append(HistoryEvent(*shared, waited, ran, created_at, error, payload, jobs, named, asked_by, group))
    return events


def batches_of(
    moves: Iterable[Move],
    number: int,
    now: datetime,
    *,
    payloads: bool,
    bulk: Sequence[BulkMove] = (),
) -> list[Raw]:
    """Return the events of a commit as batches. A heartbeat is no event.

    Args:
        moves: its transitions.
        number: the number of the first event.
        now: its time.
        payloads: True if the events of enqueued jobs keep the payload.
        bulk: its transitions of many jobs at once. Each is one event.
    """
    batches = [_bulk_batch(bulk, number, now)] if bulk else []
    number += len(bulk)
    moves = [move for move in moves if move[0] is not Verb.HEARTBEAT]
    for start in range(0, len(moves), EVENTS_PER_BATCH):
        kinds: Kinds = {}
        rows = [*_rows(moves[start : start + EVENTS_PER_BATCH], kinds, now, payloads=payloads)]
        batches.append(batch_of(number + start, now, [*kinds], rows))
    return batches


Kinds: TypeAlias = dict[tuple[str | None, ...], int]
"""The kinds of the events of a batch, each with its place: all claims of a worker are of one kind."""


def _bulk_batch(bulk: Iterable[BulkMove], number: int, now: datetime) -> Raw:
    """Return the events of transitions of many jobs. The seconds of an event are the average."""
    kinds: Kinds = {}
    rows = []
    for move in bulk:
        after = None if move.after is JobStatus.COMPLETED else move.after
        shared = move.entrypoint, move.verb, move.before, after, move.holder, *_end_of(move.asked_by, move.group)
        kind = kinds.setdefault(shared, len(kinds))
        seconds = round(sum(each * jobs for each, jobs in move.seconds) / move.jobs, 3) if move.seconds else None
        age = None if move.created_at is None else _seconds(move.created_at, now, 6)
        are_named = sum(len(spans) for _, spans in move.rows) <= MOST_SPANS
        places = (move.rows,) if move.rows and are_named else ()
        rows.append((kind, None, move.attempt, seconds, age, None, None, move.jobs, *places))
    return batch_of(number, now, [*kinds], rows)


def _rows(moves: Iterable[Move], kinds: Kinds, now: datetime, *, payloads: bool) -> Iterator[tuple[Any, ...]]:
    """Yield an `EventRow` for each transition. Values at its end that it lacks are left out."""
    rest: tuple[Any, ...]
    for verb, before, after, asked_by in moves:
        job = after or before
        assert job is not None
        new = None if after is None else after.status
        if before is None:
            is_kept = payloads and verb is Verb.ENQUEUE and _is_kept(job)
            old, holder, rest = None, job.holder, (None, None, None, job.payload) if is_kept else ()
        elif verb is Verb.CLAIM:
            old, holder, rest = before.status, job.holder, (_seconds(ready_since(before), now),)
        else:
            old, holder, rest = before.status, before.holder, _rest(verb, before, after, now)
        end = _end_of(asked_by, job.group) if asked_by or job.group else ()
        kind = kinds.setdefault((job.entrypoint, verb, old, new, holder, *end), len(kinds))
        yield kind, job.id, job.attempt, *rest


def _end_of(asked_by: str | None, group: str | None) -> tuple[str | None, ...]:
    """Return the last fields of a kind. Those at the end without a value are left out."""
    return (asked_by, group) if group else (asked_by,) if asked_by else ()


def _rest(verb: Verb, before: JobRecord, after: JobRecord | None, now: datetime) -> tuple[Any, ...]:
    """Return the last columns of an event: seconds, age and error. Those at the end without a value are left out.

    The seconds are the length of a claim that ends. The age is kept with the event by which a job leaves.
    """
    claimed = before.claimed_at if verb in _ENDS_CLAIM else None
    seconds = None if claimed is None else _seconds(claimed, now)
    if after is None:
        return seconds, _seconds(before.created_at, now, 6)
    if verb in _WITH_ERROR and (error := _error(before, after)):
        return seconds, None, error
    return () if claimed is None else (seconds,)


def _seconds(since: datetime, now: datetime, digits: int = 3) -> float:
    return round((now - since).total_seconds(), digits)


def _is_kept(job: JobRecord) -> bool:
    """Return True if an event keeps the payload of a job. One that is in an object of its own is too large."""
    return job.payload_object is None and len(job.payload) <= PAYLOAD_BYTES


def _error(before: JobRecord, after: JobRecord) -> str | None:
    """Return the error with which an attempt ended. It begins with the class if it was given as an exception."""
    if after.errors and after.errors[-1].attempt == before.attempt:
        return after.errors[-1].text
    return None if after.error is None or after.error == before.error else cut_error(after.error, ERROR_BYTES)
