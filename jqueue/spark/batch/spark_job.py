"""The Spark job of a batch: jobs as a DataFrame, a task for each of its partitions, and what these have staged."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from jqueue.core.blob.lines import encode_job
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import Job
from jqueue.spark.batch.task import JOBS, STAGED_DDL, BatchTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PER_CORE = 2
"""Partitions for each core: one that takes longer than the others does not leave all other cores idle."""

MOST_IN_ONE = 1000
"""So many jobs are in one partition at the most, if nobody says how many partitions there shall be."""


def sizes_of(spark: SparkSession, jobs: int, partitions: int | None) -> list[int]:
    """How many jobs each partition gets.

    Args:
        spark: tells how many cores there are.
        jobs: how many there are in all.
        partitions: how many are wanted; None: as many as are good.
    """
    number = max(PER_CORE * _cores_of(spark), -(-jobs // MOST_IN_ONE)) if partitions is None else partitions
    size, more = divmod(jobs, min(number, jobs))
    return [size + (place < more) for place in range(min(number, jobs))]


def _cores_of(spark: SparkSession) -> int:
    from pyspark.errors import PySparkAttributeError

    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkAttributeError:
        raise InvalidJobError(
            "a session of Spark Connect does not tell how many cores there are: say how many partitions= to make"
        ) from None


def do_on_spark(spark: SparkSession, jobs: Sequence[Job], sizes: Sequence[int], task: BatchTask) -> list[str]:
    """Do jobs on executors, and return the names of the objects that say what became of them.

    Whatever ends the wait for them, Spark is told to stop.

    Args:
        spark: the session.
        jobs: in the order in which they are to be done.
        sizes: how many of them go into each partition; the first has the first.
        task: what does the jobs of a partition.
    """
    numbers = [number for number, size in enumerate(sizes) for _ in range(size)]
    table = pa.table([numbers, range(len(jobs)), [encode_job(job) for job in jobs]], schema=JOBS)
    tag = f"jqueue-{task.write_id}"
    spark.addTag(tag)
    try:
        lots = spark.createDataFrame(table).repartitionById(len(sizes), "partition")
        return [row.staged for row in lots.mapInArrow(task, STAGED_DDL).collect()]
    except BaseException:
        with suppress(Exception):
            spark.interruptTag(tag)
        raise
    finally:
        with suppress(Exception):  # it is no news that Spark has ended
            spark.removeTag(tag)
