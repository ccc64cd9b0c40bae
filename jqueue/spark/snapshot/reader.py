"""`spark.read.format("jqueue")`: one version of a queue, or of each queue of a fleet, as a table.

A blob is read once for each load, by the process that plans it, and its lines travel with the partitions. If every
task read the blob by itself, each would see another version, and a job that moved would appear twice or not at all.
Jobs in segments do not travel: each task reads its own rows, which never change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from jqueue.core.blob.lines import encode_record
from jqueue.core.direct import DirectQueue
from jqueue.core.tasks import some_at_once
from jqueue.domain.errors import QueueMissingError, StorageError
from jqueue.domain.job import JobStatus
from jqueue.domain.printable import counted
from jqueue.domain.selection import Selection, phases_of
from jqueue.ports.log import Logger, logger_of
from jqueue.runtime.system import SystemClock
from jqueue.spark.fleet import FleetQueue, addresses_of, find_all, names_several, release_all
from jqueue.spark.lines import rows_of
from jqueue.spark.option_parsing import INTEGER, NAMES, OptionType, parse_options
from jqueue.spark.rows import check_schema
from jqueue.spark.snapshot.segment_rows import SegmentRows
from jqueue.spark.staging import absolute

if TYPE_CHECKING:
    import pyarrow as pa

logger: Logger = logger_of("jqueue")

DEADLINE = 30.0
"""Seconds to read a queue, as for any call of a queue."""

MOST_PARTITIONS = 100_000
PARTITIONS = 4
"""Default number of partitions, unless that makes them too small or too large."""

SMALLEST, LARGEST = 1 << 18, 1 << 24
"""Least and most bytes of a partition by default. Spark sends it with its task, and refuses messages of 128 MiB."""


STATUSES = OptionType(
    f"some of {', '.join(JobStatus)}, with commas between them",
    lambda text: [JobStatus(name.strip().lower()) for name in text.split(",")],
)

KNOWN: dict[str, OptionType] = {"entrypoint": NAMES, "status": STATUSES, "num_partitions": INTEGER(1, MOST_PARTITIONS)}
"""The options besides the path."""


@dataclass(frozen=True)
class BlobLines:
    """Jobs in the object of a queue.

    Attributes:
        queue: name of the queue.
        text: their lines, with a line break between two.
    """

    queue: str
    text: bytes = field(repr=False)

    @property
    def size(self) -> int:
        """Number of bytes, with the end of the last line."""
        return len(self.text) + 1 if self.text else 0

    def split(self, size: int) -> tuple[BlobLines, BlobLines | None]:
        """Return the first lines, of about `size` bytes and at least one, and all others."""
        end = self.text.find(b"\n", max(0, size - 1))
        if end < 0:
            return self, None
        return replace(self, text=self.text[:end]), replace(self, text=self.text[end + 1 :])

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the jobs as rows."""
        yield rows_of(self.text, schema, self.queue)


Piece = BlobLines | SegmentRows


class SnapshotReader(DataSourceReader):
    """Reads one version of each queue.

    It does not take Spark's filters (`pushFilters`): Spark 4.3 keeps the partitions that it has planned with the filter
    of one query for all other queries of the same DataFrame, whose rows would then be missing.

    Args:
        options: as Spark passes them.
        schema: the columns to make.

    Raises:
        InvalidJobError: an option is unknown or wrong, or a column does not exist.
        InvalidURLError: no queue is named.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        taken = parse_options(options, KNOWN)
        self.addresses: list[str] = addresses_of(options)
        self.selection: Selection = Selection(
            phases_of(taken.get("status", ())), frozenset(taken.get("entrypoint", ()))
        )
        self.count: int | None = taken.get("num_partitions")
        self.schema = schema
        check_schema(schema, fleet=names_several(self.addresses))

    def partitions(self) -> list[InputPartition]:
        """Read one version of each queue, and cut it into runs of jobs.

        Raises:
            QueueMissingError: one of the queues does not exist.
            InvalidURLError: an address is wrong, or no queue matches.
            StorageError: a queue could not be read. The message names it.
        """
        return [InputPartition(part) for part in cut(asyncio.run(self._pieces()), self.count)]

    async def _pieces(self) -> list[Piece]:
        queues, pieces = await find_all(self.addresses), dict[str, list[Piece]]()

        async def plan(queue: FleetQueue) -> None:
            pieces[queue.name] = await _pieces_of(queue, self.selection)

        try:
            await some_at_once(plan, queues)
        finally:
            await release_all(queues)
        return [piece for queue in queues for piece in pieces[queue.name]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition.

        Raises:
            StorageError: a segment could not be read. The message names it.
        """
        return read_pieces(partition.value, self.schema)


async def _pieces_of(queue: FleetQueue, selection: Selection) -> list[Piece]:
    """Return the wanted jobs of one version of a queue: the lines in its object, and its segments, which are not read.

    Some facts concern an object as a whole: an id that stands twice, a job that has no place yet. They are settled
    here, and the jobs are encoded again, so that each line can be read alone, anywhere.
    """
    url = absolute(queue.url)
    try:
        view = await DirectQueue(queue.storage).view(deadline=DEADLINE)
    except StorageError as error:
        raise type(error)(f"{queue.name}: {error}") from None
    if view.absent:
        raise QueueMissingError(queue.name)
    if view.set_aside:
        lines = counted(len(view.set_aside), "line was", "lines were")
        logger.warning("%s: %s left out: not readable as jobs", queue.name, lines)
    now, statuses = SystemClock().now(), frozenset(selection.statuses)
    jobs = [encode_record(job) for job in view.records.values() if selection.matches(job, now)]
    pieces: list[Piece] = [BlobLines(queue.name, b"\n".join(jobs))]
    for name, segment in view.header.segments.items():
        status = JobStatus.IN_PROGRESS if segment.is_leased else JobStatus.QUEUED
        is_wanted = (not statuses or status in statuses) and segment.left
        if is_wanted and (not selection.entrypoints or segment.entrypoint in selection.entrypoints):
            pieces.append(SegmentRows.of_entry(queue.name, url, name, segment))
    return pieces


def read_pieces(pieces: Iterable[Piece], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of pieces. Errors are as for `SnapshotReader.read`."""
    columns = to_arrow_schema(schema, timezone="UTC")
    for piece in pieces:
        yield from piece.batches(columns)


def cut(pieces: Iterable[Piece], count: int | None) -> list[tuple[Piece, ...]]:
    """Cut pieces, and combine them into parts of about the same size.

    Args:
        pieces: of one queue or several.
        count: number of parts, if there are as many lines and chunks; None: chosen by the size.
    """
    left = [piece for piece in pieces if piece.size]
    total = sum(piece.size for piece in left)
    if count is None:
        count = max(1, min(PARTITIONS, total // SMALLEST), -(-total // LARGEST))
    parts: list[list[Piece]] = [[]]
    done = 0
    for piece in left:
        rest: Piece | None = piece
        while rest is not None:
            part, following = rest.split(total * len(parts) // count - done)
            parts[-1].append(part)
            done += rest.size - (following.size if following else 0)
            rest = following
            if done >= total * len(parts) // count:
                parts.append([])
    return [tuple(part) for part in parts if part] or [()]
