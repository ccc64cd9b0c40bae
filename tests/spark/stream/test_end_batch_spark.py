"""`end_batch` on real Spark: outcomes of single rows of a batch of a stream."""

import asyncio

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions

from jqueue import BrokerQueue, Limits, connect
from jqueue.domain.errors import ClaimLostError, InvalidJobError
from jqueue.domain.operations import Enqueue
from jqueue.spark import EndedBatch, end_batch

pytestmark = pytest.mark.wide


class Jobs:
    """A deep queue in a file, used from the driver program."""

    def __init__(self, folder):
        self.url = str(folder / "queue.json")
        self.checkpoint = str(folder / "checkpoint")

    def have(self, work):
        async def do():
            limits = Limits(batch_size=100, hot_bytes=1)
            async with connect(self.url, BrokerQueue, limits=limits) as queue:
                return await work(queue)

        return asyncio.run(do())

    def enqueue(self, numbers, **options):
        """Put jobs into segments, by a queue that keeps hardly any in its object."""
        added = [Enqueue("work", b"%d" % number, **options) for number in numbers]
        return [job.id for job in self.have(lambda queue: queue.enqueue_many(added))]

    @property
    def left(self):
        async def jobs(queue):
            return [job async for job in queue.iterate_jobs()]

        return self.have(jobs)

    def run(self, spark, function):
        frame = spark.readStream.format("jqueue").load(self.url)
        writer = frame.writeStream.foreachBatch(function).option("checkpointLocation", self.checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()


@pytest.fixture
def jobs(tmp_path):
    return Jobs(tmp_path)


def test_rows_fail_and_keep_results_as_the_function_of_a_batch_says(spark, jobs):
    jobs.enqueue(range(700))
    jobs.enqueue([7000], keep_result=60)
    ended = []

    def work(batch, number):
        rows = batch.withColumn("number", batch["payload"].cast("string").cast("int"))
        bad = rows.where("number IN (3, 300)").select(
            "id",
            functions.concat(functions.lit("bad "), "number").alias("error"),
            (rows["number"] == 3).alias("dead"),
            functions.expr("INTERVAL '600' SECOND").alias("delay"),
        )
        results = rows.where("number IN (5, 7000)").select("id", functions.struct("number").alias("result"))
        ended.append(end_batch(batch, jobs.url, failed=bad, results=results, keep_result=60))

    jobs.run(spark, work)
    assert [EndedBatch(0, 0), EndedBatch(2, 2)] == ended
    open_jobs = sorted((job.status, job.payload, job.error) for job in jobs.left if job.status != "completed")
    assert [("dead", b"3", "bad 3"), ("queued", b"300", "bad 300")] == open_jobs
    results = sorted(job.result["number"] for job in jobs.left if job.status == "completed")
    assert [5, 7000] == results


def test_wrong_calls_are_refused_in_one_line_and_the_batch_is_not_acked(spark, jobs, tmp_path):
    [job_id] = jobs.enqueue([1])
    other = Jobs(tmp_path / "other")
    (tmp_path / "other").mkdir()
    other.enqueue([1])
    refused = []

    def refuse(*arguments, **options):
        with pytest.raises((InvalidJobError, ClaimLostError)) as caught:
            end_batch(*arguments, **options)
        refused.append(str(caught.value))

    def work(batch, number):
        if batch.isEmpty():
            return
        refuse(batch.drop("holder"), jobs.url)
        refuse(batch, jobs.url, failed=batch.select("payload"))
        refuse(batch, jobs.url, failed=batch, most=0)
        refuse(batch, jobs.url, failed={job_id: "bad"}, results={job_id: 3})
        end_batch(batch, other.url, failed=batch)

    with pytest.raises(StreamingQueryException, match="is the URL that of the stream"):
        jobs.run(spark, work)
    assert ["end_batch takes", "failed needs a ", "more than 0 row", "a row of a batc"] == [
        each[:15] for each in refused
    ]
    assert [job_id] == [job.id for job in jobs.left]
