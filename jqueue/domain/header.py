"""The header of a queue's object: all of its state but the jobs, with the records in its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from jqueue.domain.counters import Counters
from jqueue.domain.fields import LARGEST, Count, Entry, JobId, Seconds
from jqueue.domain.history import HistoryHeader
from jqueue.domain.job import JobRecord
from jqueue.domain.rules import EntrypointRules, QueueSettings, Schedule, Usage
from jqueue.domain.segments import EntryId, Segment, SegmentId
from jqueue.domain.transitions import ABSENT

WORKERS_KEPT = 256
"""Maximum number of workers with a record. Above it, the least recently seen that are not told to stop are dropped."""

BEAT = 60.0
"""Seconds between two commits of a queue object that has workers, if nothing else is to be committed."""

LOST_AFTER = 2
"""Number of these times after its last commit at which a worker counts as lost."""

CANCELLED_KEPT = 100
"""Number of ids of cancelled jobs that are kept."""

WORKER_AGE = 3600.0
"""Seconds after which the record of a worker that has not committed is dropped."""

ENTRYPOINTS_SHOWN = 32
"""Number of entrypoints in the record of a worker."""


class WorkerRecord(Entry, frozen=True):
    """A worker, as it was at its last commit. An idle worker commits once a minute.

    Attributes:
        name: name of the worker.
        host: name of its machine.
        pid: process id.
        started: time of its start, in seconds since 1970 by its clock.
        at: time of its last commit, in seconds since 1970.
        beat: largest number of seconds until its next commit.
        slots: number of jobs that it works on at a time.
        busy: number of jobs that it holds. The blob does not store it: `stats()` counts the claims.
        lost: True if it has not committed for twice its `beat`, which is two minutes mostly: it has died, or cannot
            reach the store. The blob does not store it: `stats()` compares times.
        entrypoints: its entrypoints; the first 32 of them.
        version: version of jqueue.
        stopping: True if an operator has told it to stop. It learns of it when it reads the queue, or commits.
        mark: what tells its process from all others of its machine that had the id; empty if it is not known.
        client: its name as a client of the process that commits its calls; empty if it commits them itself.
    """

    name: str
    host: str = ""
    pid: Count = 0
    started: float = 0.0
    at: float = 0.0
    beat: Seconds = BEAT
    slots: Count = 0
    busy: Count = 0
    lost: bool = False
    entrypoints: Annotated[tuple[str, ...], Meta(max_length=1000)] = ()
    version: str = ""
    stopping: bool = False
    mark: str = ""
    client: str = ""

    @property
    def holder(self) -> str:
        """The holder that its claims name."""
        return f"{self.name}@{self.host}:{self.pid}"

    def is_named(self, name: str, run: str) -> bool:
        """Return True if a name means this worker: its own, that of its claims' holder, or the id of its run."""
        return name in (self.name, self.holder, run)

    def is_lost(self, now: float) -> bool:
        """Return True if it counts as lost at a time, in seconds since 1970."""
        return now - self.at > LOST_AFTER * self.beat

    @property
    def last_seen(self) -> datetime:
        """Time of its last commit."""
        return datetime.fromtimestamp(self.at, UTC)


def by_name(records: Iterable[WorkerRecord]) -> tuple[WorkerRecord, ...]:
    """Return records by name. The records of one run in several queues are added up."""
    runs: dict[tuple[str, str, int, float], WorkerRecord] = {}
    for record in records:
        run = (record.name, record.host, record.pid, record.started)
        total = runs.get(run)
        if total is not None:
            changes = {"busy": total.busy + record.busy, "lost": total.lost and record.lost}
            changes["stopping"] = total.stopping or record.stopping
            record = record.evolve(at=max(total.at, record.at), **changes)
        runs[run] = record
    return tuple(runs[run] for run in sorted(runs))


def replacing(old_record: WorkerRecord | None, record: WorkerRecord) -> WorkerRecord:
    """Return the new record of a worker. It has an operator's order to stop if the one before has, and only then."""
    stopping = old_record is not None and old_record.stopping
    return record if record.stopping == stopping else record.evolve(stopping=stopping)


def with_workers(
    old_records: Mapping[str, WorkerRecord], own: Mapping[str, WorkerRecord | None], at: float
) -> Mapping[str, WorkerRecord]:
    """Return the records after a commit, without outdated ones.

    Args:
        old_records: the records before it, by the id of the worker's run.
        own: the records of workers that commit; None for a worker that has ended.
        at: time of the commit, in seconds since 1970.
    """
    records = {run: record for run, record in old_records.items() if run not in own and record.at + WORKER_AGE > at}
    for run, record in own.items():
        if record is not None:
            records[run] = replacing(old_records.get(run), record)
    surplus = len(records) - WORKERS_KEPT
    for run in sorted(records, key=lambda run: (records[run].stopping, records[run].at))[: max(0, surplus)]:
        del records[run]
    return records


FORMAT = 2

FRESH_KEPT = 256
"""Number of new entries of a large table above which their text is joined with that of the older ones."""

_encode = msgspec.json.Encoder().encode


class CommitRecord(Entry, frozen=True):
    """The last commit of one writer, as the blob keeps it. A writer recognises its own commit by it.

    Attributes:
        sequence: number of the write that landed, counted by the writer.
        version: the version that the commit made.
        at: time of the commit, in seconds since 1970 by the writer's clock.
        cycle: seconds that the writer takes to read and write the blob once, with rows that it reads between the two.
        token: that of the write.
    """

    sequence: Count
    version: Count
    at: float
    cycle: float
    token: str


class ClientRecord(Entry, frozen=True):
    """The last batch of one client whose calls other processes commit. A batch that is sent again is recognised by it.

    Attributes:
        sequence: number of the batch, counted by the client.
        token: that of the batch.
        version: the version that its commit made.
        at: time of the commit, in seconds since 1970.
        refusals: number of its operations that were refused.
        refused: the error of each refused operation, by its place in the batch; the first ones if they are many.
    """

    sequence: Count
    token: str
    version: Count
    at: float
    refusals: Count = 0
    refused: dict[str, Any] = msgspec.field(default_factory=dict)


class BrokerSeat(Entry, frozen=True):
    """The process that offers to commit the calls of other processes, on a store that several machines use.

    It grants nothing: every process may commit at any time. It only tells clients where to go first.

    Attributes:
        writer: id of the writer that took the seat; empty if it has left.
        url: where the process answers clients.
        term: number of seats that were taken so far, this one included.
        doubted_at: time at which a client found nobody there, in seconds since 1970; 0 if none has said so.
    """

    writer: str = ""
    url: str = ""
    term: Annotated[int, Meta(ge=0, le=LARGEST)] = 0
    doubted_at: float = 0.0

    def is_doubted(self, now: datetime) -> bool:
        """Return True if clients leave the broker alone, as one of them found nobody there a moment ago."""
        return abs(now.timestamp() - self.doubted_at) < DOUBTED


QUIET = 10.0
"""Seconds without a commit of the broker after which clients doubt that it is there."""

DOUBTED = 60.0
"""Seconds for which no client looks for a broker where one has found nobody."""


class KeyHold(NamedTuple):
    """A unique key kept after its job was acked."""

    job_id: JobId
    until: float
    """Seconds since 1970."""


class TransactionRecord(NamedTuple):
    """The version of an application's last write to the queue. A repeated write is recognised by it."""

    version: Count
    until: float
    """Time from which the record may be forgotten, in seconds since 1970."""


class PendingJob(NamedTuple):
    """A job that is enqueued once the members of a group have ended."""

    job: JobRecord
    delay: Seconds = 0.0
    """Seconds from then before which it is not claimed."""


class GroupRecord(Entry, frozen=True):
    """The counter of a group of jobs. Every commit that moves a member changes it.

    Attributes:
        opened_at: time at which it was opened, in seconds since 1970.
        added: number of members that were ever added.
        done: number of acked members.
        dead: number of members that are dead now.
        gone: number of members that were cancelled, expired or purged.
        closed: True if its opener adds no more members.
        cancelled: True if it was cancelled.
        then: the job to enqueue when all members are done or gone; None if there is none, or it is enqueued.
        on_end: the job to enqueue when no member waits or runs, in the same way.
        then_id: id of `then`, which stays.
        ended_at: time at which no member was left and no job was pending, in seconds since 1970; 0 before that.
    """

    opened_at: float = 0.0
    added: Count = 0
    done: Count = 0
    dead: Count = 0
    gone: Count = 0
    closed: bool = False
    cancelled: bool = False
    then: PendingJob | None = None
    on_end: PendingJob | None = None
    then_id: str | None = None
    ended_at: float = 0.0

    @property
    def live(self) -> int:
        """Number of members that wait or run."""
        return max(0, self.added - self.done - self.dead - self.gone)

    @property
    def at_rest(self) -> bool:
        """True if it is closed, and no member waits or runs. A dead member may be redriven yet."""
        return self.closed and not self.live


class SetAside(NamedTuple):
    """A line of the blob that could not be read as a job. It is kept as it is, and never claimed."""

    key: str
    line: bytes
    reason: str

    def __repr__(self) -> str:
        return f"SetAside(key={self.key!r}, line=<{len(self.line)} bytes>, reason={self.reason!r})"


class Table(dict[str, Any]):
    """A large table of the header. A commit encodes new entries only: the text of all others is kept.

    If an older entry changes or leaves, the whole text is made anew.
    """

    def __init__(self, entries: Mapping[str, Any]) -> None:
        super().__init__(entries)
        self._older: bytes | None = None  # the text of all entries but the fresh ones
        self._fresh: dict[str, Any] = {}
        self._pieces: list[bytes] | None = None  # the text, if it is known

    def __setitem__(self, key: str, value: Any) -> None:
        self._pieces = None
        if key in self and key not in self._fresh:
            self._older = None
        super().__setitem__(key, value)
        self._fresh[key] = value

    def __delitem__(self, key: str) -> None:
        self._pieces = None
        if self._fresh.pop(key, None) is None:
            self._older = None
        super().__delitem__(key)

    def pop(self, key: str) -> Any:  # type: ignore[override]
        """Remove an entry, and return it."""
        value = self[key]
        del self[key]
        return value

    def restore(self, key: str, old: Any) -> None:
        """Put an entry back: an undo."""
        if old is ABSENT:
            del self[key]
        else:
            self[key] = old

    def text(self) -> list[bytes]:
        """Return the table as JSON, in pieces: a large text is not copied more often than it must be."""
        if self._pieces is None:
            if self._older is None:
                self._older, self._fresh = _encode(dict(self))[1:-1], {}
            fresh = _encode(self._fresh)[1:-1]
            self._pieces = [b"{", self._older, b"," if self._older and fresh else b"", fresh, b"}"]
            if len(self._fresh) > FRESH_KEPT:
                self._older, self._fresh = b"".join(self._pieces[1:-1]), {}
        return self._pieces

    @property
    def size(self) -> int:
        """Number of bytes that it takes in the blob: an empty table is left out."""
        return sum(map(len, self.text())) if self else 0


def large(table: Mapping[str, Any]) -> Table:
    """Return a table as a large one; itself if it is one."""
    return table if isinstance(table, Table) else Table(table)


class Header(msgspec.Struct, omit_defaults=True, kw_only=True, tag_field="format", tag=FORMAT):
    """The header of one version of a queue.

    A table that any number of operations may change is changed in place. A small one, and each other field, gets a new
    value. Every change goes through a `Draft`.

    Attributes:
        version: grows by one with every commit.
        queue: the queue's random id; empty before its first commit.
        critical: names of features without which the blob must not be touched.
        evicted_through: the highest version whose record `commits` has dropped.
        attempt_floor: the highest attempt of any job that is no longer known; a reused id starts above it.
        last_sequence: the highest sequence number ever given to a job, so that none is given twice.
        commits: the last commit of each recent writer.
        clients: the last batch of each recent client of a broker, by its id.
        clients_evicted: the highest version whose record `clients` has dropped.
        broker: the process that serves other processes; None if there never was one.
        settings: the settings of the queue as a whole.
        entrypoints: the limits and pauses of entrypoints, by name.
        recent: the claims that still count against a rate limit, by entrypoint.
        recent_keys: the claims that still count against a rate for each key, by entrypoint and key.
        turns: the place of the last claimed job of an entrypoint and a priority whose keys take turns: see
            `jqueue.domain.turns`.
        fair: there, the place of the last job of each key; "" stands for jobs without one.
        schedules: the cron entries, by name.
        transactions: the last version of each application that enqueues in transactions, by its id.
        groups: the counters of groups, by their ids.
        counters: what has happened to the jobs of each entrypoint since the first commit.
        workers: the workers that have committed lately, by the id of their run.
        segments: the manifest: the segments that hold further jobs, in one entry or several, by name.
        retired: the times at which segments left the manifest, in seconds since 1970, by id.
        history: the latest events of jobs, and where the earlier ones are; None if no history was ever kept.
        finished_minutes: the minutes in which the jobs of `finished` ended, since 1970, and how many in each.
        holds: unique keys kept after their job's ack.
        finished: the ids of recently acked jobs, and the attempt that acked each, in the order of their ends.
        cancelled: the ids of the last cancelled jobs, for callers that wait for their results.
        extra: fields that this version does not know, kept for the versions that do.
    """

    # with a factory it is written even if it is 0, as by 1.0.0
    version: Annotated[int, Meta(ge=0, le=LARGEST)] = msgspec.field(default_factory=int)
    queue: str = ""
    critical: tuple[str, ...] = ()
    evicted_through: Count = 0
    attempt_floor: Count = 0
    last_sequence: Count = 0
    commits: dict[str, CommitRecord] = {}
    clients: dict[str, ClientRecord] = {}
    clients_evicted: Count = 0
    broker: BrokerSeat | None = None
    settings: QueueSettings = QueueSettings()
    entrypoints: dict[str, EntrypointRules] = {}
    recent: dict[str, tuple[Usage, ...]] = {}
    recent_keys: dict[str, dict[str, tuple[Usage, ...]]] = {}
    turns: dict[str, Count] = {}
    fair: dict[str, dict[str, Count]] = {}
    schedules: dict[str, Schedule] = {}
    transactions: dict[str, TransactionRecord] = {}
    groups: dict[str, GroupRecord] = {}
    counters: dict[str, Counters] = {}
    workers: dict[str, WorkerRecord] = {}
    segments: dict[EntryId, Segment] = {}
    retired: dict[SegmentId, float] = {}
    history: HistoryHeader | None = None
    finished_minutes: tuple[tuple[Count, Count], ...] = ()
    cancelled: tuple[str, ...] = ()
    holds: dict[str, KeyHold] = {}
    finished: dict[str, Count] = {}
    extra: dict[str, Any] | None = msgspec.field(default=None, name="")

    def restore(self, name: str, old: Any) -> None:
        """Put a field back: an undo."""
        setattr(self, name, old)

    def is_quiet(self, now: datetime) -> bool:
        """Return True if the broker has not committed for a while: its machine may be gone."""
        record = None if self.broker is None else self.commits.get(self.broker.writer)
        return record is None or abs(now.timestamp() - record.at) > QUIET

    def copy(self) -> Header:
        """Return a header with tables of its own."""
        values = msgspec.structs.asdict(self)
        for nested in ("fair", "recent_keys"):
            values[nested] = {name: dict(table) for name, table in values[nested].items()}
        return msgspec.structs.replace(
            self, **{name: dict(value) for name, value in values.items() if isinstance(value, dict)}
        )
