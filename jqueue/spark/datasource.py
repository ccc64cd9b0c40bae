"""The data source `jqueue` that Spark calls. It passes each kind of work on to the file that does it.

Spark creates it anew in every process that plans, reads or writes, so it holds nothing but its options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from jqueue.spark.errors import shows_one_line
from jqueue.spark.session import require_spark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jqueue.spark.enqueue.writing import BulkWriter, StreamSink
    from jqueue.spark.snapshot import SnapshotReader
    from jqueue.spark.stream.source import ClaimReader


@shows_one_line
class JQueueDataSource(DataSource):
    """Queues as tables and streams, under the name `jqueue`.

    Args:
        options: as Spark passes them.

    Raises:
        ImportError: PySpark is too old. The message says which one is needed.
    """

    pyspark_version: str = pyspark.__version__

    def __init__(self, options: Mapping[str, str]) -> None:
        require_spark(self.pyspark_version)
        super().__init__(options)  # type: ignore[arg-type] # Spark's own mapping, which ignores case

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`, as in `format("jqueue")`."""
        return "jqueue"

    def schema(self) -> StructType:
        """Return the columns of a job."""
        from jqueue.spark.rows import schema_of
        from jqueue.spark.tables import schema_of_table

        return schema_of_table(schema_of(self.options), self.options)

    def reader(self, schema: StructType) -> SnapshotReader:
        """Return the reader of one version of the queue, as a table."""
        from jqueue.spark.snapshot import SnapshotReader

        return SnapshotReader(self._options_with(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BulkWriter:
        """Return the writer that enqueues in bulk."""
        from jqueue.spark.enqueue.writing import BulkWriter

        return BulkWriter(self._options_with(schema), schema, overwrite)

    def streamReader(self, schema: StructType) -> ClaimReader:
        """Return the reader of a streaming query, which claims jobs."""
        from jqueue.spark.stream.source import ClaimReader

        return ClaimReader(self._options_with(schema), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        """Return the writer that enqueues each micro-batch in bulk."""
        from jqueue.spark.enqueue.writing import StreamSink

        return StreamSink(self._options_with(schema), schema, overwrite)

    def _options_with(self, schema: StructType) -> dict[str, str]:
        """Return the options, with the queue URL of the SQL table that this schema belongs to."""
        from jqueue.spark.tables import options_of_table

        return options_of_table(self.options, schema)
