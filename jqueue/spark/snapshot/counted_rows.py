"""Rows of a snapshot by the manifest alone, if no column is wanted that only the rows of a segment have.

All rows of a segment have one entrypoint, and the manifest has the number of those that wait or are in progress. So a
count by entrypoint and status reads no segment, whatever the number of jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from jqueue.domain.job import JobStatus
from jqueue.spark.rows import QUEUE, batch_of

COLUMNS = frozenset({"entrypoint", "status", QUEUE})
"""The columns that the manifest has."""

ROW_BYTES = 16
"""Size of a row, beside the bytes of a line, when a snapshot is cut into partitions."""

BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class CountedRows:
    """Rows of one segment that are alike in the columns of the manifest.

    Attributes:
        queue: name of the queue.
        entrypoint: of the jobs.
        status: of the jobs.
        rows: number of rows.
    """

    queue: str
    entrypoint: str
    status: JobStatus
    rows: int

    @property
    def size(self) -> int:
        """About the number of bytes to make."""
        return self.rows * ROW_BYTES

    def split(self, size: int) -> tuple[CountedRows, CountedRows | None]:
        """Return the first rows, of about `size` bytes and at least one, and all others."""
        first = max(1, -(-size // ROW_BYTES))
        if first >= self.rows:
            return self, None
        return replace(self, rows=first), replace(self, rows=self.rows - first)

    def batches(self, schema: StructType) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with columns that the manifest has."""
        most = min(BATCH_ROWS, self.rows)
        cells = {"entrypoint": self.entrypoint, "status": self.status.value, QUEUE: self.queue}
        arrow = to_arrow_schema(schema, timezone="UTC")
        batch = batch_of({name: [cells[name]] * most for name in schema.names}, most, arrow)
        for start in range(0, self.rows, most):
            yield batch.slice(0, min(most, self.rows - start))
