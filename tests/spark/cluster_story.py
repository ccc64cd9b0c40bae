"""A program that uses a queue on a cluster, from rows to a stream, and is run by a test with its own driver.

    python -c 'from tests.spark import cluster_story; cluster_story.main()' MASTER URL FOLDER

It prints the result and the folders of each part as JSON. Each executor and the Python processes that it starts work
in their own folder. Nothing here is in `__main__`, so executors import it like the modules of a user.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from jqueue.domain.operations.enqueue import Enqueue
from jqueue.spark import local_session, run_batch
from jqueue.worker import Context, Worker

JOBS = 40
EXECUTORS = {
    "spark_cores_max": "2",  # both executors, and no task before both are registered
    "spark_scheduler_minRegisteredResourcesRatio": "1.0",
    "spark_scheduler_maxRegisteredResourcesWaitingTime": "300s",
    "spark_locality_wait": "0",  # tasks do not wait for the host that has their rows
    "spark_executorEnv_PYTHONPATH": str(Path(__file__).parents[2]),
}
LOGIN = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
PAYLOAD = "string(payload) payload"

worker = Worker(concurrency=5)


@worker.handler("resize")
async def resize(row: dict[str, Any], ctx: Context) -> None:
    """Enqueue a job that records the folder in which this one was done."""
    ctx.on_ack(Enqueue("index", json.dumps({**row, "done in": os.getcwd()}).encode()))


def with_folder(batches):
    """The same rows with the folder of this process."""
    for batch in batches:
        yield batch.append_column("folder", pa.array([os.getcwd()] * batch.num_rows))


def passed(frame, *columns):
    """Columns of a frame, with the folder of the task that reads or makes each row."""
    chosen = frame.selectExpr(*columns)
    return chosen.mapInArrow(with_folder, StructType([*chosen.schema.fields, StructField("folder", StringType())]))


def enqueue(spark, url):
    """A job for each number, from four tasks."""
    rows = passed(spark.range(0, JOBS, 1, 4), "id number").selectExpr("struct(number, folder) payload")
    rows.write.format("jqueue").mode("append").options(entrypoint="resize", txn_app_id="story", txn_version="1").save(
        url
    )


def snapshot(spark, url):
    jobs = spark.read.format("jqueue").option("num_partitions", 2).load(url)
    return [row.asDict() for row in passed(jobs, "entrypoint", PAYLOAD).collect()]


def stream(spark, url, folder):
    seen: list[dict[str, str]] = []

    def keep(frame, _number):
        seen.extend(row.asDict() for row in passed(frame, "entrypoint", PAYLOAD).collect())

    jobs = spark.readStream.format("jqueue").option("num_partitions", 2).load(url)
    query = jobs.writeStream.foreachBatch(keep).option("checkpointLocation", f"{folder}/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
    return seen


def main() -> None:
    """Run all parts and print their results."""
    master, url, folder = sys.argv[1:]
    login = {f"spark.executorEnv.{name}": os.environ[name] for name in LOGIN}
    spark = local_session("story", master, **EXECUTORS, **login)
    enqueue(spark, url)
    read = snapshot(spark, url)
    batch = run_batch(spark, url, worker, partitions=4)
    streamed = stream(spark, url, folder)
    left = spark.read.format("jqueue").load(url).count()
    print(
        json.dumps(
            {"read": read, "claimed": batch.claimed, "done": batch.succeeded, "streamed": streamed, "left": left}
        )
    )
    spark.stop()
