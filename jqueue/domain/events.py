"""The events of a history: made from the transitions of a commit as JSON text, and read again.

The events of one commit are a *batch*: one text, which is encoded once. A commit with very many has several.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from jqueue.domain.history import batch_of
from jqueue.domain.job import JobRecord, JobStatus, ready_since
from jqueue.domain.limits import cut_error
from jqueue.domain.segments import Span
from jqueue.domain.transitions import BulkMove, Move, RowsOf, Verb

PAYLOAD_BYTES = 64 << 10
"""Size of the largest payload that an event keeps."""

ERROR_BYTES = 256
"""Size of the largest error text that an event keeps."""

MOST_SPANS = 256
"""Largest number of spans of rows that an event keeps. An event of more keeps none."""

EVENTS_PER_BATCH = 1000
"""Largest number of events in a batch."""

_NO_COLUMNS: list[Any] = [None] * 8
_WITH_ERROR = frozenset((Verb.NACK, Verb.REVOKE))
_ENDS_CLAIM = frozenset((Verb.ACK, Verb.NACK, Verb.HAND_BACK, Verb.REVOKE, Verb.DEPART))


Places = tuple[tuple[str, tuple[Span, ...]], ...]
"""Names of segments, each with spans of row numbers."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One event in the history of a queue. Times are aware and in UTC.

    Attributes:
        number: grows by one with every event of the queue.
        at: time of the commit.
        verb: what happened: a `Verb` such as "enqueue", "dequeue", "ack" or "stale". "start" is no transition: the
            history was switched on.
        job_id: id of the job; None for jobs of a bulk enqueue or of a range, and for "start".
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
        jobs: number of jobs; more than 1 only for a bulk enqueue and for ranges.
        rows: of a bulk enqueue and of ranges, the rows of the jobs: names of segments, each with spans of row numbers.
            Not shown by `repr`.
    """

    number: int
    at: datetime
    verb: str
    job_id: str | None = None
    entrypoint: str | None = None
    before: JobStatus | None = None
    after: JobStatus | None = None
    attempt: int = 0
    holder: str | None = None
    wait_seconds: float | None = None
    run_seconds: float | None = None
    created_at: datetime | None = None
    error: str | None = None
    payload: bytes | None = field(default=None, repr=False)
    jobs: int = 1
    rows: Places = field(default=(), repr=False)


class Kind(NamedTuple):
    """The fields that several events of a batch share: see `HistoryEvent`."""

    entrypoint: str | None
    verb: str
    before: str | None
    after: str | None
    holder: str | None


@dataclass(frozen=True, slots=True)
class EventColumns:
    """The events of a batch, in columns with one value for each event.

    Attributes:
        first: number of the first event. The others follow.
        at: time of all of them.
        kinds: the kinds of the events.
        rows: `rows` of events that have some, by their place.
        kind: for each event, the number of its kind.
        job_id, attempt, error, jobs: as in `HistoryEvent`. None stands for no attempt, and for one job.
        seconds: `wait_seconds` of a claim, or `run_seconds` of the end of one.
        age: seconds from `created_at` to `at`.
        payload: in Base64.
    """

    first: int
    at: datetime
    kinds: Sequence[Kind]
    rows: Mapping[int, Places]
    kind: Sequence[int]
    job_id: Sequence[str | None]
    attempt: Sequence[int | None]
    seconds: Sequence[float | None]
    age: Sequence[float | None]
    error: Sequence[str | None]
    payload: Sequence[str | None]
    jobs: Sequence[int | None]


def columns_in(batch: Raw) -> EventColumns:
    """Return the events of a batch.

    Raises:
        ValueError: the text is not a batch of events.
    """
    try:
        first, count, at, kinds, rows = msgspec.json.decode(batch)
        time, places = datetime.fromtimestamp(at, UTC), _places_in(kinds)
        known = [Kind(*kind, *_NO_COLUMNS[: 5 - len(kind)]) for kind in kinds if not isinstance(kind, dict)]
        columns: Any = [*zip(*(row + _NO_COLUMNS[len(row) :] for row in rows), strict=True)] or [()] * len(_NO_COLUMNS)
        found = EventColumns(first, time, known, places, *columns)
        if any(kind.__class__ is not int or not 0 <= kind < len(known) for kind in {*found.kind}):
            raise LookupError
    except (TypeError, LookupError, AttributeError, OverflowError, OSError) as error:
        raise ValueError(f"it is not a batch of events: {type(error).__name__}") from None
    if len(rows) != count:
        raise ValueError(f"it has {len(rows)} events, and should have {count}")
    return found


def events_in(batch: Raw) -> list[HistoryEvent]:
    """Return the events of a batch, in order.

    Raises:
        ValueError: the text is not a batch of events.
    """
    found = columns_in(batch)
    try:
        return list(_events(found))
    except (TypeError, OverflowError) as error:
        raise ValueError(f"it is not a batch of events: {type(error).__name__}") from None


def _events(found: EventColumns) -> Iterator[HistoryEvent]:
    columns = zip(
        found.kind,
        found.job_id,
        found.attempt,
        found.seconds,
        found.age,
        found.error,
        found.payload,
        found.jobs,
        strict=True,
    )
    for place, (kind, job_id, attempt, seconds, age, error, payload, jobs) in enumerate(columns):
        entrypoint, verb, before, after, holder = found.kinds[kind]
        claims = verb == Verb.CLAIM
        yield HistoryEvent(
            number=found.first + place,
            at=found.at,
            verb=verb,
            job_id=job_id,
            entrypoint=entrypoint,
            before=None if before is None else JobStatus(before),
            after=None if after is None else JobStatus(after),
            attempt=attempt or 0,
            holder=holder,
            wait_seconds=seconds if claims else None,
            run_seconds=None if claims else seconds,
            created_at=None if age is None else found.at - timedelta(seconds=age),
            error=error,
            payload=None if payload is None else a2b_base64(payload),
            jobs=1 if jobs is None else jobs,
            rows=found.rows.get(place, ()),
        )


def _places_in(kinds: list[Any]) -> dict[int, Places]:
    """Return the rows of the jobs of events, by the places of these events in the batch."""
    if not kinds or not isinstance(kinds[-1], dict):
        return {}
    return {
        int(place): tuple((str(name), tuple((int(first), int(last)) for first, last in spans)) for name, spans in rows)
        for place, rows in kinds[-1].get("rows", {}).items()
    }


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
    batches: list[Raw] = []
    if bulk:
        rows = _Batch(now, payloads=payloads)
        for move in bulk:
            rows.add_bulk(move)
        batches.append(rows.encode(number))
        number += len(rows.rows)
    moves = [move for move in moves if move[0] is not Verb.HEARTBEAT]
    for start in range(0, len(moves), EVENTS_PER_BATCH):
        batch = _Batch(now, payloads=payloads)
        batch.add(moves[start : start + EVENTS_PER_BATCH])
        batches.append(batch.encode(number))
        number += len(batch.rows)
    return batches


class _Batch:
    """The events of a commit. Those of one kind, such as all claims of a worker, share what they have in common.

    Attributes:
        rows: the columns of each event.
    """

    __slots__ = ("_kinds", "_now", "_payloads", "_places", "rows")

    def __init__(self, now: datetime, *, payloads: bool) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self._kinds: dict[tuple[str, Verb, JobStatus | None, JobStatus | None, str | None], int] = {}
        self._now = now
        self._places: dict[int, Sequence[RowsOf]] = {}
        self._payloads = payloads

    def add_bulk(self, move: BulkMove) -> None:
        """Add the event of a transition of many jobs. Its seconds are the average."""
        after = None if move.after is JobStatus.COMPLETED else move.after
        key = (move.entrypoint, move.verb, move.before, after, move.holder)
        kind = self._kinds.setdefault(key, len(self._kinds))
        seconds = age = None
        if move.seconds:
            seconds = round(sum(each * jobs for each, jobs in move.seconds) / move.jobs, 3)
        if move.created_at is not None:
            age = self._seconds(move.created_at, 6)
        if move.rows and sum(len(spans) for _, spans in move.rows) <= MOST_SPANS:
            self._places[len(self.rows)] = move.rows
        self.rows.append((kind, None, move.attempt, seconds, age, None, None, move.jobs))

    def add(self, moves: Iterable[Move]) -> None:
        """Add the events of transitions."""
        kinds, rows, rest_of = self._kinds, self.rows, self._rest
        rest: tuple[Any, ...]
        for verb, before, after in moves:
            job = after or before
            assert job is not None
            new = None if after is None else after.status
            if before is None:
                old, holder, rest = None, job.holder, self._payload(verb, after)
            elif verb is Verb.CLAIM:
                old, holder, rest = before.status, job.holder, (self._seconds(ready_since(before)),)
            else:
                old, holder, rest = before.status, before.holder, rest_of(verb, before, after)
            kind = kinds.setdefault((job.entrypoint, verb, old, new, holder), len(kinds))
            rows.append((kind, job.id, job.attempt, *rest))

    def encode(self, number: int) -> Raw:
        """Return the batch, given the number of its first event."""
        kinds = [*self._kinds, *([{"rows": self._places}] if self._places else ())]
        return batch_of(number, self._now, kinds, self.rows)

    def _payload(self, verb: Verb, job: JobRecord | None) -> tuple[Any, ...]:
        """Return the last columns of an event by which a job enters: its payload, if that is kept."""
        if not self._payloads or verb is not Verb.ENQUEUE or job is None or not _is_kept(job):
            return ()
        return None, None, None, job.payload

    def _rest(self, verb: Verb, before: JobRecord, after: JobRecord | None) -> tuple[Any, ...]:
        """Return the last columns of an event: seconds, age and error. Those at the end without a value are left out.

        The seconds are the length of a claim that ends. The age is kept with the event by which a job leaves.
        """
        claimed = before.claimed_at if verb in _ENDS_CLAIM else None
        seconds = None if claimed is None else self._seconds(claimed)
        if after is None:
            return seconds, self._seconds(before.created_at, 6)
        if verb in _WITH_ERROR and (error := _error(before, after)):
            return seconds, None, error
        return () if claimed is None else (seconds,)

    def _seconds(self, since: datetime, digits: int = 3) -> float:
        return round((self._now - since).total_seconds(), digits)


def _is_kept(job: JobRecord) -> bool:
    """Return True if an event keeps the payload of a job. One that is in an object of its own is too large."""
    return job.payload_object is None and len(job.payload) <= PAYLOAD_BYTES


def _error(before: JobRecord, after: JobRecord) -> str | None:
    """Return the error with which an attempt ended. It begins with the class if it was given as an exception."""
    if after.errors and after.errors[-1].attempt == before.attempt:
        return after.errors[-1].text
    return None if after.error is None or after.error == before.error else cut_error(after.error, ERROR_BYTES)
