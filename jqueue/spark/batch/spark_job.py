"""The Spark job of a batch: jobs become a DataFrame, and a task for each of its partitions does them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from jqueue.core.blob.lines import encode_job
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import Job, record_of
from jqueue.domain.segments import RangeClaim
from jqueue.spark.batch.task import JOBS, RESULTS, STAGED, BatchTask
from jqueue.spark.tags import tagged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PER_CORE = 2
"""Partitions for each core: with several, a slow partition does not leave all other cores idle."""

MOST_IN_ONE = 1000
"""Largest number of jobs in a partition, unless the caller sets the number of partitions."""


def parts_of(spark: SparkSession, partitions: int | None) -> int:
    """Return the least number of partitions for a batch that is large enough; see `sizes_of`."""
    from pyspark.errors import PySparkAttributeError

    try:
        return PER_CORE * int(spark.sparkContext.defaultParallelism) if partitions is None else partitions
    except PySparkAttributeError:
        raise InvalidJobError(
            "Spark Connect does not report the number of cores: give the number of partitions="
        ) from None


def sizes_of(spark: SparkSession, jobs: int, partitions: int | None) -> list[int]:
    """Return the number of jobs in each partition.

    Args:
        spark: the session, which knows the number of cores.
        jobs: number of all jobs.
        partitions: the wanted number of partitions; None: chosen by the numbers of cores and jobs.
    """
    number = partitions or max(parts_of(spark, None), -(-jobs // MOST_IN_ONE))
    size, more = divmod(jobs, min(number, jobs))
    return [size + (place < more) for place in range(min(number, jobs))]


def do_on_spark(
    spark: SparkSession,
    jobs: Sequence[Job],
    sizes: Sequence[int],
    task: BatchTask,
    ranges: Sequence[RangeClaim] = (),
    results: str | None = None,
) -> list[str]:
    """Do jobs on executors, and return the names of the objects with their outcomes.

    With a place for results, executors write them there as Parquet. Spark commits them when all tasks have succeeded,
    those of one attempt for each partition, and these attempts are returned.

    If an error or an interrupt ends the wait for them, Spark is told to stop.

    Args:
        spark: the session.
        jobs: in the order in which to do them.
        sizes: number of these jobs in each partition; the first partition has the first jobs.
        task: does the jobs of a partition.
        ranges: claims of ranges. Each makes a further partition.
        results: path of a folder for results; None for no results.
    """
    numbers = [number for number, size in enumerate(sizes) for _ in range(size)]
    numbers += range(len(sizes), len(sizes) + len(ranges))
    lines = [*(encode_job(record_of(job)) for job in jobs), *(pickle.dumps(claim) for claim in ranges)]
    table = pa.table([numbers, range(len(lines)), lines], schema=JOBS)
    with tagged(spark, task.write_id):
        lots = spark.createDataFrame(table).repartitionById(len(sizes) + len(ranges), "partition")
        if results is None:
            return [row.staged for row in lots.mapInArrow(task, from_arrow_schema(STAGED)).collect()]
        folder = f"{results}/batch={task.write_id}"
        lots.mapInArrow(task, from_arrow_schema(RESULTS)).write.parquet(folder)
        written = spark.read.schema(from_arrow_schema(RESULTS)).parquet(folder)
        return [row.staged for row in written.select("staged").distinct().collect()]
