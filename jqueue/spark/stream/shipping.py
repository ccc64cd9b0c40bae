"""Rows on their way to the tasks. Those of single jobs are sent with the partitions, and tasks read those of ranges.

Single jobs are read once, by the claim. Two reads would see two versions of a queue, so that jobs would be missing, or
appear twice. The rows of a range never change, so each task reads its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from jqueue.domain.job import JobStatus
from jqueue.domain.segments import RangeClaim
from jqueue.spark.snapshot.segment_rows import NotesUnread, SegmentRows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from jqueue.domain.models import Job

PARTITION_BYTES = 2 << 20
FEWEST_PARTITIONS, MOST_PARTITIONS = 2, 8


class ShippedRows(InputPartition):
    """One partition, with its rows.

    Args:
        content: the rows, as an Arrow stream.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __repr__(self) -> str:
        return f"ShippedRows(<{len(self.content)} bytes>)"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the rows, in batches."""
        with pa.ipc.open_stream(self.content) as stream:
            yield from stream


def shipped(jobs: Sequence[Job], schema: StructType, partitions: int | None = None) -> list[ShippedRows]:
    """Return jobs as rows, in partitions of about the same number of rows.

    Args:
        jobs: in the order of their rows.
        schema: of the rows.
        partitions: number of partitions, fewer if there are fewer jobs. None: chosen by the size.
    """
    from jqueue.spark.rows import arrow_of

    rows = arrow_of(jobs, schema)
    if partitions is None:
        partitions = min(MOST_PARTITIONS, max(FEWEST_PARTITIONS, -(-rows.nbytes // PARTITION_BYTES)))
    size = max(1, -(-rows.num_rows // partitions))
    return [ShippedRows(_written(rows.slice(first, size))) for first in range(0, rows.num_rows, size)]


def rows_of_claim(queue: str, url: str, claim: RangeClaim, notes: NotesUnread | None = None) -> SegmentRows:
    """Return the rows of a range, which any task can read.

    Args:
        queue: name of the queue.
        url: any process can open the queue by it.
        claim: of the range.
        notes: takes note of rows that a task cannot read.
    """
    entry, held = claim.entry, claim.held
    nothing_waits = entry.evolve(taken=((0, entry.rows),), tried=())
    chunks = entry.chunk_of(held.first), entry.chunk_of(held.last - 1) + 1
    statuses = frozenset([JobStatus.IN_PROGRESS])
    return SegmentRows(queue, url, claim.segment, nothing_waits, (held,), statuses, chunks, notes)


def split_between(partitions: int | None, jobs: int, in_ranges: int) -> tuple[int | None, int | None]:
    """Return the numbers of partitions for single jobs and for ranges, out of a number of all; None: chosen by size."""
    if partitions is None or not jobs or not in_ranges:
        return partitions, partitions
    single = min(max(1, round(partitions * jobs / (jobs + in_ranges))), max(1, partitions - 1))
    return single, max(1, partitions - single)


def _written(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content
