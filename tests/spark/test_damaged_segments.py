"""A segment that was changed or removed fails what reads it, in one line that names it, and harms no job."""

import re

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from jqueue.domain.errors import StorageFatalError
from jqueue.domain.models import JobStatus
from jqueue.domain.segments import CHUNK_ROWS
from jqueue.spark.rows import SNAPSHOT_SCHEMA
from jqueue.spark.snapshot.reader import SnapshotReader
from jqueue.spark.stream.source import ClaimReader
from jqueue.worker import Worker
from tests.spark.batch.batch_scenes import Session, run_batch
from tests.spark.batch.child_scenes import needs_fork
from tests.spark.batch.test_batch_ranges import fill, left_in

pytestmark = [pytest.mark.wide, needs_fork]

JOBS = 600
RANGES = {"max_jobs": JOBS, "partitions": 2}


@pytest.fixture
def file(tmp_path):
    """A queue whose jobs are in one segment."""
    fill(str(tmp_path / "queue.json"), range(JOBS))
    return tmp_path / "queue.json"


def segment_of(file):
    [segment] = file.with_name(f"{file.name}.segments").iterdir()
    return segment


def change(segment):
    """Change a byte of the first job."""
    content = bytearray(segment.read_bytes())
    content[content.index(b"payload") + 20] ^= 1
    segment.write_bytes(content)


def remove(segment):
    segment.unlink()


damaged = pytest.mark.parametrize(
    ("damage", "words"), [(change, "checksum does not match|was changed"), (remove, "missing|does not exist")]
)


def make_worker():
    worker = Worker(concurrency=5)

    @worker.handler("work")
    async def work(number: int) -> None: ...

    return worker


def is_told_of(segment, words, text):
    return "\n" not in text and segment.name in text and re.search(words, text) is not None


@pytest.mark.parametrize(("damage", "waiting"), [(change, CHUNK_ROWS), (remove, JOBS)])
def test_a_batch_leaves_jobs_waiting_that_cannot_be_read_and_does_the_others(file, caplog, damage, waiting):
    segment = segment_of(file)
    content = segment.read_bytes()
    fill(str(file), [JOBS])
    damage(segment)
    assert JOBS + 1 - waiting == run_batch(Session(), str(file), make_worker(), **RANGES).done
    [record] = caplog.records
    assert is_told_of(segment, "its jobs wait until it is restored from a backup", record.getMessage())
    segment.write_bytes(content)
    assert waiting == run_batch(Session(), str(file), make_worker(), **RANGES).done


@pytest.mark.parametrize(("damage", "unread"), [(change, CHUNK_ROWS), (remove, JOBS)])
def test_a_batch_that_cannot_read_jobs_of_its_ranges_hands_them_back_unharmed_and_does_the_others(
    file, caplog, damage, unread
):
    segment = segment_of(file)
    content = segment.read_bytes()
    session = Session(lambda number: None if number else damage(segment))
    report = run_batch(session, str(file), make_worker(), **RANGES)
    assert (JOBS, JOBS - unread, unread) == (report.claimed, report.done, report.handed_back)
    [record] = caplog.records
    assert is_told_of(segment, f"is missing or was changed, and {unread} jobs .* cannot be read", record.getMessage())
    assert 0 == run_batch(Session(), str(file), make_worker(), **RANGES).claimed
    segment.write_bytes(content)
    left = left_in(str(file)).values()
    assert [(JobStatus.QUEUED, 0)] * unread == [(job.status, job.failures) for job in left]
    assert unread == run_batch(Session(), str(file), make_worker(), **RANGES).done


def test_a_batch_whose_segment_is_lost_before_its_ends_are_told_acks_all_jobs_but_a_failed_one(file):
    segment, worker = segment_of(file), Worker(concurrency=5)
    content = segment.read_bytes()

    @worker.handler("work")
    async def work(number: int) -> None:
        segment.unlink(missing_ok=True)
        if number == 100:
            raise ValueError("on purpose")

    report = run_batch(Session(), str(file), worker, max_jobs=300, partitions=1)
    assert 300 == report.claimed
    segment.write_bytes(content)
    left = left_in(str(file))
    assert {b"%d" % number for number in (100, *range(300, JOBS))} == left.keys()
    assert {JobStatus.QUEUED} == {job.status for job in left.values()}


@damaged
def test_a_streaming_query_that_cannot_read_its_ranges_keeps_their_jobs(file, damage, words):
    reader, segment = ClaimReader({"path": str(file)}, SNAPSHOT_SCHEMA), segment_of(file)
    start = reader.initialOffset()
    reader.latestOffset(start, ReadMaxRows(JOBS))  # the first batch of a query is empty
    partitions = reader.partitions(start, reader.latestOffset(start, ReadMaxRows(JOBS)))
    content = segment.read_bytes()
    damage(segment)
    with pytest.raises(StorageFatalError) as caught:
        [list(reader.read(each)) for each in partitions]
    assert is_told_of(segment, words, str(caught.value))
    assert is_told_of(segment, "restore the segment .*drop-segment", str(caught.value))
    segment.write_bytes(content)
    assert JOBS == sum(rows.num_rows for each in partitions for rows in reader.read(each))
    reader.stop()


@damaged
def test_a_snapshot_that_cannot_read_a_segment_names_it(file, damage, words):
    reader, segment = SnapshotReader({"path": str(file)}, SNAPSHOT_SCHEMA), segment_of(file)
    damage(segment)
    with pytest.raises(StorageFatalError) as caught:
        [list(reader.read(each)) for each in reader.partitions()]
    assert is_told_of(segment, words, str(caught.value))
