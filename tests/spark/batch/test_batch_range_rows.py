"""Rows of a range in columns are the rows that the codec reads one by one."""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jqueue import BrokerQueue, DirectQueue, Limits, connect
from jqueue.core.blob.lines import encode_job
from jqueue.core.blob.segment_object import decode_index, decode_lines
from jqueue.domain.errors import InvalidBlobError, SegmentDamagedError
from jqueue.domain.models import Job
from jqueue.domain.operations import Enqueue
from jqueue.domain.segment_index import whole_lines
from jqueue.spark.batch.partition_rows import PartitionRows
from jqueue.spark.batch.range_rows import BlockList, Columns, Entries, blocks_of, chunks_at_once
from tests.spark.alike_lines import alike, joined, marked, plain, waiting


def pairs(numbers):
    return list(zip(numbers[::2], numbers[1::2], strict=False))


spans = st.lists(st.integers(0, 40), max_size=6).map(lambda rows: pairs(sorted(rows)))


several = st.lists(waiting.map(encode_job), min_size=1, max_size=9)


def segment_of(offset: int) -> Any:
    return SimpleNamespace(offset=offset)


def facts_of(blocks):
    """Everything that a partition asks of its rows."""
    ids, payloads = BlockList(blocks, lambda block: block.ids()), BlockList(blocks, lambda block: block.payloads())
    return (
        list(ids),
        [ids[place] for place in range(len(ids))],
        [payloads[place] for place in reversed(range(len(payloads)))],
        payloads[0:9],
        payloads[2:5],
        [block.entry(row) for block in blocks for row in range(len(block))],
        [block.rows_where(lambda packed: packed[7] > 1) for block in blocks],
    )


@settings(max_examples=60, deadline=None)
@given(
    alike() | st.lists(waiting.map(encode_job), min_size=1, max_size=9), spans, st.integers(0, 30), st.integers(0, 9)
)
def test_blocks_are_the_rows_that_the_codec_reads(lines, wanted, first, offset):
    text = joined(lines)
    short, texts = marked(text)
    try:
        expected = list(zip(*decode_lines(text, first, offset, {}), strict=True))
    except InvalidBlobError as refusal:
        with pytest.raises(InvalidBlobError, match=str(refusal).partition(" ")[0]):
            blocks_of(segment_of(offset), [(first, first + len(lines))], first, short, texts, {})
        return
    rows = [expected[max(0, start - first) : max(0, end - first)] for start, end in wanted]
    blocks = blocks_of(segment_of(offset), wanted, first, short, texts, {})
    assert facts_of([Entries(some) for some in rows if some]) == facts_of(blocks)


def test_lines_that_are_alike_are_read_in_columns_and_others_are_not():
    text = plain([b"%08x" % each for each in range(40)], [b"%d" % each for each in range(40)])
    [whole] = blocks_of(segment_of(7), [(0, 40)], 0, text, (), {})
    assert isinstance(whole, Columns)
    assert 8 == whole.entry(0)[1][5]
    [first, second] = blocks_of(segment_of(7), [(102, 104), (139, 300)], 100, text, (), {})
    assert ([b"2", b"3"], [b"39"]) == (first.payloads(), second.payloads())
    [other] = blocks_of(
        segment_of(7), [(0, 40)], 0, text + encode_job(Job(id='a"b', entrypoint="x", payload=b"")) + b"\n", (), {}
    )
    assert isinstance(other, Entries)


def test_a_list_over_blocks_makes_the_values_of_one_block_at_a_time():
    made: list[Any] = []

    def some(bounds):
        entries: Any = range(*bounds)
        return Entries(entries)

    def values_of(block):
        made.append(block.entries[0])
        return block.entries

    values = BlockList(list(map(some, ((0, 3), (3, 4), (4, 9)))), values_of)
    assert 9 == len(values)
    assert [0, 1, 2, 3, 4] == [values[place] for place in range(5)]
    assert [0, 3, 4] == made
    assert [5, 6] == list(values[5:7])
    assert [0, 3, 4] == made
    assert [2, 3, 4] == list(values[2:5])
    for place in (9, -1):
        with pytest.raises(IndexError):
            values[place]
    with pytest.raises(IndexError):
        BlockList([], values_of)[0]


def test_chunks_are_read_together_up_to_some_megabytes():
    assert 32 == chunks_at_once(SimpleNamespace(chunks=100, index=100 << 18))  # type: ignore[arg-type]
    assert 1 == chunks_at_once(SimpleNamespace(chunks=3, index=3 << 25))  # type: ignore[arg-type]


async def queue_of(url, count, **options):
    async with connect(url, BrokerQueue, limits=Limits(batch_size=100, hot_bytes=1)) as queue:
        await queue.enqueue_many(Enqueue("work", b"%d" % number, **options) for number in range(count))


async def rows_and_jobs(url, count):
    async with connect(url, DirectQueue) as queue:
        claim = await queue.claim_range("work", count)
        assert claim is not None
        blocks: list[Any] = []
        async for found in queue.read_range_rows(claim, 2, partial(blocks_of, claim.entry, claim.spans, names={})):
            blocks += found
        rows, jobs = PartitionRows.of_range(claim, blocks), [job async for job in queue.read_range(claim)]
        return rows, jobs


@pytest.mark.parametrize("options", [{}, {"priority": 3, "headers": {"trace": "1"}}])
async def test_rows_of_a_partition_are_the_jobs_of_its_range(tmp_path, options):
    url = str(tmp_path / "queue.json")
    await queue_of(url, 1000, **options)
    rows, jobs = await rows_and_jobs(url, 700)
    assert jobs == [rows.job(place) for place in range(len(rows))]
    assert [job.id for job in jobs] == list(rows.ids)
    assert [job.payload for job in jobs] == list(rows.payloads)
    assert [b"3", b"4"] == rows.payloads_of([3, 4])
    assert [b"3", b"5"] == rows.payloads_of([3, 5])
    assert 4 == rows.place_of(jobs[4].id)
    assert not rows.doubtful


async def test_rows_of_a_range_that_has_failed_before_are_doubtful(tmp_path):
    url = str(tmp_path / "queue.json")
    await queue_of(url, 1000)
    async with connect(url, DirectQueue) as queue:
        claim = await queue.claim_range("work", 500)
        assert claim is not None
        await queue.end_range(claim, failed=dict.fromkeys([job.id async for job in queue.read_range(claim)], "no"))
    rows, jobs = await rows_and_jobs(url, 500)
    assert {place for place, job in enumerate(jobs) if job.failures > 1} == set(rows.doubtful)
    assert jobs == [rows.job(place) for place in range(len(rows))]


async def test_an_index_can_be_read_without_its_tables(tmp_path):
    url = str(tmp_path / "queue.json")
    await queue_of(url, 1000)
    async with connect(url, DirectQueue) as queue:
        claim = await queue.claim_range("work", 700)
    assert claim is not None
    entry = claim.entry
    content = (tmp_path / "queue.json.segments" / claim.segment).read_bytes()[entry.index : entry.bytes]
    whole, part = decode_index(content, entry), decode_index(content, entry, tables=False)
    assert (whole.chunks, whole.end) == (part.chunks, part.end)
    assert (entry.rows, 0) == (len(whole.ids.rows), len(part.ids.rows))
    with pytest.raises(InvalidBlobError, match="checksum"):
        decode_index(content[:-1], entry, tables=False)


async def test_all_chunks_but_a_damaged_one_are_read_before_it_is_refused_with_the_name_of_its_segment(tmp_path):
    url = str(tmp_path / "queue.json")
    await queue_of(url, 1000)
    async with connect(url, DirectQueue) as queue:
        claim = await queue.claim_range("work", 700)
        assert claim is not None
        segment = tmp_path / "queue.json.segments" / claim.segment
        content = bytearray(segment.read_bytes())
        content[content.index(b"\1") + 1] ^= 1
        segment.write_bytes(content)
        found: list[int] = []
        with pytest.raises(SegmentDamagedError, match=claim.segment) as caught:
            async for first in queue.read_range_rows(claim, 2, lambda first, text, texts: first):
                found.append(first)
        assert ([256, 512], ((0, 256),)) == (found, caught.value.rows)


async def test_a_chunk_that_is_no_list_of_jobs_is_refused_as_one_that_was_changed(tmp_path):
    url = str(tmp_path / "queue.json")
    await queue_of(url, 1000)

    def parse(first: int, text: bytes, texts: Sequence[bytes]) -> int:
        if b'"sequence": 300,' in whole_lines(text, texts):
            raise InvalidBlobError("a row is not a job")
        return first

    async with connect(url, DirectQueue) as queue:
        claim = await queue.claim_range("work", 700)
        assert claim is not None
        found: list[int] = []
        with pytest.raises(SegmentDamagedError) as caught:
            async for first in queue.read_range_rows(claim, 3, parse):
                found.append(first)
        assert ([0, 512], ((256, 512),)) == (found, caught.value.rows)
