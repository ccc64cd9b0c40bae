"""What Spark calls: the data source `jqueue`, and which file does what of it.

Spark makes it anew in every process that plans, reads or writes, so it holds nothing but its options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from jqueue.spark.session import require_spark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jqueue.spark.enqueue.sink import StreamSink
    from jqueue.spark.enqueue.writing import BulkWriter
    from jqueue.spark.snapshot.reader import SnapshotReader
    from jqueue.spark.stream.source import ClaimReader


class JQueueDataSource(DataSource):
    """Queues as tables and streams, by the name `jqueue`.

    Args:
        options: as Spark hands them over.

    Raises:
        ImportError: PySpark is too old. The message says which one is needed.
    """

    pyspark_version = pyspark.__version__

    def __init__(self, options: Mapping[str, str]) -> None:
        require_spark(self.pyspark_version)
        super().__init__(options)  # type: ignore[arg-type] # Spark's own mapping, which ignores case

    @classmethod
    def name(cls) -> str:
        """As in `format("jqueue")`."""
        return "jqueue"

    def schema(self) -> StructType:
        """The columns of a job."""
        from jqueue.spark.rows import schema_of
        from jqueue.spark.tables import is_new_table, with_url

        schema = schema_of(self.options)
        return with_url(schema, self.options) if is_new_table(self.options) else schema

    def reader(self, schema: StructType) -> SnapshotReader:
        """One version of the queue, as a table."""
        from jqueue.spark.snapshot.reader import SnapshotReader

        return SnapshotReader(self._options_with(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BulkWriter:
        """Bulk enqueue."""
        from jqueue.spark.enqueue.writing import BulkWriter

        return BulkWriter(self._options_with(schema), schema, overwrite)

    def streamReader(self, schema: StructType) -> ClaimReader:
        """Jobs claimed by a streaming query."""
        from jqueue.spark.stream.source import ClaimReader

        return ClaimReader(self._options_with(schema), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        """Bulk enqueue of each micro-batch."""
        from jqueue.spark.enqueue.sink import StreamSink

        return StreamSink(self._options_with(schema), schema, overwrite)

    def _options_with(self, schema: StructType) -> dict[str, str]:
        """Return the options, with the URL of the table of SQL that this schema is of."""
        from jqueue.spark.tables import options_of_table

        return options_of_table(self.options, schema)
