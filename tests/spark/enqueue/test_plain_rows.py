"""Rows without options are encoded column by column, to the bytes that they have one by one."""

import random
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from jqueue.core.blob.segment_staging import STAGED_BYTES, SegmentStager
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.limits import Limits
from jqueue.spark.enqueue.plain_rows import ArrowStager, _table
from jqueue.spark.enqueue.row_bytes import GrowingBytes

NOON = datetime(2026, 1, 2, 12, 0, 0, 120000, tzinfo=UTC)
BASE = "12345678-1234-4321-8765-123456789abc"


def stagers(**sizes):
    return [kind(Limits(), NOON, BASE, queue="q", chunk_rows=3, **sizes) for kind in (ArrowStager, SegmentStager)]


@pytest.mark.parametrize(
    "lengths", [[0] * 4, [1] * 7, [2, 2], [3] * 3, [64] * 300, [*range(40)] * 4, [7] * 1005, [5, 0, 0, 17, 1]]
)
@pytest.mark.parametrize("keep_result", [None, 60.5])
def test_a_column_is_encoded_as_its_rows_are_one_by_one(lengths, keep_result):
    payloads = [random.Random(length).randbytes(length) for length in lengths]
    columns, rows = stagers()
    for part in (payloads[:2], payloads[2:]):
        numbers = columns.take_numbers(len(part))
        columns.add_column("größe", pa.array(part, pa.binary()), keep_result, numbers)
        rows.add_plain("größe", part, keep_result)
    [fast], [slow] = columns.rest(), rows.rest()
    assert (fast.content, fast.entry) == (slow.content, slow.entry)


def test_a_slice_of_a_column_is_encoded_from_its_first_row():
    columns, rows = stagers()
    several = pa.array([b"a", b"bc", b"def", b"ghij"], pa.binary())
    columns.add_column("e", several.slice(1, 2), None, columns.take_numbers(2))
    rows.add_plain("e", [b"bc", b"def"])
    assert [each.content for each in columns.rest()] == [each.content for each in rows.rest()]


def test_complete_segments_are_handed_out_before_the_rest():
    columns, _ = stagers(rows=4)
    columns.add_column("e", pa.array([b"a"] * 5, pa.binary()), None, columns.take_numbers(5))
    columns.add_column("f", pa.array([b"a"], pa.binary()), None, columns.take_numbers(1))
    [full] = columns.full()
    assert (5, "e") == (full.entry.rows, full.entry.entrypoint)
    [rest] = columns.rest()
    assert (1, 6, "f") == (rest.entry.rows, rest.entry.least, rest.entry.entrypoint)


def test_a_payload_that_is_too_large_is_refused_with_its_column():
    stager = ArrowStager(Limits(payload_bytes=3), NOON, BASE)
    with pytest.raises(InvalidJobError, match="payload is 4 bytes; the limit is 3"):
        stager.check_column("e", pa.array([b"abc", b"abcd"], pa.binary()))


def test_rows_of_several_entrypoints_keep_their_numbers():
    columns, rows = stagers()
    numbers = columns.take_numbers(120)
    for first, entrypoint in enumerate(("a", "b")):
        chosen = numbers[first::2]
        columns.add_column(entrypoint, pa.array([b"%d" % number for number in chosen], pa.binary()), None, chosen)
    for number in range(1, 121):
        rows.add_plain("ab"[(number - 1) % 2], [b"%d" % number])
    assert [each.content for each in columns.rest()] == [each.content for each in rows.rest()]


def test_the_memory_of_a_stored_segment_is_used_again():
    columns, rows = stagers()
    memories = []
    for round_ in range(3):
        texts = [b"%d" % (10 ** (5 - round_) + number) for number in range(5 * 10**round_)]
        columns.add_column("e", pa.array(texts, pa.binary()), None, columns.take_numbers(len(texts)))
        rows.add_plain("e", texts)
        [fast], [slow] = columns.rest(), rows.rest()
        assert bytes(fast.content) == slow.content
        memories.append(fast.content.obj)
        columns.reuse(fast.content)
    assert memories[0] is memories[1] is memories[2]


def test_text_grows_beyond_its_memory_and_keeps_what_it_has():
    text = GrowingBytes(np.empty(4, np.uint8))
    for part in (b"abc", b"", b"defghij", b"k" * 50):
        text.add(part)
    assert text.ended_by(b"end") == b"abcdefghij" + b"k" * 50 + b"end"


def test_the_bytes_of_a_whole_segment_are_moved_at_most_twice():
    text = GrowingBytes()
    memories = [text.view().obj]
    for _ in range(STAGED_BYTES >> 18):
        text.room(1 << 18)
        if text.view().obj is not memories[-1]:
            memories.append(text.view().obj)
    assert 3 == len(memories)


def test_hashes_that_differ_in_their_last_bits_alone_are_in_order():
    hashes = [2**63 + 5, 7, 2**63 + 4, 7, 2**64 - 1, 2**63 + 4, 0]
    found = _table(np.array(hashes, np.uint64))
    pairs = sorted(zip(hashes, range(len(hashes)), strict=True))
    assert (list(found.hashes), list(found.rows)) == ([each for each, _ in pairs], [row for _, row in pairs])
