"""Segments: immutable objects beside the blob with jobs that wait. The blob's *manifest* has entries for each.

A segment holds queued jobs of one entrypoint, one job a row, in the order in which they are served: by rank and
sequence if they are ready, by `run_at` if they are scheduled. Its rows never change. A job that is claimed, cancelled
or changed enters the blob, and the manifest marks its row as *taken*.

A *lease* is an entry that is claimed and ended as one, with one attempt, holder and heartbeat, whatever the number of
its rows. If only the first rows of an entry are claimed, it is split in two entries for the same object, each of which
has the rows of the other one marked as taken. If the claim is handed back or becomes stale, the entry waits again. It
keeps the numbers of claims and failures, which count for each of its rows.
"""

from __future__ import annotations

import hashlib
import re
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import accumulate, islice
from operator import eq, itemgetter
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr, replace

from jqueue.domain.durations import Duration
from jqueue.domain.fields import Count, Entry, Positive, Priority, Seconds, to_utc
from jqueue.domain.job import Claim, JobRecord, JobStatus
from jqueue.domain.slices import Slices

SEGMENTS = "segments"
"""The critical feature of a queue with segments: an older reader would not see the jobs in them."""

FOLDER = ".segments/"
"""The beginning of the suffixes of segments."""

CHUNK_ROWS = 256
"""Number of rows in a chunk, the smallest part of a segment that is read. The last chunk may have fewer."""

SEGMENTS_KEPT = 256
"""Maximum number of segments of a queue. At this number, nothing is spilled until segments were merged."""

RETIRED_KEPT = 256
"""Maximum number of segments in `retired`. The oldest are dropped; their objects may then be removed by age."""

STAGED = "staged-"
"""The beginning of the names of segments that the tasks of a bulk enqueue write, long before its commit names them."""

STAGED_NAMED_WITHIN, STAGED_KEPT = timedelta(days=6), timedelta(days=7)
"""Longest time from the creation of a staged segment to the commit that names it, and time for which it is kept if that
commit has not come."""

SegmentId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,200}\Z")]
"""The name of a segment: its suffix is `FOLDER` with this name."""

EntryId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,200}(~[A-Za-z0-9_-]{1,200})?\Z")]
"""The name of an entry of the manifest: that of its segment, and behind a tilde the id of its last lease."""


def object_of(name: str) -> str:
    """Return the name of the segment that an entry of the manifest is for."""
    return name.partition("~")[0]


Span = tuple[Count, Count]
"""Rows from a first number up to, but not including, a last."""


class RowKey(NamedTuple):
    """The place of a row among the jobs of its entrypoint."""

    priority: Priority
    sequence: Count
    since: float
    """Its `run_at`, or its `created_at` if it has none, in seconds since 1970."""

    def place(self, *, scheduled: bool) -> tuple[float, ...]:
        """Return the key by which the rows of a segment are sorted."""
        return (self.since, self.priority, self.sequence) if scheduled else (self.priority, self.sequence)

    def moved(self, offset: int) -> RowKey:
        """Return the key with a number added to its sequence number."""
        return self._replace(sequence=self.sequence + offset)


class Retention(NamedTuple):
    """Times for which the object of a segment is kept after the segment has left the manifest."""

    seconds: float = 3600.0
    """Seconds for which it is kept, as a reader may still need it."""
    young: float = 600.0
    """Seconds after its naming for which a segment need not be retired: its object is too young to be removed. A staged
    segment always is: a repeated write removes its own segments, whatever their age."""


RETENTION = Retention()


class Segment(Entry, frozen=True):
    """One entry of the manifest: some rows of a segment, which wait, or are claimed as one.

    Attributes:
        entrypoint: that of all its jobs.
        rows: number of rows of the object.
        bytes: size of the object.
        index: offset of the index in the object; the rows stand before it.
        crc: CRC-32 of the index.
        head: key of the first waiting row, or of an earlier row: no waiting row has a smaller one.
        chunk_rows: number of rows in each chunk but the last.
        taken: rows that are taken or in another entry, as spans in order that do not touch each other.
        offset: number that is added to the sequence numbers of the rows.
        least: smallest sequence number of a row, with `offset` added.
        largest: largest sequence number of a row, with `offset` added; 0 if it is not known.
        scheduled: True if the rows are sorted by `run_at`.
        oldest: earliest `since` of a waiting row, or an earlier time.
        claims: number of leases of the rows so far. It is added to `attempt` of each row, and is the fencing token.
        failures: number of these that count as failures. It is added to `failures` of each row.
        heartbeat_at, claim_timeout, claimed_at, holder: of the lease, as of a job; None while the rows wait.
        attempts: largest `attempt` of a row, with `floor` added.
        spare: smallest number of failures after which a job is dead; None if no job has `max_attempts`.
        keys: number of rows with a unique key.
        holds: bytes that the unique keys of the rows will take if they are kept after their jobs.
        objects: number of objects that the rows name.
        own_ids: True if jqueue made the ids of all its jobs, so that no caller can enqueue one of them again.
        floor: number that is added to `attempt` and `attempts_before` of the rows: `attempt_floor` of the commit that
            named the segment, if callers have chosen the ids of all its jobs in a bulk enqueue.
        at: time of the commit that named the segment, in seconds since 1970. For a segment of a bulk enqueue it is the
            time of the call, as the commit may come much later than the object.
        group: id of the group that all its jobs belong to; None if they belong to none.
    """

    entrypoint: str
    rows: Positive
    bytes: Count
    index: Count
    crc: Count
    head: RowKey
    chunk_rows: Positive = CHUNK_ROWS
    taken: tuple[Span, ...] = ()
    offset: Count = 0
    least: Count = 0
    largest: Count = 0
    scheduled: bool = False
    oldest: float = 0.0
    claims: Count = 0
    failures: Count = 0
    heartbeat_at: datetime | None = None
    claim_timeout: Seconds | None = None
    claimed_at: datetime | None = None
    holder: str | None = None
    attempts: Count = 0
    spare: Count | None = None
    keys: Count = 0
    holds: Count = 0
    objects: Count = 0
    own_ids: bool = False
    floor: Count = 0
    at: float = 0.0
    group: str | None = None

    def __post_init__(self) -> None:
        edge = -1
        for first, last in self.taken:
            if not edge < first < last <= self.rows:
                raise ValueError("taken is not a list of spans in order")
            edge = last
        if self.claimed_at is not None and self.heartbeat_at is not None:
            force_setattr(self, "claimed_at", to_utc(self.claimed_at))
            force_setattr(self, "heartbeat_at", to_utc(self.heartbeat_at))
        if {None} < {self.claimed_at, self.heartbeat_at, self.claim_timeout} or (self.is_leased and not self.claims):
            raise ValueError("a lease has claims, claimed_at, heartbeat_at and claim_timeout")

    @property
    def next(self) -> int:
        """Number of the first row that is not taken."""
        return self.taken[0][1] if self.taken and not self.taken[0][0] else 0

    @property
    def left(self) -> int:
        """Number of rows that are not taken: they wait, or are leased."""
        return self.rows - size_of(self.taken)

    @property
    def is_leased(self) -> bool:
        """True if the rows that are not taken are claimed as one."""
        return self.claimed_at is not None

    @property
    def waiting(self) -> int:
        """Number of rows that wait."""
        return 0 if self.is_leased else self.left

    @property
    def leased(self) -> int:
        """Number of rows that are claimed as one."""
        return self.left if self.is_leased else 0

    @property
    def spans(self) -> list[Span]:
        """The rows that are not taken."""
        return without([(0, self.rows)], self.taken)

    def spans_in(self, chunk: int) -> list[Span]:
        """Return the rows of a chunk that are not taken."""
        return common(self.spans, [(chunk * self.chunk_rows, (chunk + 1) * self.chunk_rows)])

    def row_behind(self, number: int) -> int:
        """Return the number of the row behind the first rows that are not taken, given the number of these rows."""
        for first, last in self.spans:
            if number <= last - first:
                return first + number
            number -= last - first
        return self.rows

    def those_left(self, jobs: Sequence[JobRecord], chunk: int) -> Sequence[JobRecord]:
        """Return the jobs of a chunk whose rows are not taken, given the job of each row."""
        begin = chunk * self.chunk_rows
        return [job for first, last in self.spans_in(chunk) for job in jobs[first - begin : last - begin]]

    def waiting_before(self, row: int) -> int:
        """Return the number of rows before a row that are not taken."""
        return row - sum(max(0, min(last, row) - first) for first, last in self.taken)

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.rows // self.chunk_rows)

    def chunk_of(self, row: int) -> int:
        """Return the number of the chunk that has a row."""
        return row // self.chunk_rows

    def is_taken(self, row: int) -> bool:
        """Return True if a row is taken."""
        return has(self.taken, row)

    def is_chunk_taken(self, chunk: int) -> bool:
        """Return True if all rows of a chunk are taken."""
        first, last = chunk * self.chunk_rows, min((chunk + 1) * self.chunk_rows, self.rows)
        place = bisect_right(self.taken, first, key=_first_of)
        return first >= last or (place > 0 and last <= self.taken[place - 1][1])

    def job_of(self, job: JobRecord) -> JobRecord:
        """Return the job of a row that is not taken, given the job on its line."""
        if not self.claims:
            return job
        attempt, failures = job.attempt + self.claims, job.failures + self.failures
        if not self.is_leased:
            return job.evolve(attempt=attempt, failures=failures)
        return replace(  # as `evolve`, which takes three times as long
            job,
            status=JobStatus.IN_PROGRESS,
            attempt=attempt,
            failures=failures,
            heartbeat_at=self.heartbeat_at,
            claim_timeout=self.claim_timeout,
            holder=self.holder,
            claimed_at=None if self.holder is None else self.claimed_at,
            progress=None,
        )

    def taking(self, spans: Iterable[Span]) -> tuple[Span, ...]:
        """Return `taken` after some more rows were taken."""
        return tuple(joined([*self.taken, *spans]))


_first_of: Callable[[Sequence[int]], int] = itemgetter(0)


def has(spans: Sequence[Span], row: int) -> bool:
    """Return True if spans in order have a row."""
    place = bisect_right(spans, row, key=_first_of)
    return place > 0 and row < spans[place - 1][1]


def without(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """Return spans in order, without the rows of others."""
    remainder = []
    cuts, next_cut = joined(others), 0
    for first, last in joined(spans):
        while next_cut < len(cuts) and cuts[next_cut][0] < last:
            start, end = cuts[next_cut]
            if start > first:
                remainder.append((first, start))
            first = max(first, end)
            if end > last:
                break  # it cuts the next span, too
            next_cut += 1
        if first < last:
            remainder.append((first, last))
    return remainder


def common(spans: Sequence[Span], others: Iterable[Span]) -> list[Span]:
    """Return the rows that are both in spans and in others."""
    return without(spans, without(spans, others))


def size_of(spans: Iterable[Span]) -> int:
    """Return the number of rows in spans that do not overlap."""
    return sum(last - first for first, last in spans)


def retired_after(
    before: Mapping[str, Segment],
    after: Mapping[str, Segment],
    retired: Mapping[str, float],
    now: float,
    retention: Retention = RETENTION,
) -> Mapping[str, float]:
    """Return the table of retired segments after a commit.

    Args:
        before: the manifest before it.
        after: the manifest after it.
        retired: the table before it.
        now: the time of the commit, in seconds since 1970.
        retention: the times for which segments are kept.
    """
    if not (before or retired):
        return retired
    there = set(map(object_of, after))
    gone = {
        object_of(name): now
        for name, each in before.items()
        if object_of(name) not in there and (now - each.at > retention.young or name.startswith(STAGED))
    }
    if not gone and not retired:
        return retired
    recent_segments = {name: at for name, at in retired.items() if now - at < retention.seconds}
    return dict([*recent_segments.items(), *gone.items()][-RETIRED_KEPT:])


def staged_name(app_id: str, version: int, unique: str) -> str:
    """Return a name for a segment that is staged for a transaction.

    Args:
        app_id: of the transaction.
        version: of the transaction.
        unique: letters, digits and hyphens that no other segment of the transaction has.
    """
    return f"{STAGED}{_digest(app_id)}-{version}-{unique}"


def awaits_commit(name: str, transactions: Mapping[str, tuple[int, float]]) -> bool:
    """Return True if a segment is staged for a transaction that is not done, so that a commit may still name it.

    Args:
        name: of the segment.
        transactions: the last version of each application, first in each entry.
    """
    if not name.startswith(STAGED):
        return False
    app, _, rest = name.removeprefix(STAGED).partition("-")
    version, _, _ = rest.partition("-")
    if not version.isdigit():
        return False
    return not any(last >= int(version) and app == _digest(app_id) for app_id, (last, *_) in transactions.items())


def _digest(app_id: str) -> str:
    return hashlib.sha256(app_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order, with those joined that touch or overlap."""
    runs: list[Span] = []
    for first, last in sorted(span for span in spans if span[0] < span[1]):
        if runs and first <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(last, runs[-1][1])
        else:
            runs.append((first, last))
    return runs


Sortable = TypeVar("Sortable", int, tuple[tuple[float, ...], int])

ENTRIES_PER_SLICE = 4096
"""Number of entries of a long list that are sorted in one slice."""


class Chunk(NamedTuple):
    """The entry of one chunk in the index. Sequence numbers are without the segment's offset."""

    offset: int
    """Of its first byte in the object."""
    crc: int
    """CRC-32 of its bytes."""
    first: RowKey
    """The key of its first row."""
    oldest: float
    """Earliest `since` of its rows."""
    best: tuple[int, int]
    """The priority and the sequence number of the row that comes first once all are due."""


def hashes_of(texts: Iterable[bytes], size: int = 8) -> bytes:
    """Return the hashes of texts in UTF-8, of some bytes each."""
    return b"".join([hashlib.sha256(text).digest()[:size] for text in texts])


class HashTable:
    """Rows by the hash of a text.

    Args:
        data: the table as bytes: all hashes in order, their first 8 bytes, then the others if there are more; then the
            row of each, 4 bytes; all numbers little-endian.

    Attributes:
        hashes: the first 8 bytes of each, in order.
        rows: the row of each hash.
    """

    __slots__ = ("_others", "hashes", "rows")

    WORDS: ClassVar[int] = 1
    """Number of times 8 bytes of a hash."""

    def __init__(self, data: bytes = b"") -> None:
        column = 8 * (len(data) // (8 * self.WORDS + 4))
        columns = [data[column * word : column * (word + 1)] for word in range(self.WORDS)]
        self.hashes: array[int]
        self.hashes, *self._others = (_little_endian(array("Q", each)) for each in columns)
        self.rows: array[int] = _little_endian(array("I", data[column * self.WORDS :]))

    @classmethod
    def hash_of(cls, text: str) -> int:
        """Return the hash of a text: the first bytes of its SHA-256 digest, as a big-endian number."""
        return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[: 8 * cls.WORDS])

    @classmethod
    def making(cls, hashes: Sequence[int], rows: Sequence[int]) -> Slices[Self]:
        """Return a table, in slices, given hashes and the row of each."""
        buckets: list[list[int]] = [[] for _ in range(256)]  # by first byte: each is sorted in the processor's cache
        for first in range(0, len(hashes), ENTRIES_PER_SLICE):
            last = first + ENTRIES_PER_SLICE
            for hashed, row in zip(hashes[first:last], rows[first:last], strict=True):
                buckets[hashed >> 64 * cls.WORDS - 8].append(hashed << 32 | row)
            if last < len(hashes):
                yield
        table = cls()
        for number, bucket in enumerate(filter(None, buckets), 1):
            bucket.sort()
            for word, column in enumerate([*reversed(table._others), table.hashes]):
                column.extend([each >> 64 * word + 32 & 0xFFFF_FFFF_FFFF_FFFF for each in bucket])
            table.rows.extend([each & 0xFFFF_FFFF for each in bucket])
            if number % 16 == 0 and len(hashes) > ENTRIES_PER_SLICE:
                yield
        return table

    @property
    def data(self) -> bytes:
        """The table as bytes."""
        return b"".join(_little_endian(each[:]).tobytes() for each in (self.hashes, *self._others, self.rows))

    def find(self, text: str) -> list[int]:
        """Return the rows whose text may be this one."""
        return self.find_hash(self.hash_of(text))

    def find_hash(self, wanted: int) -> list[int]:
        """Return the rows whose text has a hash."""
        word = wanted >> 64 * len(self._others)
        first = bisect_left(self.hashes, word)
        last = bisect_right(self.hashes, word, first)
        if not self._others:
            return self.rows[first:last].tolist()
        return [self.rows[place] for place in range(first, last) if self._hash(place) == wanted]

    def has_hashes_of(self, other: HashTable) -> bool:
        """Return True if another table has the same hashes, and each once."""
        is_alike = self.hashes == other.hashes and self._others == other._others
        return is_alike and not any(map(eq, self.hashes, islice(self.hashes, 1, None)))

    def among(self, words: Collection[int]) -> Iterator[tuple[int, int]]:
        """Iterate over the hashes that begin with one of some times 8 bytes, in order, and the row of each."""
        for place, word in enumerate(self.hashes):
            if word in words:
                yield self._hash(place), self.rows[place]

    def _hash(self, place: int) -> int:
        value = self.hashes[place]
        for column in self._others:
            value = value << 64 | column[place]
        return value


class KeyTable(HashTable):
    """Rows by the hash of a unique key, which has 16 bytes: no two keys have the same."""

    __slots__ = ()

    WORDS: ClassVar[int] = 2


hash_of: Callable[[str], int] = HashTable.hash_of


def _little_endian(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def sorting(entries: list[Sortable], key: Callable[[Sortable], Any] | None = None) -> Slices[None]:
    """Sort a long list in slices, by a key if there is one: parts first, so that the sort of all takes little time."""
    for first in range(0, len(entries) - ENTRIES_PER_SLICE, ENTRIES_PER_SLICE):
        entries[first : first + ENTRIES_PER_SLICE] = sorted(entries[first : first + ENTRIES_PER_SLICE], key=key)
        yield
    entries.sort(key=key)


SCATTER = 0x9E3779B1
"""An odd number. Its multiples modulo 2**32 all differ, and neighbours begin with different digits."""

_GATHER = pow(SCATTER, -1, 1 << 32)

_HEAD = re.compile("[0-9a-f]{8}")

UUID_LENGTH, UUID_HEAD = 36, 8
"""Number of characters of a UUID, and of the part before its first hyphen."""


def bulk_rest(base: str) -> str:
    """Return the end of the ids of all jobs of a bulk enqueue: see `bulk_id`.

    Args:
        base: an id that no other job or bulk enqueue has.
    """
    return base[UUID_HEAD:] if len(base) == UUID_LENGTH and base[UUID_HEAD] == "-" else f"-{base}"


def bulk_id(number: int, rest: str) -> str:
    """Return the id of a job in a bulk enqueue.

    Args:
        number: of the job, below 2**32.
        rest: the end of the ids of all its jobs.
    """
    return f"{number * SCATTER & 0xFFFFFFFF:08x}{rest}"


def bulk_ids(first: int, last: int, rest: str) -> list[str]:
    """Return the ids of the jobs from `first` to the one before `last`: see `bulk_id`."""
    products = array("Q", range(first * SCATTER, last * SCATTER, SCATTER))
    if sys.byteorder == "little":
        products.byteswap()
    heads = products.tobytes().hex(" ", 4).split(" ")[1::2]  # the lower half of each
    return [head + rest for head in heads]


class SegmentIndex(msgspec.Struct, dict=True, omit_defaults=True):
    """The index of one segment, the last line of its object.

    Attributes:
        rows: number of its rows.
        chunks: its chunks, in order.
        end: offset of the byte after the last row.
        ids: rows by job id; empty if `id_rest` makes the ids.
        keys: rows by unique key, of the rows that have one.
        objects: suffixes of the objects that its rows name.
        single: rows of jobs that are never leased, as spans.
        fields: names of all fields that lines have; empty if they are not known.
        common: an object with the fields that all rows share, which are not on their lines.
        id_rest: the end of the ids of all rows, which are not on their lines: see `bulk_id`. The first has number 1.
        first: sequence number of the first row, if lines have none and each row has one more than the row before.
        numbers: sequence numbers of all rows, 4 bytes each, little-endian, if lines have none and they are in no order.
    """

    rows: int
    chunks: tuple[Chunk, ...]
    end: int
    ids: HashTable
    keys: KeyTable
    objects: tuple[str, ...] = ()
    single: tuple[Span, ...] = ()
    fields: tuple[str, ...] = ()
    common: msgspec.Raw = msgspec.Raw(b"")
    id_rest: str | None = None
    first: int | None = None
    numbers: bytes = b""

    def whole(self, lines: bytes) -> bytes:
        """Return lines with all fields. An id or a sequence number that no line has is empty, or 0."""
        if not self.common:
            return lines
        id_text, number = b'"id":"",' if self.id_rest else b"", b'"sequence":0,' if self.sequences(0, 1) else b""
        head = b"{%b%b%b," % (id_text, number, bytes(self.common)[1:-1])
        return head + lines[1:].replace(b"\n{", b"\n" + head)  # a text in JSON has no newline

    def sequences(self, first: int, last: int) -> Sequence[int]:
        """Return the sequence numbers of rows from a first to before a last; none if lines have them."""
        if self.first is not None:
            return range(self.first + first, self.first + last)
        return _little_endian(array("I", self.numbers[4 * first : 4 * last]))

    def rows_of(self, job_id: str, hashed: int | None = None) -> list[int]:
        """Return the rows whose job may have an id, whose hash may be known already."""
        if self.id_rest is None:
            return self.ids.find_hash(hash_of(job_id) if hashed is None else hashed)
        head = job_id.removesuffix(self.id_rest)
        number = int(head, 16) * _GATHER & 0xFFFFFFFF if _HEAD.fullmatch(head) else 0
        return [number - 1] if 0 < number <= self.rows else []

    def table_of_ids(self) -> Slices[HashTable]:
        """Return the rows by job id, in slices, even if there is no such table yet."""
        if self.id_rest is None:
            return self.ids
        hashes = array("Q")
        for first in range(1, self.rows + 1, ENTRIES_PER_SLICE):
            last = min(first + ENTRIES_PER_SLICE, self.rows + 1)
            hashes.extend(map(hash_of, bulk_ids(first, last, self.id_rest)))
            yield
        return (yield from HashTable.making(hashes, range(self.rows)))

    @cached_property
    def oldest(self) -> list[float]:
        """For each chunk, the earliest `since` of its rows and of the rows behind it."""
        return [*accumulate((chunk.oldest for chunk in reversed(self.chunks)), min)][::-1]

    def bytes_of(self, first: int, last: int) -> tuple[int, int]:
        """Return the offsets of the first byte of a chunk, and of the byte after another chunk."""
        end = self.chunks[last + 1].offset if last + 1 < len(self.chunks) else self.end
        return self.chunks[first].offset, end

    def without_tables(self) -> SegmentIndex:
        """Return the index without the tables, which take most of its memory."""
        return replace(self, ids=HashTable(), keys=KeyTable())


NO_LEASE: Mapping[str, None] = dict.fromkeys(("heartbeat_at", "claim_timeout", "claimed_at", "holder"))
"""The fields of an entry that belong to a lease, as they are without one."""

SINGLE = ("keep_result", "concurrency_key", "fair_key", "expires_at", "unique_for", "group", "progress")
"""Fields of a job that is never leased: it must be claimed, which ends its progress, expire or end by itself."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on rows of a segment. It is small and can be pickled; its jobs are read with `read_lease`.

    Attributes:
        id: name of the entry in the manifest.
        entry: that entry, at the time of the claim.
        payload_object: None, so that a list may have jobs and leases: payloads of a lease are loaded with its jobs.
    """

    payload_object: ClassVar[None] = None

    id: str
    entry: Segment = field(repr=False)

    @property
    def segment(self) -> str:
        """Name of the segment."""
        return object_of(self.id)

    @property
    def rows(self) -> int:
        """Number of jobs."""
        return self.entry.left

    @property
    def entrypoint(self) -> str:
        """Entrypoint of the jobs."""
        return self.entry.entrypoint

    @property
    def attempt(self) -> int:
        """Number of leases of these jobs, this one included: the fencing token of the lease."""
        return self.entry.claims

    @property
    def claim(self) -> Claim:
        """The claim, for heartbeats."""
        return Claim(self.id, self.entry.claims)

    @property
    def claim_timeout(self) -> float:
        """Seconds without a heartbeat after which the claim is stale."""
        return self.entry.claim_timeout or 0.0

    @property
    def claimed_at(self) -> datetime:
        """Time of the claim."""
        assert self.entry.claimed_at is not None
        return self.entry.claimed_at


@dataclass(frozen=True, slots=True)
class JobFailure:
    """The failure of one job of a lease.

    Attributes:
        error: an exception or a text to keep with the job.
        delay: time before which the job is not claimed again.
        dead: True if the job must not be tried again.
        charge: True if the attempt counts as a failure; if not, the job is given back unharmed.
        traceback: frames of the error's traceback: see `Job.traceback`.
    """

    error: BaseException | str | None = None
    delay: Duration | None = None
    dead: bool = False
    charge: bool = True
    traceback: str | None = None
