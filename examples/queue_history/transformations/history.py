"""The table `history`: with each run of the pipeline, the figures of the queues as they are then.

The queues are read here, before the pipeline runs: once, so that all tables tell of the same version, and because in
Spark 4.3.0 `spark-pipelines` takes a run for failed in which Python reads the data (SPARK-59135).

A streaming table keeps the rows of earlier runs. It takes rows from a stream only, so there is a stream of one row a
run, which the figures are joined to. A run that was cut short may have its successor's rows come twice, as those of
two runs of one time; what is made from the table counts them once.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jqueue.spark.report import report

spark = SparkSession.active()
found = report(spark, spark.conf.get("spark.jqueue.queues", "") or "")
without_jobs = [found.totals[queue] for queue in found.queues if not found.totals[queue].jobs]

dp.create_streaming_table(
    "history",
    comment="The jobs of each entrypoint in each queue, in figures, at each run; a queue without jobs has one row.",
    format="parquet",
    table_properties={"pipelines.reset.allowed": "false"},  # a full refresh would lose the history
)


@dp.append_flow(target="history")
def snapshots() -> DataFrame:
    """One row for each queue and entrypoint, and when that was."""
    runs = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    figures = spark.createDataFrame([*found.standings, *without_jobs], found.frame.schema)
    taken = figures.select(F.lit(found.now).alias("taken_at"), "*")
    return runs.select(F.col("value").alias("run")).crossJoin(F.broadcast(taken)).coalesce(1)
