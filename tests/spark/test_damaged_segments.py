"""A segment that was changed or removed fails what reads it, in one line that names it, and harms no job."""

import asyncio
import pickle
import re

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from jqueue import DirectQueue, connect
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.domain.errors import StorageFatalError
from jqueue.domain.models import JobStatus
from jqueue.domain.segments import CHUNK_ROWS
from jqueue.spark.batch.outcomes import Outcome
from jqueue.spark.rows import SNAPSHOT_SCHEMA
from jqueue.spark.snapshot.reader import SnapshotReader
from jqueue.spark.staging import PREFIX, StagedObjects
from jqueue.spark.stream.row_outcomes import OutcomeStore
from jqueue.spark.stream.source import ClaimReader
from jqueue.worker import Worker
from tests.spark.batch.batch_scenes import Session, run_batch
from tests.spark.batch.child_scenes import needs_fork
from tests.spark.batch.test_batch_ranges import fill, jobs_in, left_in

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
    content[content.index(b"\1") + 1] ^= 1
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
    assert is_told_of(segment, "its jobs wait until it can be, is restored from a backup", record.getMessage())
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
    assert is_told_of(segment, f"cannot be read, and {unread} jobs .* cannot be read", record.getMessage())
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


class Stream:
    """A streaming query on a file, as Spark drives it. Its last batch is told as done with the next claim."""

    def __init__(self, file):
        self.file = file
        self.reader = ClaimReader({"path": str(file), "pollInterval": "0"}, SNAPSHOT_SCHEMA)
        self.start = self.end = self.reader.initialOffset()
        self.reader.latestOffset(self.start, ReadMaxRows(JOBS))  # the first batch of a query is empty

    def claim(self, most=JOBS):
        """Tell that the last batch is done, and claim the next. Return its partitions."""
        self.start, self.end = self.end, self.reader.latestOffset(self.end, ReadMaxRows(most))
        return self.reader.partitions(self.start, self.end)

    def ids(self, partitions):
        """Read partitions in other processes, as tasks do. Return the ids of their jobs."""
        tasks, sent = pickle.loads(pickle.dumps(self.reader)), pickle.loads(pickle.dumps(partitions))
        return [job_id for each in sent for rows in tasks.read(each) for job_id in rows.to_pydict()["id"]]

    def fail(self, job_id):
        """Tell that a row of the batch has failed, as `end_batch` does."""
        store = OutcomeStore(LocalFileSystemStorage(self.file))
        asyncio.run(store.write(self.end["claim"], [Outcome(job_id, 0, "dead", error="on purpose")]))

    def work_through(self, most=20):
        """Do all further batches. Return the ids of their jobs."""
        found: list[str] = []
        for _ in range(most):
            partitions = self.claim()
            if not partitions:
                return found
            found += self.ids(partitions)
        raise AssertionError("the same jobs are claimed again and again")

    @property
    def staged(self):
        return [path.name for path in self.file.parent.iterdir() if PREFIX in path.name]


def ids_in(file):
    return [job.id for job in asyncio.run(jobs_in(str(file)))]


@pytest.mark.parametrize(("damage", "least"), [(change, JOBS - CHUNK_ROWS), (remove, CHUNK_ROWS)])
def test_a_streaming_query_hands_back_jobs_that_its_tasks_cannot_read_and_does_the_others(file, caplog, damage, least):
    stream, segment, ids = Stream(file), segment_of(file), ids_in(file)
    partitions = stream.claim()
    content = segment.read_bytes()
    damage(segment)
    found = stream.ids(partitions)
    fill(str(file), [JOBS])
    found += stream.work_through()
    assert len(found) == len(set(found)) > least
    assert found[-1] not in ids
    [told] = [record.getMessage() for record in caplog.records if "rows of batch 1" in record.getMessage()]
    assert is_told_of(segment, "jobs of a range cannot be read", told)
    assert [] == stream.staged
    assert asyncio.run(counts_of(file)) == (len(found), JOBS + 1 - len(found), 0)
    segment.write_bytes(content)
    stream.reader.stop()
    rest = Stream(file)
    found += rest.work_through()
    assert JOBS + 1 == len(found) == len(set(found))
    rest.reader.stop()


@pytest.mark.parametrize("restarted", [False, True])
@damaged
def test_a_failed_row_of_a_segment_that_was_lost_stops_no_streaming_query(file, damage, words, restarted):
    stream, segment, ids = Stream(file), segment_of(file), ids_in(file)
    assert ids == stream.ids(stream.claim())
    stream.fail(ids[CHUNK_ROWS - 1])
    content = segment.read_bytes()
    damage(segment)
    if restarted:
        end = stream.end
        stream.reader.stop()
        stream.reader = ClaimReader({"path": str(file), "pollInterval": "0"}, SNAPSHOT_SCHEMA)
        stream.end = end
    fill(str(file), [JOBS])
    found = stream.work_through()
    assert found[-1] not in ids
    assert [] == stream.staged
    segment.write_bytes(content)
    done, left, claimed = asyncio.run(counts_of(file))
    assert (JOBS + 1, 0) == (done + left, claimed)
    assert left == (JOBS if restarted and damage is remove else 1 if restarted else 0)
    stream.reader.stop()


def test_a_row_is_not_done_if_the_note_that_no_task_has_read_it_cannot_be_written(file, monkeypatch):
    stream, segment = Stream(file), segment_of(file)
    partitions = stream.claim()
    change(segment)
    monkeypatch.setattr(StagedObjects, "update", refused)
    with pytest.raises(StorageFatalError, match="no space"):
        stream.ids(partitions)
    stream.reader.stop()


def test_a_task_that_does_not_see_the_queue_fails_and_leaves_no_row_out(file):
    """As on a machine without the disk of the driver."""
    stream, elsewhere = Stream(file), file.with_name("elsewhere")
    partitions = stream.claim()
    elsewhere.mkdir()
    for path in [*file.parent.glob(f"{file.name}*")]:
        path.rename(elsewhere / path.name)
    with pytest.raises(StorageFatalError, match="does not exist"):
        stream.ids(partitions)
    assert [] == stream.staged
    for path in [*elsewhere.iterdir()]:
        path.rename(file.parent / path.name)
    assert JOBS == len(stream.ids(partitions))
    stream.reader.stop()


async def refused(*_):
    raise StorageFatalError("no space is left")


async def counts_of(file):
    """Numbers of jobs: done or dead, waiting, in progress."""
    async with connect(str(file), DirectQueue) as queue:
        stats = await queue.stats()
        assert stats.totals is not None
        return stats.totals.done + stats.dead, stats.depth, stats.in_progress


@damaged
def test_a_snapshot_that_cannot_read_a_segment_names_it(file, damage, words):
    reader, segment = SnapshotReader({"path": str(file)}, SNAPSHOT_SCHEMA), segment_of(file)
    damage(segment)
    with pytest.raises(StorageFatalError) as caught:
        [list(reader.read(each)) for each in reader.partitions()]
    assert is_told_of(segment, words, str(caught.value))
