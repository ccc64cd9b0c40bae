"""Rows on their way to the tasks. Those of single jobs are sent with the partitions, and tasks read those of leases.

Single jobs are read once, by the claim. Two reads would see two versions of a queue, so that jobs would be missing, or
appear twice. The rows of a lease never change, so each task reads its own. A task that cannot read its rows notes the
segment in the object of the outcomes of the batch, and leaves them out. If it cannot write its note, it fails, so that
no row is done which no task has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from jqueue.connect import connect
from jqueue.core.blob.lines import encode_record
from jqueue.core.direct import DirectQueue
from jqueue.domain.models import Job, record_of
from jqueue.domain.operations.lookups import LeasesHeldBy
from jqueue.domain.segments import Lease
from jqueue.spark.claims.outcomes import Staged
from jqueue.spark.lines import rows_of
from jqueue.spark.snapshot.reader import cut
from jqueue.spark.snapshot.segment_rows import SegmentRows
from jqueue.spark.staging import PREFIX, Staging

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PARTITION_BYTES = 2 << 20
FEWEST_PARTITIONS, MOST_PARTITIONS = 2, 8


def name_of_outcomes(claim: str) -> str:
    """Return the name of the object with the outcomes of a batch, by its claim."""
    return f"{PREFIX}stream-{claim}"


@dataclass(frozen=True)
class UnreadNotes:
    """Notes the segments that tasks of one batch cannot read. It may be pickled.

    Attributes:
        holder: the holder of the claims of the batch.
        claim: the claim of the batch, which names the object.
        staging: the place of the object.
    """

    holder: str
    claim: str
    staging: Staging = field(repr=False)

    def note(self, segment: str) -> bool:
        """Note a segment. Return False if this process sees another queue than the source does.

        A file on the disk of another machine has neither the segment nor the claim. A note there would not be read.

        Raises:
            JQueueError: the notes are damaged, or the store failed.
        """
        seen: list[bool] = []

        def add(content: bytes | None) -> bytes:
            staged = Staged.decode(content)
            return replace(staged, unread={**staged.unread, segment: "a task could not read it"}).encode()

        async def write() -> None:
            async with connect(self.staging.url, DirectQueue, deadline=self.staging.deadline) as queue:
                [claims] = await queue.apply(LeasesHeldBy(self.holder))
            seen.append(any(claim.segment == segment for claim in claims))
            if seen[0]:
                async with self.staging.opened() as objects:
                    await objects.update(name_of_outcomes(self.claim), add)

        asyncio.run(write())
        return seen[0]


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
    lines = b"\n".join(encode_record(record_of(job)) for job in jobs)
    rows = rows_of(lines, to_arrow_schema(schema, timezone="UTC"))
    if partitions is None:
        partitions = min(MOST_PARTITIONS, max(FEWEST_PARTITIONS, -(-rows.nbytes // PARTITION_BYTES)))
    size = max(1, -(-rows.num_rows // partitions))
    parts = []
    for first in range(0, rows.num_rows, size):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_batch(rows.slice(first, size))
        parts.append(ShippedRows(sink.getvalue().to_pybytes()))
    return parts


def partitions_of_leases(
    queue: str, url: str, claims: Sequence[Lease], notes: UnreadNotes, count: int | None
) -> list[InputPartition]:
    """Return the rows of leases, which any task can read.

    Args:
        queue: name of the queue.
        url: any process can open the queue by it.
        claims: the leases.
        notes: takes note of rows that a task cannot read.
        count: number of partitions. None: chosen by the size.
    """
    pieces = [SegmentRows.of_entry(queue, url, claim.id, claim.entry, notes.note) for claim in claims]
    return [InputPartition(part) for part in cut(pieces, count)]
