"""The bytes of a segment: a first line, its rows, one job a line, and its index.

    {"segment": 1, "queue": "…", "entrypoint": "mail"}
    "<job id><1><payload><2>17<3>
    "<job id><1><payload><2>18<3>
    {"rows": 2, "chunks": [[51, 2774312119, 0, 17, 1767225601.0, 1767225601.0]], "end": 812, "keys": 0, …}
    <tables of hashes, binary>

A row is the line of its job in the blob, with one byte for each text that most rows share. The index has these texts:
here, `<1>` stands for `": {"entrypoint": "mail", "payload": "`. With them, a row would be twice as long.

The index begins at the offset that the manifest has, and so do its checksum and all other facts about the segment. The
tables are little-endian: the hashes of all ids (8 bytes each, in order), the row of each (4 bytes), and the same for
unique keys. `own_ids` of the manifest decides which hashes of ids they are: see `id_hash`.
"""

from __future__ import annotations

import re
import sys
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from operator import index as index_of
from typing import Any, NamedTuple

from pydantic_core import from_json

from jqueue.core.blob.lines import dump_ascii, read_line
from jqueue.core.blob.segment_columns import SegmentColumns
from jqueue.core.blob.shared_texts import shortened, texts_of
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.header import SetAside
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.segment_index import MARKS, Chunk, HashTable, SegmentIndex, is_shared_text
from jqueue.domain.segments import CHUNK_ROWS, RowKey, Segment, Span, joined
from jqueue.domain.slices import Slices

FORMAT = 1

CHANGED = "rows of it were changed or cut off: the checksum does not match"

_ID = re.compile(rb'^("(?:[^"\\]|\\.)*"):', re.MULTILINE)
"""The id at the beginning of a line, in its quotes."""

CHUNKS_PER_SLICE = 16
"""Number of chunks that are joined in one slice."""

HASHES_PER_SLICE = 4096
"""Number of hashes that are sorted into parts in one slice."""

PARTS_BITS = 5
"""Number of first bits of a hash that decide its part."""


class EncodedSegment(NamedTuple):
    """A segment before it is stored."""

    content: bytes | memoryview
    entry: Segment
    table: SegmentIndex
    ids_as_own: HashTable | None = None
    """The ids with the hashes of segments with `own_ids`, to look for them there, if callers have chosen all ids."""


def encoding_columns(
    columns: SegmentColumns,
    queue: str,
    entrypoint: str,
    *,
    scheduled: bool,
    chunk_rows: int = CHUNK_ROWS,
) -> Slices[EncodedSegment]:
    """Encode jobs as a segment, in slices.

    Args:
        columns: the rows, in any order. They are sorted, and their lines are taken away.
        queue: id of the queue.
        entrypoint: that of all jobs.
        scheduled: True to sort them by `run_at`.
        chunk_rows: number of rows in each chunk but the last.
    """
    yield from columns.sorting(scheduled=scheduled)
    lines, columns.lines = columns.lines, []
    rows, texts = len(lines), columns.texts or texts_of(lines[0], lines[-1])
    head = first_line(queue, entrypoint)
    parts, chunks, best, offset = [head], [], [], len(head)
    for first in range(0, rows, chunk_rows):
        last = min(first + chunk_rows, rows)
        text = b"\n".join(lines[first:last]) + b"\n"
        if not columns.are_short:
            text = shortened(text, texts)
        chunks.append(Chunk(offset, zlib.crc32(text), columns.key(first), columns.oldest(first, last)))
        if scheduled:
            best.append(columns.best(first, last))
        parts.append(text)
        offset += len(text)
        if len(chunks) % CHUNKS_PER_SLICE == 0:
            yield
    lines.clear()
    ids = yield from _table(zip(columns.ids, range(rows), strict=True), own=columns.own_ids)
    as_own = None
    if columns.ids_as_own == columns.ids:  # no id is a UUID
        as_own = HashTable(ids.hashes, ids.rows, own=True)
    elif columns.ids_as_own:
        as_own = yield from _table(zip(columns.ids_as_own, range(rows), strict=True), own=True)
    keys = yield from _table(columns.keys)
    encoded = finished_segment(
        lambda text: b"".join((*parts, text)),
        chunks,
        offset,
        ids,
        keys,
        entrypoint=entrypoint,
        rows=rows,
        chunk_rows=chunk_rows,
        least=min(columns.sequences),
        largest=max(columns.sequences),
        scheduled=scheduled,
        attempts=columns.attempts,
        spare=columns.spare,
        objects=[suffix for _, suffix in columns.objects],
        single=joined((row, row + 1) for row in columns.single),
        texts=texts,
        best=best,
    )
    return encoded._replace(ids_as_own=as_own)


def first_line(queue: str, entrypoint: str) -> bytes:
    """Return the first line of a segment."""
    return dump_ascii({"segment": FORMAT, "queue": queue, "entrypoint": entrypoint}).encode() + b"\n"


def finished_segment(
    ended_by: Callable[[bytes], bytes | memoryview],
    chunks: Sequence[Chunk],
    end: int,
    ids: HashTable,
    keys: HashTable,
    *,
    entrypoint: str,
    rows: int,
    chunk_rows: int,
    least: int,
    largest: int,
    scheduled: bool = False,
    attempts: int = 0,
    spare: int | None = None,
    objects: Sequence[str] = (),
    single: Sequence[Span] = (),
    texts: Sequence[bytes] = (),
    best: Sequence[tuple[int, int]] = (),
) -> EncodedSegment:
    """Return a segment whose rows are encoded.

    Args:
        ended_by: returns its first line and its rows with the index behind them.
        chunks: the entries of its chunks in the index.
        end: number of bytes before the index.
        ids: the table of job ids. It tells if the segment has `own_ids`.
        keys: the table of unique keys.
        entrypoint: as in `Segment`, like all of these.
        rows: number of rows.
        chunk_rows: number of rows in each chunk but the last.
        least: smallest sequence number.
        largest: largest sequence number.
        scheduled: True if the rows are sorted by `run_at`.
        attempts: largest `attempt`.
        spare: smallest number of failures after which a job is dead.
        objects: suffixes of the objects that the rows name.
        single: rows that are never a part of a range.
        texts: the texts that bytes of the rows stand for.
        best: the places of scheduled rows that come first in each chunk.
    """
    index = SegmentIndex(chunks, end, ids, keys, objects, single, texts, best)
    text = _encode_index(index, rows)
    segment = Segment(
        entrypoint=entrypoint,
        rows=rows,
        bytes=end + len(text),
        index=end,
        crc=zlib.crc32(text),
        head=chunks[0].first,
        chunk_rows=chunk_rows,
        least=least,
        largest=largest,
        scheduled=scheduled,
        oldest=index.oldest[0],
        attempts=attempts,
        spare=spare,
        keys=len(keys.rows),
        objects=len(index.objects),
        own_ids=ids.own,
    )
    return EncodedSegment(ended_by(text), segment, index)


def _table(hashes: Iterable[tuple[int, int]], *, own: bool = False) -> Slices[HashTable]:
    """Return the table of some hashes with their rows: sorted in parts, as sorting them all at once takes long."""
    parts: list[list[int]] = [[] for _ in range(1 << PARTS_BITS)]
    for number, (hashed, row) in enumerate(hashes, 1):
        parts[hashed >> (64 - PARTS_BITS)].append(hashed << 32 | row)  # pairs would keep the garbage collector busy
        if number % HASHES_PER_SLICE == 0:
            yield
    found = HashTable(array("Q"), array("I"), own=own)
    sorted_in_slice = 0
    for part in parts:
        part.sort()
        found.hashes.extend([pair >> 32 for pair in part])
        found.rows.extend([pair & 0xFFFF_FFFF for pair in part])
        sorted_in_slice += len(part)
        if sorted_in_slice >= HASHES_PER_SLICE:
            sorted_in_slice = 0
            yield
    return found


def _encode_index(index: SegmentIndex, rows: int) -> bytes:
    said = {
        "rows": rows,
        "chunks": [[chunk.offset, chunk.crc, *chunk.first, chunk.oldest] for chunk in index.chunks],
        "end": index.end,
        "keys": len(index.keys.rows),
        "objects": index.objects,
        "single": index.single,
        "texts": [text.decode() for text in index.texts],
    }
    if index.best:
        said["best"] = index.best
    tables = (index.ids.hashes, index.ids.rows, index.keys.hashes, index.keys.rows)
    return dump_ascii(said).encode() + b"\n" + b"".join(map(_little_endian, tables))


def _little_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def decode_index(data: bytes, segment: Segment, *, tables: bool = True) -> SegmentIndex:
    """Decode the index of a segment.

    Args:
        data: the bytes of the object from its index on.
        segment: its entry in the manifest.
        tables: False to leave out the tables of ids and of keys, which take most of the time.

    Raises:
        InvalidBlobError: it is damaged.
    """
    if zlib.crc32(data) != segment.crc:
        raise InvalidBlobError("its index was changed or cut off: the checksum does not match")
    head, _, rest = data.partition(b"\n")
    try:
        said = from_json(head)
        rows, keys = said["rows"], said["keys"]
        chunks = [Chunk(offset, crc, RowKey(*first), oldest) for offset, crc, *first, oldest in said["chunks"]]
        sizes = (rows, rows, keys, keys) if tables else (0, 0, 0, 0)
        numbers = _arrays(rest, zip("QIQI", sizes, strict=True))
        ids = HashTable(numbers[0], numbers[1], own=segment.own_ids)
        keys_of = HashTable(numbers[2], numbers[3])
        single = [(first, last) for first, last in said["single"]]
        texts = _texts_in(said)
        best = [(priority, sequence) for priority, sequence in said.get("best", ())]
        found = SegmentIndex(chunks, said["end"], ids, keys_of, said["objects"], single, texts, best)
        sound = bool(chunks) and _is_sound(found, segment)
    except (ValueError, TypeError, LookupError, OverflowError):
        raise InvalidBlobError("its index cannot be read") from None
    if rows != segment.rows or len(chunks) != segment.chunks:
        raise InvalidBlobError("its index has another number of rows than the manifest")
    if not sound:
        raise InvalidBlobError("its index has places that are not in it")
    return found


def _texts_in(said: Mapping[str, Any]) -> list[bytes]:
    """Return the texts that an index line has for the marks in rows.

    Raises:
        ValueError: they are no such texts.
    """
    texts = said.get("texts", [])
    if isinstance(texts, list) and len(texts) <= len(MARKS) and all(isinstance(text, str) for text in texts):
        encoded = [text.encode() for text in texts]
        if all(map(is_shared_text, encoded)):
            return encoded
    raise ValueError("texts")


def _is_sound(index: SegmentIndex, segment: Segment) -> bool:
    """Return True if chunks follow each other up to the index, and all rows that it names are there.

    Raises:
        TypeError: it has something else than numbers.
        OverflowError: a number is too large.
    """
    offsets = [*(chunk.offset for chunk in index.chunks), index.end]
    tables = (index.ids.rows, index.keys.rows)
    return (
        offsets[0] > 0
        and all(start < stop for start, stop in pairwise(offsets))
        and index.end == segment.index
        and all(isfinite(number) for chunk in index.chunks for number in (*chunk.first, chunk.oldest))
        and len(index.best) in (0, len(index.chunks))
        and all(index_of(number) == number for place in index.best for number in place)
        and all(max(rows, default=0) < segment.rows for rows in tables)
        and all(0 <= first < last <= segment.rows for first, last in index.single)
        and all(index_of(number) >= 0 for number in (*offsets, *(row for span in index.single for row in span)))
        and all(isinstance(suffix, str) for suffix in index.objects)
    )


def _arrays(data: bytes, sizes: Iterable[tuple[str, int]]) -> list[array[int]]:
    found, place = [], 0
    for kind, number in sizes:
        numbers = array(kind)
        end = place + number * numbers.itemsize
        numbers.frombytes(data[place:end])
        if len(numbers) != number:
            raise ValueError("cut off")
        if sys.byteorder == "big":
            numbers.byteswap()
        found.append(numbers)
        place = end
    return found


def decode_chunk(
    data: bytes,
    number: int,
    segment: Segment,
    index: SegmentIndex,
    prefix: str = "",
    only: Collection[int] = (),
) -> list[tuple[int, JobRecord]]:
    """Decode one chunk: return the number and the job of each row.

    Args:
        data: the bytes of the chunk.
        number: the number of the chunk.
        segment: the entry in the manifest.
        index: the segment's index.
        prefix: beginning of the wanted ids. A chunk without such an id is not decoded.
        only: numbers of the rows to decode; if empty, all.

    Raises:
        InvalidBlobError: it is damaged.
    """
    first = number * segment.chunk_rows
    if only:
        check_chunk(data, number, index)
        lines_of, found = dict(enumerate(data.split(b"\n")[:-1], first)), []
        for row in only:
            line = index.whole(lines_of.get(row, b"")) + b"\n"
            [job] = decode_lines(line, row, segment.offset)
            found.append((row, job))
        return found
    lines = chunk_lines(data, number, index)
    if prefix and not _may_have(lines, prefix):
        return []
    return list(enumerate(decode_lines(lines, first, segment.offset), first))


def chunk_lines(data: bytes, number: int, index: SegmentIndex) -> bytes:
    """Return the lines of the jobs in a chunk.

    Raises:
        InvalidBlobError: it is damaged.
    """
    check_chunk(data, number, index)
    return index.whole(data)


def check_chunk(data: bytes | memoryview, number: int, index: SegmentIndex) -> None:
    """Check the bytes of a chunk.

    Raises:
        InvalidBlobError: it is damaged.
    """
    if zlib.crc32(data) != index.chunks[number].crc:
        raise InvalidBlobError(CHANGED)


def decode_lines(data: bytes, first: int, offset: int) -> list[JobRecord]:
    """Return the jobs of the lines of a chunk, or of several that follow each other.

    Args:
        data: the lines: see `chunk_lines`.
        first: the number of the first row.
        offset: that of the segment, to add to sequence numbers.

    Raises:
        InvalidBlobError: a row is not a queued job.
    """
    jobs = []
    for row, line in enumerate(data.split(b"\n")[:-1], first):
        job = read_line(line)
        if isinstance(job, SetAside):
            raise InvalidBlobError(f"row {row} of it cannot be read as a job: {job.reason}")
        if job.status is not JobStatus.QUEUED:
            raise InvalidBlobError(f"row {row} of it is a job that is {job.status}, and not queued")
        jobs.append(job.evolve(sequence=job.sequence + offset) if offset else job)
    return jobs


def ids_in(data: bytes, number: int, segment: Segment, index: SegmentIndex) -> list[tuple[int, str]]:
    """Return the number and the job id of each row of a chunk, without a look at the rest of it.

    Args:
        data: the bytes of the chunk.
        number: the number of the chunk.
        segment: the entry in the manifest.
        index: the segment's index.

    Raises:
        InvalidBlobError: it is damaged.
    """
    quoted = _ID.findall(chunk_lines(data, number, index))
    try:
        ids = from_json(b"[%b]" % b",".join(quoted))
    except ValueError:
        raise InvalidBlobError("ids in it cannot be read") from None
    return list(enumerate(ids, number * segment.chunk_rows))


def _may_have(data: bytes, prefix: str) -> bool:
    """Return False if no line of a chunk has an id that begins like this."""
    beginning = dump_ascii(prefix)[:-1].encode()
    return b"\\" in data or not prefix.isascii() or data.startswith(beginning) or b"\n" + beginning in data
