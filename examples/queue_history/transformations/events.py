"""The table `events`: with each run of the pipeline, the events that the histories of the queues have got since.

The history of a queue forgets old events, and `archive` keeps them in a lake, in the folder of the pipeline. This is
done here, before the pipeline runs, for the reason that `history.py` gives. The table then takes from the lake what it
does not have yet: the events of each queue are numbered. So a run that was cut short loses nothing.

Queues without a history have no rows here: `jqueue configure URL --history 30d` switches it on.
"""

from contextlib import suppress

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jqueue import InvalidURLError
from jqueue.spark.lake import archive, read_lake
from jqueue.spark.lake.events import LAKE
from jqueue.spark.lake.reading import lake_schema
from jqueue.spark.lake.store import lake_name

KEPT = [name for name in LAKE.names if name not in ("payload", "rows")]

spark = SparkSession.active()
lake = spark.conf.get("spark.jqueue.lake", "") or ""
lake_name(lake)  # raises if there can be no lake at this place
with suppress(InvalidURLError):  # no queue has a history: `history.py` has checked the URLs
    archive(spark, spark.conf.get("spark.jqueue.queues", "") or "", lake)

dp.create_streaming_table(
    "events",
    comment="The events of the queues' histories, in the order of `number` for each queue.",
    format="parquet",
    table_properties={"pipelines.reset.allowed": "false"},  # the lake would fill it again, but all at once
)


def new_events() -> DataFrame:
    """The events of the lake that the table does not have."""
    try:
        events = read_lake(spark, lake, KEPT)
    except InvalidURLError:  # no queue has ever had a history
        return spark.createDataFrame([], lake_schema(KEPT))
    if not spark.catalog.tableExists("events"):
        return events
    known = spark.table("events").groupBy("queue_id").agg(F.max("number").alias("last")).collect()
    if not known:
        return events
    last = F.create_map(*(F.lit(each) for row in known for each in (row["queue_id"], row["last"])))
    return events.where(F.col("number") > F.coalesce(last[F.col("queue_id")], F.lit(0)))


new = new_events()


@dp.append_flow(target="events")
def appended() -> DataFrame:
    """The events that the table does not have, and the number of the run."""
    runs = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    return runs.select(F.col("value").alias("run")).crossJoin(new)
