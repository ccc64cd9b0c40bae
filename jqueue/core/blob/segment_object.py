"""The bytes of a segment: its rows, one job a line, and its index, which is the last line.

    {"id":"<job id>","entrypoint":"mail","payload":"…","status":"queued","sequence":17,"created_at":"…"}
    {"id":"<job id>","entrypoint":"mail","payload":"…","status":"queued","sequence":18,"created_at":"…"}
    {"rows":2,"chunks":[[0,2774312119,[0,17,1767225601.0],1767225601.0,[0,17]]],"end":812,"ids":"…","keys":"",…}

A row is the encoded record of its job. The manifest has the offset of the index, its checksum and
all other facts about the segment.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from binascii import a2b_base64
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import force_setattr

from jqueue.core.blob.lines import encode_json, encode_record, is_sound
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.groups import GROUPS
from jqueue.domain.job import ENCODINGS, OBJECTS, JobRecord, JobStatus, objects_of
from jqueue.domain.limits import hold_bytes
from jqueue.domain.rules import LIMITS
from jqueue.domain.segments import (
    CHUNK_ROWS,
    SINGLE,
    Chunk,
    HashTable,
    KeyTable,
    RowKey,
    Segment,
    SegmentIndex,
    bulk_ids,
    hashes_of,
    joined,
    sorting,
)
from jqueue.domain.slices import JOBS_PER_SLICE, Slices

CHANGED = "rows of it were changed or cut off: the checksum does not match"

CHUNKS_PER_SLICE = 8
"""Number of chunks that are encoded in one slice."""

_encode_rows: Callable[[Sequence[JobRecord]], bytes] = msgspec.json.Encoder().encode_lines
_decode_rows: Callable[[bytes], list[JobRecord]] = msgspec.json.Decoder(JobRecord).decode_lines
_encode_index = msgspec.json.Encoder(enc_hook=lambda table: table.data).encode
_decode_index = msgspec.json.Decoder(SegmentIndex, dec_hook=lambda kind, text: kind(a2b_base64(text))).decode
_RARE = (*SINGLE, "payload_object", "result_object", "extra", "steps")
_rare, _NOTHING = attrgetter(*_RARE), (*[None] * (len(_RARE) - 1), ())
_KNOWN = frozenset(JobRecord.__struct_encode_fields__)


class EncodedSegment(NamedTuple):
    """A segment before it is stored."""

    content: bytes
    entry: Segment
    table: SegmentIndex
    order: Sequence[int]
    """The index of the job of each row, counted in the order in which the jobs were added."""


def since_of(job: JobRecord) -> float:
    """Return the time from which a job waits, in seconds since 1970."""
    return (job.run_at or job.created_at).timestamp()


def key_of(job: JobRecord) -> RowKey:
    """Return the place of a job among those of its entrypoint."""
    return RowKey(job.priority, job.sequence, since_of(job))


class SegmentBuilder:
    """Collects queued jobs of one entrypoint for a segment: it keeps their lines, and not their records.

    Attributes:
        bytes: number of bytes of the lines.
        features: critical features that the jobs need.
    """

    def __init__(self) -> None:
        self.bytes: int = 0
        self.features: set[str] = set()
        self._lines: list[bytes] = []  # this and the next four have an item for each job, in the order of `add`
        self._sequences, self._priorities = array("q"), array("q")
        self._since = array("d")
        self._ids = array("Q")
        self._keys, self._keyed = list[int](), array("I")  # the place of each job with a unique key is in the second
        self._single: list[int] = []
        self._holds = 0
        self._objects: list[tuple[int, str]] = []
        self._entrypoint, self._attempts = "", 0
        self._group: str | None = None
        self._spare: list[int] = []

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, jobs: Sequence[JobRecord]) -> None:
        """Encode more jobs. Some hundred at once stay in the processor's cache meanwhile."""
        if any(job.encoding is not None for job in jobs):
            self.features.add(ENCODINGS)
        first, self._entrypoint, self._group = len(self._lines), jobs[0].entrypoint, jobs[0].group
        facts = list(map(_rare, jobs))
        rare = [] if facts.count(_NOTHING) == len(jobs) else jobs
        if any(job.extra is not None for job in rare):
            lines = [encode_record(job) + b"\n" for job in jobs]
        else:
            lines = _encode_rows(jobs).splitlines(keepends=True)
        self._lines += lines
        self.bytes += sum(map(len, lines))
        self._sequences.extend([job.sequence for job in jobs])
        self._priorities.extend([job.priority for job in jobs])
        moments = [job.run_at or job.created_at for job in jobs]
        alike = moments.count(moments[0]) == len(moments)
        self._since.extend([moments[0].timestamp()] * len(jobs) if alike else map(datetime.timestamp, moments))
        self._ids.frombytes(hashes_of([job.id.encode() for job in jobs]))
        keyed = [place for place, job in enumerate(jobs, first) if job.unique_key is not None]
        self._keyed.extend(keyed)
        self._keys += [KeyTable.hash_of(job.unique_key) for job in jobs if job.unique_key is not None]
        self._attempts = max(self._attempts, *[job.attempt for job in jobs])
        if spare := [job.max_attempts - job.failures for job in jobs if job.max_attempts is not None]:
            self._spare = [max(0, min([*spare, *self._spare]))]
        for place, job, fact in zip(range(first, len(self._lines)), rare, facts, strict=False):
            if any(option is not None for option in fact[: len(SINGLE)]):
                self._single.append(place)
                self._holds += hold_bytes(job)
            self._objects += [(place, each.suffix) for each in objects_of(job)]
            if job.payload_object is not None:
                self.features.add(OBJECTS)
            if job.concurrency_key is not None:
                self.features.add(LIMITS)
            if job.group is not None:
                self.features.add(GROUPS)

    def jobs(self) -> list[JobRecord]:
        """Return the jobs, in the order in which they were added."""
        return _decode_rows(b"".join(self._lines))

    def encoding(
        self, *, scheduled: bool, own_ids: bool = False, chunk_rows: int = CHUNK_ROWS
    ) -> Slices[EncodedSegment]:
        """Return the segment, in slices, and forget the lines.

        Args:
            scheduled: True to sort the jobs by `run_at`.
            own_ids: True if jqueue made all ids.
            chunk_rows: number of rows in each chunk but the last.
        """
        number = len(self._lines)
        order = list(range(number))
        keys: list[array[int] | array[float]] = [self._sequences, self._priorities]
        for key in [*keys, self._since] if scheduled else keys:
            if min(key) < max(key):
                yield from sorting(order, key.__getitem__)  # it is stable: the last key decides first
        row_of = array("I", bytes(4 * number))
        for row, place in enumerate(order):
            row_of[place] = row
        parts, chunks, offset = list[bytes](), list[Chunk](), 0
        for first in range(0, number, chunk_rows):
            places = order[first : first + chunk_rows]
            text = b"".join(map(self._lines.__getitem__, places))
            ranks = [
                (self._priorities[place], self._sequences[place]) for place in (places if scheduled else places[:1])
            ]
            head, oldest = RowKey(*ranks[0], self._since[places[0]]), min(map(self._since.__getitem__, places))
            chunks.append(Chunk(offset, zlib.crc32(text), head, oldest, min(ranks)))
            parts.append(text)
            offset += len(text)
            if len(chunks) % CHUNKS_PER_SLICE == 0:
                yield
        self._lines.clear()
        if sys.byteorder == "little":
            self._ids.byteswap()
        of_ids = yield from HashTable.making(self._ids, row_of)
        of_keys = yield from KeyTable.making(self._keys, array("I", map(row_of.__getitem__, self._keyed)))
        objects = tuple(suffix for _, suffix in sorted(self._objects, key=lambda pair: row_of[pair[0]]))
        single = tuple(joined((row_of[place], row_of[place] + 1) for place in self._single))
        index = SegmentIndex(number, tuple(chunks), offset, of_ids, of_keys, objects, single)
        return sealed(
            parts,
            index,
            order,
            entrypoint=self._entrypoint,
            chunk_rows=chunk_rows,
            least=min(self._sequences),
            largest=max(self._sequences),
            scheduled=scheduled,
            attempts=self._attempts,
            spare=min(self._spare, default=None),
            holds=self._holds,
            own_ids=own_ids,
            group=self._group,
        )


def sealed(
    parts: Sequence[bytes | memoryview], index: SegmentIndex, order: Sequence[int] = (), **facts: Any
) -> EncodedSegment:
    """Return the segment of some rows.

    Args:
        parts: the bytes of the rows.
        index: their index.
        order: see `EncodedSegment`.
        facts: the fields of the manifest's entry that do not follow from the index.
    """
    end = _encode_index(index) + b"\n"
    entry = Segment(
        rows=index.rows,
        bytes=index.end + len(end),
        index=index.end,
        crc=zlib.crc32(end),
        head=index.chunks[0].first,
        oldest=index.oldest[0],
        keys=len(index.keys.rows),
        objects=len(index.objects),
        **facts,
    )
    return EncodedSegment(b"".join([*parts, end]), entry, index, order)


def encoding_segment(
    jobs: list[JobRecord], *, scheduled: bool, own_ids: bool = False, chunk_rows: int = CHUNK_ROWS
) -> Slices[EncodedSegment]:
    """Encode queued jobs of one entrypoint, in any order, as a segment, in slices. The list is emptied meanwhile.

    Args:
        jobs: the jobs.
        scheduled: True to sort them by `run_at`.
        own_ids: True if jqueue made all ids.
        chunk_rows: number of rows in each chunk but the last.
    """
    builder = SegmentBuilder()
    jobs.reverse()
    while jobs:
        builder.add(jobs[: -JOBS_PER_SLICE - 1 : -1])
        del jobs[-JOBS_PER_SLICE:]
        if jobs:
            yield
    return (yield from builder.encoding(scheduled=scheduled, own_ids=own_ids, chunk_rows=chunk_rows))


def decode_index(data: bytes, segment: Segment) -> SegmentIndex:
    """Decode the index of a segment.

    Args:
        data: the bytes of the object from its index on.
        segment: its entry in the manifest.

    Raises:
        InvalidBlobError: it is damaged.
    """
    if zlib.crc32(data) != segment.crc:
        raise InvalidBlobError("its index was changed or cut off: the checksum does not match")
    try:
        index = _decode_index(data)
    except (msgspec.MsgspecError, ValueError):  # not UTF-8
        raise InvalidBlobError("its index cannot be read") from None
    index.common = index.common.copy()  # it would keep all bytes of the index
    if index.rows != segment.rows or len(index.chunks) != segment.chunks:
        raise InvalidBlobError("its index has another number of rows than the manifest")
    if not _is_sound(index, segment):
        raise InvalidBlobError("its index has places that are not in it")
    return index


def _is_sound(index: SegmentIndex, segment: Segment) -> bool:
    """Return True if chunks follow each other up to the index, and all rows that it names are there."""
    offsets = [*(chunk.offset for chunk in index.chunks), index.end]
    return (
        offsets[0] == 0
        and all(start < stop for start, stop in pairwise(offsets))
        and index.end == segment.index
        and len(index.ids.rows) == len(index.ids.hashes) == (segment.rows if index.id_rest is None else 0)
        and len(index.keys.rows) == len(index.keys.hashes)
        and all(max(table.rows, default=0) < segment.rows for table in (index.ids, index.keys))
        and all(0 <= first < last <= segment.rows for first, last in index.single)
    )


def check_chunk(data: bytes, chunk: Chunk) -> bytes:
    """Return the bytes of a chunk, as they match its entry in the index.

    Raises:
        InvalidBlobError: they do not.
    """
    if zlib.crc32(data) != chunk.crc:
        raise InvalidBlobError(CHANGED)
    return data


_NOT_CHECKED = frozenset({"payload", "priority", "headers", "unique_key", "max_attempts"})
"""Fields that `is_sound` does not look at. If lines have no others, the first row stands for all."""


def decode_chunk(data: bytes, number: int, segment: Segment, index: SegmentIndex, prefix: str = "") -> list[JobRecord]:
    """Decode one chunk: return the job of each row, with what the manifest adds to all jobs of the segment.

    Args:
        data: the bytes of the chunk.
        number: the number of the chunk.
        segment: the entry in the manifest.
        index: the segment's index.
        prefix: beginning of the wanted ids. A chunk without such an id is not decoded.

    Raises:
        InvalidBlobError: it is damaged.
    """
    check_chunk(data, index.chunks[number])
    first, rest = number * segment.chunk_rows, index.id_rest
    last = min(first + segment.chunk_rows, segment.rows)
    ids = [] if rest is None else bulk_ids(first + 1, last + 1, rest)
    try:
        if prefix and not (
            any(each.startswith(prefix) for each in ids) if ids else b'{"id":%b' % encode_json(prefix)[:-1] in data
        ):
            return []
    except UnicodeEncodeError:  # no id begins with a lone surrogate
        return []
    try:
        jobs = _decode_rows(index.whole(data))
        is_known = _KNOWN.issuperset(index.fields) if index.fields else _encode_rows(jobs) == data
        if not is_known:  # another version wrote it, with fields that this one does not know
            lines = index.whole(data).splitlines()
            jobs = [_with_unknown(job, line) for job, line in zip(jobs, lines, strict=True)]
    except ValueError as error:
        raise InvalidBlobError(f"rows of chunk {number} cannot be read as jobs: {error}") from None
    offset, floor, numbers = segment.offset, segment.floor, index.sequences(first, last)
    for job, job_id in zip(jobs, ids, strict=False):  # nothing else has them: a copy takes ten times as long
        force_setattr(job, "id", job_id)
    for job, sequence in zip(jobs, numbers, strict=False):
        force_setattr(job, "sequence", sequence + offset)
    are_alike = bool(ids and index.fields) and _NOT_CHECKED.issuperset(index.fields)
    for row, job in enumerate(jobs, first):
        if job.status is not JobStatus.QUEUED or not ((are_alike and row > first) or is_sound(job)):
            raise InvalidBlobError(f"row {row} of it is not a queued job")
    for job in jobs if floor or (offset and not numbers) else ():
        if not numbers:
            force_setattr(job, "sequence", job.sequence + offset)
        if floor:
            force_setattr(job, "attempt", job.attempt + floor)
            force_setattr(job, "attempts_before", job.attempts_before + floor)
    return jobs


def _with_unknown(job: JobRecord, line: bytes) -> JobRecord:
    fields: dict[str, Any] = msgspec.json.decode(line)
    return job.evolve(extra={name: value for name, value in fields.items() if name not in _KNOWN} or None)
