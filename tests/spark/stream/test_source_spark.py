"""The streaming source on real Spark."""

import asyncio
import json
import threading
import time
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.core.direct import DirectQueue
from jqueue.domain.operations import Enqueue
from tests.tiny_segments import in_segments, spilled

pytestmark = pytest.mark.wide


class Jobs:
    """A queue in a file, used from the driver program."""

    def __init__(self, folder):
        self.url = str(folder / "queue.json")
        self.checkpoint = str(folder / "checkpoint")
        self.batches: dict[int, list[str]] = {}

    def have(self, work):
        async def do():
            async with DirectQueue(LocalFileSystemStorage(self.url)) as queue:
                return await work(queue)

        return asyncio.run(do())

    def enqueue(self, count):
        return [job.id for job in self.have(lambda queue: queue.enqueue_many([Enqueue("work", b"payload")] * count))]

    @property
    def left(self):
        return list(self.have(lambda queue: queue.read_state()).jobs)

    def keep(self, frame, batch):
        """A sink that keeps each batch once."""
        self.batches.setdefault(batch, [row.id for row in frame.select("id").collect()])

    def start(self, spark, *, sink=None, **options):
        """Start a query that drains the queue."""
        frame = spark.readStream.format("jqueue").options(**options).load(self.url)
        writer = frame.writeStream.foreachBatch(sink or self.keep).option("checkpointLocation", self.checkpoint)
        return writer.trigger(availableNow=True).start()

    def run(self, spark, **how):
        query = self.start(spark, **how)
        query.awaitTermination()
        return query


@pytest.fixture
def jobs(tmp_path):
    return Jobs(tmp_path)


def test_a_query_drains_the_queue_and_continues_from_its_checkpoint(spark, jobs):
    ids = jobs.enqueue(300)
    query = jobs.run(spark, maxRowsPerTrigger=100)
    told = [json.loads(progress["sources"][0]["latestOffset"] or "null") or {} for progress in query.recentProgress]
    assert [200, 100, 0] == [each["backlog"] for each in told if each.get("claimedJobs") == 100]
    assert [0, 100, 100, 100] == [len(jobs.batches[batch]) for batch in sorted(jobs.batches)]
    assert [] == jobs.left
    ids += jobs.enqueue(50)
    jobs.run(spark, maxJobsPerTrigger=100)
    assert 50 == len(jobs.batches[max(jobs.batches)])
    assert ids == [job_id for batch in sorted(jobs.batches) for job_id in jobs.batches[batch]]
    assert [] == jobs.left


def test_a_query_goes_on_beside_rows_that_its_tasks_cannot_read(spark, jobs):
    """The rows are changed after they were claimed. Reading the batch again leaves out the same rows."""

    async def fill(queue):
        deep = in_segments(queue, chunk_rows=256, most_rows=1000)
        await deep.enqueue_many(Enqueue("work", b"payload") for _ in range(1000))
        await spilled(deep)
        return [job.id async for job in deep.iterate_jobs()]

    whole: dict[Path, bytes] = {}

    def sink(frame, batch):
        [segment] = (Path(f"{jobs.url}.segments")).iterdir()
        if not whole:
            whole[segment] = segment.read_bytes()
            segment.write_bytes(whole[segment].replace(b"\x02500\x03", b"\x02501\x03"))
        jobs.keep(frame, batch)
        assert len(jobs.batches[batch]) == frame.count()

    ids = jobs.have(fill)
    jobs.run(spark, sink=sink)
    assert [*ids[:256], *ids[512:]] == [job_id for batch in sorted(jobs.batches) for job_id in jobs.batches[batch]]
    for segment, content in whole.items():
        segment.write_bytes(content)
    jobs.run(spark)
    assert sorted(ids) == sorted(job_id for several in jobs.batches.values() for job_id in several)
    assert [] == jobs.left


def test_a_wrong_option_of_a_stream_gives_a_one_line_error(spark, jobs):
    with pytest.raises(StreamingQueryException) as raised:
        jobs.run(spark, maxJobsPerTrigger=0)
    [said] = [line for line in str(raised.value).splitlines() if "Error:" in line]
    assert said.endswith("Error: option maxJobsPerTrigger takes a whole number from 1 to 1000000, got '0'")


@pytest.mark.full
def test_a_failed_batch_is_repeated_with_the_same_jobs_and_then_acked(spark, jobs):
    ids = jobs.enqueue(250)
    seen = []

    def failing(frame, batch):
        seen.append((batch, [row.id for row in frame.select("id").collect()]))
        if batch == 2 and len(seen) == 3:
            raise RuntimeError("the sink is full")

    with pytest.raises(StreamingQueryException, match="the sink is full"):
        jobs.run(spark, sink=failing, maxJobsPerTrigger=100)
    assert 150 == len(jobs.left)
    jobs.run(spark, sink=failing, maxJobsPerTrigger=100)
    assert [0, 1, 2, 2, 3] == [batch for batch, _ in seen]
    assert seen[2] == seen[3]
    assert sorted(ids) == sorted(job_id for _, batch in seen[:2] + seen[3:] for job_id in batch)
    assert [] == jobs.left


@pytest.mark.full
def test_claims_are_kept_alive_while_their_batch_runs_for_several_timeouts(spark, jobs):
    ids, timeout = jobs.enqueue(20), 8.0
    stolen = []

    def slow(frame, batch):
        jobs.keep(frame, batch)

        async def try_to_steal(queue):
            until = time.monotonic() + 3 * timeout
            while time.monotonic() < until:
                stolen.extend(await queue.dequeue("work", wait=timeout))

        if jobs.batches[batch]:
            jobs.have(try_to_steal)

    jobs.run(spark, sink=slow, claimTimeout=timeout)
    assert [] == stolen
    assert ids == jobs.batches[1]
    assert [] == jobs.left


@pytest.mark.full
def test_a_continuous_query_delivers_and_acks_jobs_as_they_come(spark, jobs):
    """Without a trigger, Spark polls continuously. No batch follows the last one, and Spark never commits it."""
    frame = spark.readStream.format("jqueue").option("pollInterval", 0.5).load(jobs.url)
    query = frame.writeStream.foreachBatch(jobs.keep).option("checkpointLocation", jobs.checkpoint).start()
    try:
        for _ in range(3):
            ids = jobs.enqueue(10)
            _wait_for(lambda ids=ids: set(ids) <= {job_id for batch in jobs.batches.values() for job_id in batch})
            _wait_for(lambda: [] == jobs.left)
    finally:
        query.stop()


@pytest.mark.full
def test_a_stopped_query_continues_with_its_claims(spark, jobs):
    ids = jobs.enqueue(30)
    begun, may_end = threading.Event(), threading.Event()

    def blocking(frame, batch):
        jobs.keep(frame, batch)
        if batch == 2:
            begun.set()
            may_end.wait(120)

    query = jobs.start(spark, sink=blocking, maxJobsPerTrigger=10)
    assert begun.wait(120)
    threading.Timer(1, may_end.set).start()
    query.stop()  # interrupts the batch and waits for its Python function
    assert 20 == len(jobs.left)
    jobs.run(spark, maxJobsPerTrigger=10)
    assert ids == [job_id for batch in sorted(jobs.batches) for job_id in jobs.batches[batch]]
    assert [] == jobs.left


def _wait_for(condition):
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)
