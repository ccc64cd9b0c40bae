"""Rows of segments come into a draft and leave it again, and the blob never has lines of them."""

import asyncio
from datetime import UTC, datetime

import pytest

from jqueue import DirectQueue, InMemoryStorage, JobStatus, Limits
from jqueue.core.blob.content import Blob
from jqueue.core.blob.segment_writer import SegmentSizes
from jqueue.domain.commits import CommitId, next_header
from jqueue.domain.job_table import packed_waiting
from jqueue.domain.models import QueueState
from jqueue.domain.operations import Dequeue, Enqueue, perform
from jqueue.domain.segments import RowKey, Segment
from jqueue.testing.faults import FaultyObjects
from tests.tiny_segments import segments_of, spilled, tiny_queue

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = RowKey(0, 1, NOW.timestamp())


def encoded(blob):
    return blob.encode(next_header(blob.draft, CommitId("w", 1, 0), "q", NOW, 0.1))


def test_a_row_that_a_failed_write_had_taken_leaves_no_line_in_the_blob():
    blob = Blob()
    draft, rows = blob.draft, blob.draft.jobs.rows
    draft.take_header(QueueState(segments={"s": Segment(entrypoint="a", rows=1, bytes=9, index=5, crc=0, head=KEY)}))
    row = 0, "job", packed_waiting("a", b"", NOW, 1)
    rows.load("s", 0, [row])
    [claimed] = perform(Dequeue(claim_timeout=9.0), draft, NOW)
    assert "job" == claimed.id
    assert b'"job"' in encoded(blob)

    draft.rollback()
    rows.unload()
    rows.load("s", 0, [row])
    assert b'"job"' not in encoded(blob)
    rows.unload()
    assert b'"job"' not in encoded(blob)


@pytest.mark.parametrize("ends", [lambda q: q.purge(status=JobStatus.QUEUED), lambda q: q.dequeue(batch_size=6)])
async def test_one_call_may_need_more_rows_than_are_kept(ends):
    async with DirectQueue(InMemoryStorage(), limits=Limits(hot_bytes=1), deadline=5) as queue:
        segments_of(queue).writer.sizes = SegmentSizes(hot_bytes=1, fewest_rows=1, chunk_rows=1)
        segments_of(queue).loader.rows_kept = 2
        await queue.enqueue_many([Enqueue("a") for _ in range(6)])
        while segments_of(queue).writer._spills._task is not None:
            await asyncio.sleep(0)
        await queue.enqueue("b", b"")
        assert 6 == sum(segment.waiting for segment in (await queue.read_state()).segments.values())

        ended = await ends(queue)
        assert 6 <= (ended if isinstance(ended, int) else len(ended))


async def test_rows_that_each_claim_has_to_look_at_are_not_loaded_for_each_claim():
    storage = FaultyObjects(InMemoryStorage())
    async with tiny_queue(storage, chunk_rows=2) as queue:
        segments_of(queue).loader.rows_kept = 4
        await queue.enqueue_many([Enqueue("a", concurrency_key="busy") for _ in range(12)])
        await queue.enqueue_many([Enqueue("a", b"%d" % number) for number in range(20)])
        await spilled(queue)
        [busy] = await queue.dequeue("a")
        assert "busy" == busy.concurrency_key
        for number in range(8):
            [job] = await queue.dequeue("a")
            await queue.ack(job)
            assert b"%d" % number == job.payload
        before = len(storage.object_calls)
        for number in range(8, 20):
            [job] = await queue.dequeue("a")
            await queue.ack(job)
            assert b"%d" % number == job.payload
        assert len(storage.object_calls) - before <= 6  # two rows a chunk, each read once


async def test_loaded_rows_of_ranges_count_as_loaded_and_are_dropped_with_the_others():
    async with tiny_queue(InMemoryStorage(), chunk_rows=4) as queue:
        loader, rows = segments_of(queue).loader, queue._engine.draft.jobs.rows
        await queue.enqueue_many([Enqueue("a", job_id=f"job-{number}") for number in range(40)])
        await spilled(queue)
        claims = [await queue.claim_range("a", 4) for _ in range(5)]
        known = [await queue.enqueue("a", b"", job_id=f"job-{number}") for number in range(0, 20, 4)]
        assert {JobStatus.IN_PROGRESS} == {job.status for job in known}  # the rows of each range were loaded

        loader.rows_kept = rows.kept - 1
        loader.begin(queue._engine.draft)
        assert 0 == rows.kept
        for claim in claims:
            assert claim is not None
            failed = f"job-{claim.held.first}"
            await queue.end_range(claim, failed={failed: "too bad"})
        retried = await queue.dequeue("a", batch_size=40)
        assert {job.id for job in retried} == {f"job-{number}" for number in (0, 4, 8, 12, 16, *range(20, 40))}
