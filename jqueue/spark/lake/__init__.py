"""The history of queues as a lake: Parquet files, by day and entrypoint, to which each run adds what is new.

archive(spark, "s3://bucket/queues/*.json", "s3://bucket/lake")
events = read_lake(spark, "s3://bucket/lake")
"""

from jqueue.spark.lake.archive import Archived, archive
from jqueue.spark.lake.reading import read_lake

__all__ = ["Archived", "archive", "read_lake"]
