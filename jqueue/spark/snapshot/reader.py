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
from pyspark.sql.types import StructType

from jqueue.core.blob.lines import decode_line
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.printable import counted
from jqueue.domain.selection import Selection, phases_of
from jqueue.ports.log import logger_of
from jqueue.spark.errors import shows_one_line
from jqueue.spark.fleet import addresses_of, names_several
from jqueue.spark.option_parsing import INTEGER, NAMES, OptionType, parse_options
from jqueue.spark.rows import arrow_of, check_schema
from jqueue.spark.snapshot.contents import Content, read_all
from jqueue.spark.snapshot.counted_rows import COLUMNS, CountedRows
from jqueue.spark.snapshot.segment_rows import BATCH_ROWS, SegmentRows

if TYPE_CHECKING:
    import pyarrow as pa

logger = logger_of("jqueue")

MOST_PARTITIONS = 100_000
PARTITIONS = 4
"""Default number of partitions, unless that makes them too small or too large."""

SMALLEST, LARGEST = 1 << 18, 1 << 24
"""Least and most bytes of a partition by default. Spark sends it with its task, and refuses messages of 128 MiB."""


def _statuses(text: str) -> tuple[JobStatus, ...]:
    return tuple(JobStatus(name.strip().lower()) for name in text.split(","))


STATUSES = OptionType(f"some of {', '.join(JobStatus)}, with commas between them", _statuses)

KNOWN: dict[str, OptionType] = {"entrypoint": NAMES, "status": STATUSES, "numPartitions": INTEGER(1, MOST_PARTITIONS)}
"""The options besides the path."""

_FILTERS = "the options entrypoint and status choose jobs, and a schema chooses columns"

_NOW = "a snapshot shows the queue as it is now. the history and an archive tell the past"

ANSWERS: Mapping[str, str] = {
    "fetchsize": "each task reads its own part at once: leave it out",
    "partitioncolumn": "the option numPartitions alone is enough",
    "lowerbound": "the option numPartitions alone is enough",
    "upperbound": "the option numPartitions alone is enough",
    "dbtable": _FILTERS,
    "query": _FILTERS,
    "predicates": _FILTERS,
    "topic": _FILTERS,
    "subscribe": _FILTERS,
    "versionasof": _NOW,
    "timestampasof": _NOW,
    "startingoffsets": _NOW,
    "endingoffsets": _NOW,
}
"""Advice for options of other sources, by their names in lower case."""


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

    def jobs(self) -> Iterator[list[JobRecord]]:
        """Yield the jobs, as many at a time as make a batch of rows."""
        lines = self.text.split(b"\n")
        for first in range(0, len(lines), BATCH_ROWS):
            yield list(map(decode_line, lines[first : first + BATCH_ROWS]))


Piece = BlobLines | SegmentRows | CountedRows


class SnapshotPartition(InputPartition):
    """Pieces of one version of a queue, or of several queues."""

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        super().__init__(pieces)

    def __repr__(self) -> str:
        return f"SnapshotPartition({sum(piece.size for piece in self.value)} bytes)"


@shows_one_line
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
        taken = parse_options(options, KNOWN, answers=ANSWERS)
        self.addresses = addresses_of(options)
        self.selection = Selection(phases_of(taken.get("status", ())), frozenset(taken.get("entrypoint", ())))
        self.count: int | None = taken.get("numPartitions")
        self.schema = schema
        check_schema(schema, fleet=names_several(self.addresses))

    def partitions(self) -> list[InputPartition]:
        """Read one version of each queue, and cut it into runs of jobs.

        Raises:
            StorageError: a queue could not be read, or does not exist. The message names it.
        """
        pieces: list[Piece] = []
        contents: list[Content] = []

        async def read() -> None:  # `asyncio.run` would print a returned value with an error
            contents.extend(await read_all(self.addresses, self.selection))

        asyncio.run(read())
        for name, lines, set_aside, rows in contents:
            if set_aside:
                told = counted(set_aside, "line was", "lines were")
                logger.warning("%s: %s left out: not readable as jobs", name, told)
            pieces.append(BlobLines(name, b"\n".join(lines)))
            for each in rows:
                pieces += each.counted() if self._needs_no_line else [each]
        return [SnapshotPartition(part) for part in cut(pieces, self.count)]

    @property
    def _needs_no_line(self) -> bool:
        """True if the manifest has all wanted columns."""
        return bool(self.schema.names) and COLUMNS.issuperset(self.schema.names)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition.

        Raises:
            StorageError: a segment could not be read. The message names it.
        """
        return read_pieces(partition.value, self.schema)


def read_pieces(pieces: Iterable[Piece], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of pieces. Errors are as for `SnapshotReader.read`."""
    for piece in pieces:
        if isinstance(piece, CountedRows):
            yield from piece.batches(schema)
        else:
            for jobs in piece.jobs():
                yield arrow_of(jobs, schema, piece.queue)


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
