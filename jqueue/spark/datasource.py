"""What Spark calls: the data source `jqueue`, and which file does what of it.

Spark makes it anew in every process that plans, reads or writes, so it holds nothing but its options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from jqueue.spark.enqueue.sink import StreamSink
    from jqueue.spark.enqueue.writing import BulkWriter
    from jqueue.spark.snapshot.reader import SnapshotReader
    from jqueue.spark.stream.source import ClaimReader


class JQueueDataSource(DataSource):
    """Queues as tables and streams, by the name `jqueue`."""

    @classmethod
    def name(cls) -> str:
        """As in `format("jqueue")`."""
        return "jqueue"

    def schema(self) -> StructType:
        """The columns of a job."""
        from jqueue.spark.rows import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> SnapshotReader:
        """One version of the queue, as a table."""
        from jqueue.spark.snapshot.reader import SnapshotReader

        return SnapshotReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BulkWriter:
        """Bulk enqueue."""
        from jqueue.spark.enqueue.writing import BulkWriter

        return BulkWriter(self.options, schema, overwrite)

    def streamReader(self, schema: StructType) -> ClaimReader:
        """Jobs claimed by a streaming query."""
        from jqueue.spark.stream.source import ClaimReader

        return ClaimReader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        """Bulk enqueue of each micro-batch."""
        from jqueue.spark.enqueue.sink import StreamSink

        return StreamSink(self.options, schema, overwrite)
