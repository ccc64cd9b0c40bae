"""Registers `format("jqueue")` with Spark, which looks for data sources in modules called `pyspark_…`."""

from jqueue.spark.datasource import JQueueDataSource as DefaultSource

__all__ = ["DefaultSource"]
