"""The bytes of a segment: its rows, one job a line, and its index, which is the last line.

    {"id":"<job id>","entrypoint":"mail","payload":"…","status":"queued","sequence":17,"created_at":"…"}
    {"id":"<job id>","entrypoint":"mail","payload":"…","status":"queued","sequence":18,"created_at":"…"}
    {"rows":2,"chunks":[[0,2774312119,[0,17,1767225601.0],1767225601.0,[0,17]]],"end":812,"ids":"…","keys":"",…}

A row is the encoded record of its job. The manifest has the offset of the index, its checksum and
all other facts about the segment.
"""

from __future__ import annotations

import zlib
from binascii import a2b_base64
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from jqueue.core.blob.lines import encode_record, is_sound
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.job import JobRecord, JobStatus, objects_of
from jqueue.domain.segments import (
    CHUNK_ROWS,
    Chunk,
    HashTable,
    RowKey,
    Segment,
    SegmentIndex,
    Span,
    joined,
    packed,
    single_rows,
    sorting,
)
from jqueue.domain.slices import JOBS_PER_SLICE, Slices

CHANGED = "rows of it were changed or cut off: the checksum does not match"

CHUNKS_PER_SLICE = 8
"""Number of chunks that are encoded in one slice."""

_encode_rows: Callable[[Sequence[JobRecord]], bytes] = msgspec.json.Encoder().encode_lines
_decode_rows: Callable[[bytes], list[JobRecord]] = msgspec.json.Decoder(JobRecord).decode_lines
_encode_index = msgspec.json.Encoder(enc_hook=lambda table: table.data).encode
_decode_index = msgspec.json.Decoder(SegmentIndex, dec_hook=lambda _, text: HashTable(a2b_base64(text))).decode
_KNOWN = frozenset(JobRecord.__struct_encode_fields__)


class EncodedSegment(NamedTuple):
    """A segment before it is stored."""

    content: bytes
    entry: Segment
    table: SegmentIndex
    order: Sequence[int]
    """For each row, the place of its job among those that were given."""


def since_of(job: JobRecord) -> float:
    """Return the time from which a job waits, in seconds since 1970."""
    return (job.run_at or job.created_at).timestamp()


def key_of(job: JobRecord) -> RowKey:
    """Return the place of a job among those of its entrypoint."""
    return RowKey(job.priority, job.sequence, since_of(job))


def encoding_segment(
    jobs: list[JobRecord], *, scheduled: bool, own_ids: bool = False, chunk_rows: int = CHUNK_ROWS
) -> Slices[EncodedSegment]:
    """Encode queued jobs of one entrypoint as a segment, in slices.

    Args:
        jobs: the jobs, in any order. The list is emptied meanwhile, so that they need no memory beside their lines.
        scheduled: True to sort them by `run_at`.
        own_ids: True if jqueue made all ids.
        chunk_rows: number of rows in each chunk but the last.
    """
    order = yield from _ordering(jobs, scheduled=scheduled)
    rows, number = [jobs[place] for place in reversed(order)], len(jobs)
    jobs.clear()
    entrypoint = rows[0].entrypoint
    parts, chunks, offset = list[bytes](), list[Chunk](), 0
    ids, keys, objects, single = list[int](), list[int](), list[str](), list[Span]()
    spare, sequences, attempts = list[int](), list[int](), 0
    for first in range(0, number, chunk_rows):
        some = rows[: -chunk_rows - 1 : -1]
        del rows[-chunk_rows:]
        has_unknown = any(job.extra is not None for job in some)
        text = b"".join([encode_record(job) + b"\n" for job in some]) if has_unknown else _encode_rows(some)
        oldest = min([job.run_at or job.created_at for job in some]).timestamp()
        key = key_of(some[0])
        best = min([(job.priority, job.sequence) for job in some]) if scheduled else key[:2]
        ids += packed([job.id for job in some], range(first, first + len(some)))
        if keyed := [(job.unique_key, row) for row, job in enumerate(some, first) if job.unique_key is not None]:
            keys += packed(*zip(*keyed, strict=True))
        named = [job for job in some if job.payload_object is not None or job.result_object is not None]
        objects += [each.suffix for job in named for each in objects_of(job)]
        single += single_rows(some, first)
        spare += [max(0, job.max_attempts - job.failures) for job in some if job.max_attempts is not None]
        sequences += [job.sequence for job in some]
        attempts = max(attempts, *[job.attempt for job in some])
        chunks.append(Chunk(offset, zlib.crc32(text), key, oldest, best))
        parts.append(text)
        offset += len(text)
        if len(chunks) % CHUNKS_PER_SLICE == 0:
            yield
    of_ids = yield from HashTable.making(ids)
    of_keys = yield from HashTable.making(keys)
    index = SegmentIndex(number, tuple(chunks), offset, of_ids, of_keys, tuple(objects), tuple(joined(single)))
    end = _encode_index(index) + b"\n"
    entry = Segment(
        entrypoint=entrypoint,
        rows=number,
        bytes=offset + len(end),
        index=offset,
        crc=zlib.crc32(end),
        head=chunks[0].first,
        chunk_rows=chunk_rows,
        least=min(sequences),
        largest=max(sequences),
        scheduled=scheduled,
        oldest=index.oldest[0],
        attempts=attempts,
        spare=min(spare, default=None),
        keys=len(keys),
        objects=len(objects),
        own_ids=own_ids,
    )
    return EncodedSegment(b"".join([*parts, end]), entry, index, order)


def _ordering(jobs: Sequence[JobRecord], *, scheduled: bool) -> Slices[Sequence[int]]:
    """Return the places of jobs in the order in which they are served, in slices."""
    keys: list[tuple[float, ...]] = []
    for first in range(0, len(jobs), JOBS_PER_SLICE):
        if first:
            yield
        some = jobs[first : first + JOBS_PER_SLICE]
        if scheduled:
            keys += [(since_of(job), job.priority, job.sequence) for job in some]
        else:
            keys += [(job.priority, job.sequence) for job in some]
    places = list(range(len(jobs)))
    yield from sorting(places, keys.__getitem__)
    return places


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
        and len(index.ids.rows) == len(index.ids.hashes) == segment.rows
        and len(index.keys.rows) == len(index.keys.hashes)
        and all(max(table.rows, default=0) < segment.rows for table in (index.ids, index.keys))
        and all(0 <= first < last <= segment.rows for first, last in index.single)
    )


def decode_chunk(
    data: bytes, number: int, segment: Segment, index: SegmentIndex, prefix: str = ""
) -> list[tuple[int, JobRecord]]:
    """Decode one chunk: return the number and the job of each row.

    Args:
        data: the bytes of the chunk.
        number: the number of the chunk.
        segment: the entry in the manifest.
        index: the segment's index.
        prefix: beginning of the wanted ids. A chunk without such an id is not decoded.

    Raises:
        InvalidBlobError: it is damaged.
    """
    if zlib.crc32(data) != index.chunks[number].crc:
        raise InvalidBlobError(CHANGED)
    try:
        if prefix and b'{"id":%b' % msgspec.json.encode(prefix)[:-1] not in data:
            return []
    except UnicodeEncodeError:  # no id begins with a lone surrogate
        return []
    try:
        jobs = _decode_rows(data)
        if _encode_rows(jobs) != data:  # another version wrote it, with fields that this one does not know
            jobs = [_with_unknown(job, line) for job, line in zip(jobs, data.splitlines(), strict=True)]
    except ValueError as error:
        raise InvalidBlobError(f"rows of chunk {number} cannot be read as jobs: {error}") from None
    first = number * segment.chunk_rows
    for row, job in enumerate(jobs, first):
        if job.status is not JobStatus.QUEUED or not is_sound(job):
            raise InvalidBlobError(f"row {row} of it is not a queued job")
    if segment.offset or segment.floor:
        jobs = [_as_named(job, segment) for job in jobs]
    return list(enumerate(jobs, first))


def _with_unknown(job: JobRecord, line: bytes) -> JobRecord:
    fields: dict[str, Any] = msgspec.json.decode(line)
    return job.evolve(extra={name: value for name, value in fields.items() if name not in _KNOWN} or None)


def _as_named(job: JobRecord, segment: Segment) -> JobRecord:
    """Return the job of a line with what the manifest adds to all jobs of the segment."""
    return job.evolve(
        sequence=job.sequence + segment.offset,
        attempt=job.attempt + segment.floor,
        attempts_before=job.attempts_before + segment.floor,
    )


SAME_TIME = 0.001
"""Seconds by which two times of one row may differ: a line has its times as text."""


class SegmentCheck:
    """Checks a whole segment against its index and its entry in the manifest, chunk by chunk.

    Args:
        segment: its entry in the manifest.
        index: its index, whose checksum was right.
    """

    def __init__(self, segment: Segment, index: SegmentIndex) -> None:
        self._segment = segment
        self._index = index
        self._before: RowKey | None = None

    def chunk(self, number: int, data: bytes) -> str:
        """Check a chunk. Return a fact about a row that contradicts the index or the manifest; nothing if none does.

        Args:
            number: its number. Chunks come in order.
            data: its bytes.

        Raises:
            InvalidBlobError: its rows cannot be read.
        """
        size, rows = self._segment.chunk_rows, self._segment.rows
        first, last = number * size, min((number + 1) * size, rows)
        found = decode_chunk(data, number, self._segment, self._index)
        if len(found) != last - first:
            return f"chunk {number} has {len(found)} rows, and not {last - first}"
        keys = [key_of(job) for _, job in found]
        wrong = "" if self._begins_like(number, keys[0]) else "its first row is not the one that the index names"
        for (row, job), key in zip(found, keys, strict=True):
            wrong = wrong or self._fault_of(row, job, key)
            self._before = key
        return wrong and f"chunk {number}: {wrong}"

    def _begins_like(self, number: int, key: RowKey) -> bool:
        first = self._index.chunks[number].first.moved(self._segment.offset)
        return key[:2] == first[:2] and abs(key.since - first.since) <= SAME_TIME

    def _fault_of(self, row: int, job: JobRecord, key: RowKey) -> str:
        segment, unique = self._segment, job.unique_key
        if job.entrypoint != segment.entrypoint:
            return f"row {row} has another entrypoint than the manifest"
        if self._before is not None and _comes_before(key, self._before, segment):
            return f"row {row} belongs before the row above it"
        if row not in self._index.ids.find(job.id):
            return f"the id of row {row} is not in the index"
        if unique is not None and row not in self._index.keys.find(unique):
            return f"the unique key of row {row} is not in the index"
        if key.sequence < segment.least:
            return f"row {row} has a smaller sequence number than the manifest says"
        return ""


def _comes_before(key: RowKey, other: RowKey, segment: Segment) -> bool:
    """Return True if a row must be served before another one. Times that hardly differ do not decide."""
    return key.since < other.since - SAME_TIME if segment.scheduled else key[:2] < other[:2]
