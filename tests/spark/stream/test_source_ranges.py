"""A streaming query on a deep queue: its batches have ranges, which tasks read, and jobs claimed one by one."""

import logging

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from jqueue.domain.models import JobStatus
from jqueue.spark.rows import SNAPSHOT_SCHEMA, arrow_of
from jqueue.spark.snapshot.reader import SnapshotPartition
from jqueue.spark.stream.offsets import Offset
from jqueue.spark.stream.shipping import ShippedRows, split_between
from jqueue.spark.stream.source import ClaimReader
from tests.spark.stream.deep_world import SIZES, DeepWorld, filled
from tests.spark.stream.stream_driver import PICKLER

pytestmark = pytest.mark.wide

ALL, TEN = ReadAllAvailable(), ReadMaxRows(10)


@pytest.fixture
def world(tmp_path):
    return DeepWorld(tmp_path)


@pytest.fixture
def reader(world):
    reader = world.reader()
    yield reader
    reader.stop()


def begun(reader):
    start = reader.initialOffset()
    assert start == reader.latestOffset(start, TEN)
    return start


def rows_of(reader, start, end):
    tasks = PICKLER.loads(PICKLER.dumps(reader))
    partitions = [PICKLER.loads(PICKLER.dumps(partition)) for partition in reader.partitions(start, end)]
    return [row for each in partitions for rows in tasks.read(each) for row in rows.to_pylist()]


def ids_of(rows):
    return [row["id"] for row in rows]


# A batch


def test_a_batch_has_ranges_that_tasks_read_and_single_jobs_that_are_sent_to_them(world, reader):
    filled(world)
    start = begun(reader)
    end = reader.latestOffset(start, ALL)
    partitions = reader.partitions(start, end)
    assert {ShippedRows, SnapshotPartition} == {type(each) for each in partitions}
    assert b"payload" not in PICKLER.dumps([each for each in partitions if not isinstance(each, ShippedRows)])
    assert sorted(world.enqueued) == sorted(ids_of(rows_of(reader, start, end)))
    held = reader._call_queue(lambda: reader._claims.batch_of(Offset.read(end)))
    assert {True} == {claim.rows >= SIZES.least for claim in held.ranges}
    assert len(held.jobs) < 8


def test_rows_of_ranges_are_those_of_the_jobs_in_progress(world, reader):
    """Of whole chunks, which are read at once, and of parts of chunks."""
    world.enqueue(30, "resize", priority=3, headers={"trace": "af31"}, max_attempts=5)
    start = begun(reader)
    world.have(lambda queue: queue.claim_range("resize", 3))
    end = reader.latestOffset(start, ALL)
    found = {row["id"]: row for row in rows_of(reader, start, end)}
    jobs = [job for job in world.jobs if job.holder and job.holder.startswith("spark/")]
    assert 27 == len(jobs) == len(found)
    expected = arrow_of(jobs, SNAPSHOT_SCHEMA).to_pylist()
    assert {row["id"]: row for row in expected} == found
    assert {JobStatus.IN_PROGRESS} == {row["status"] for row in found.values()}


def test_a_stream_on_ranges_can_have_some_columns_in_another_order(world):
    schema = StructType([SNAPSHOT_SCHEMA["attempt"], SNAPSHOT_SCHEMA["payload"], SNAPSHOT_SCHEMA["id"]])
    ids = world.enqueue(20)
    reader = ClaimReader(world.options, schema, opened=world.open, sizes=SIZES)
    start = begun(reader)
    partitions = reader.partitions(start, reader.latestOffset(start, ALL))
    rows = [row for each in partitions for row in pa.Table.from_batches(reader.read(each)).to_pylist()]
    assert sorted(ids) == sorted(ids_of(rows))
    assert [{"attempt": 1, "payload": b"payload", "id": rows[0]["id"]}] == rows[:1]
    reader.stop()


@pytest.mark.parametrize(("partitions", "jobs", "in_ranges", "expected"), [
    (None, 5, 5, (None, None)), (4, 0, 5, (4, 4)), (4, 5, 0, (4, 4)),
    (4, 1, 999, (1, 3)), (4, 999, 1, (3, 1)), (4, 500, 500, (2, 2)), (1, 5, 5, (1, 1)),
])  # fmt: skip
def test_the_number_of_partitions_is_shared_by_single_jobs_and_ranges(partitions, jobs, in_ranges, expected):
    assert expected == split_between(partitions, jobs, in_ranges)


def test_a_batch_has_the_asked_number_of_partitions(world):
    world.enqueue(60)
    reader = world.reader(numPartitions=5)
    start = begun(reader)
    assert 5 == len(reader.partitions(start, reader.latestOffset(start, ALL)))
    reader.stop()


def test_one_write_ends_ranges_and_claims_the_next_batch(world, reader):
    filled(world)
    start = begun(reader)
    end = reader.latestOffset(start, TEN)
    before = world.storage.writes
    following = reader.latestOffset(end, TEN)
    assert 1 == world.storage.writes - before
    assert 15 == len(world.jobs)
    assert 10 == len(rows_of(reader, end, following))


def test_a_lost_range_is_told_by_its_number_of_jobs_and_not_ended(world, reader, caplog):
    world.enqueue(20)
    start = begun(reader)
    end = reader.latestOffset(start, ALL)
    world.have(lambda queue: queue.requeue_stale(0))
    world.clock.advance(1)
    with caplog.at_level(logging.WARNING, "jqueue"):
        reader.latestOffset(end, TEN)
    [said] = [record.getMessage() for record in caplog.records if "read_state" not in record.getMessage()]
    assert said.startswith("20 of 20 jobs of batch 1 went to other workers")
    assert 20 == len(world.jobs)


def test_heartbeats_keep_ranges_and_tell_of_lost_ones(world, reader, caplog):
    filled(world)
    start = begun(reader)
    reader.latestOffset(start, ALL)
    before = {job.heartbeat_at for job in world.jobs}
    reader._call_queue(reader._claims._send_heartbeat)
    assert max(before) < min(job.heartbeat_at for job in world.jobs)
    world.have(lambda queue: queue.requeue_stale(0))
    with caplog.at_level(logging.WARNING, "jqueue"):
        reader._call_queue(reader._claims._send_heartbeat)
    [said] = [record.getMessage() for record in caplog.records if "read_state" not in record.getMessage()]
    assert said.startswith("25 of 25 jobs that this query had claimed went to other workers")


def test_a_job_of_a_range_that_is_cancelled_is_finished_with_its_batch(world, reader):
    [*_, job_id] = world.enqueue(20)
    start = begun(reader)
    end = reader.latestOffset(start, ALL)
    world.have(lambda queue: queue.cancel(job_id, running=True))
    reader._call_queue(reader._claims._send_heartbeat)
    world.clock.advance(1)
    reader.latestOffset(end, TEN)
    assert [] == world.jobs


def test_the_progress_of_a_query_on_ranges_has_the_backlog_and_its_ranges(world, reader):
    world.enqueue(60)
    start = begun(reader)
    reader.latestOffset(start, ReadMaxRows(20))
    progress = reader.reportLatestOffset()
    assert progress is not None
    assert (40, 20, world.ranges) == (progress["backlog"], progress["claimedJobs"], progress["claimedRanges"])
    assert progress["oldestAgeSeconds"] >= 0


def test_a_query_that_reaches_a_largest_size_goes_on_at_once(world, reader):
    world.enqueue(700)  # more than ten segments
    start = begun(reader)
    reader.latestOffset(start, ALL)
    assert SIZES.ranges == world.ranges
    assert reader._claims.is_due


def test_limits_pauses_and_priorities_hold_for_ranges(world, reader):
    world.enqueue(20, "limited")
    world.enqueue(20, "paused")
    world.enqueue(20, "late", priority=5)
    world.have(lambda queue: queue.limit("limited", running=7))
    world.have(lambda queue: queue.pause("paused"))
    start = begun(reader)
    rows = rows_of(reader, start, reader.latestOffset(start, TEN))
    assert {"limited": 7, "late": 3} == {
        name: sum(row["entrypoint"] == name for row in rows) for name in {row["entrypoint"] for row in rows}
    }


# Restarts


def test_a_query_ends_while_others_keep_enqueueing(world):
    ids = filled(world).enqueued[:]
    assert world.live(on_step=lambda name: name == "claimed" and world.enqueue(9))
    assert sorted(ids) == sorted(world.sink.ids)
    assert {JobStatus.QUEUED} == {job.status for job in world.jobs}
