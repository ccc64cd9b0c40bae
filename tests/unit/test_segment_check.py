"""The check of a whole segment: rows are compared with their checksums, the index and the manifest."""

import zlib
from array import array

import pytest

from jqueue import InMemoryStorage
from jqueue.core.blob.segment_check import SegmentCheck
from jqueue.domain.segment_index import HashTable, SegmentIndex
from jqueue.operations import Enqueue
from tests.tiny_segments import segments_of, spilled, tiny_queue


async def read(delay=None):
    """Return the entry, the index and the chunks of a segment of eight jobs, two of them in each chunk."""
    queue = tiny_queue(InMemoryStorage(), chunk_rows=2)
    await queue.enqueue_many(
        [Enqueue("mail", b"%d" % each, each % 2, delay=delay, unique_key=f"key {each}") for each in range(8)]
    )
    await spilled(queue)
    [(name, segment)] = (await queue.read_state()).segments.items()
    reader = segments_of(queue).reader
    index = await reader.index(name, segment)
    return segment, index, dict([each async for each in reader.parts(name, index, range(segment.chunks))])


def faults(segment, index, chunks):
    check = SegmentCheck(segment, index, ())
    found = [check.chunk(number, chunks[number]) for several in check.pieces for number in several]
    return [each.unreadable or each.misplaced for each in found]


def changed(index, **fields):
    kept = {name: getattr(index, name) for name in ("chunks", "end", "ids", "keys", "objects", "single", "texts")}
    return SegmentIndex(**{**kept, **fields})


def with_chunk(index, chunks, number, data):
    """Return the index and the chunks with one chunk replaced, as if it had been written so."""
    summed = [
        each._replace(crc=zlib.crc32(data)) if place == number else each for place, each in enumerate(index.chunks)
    ]
    return changed(index, chunks=summed), {**chunks, number: data}


@pytest.mark.parametrize("delay", [None, 60])
async def test_a_segment_as_it_was_written_has_no_fault(delay):
    assert [""] * 4 == faults(*await read(delay))


async def test_each_row_that_contradicts_the_index_or_the_manifest_is_named():
    segment, index, chunks = await read()
    nothing = HashTable(array("Q"), array("I"))

    def of(entry, table, stored=chunks):
        return " / ".join(filter(None, faults(entry, table, stored)))

    assert "another entrypoint" in of(segment.model_copy(update={"entrypoint": "other"}), index)
    assert "smaller sequence number" in of(segment.model_copy(update={"least": 5}), index)
    assert "the id of row 0 is not in the index" in of(segment, changed(index, ids=nothing))
    assert "the unique key of row 0 is not in the index" in of(segment, changed(index, keys=nothing))
    moved = [each._replace(first=each.first.moved(1)) for each in index.chunks]
    assert "chunk 0: its first row is not the one that the index names" in of(segment, changed(index, chunks=moved))
    lines = chunks[1].splitlines(keepends=True)
    other, swapped = with_chunk(index, chunks, 1, b"".join(reversed(lines)))
    assert "its first row" in of(segment, other, swapped)
    firsts = [each._replace(first=each.first.moved(2 * (place == 1))) for place, each in enumerate(other.chunks)]
    ids, keys = (
        HashTable(each.hashes, array("I", [{2: 3, 3: 2}.get(row, row) for row in each.rows]))
        for each in (index.ids, index.keys)
    )
    assert "chunk 1: row 3 belongs before" in of(segment, changed(other, chunks=firsts, ids=ids, keys=keys), swapped)
    assert "chunk 1 has 1 rows, and not 2" in of(segment, *with_chunk(index, chunks, 1, lines[0]))
    assert "the checksum does not match" in of(segment, index, {**chunks, 2: chunks[2].replace(b"\2", b"\1")})


async def test_chunks_whose_rows_have_all_left_are_not_checked():
    segment, index, chunks = await read()
    left = segment.model_copy(update={"next": 3, "taken": ((4, 6),)})
    check = SegmentCheck(left, index, ())
    assert [[1, 3]] == check.pieces
    assert [1, 2] == [check.chunk(number, chunks[number]).jobs for number in (1, 3)]
