"""`spark.read.format("jqueue")`: one version of a queue, or of each queue of a fleet, as a table.

A blob is read once for each action, by the process that plans it, and its lines travel with the partitions. If every
task read the blob by itself, each would see another version, and a job that moved would appear twice or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from jqueue.core.blob.pages import SEPARATOR
from jqueue.domain.counting import counted
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.models import JobStatus
from jqueue.ports.log import logger_of
from jqueue.spark.fleet import addresses_of, names_several
from jqueue.spark.option_parsing import INTEGER, NAMES, OptionType, parse_options
from jqueue.spark.rows import check_schema
from jqueue.spark.snapshot.blob_lines import JobFilter, job_lines
from jqueue.spark.snapshot.contents import Content, read_all

if TYPE_CHECKING:
    import pyarrow as pa

logger = logger_of("jqueue")

MOST_PARTITIONS = 100_000
PARTITIONS = 4
"""Default number of partitions, unless that makes them too small or too large."""

SMALLEST, LARGEST = 1 << 18, 1 << 24
"""Least and most bytes of a partition by default. Spark sends it with its task, and refuses messages of 128 MiB."""


def _statuses(text: str) -> tuple[str, ...]:
    return tuple(JobStatus(name.strip().lower()).value for name in text.split(","))


STATUSES = OptionType(f"some of {', '.join(JobStatus)}, with commas between them", _statuses)

KNOWN: dict[str, OptionType] = {"entrypoint": NAMES, "status": STATUSES, "numPartitions": INTEGER(1, MOST_PARTITIONS)}
"""The options besides the path."""


class LinesPartition(InputPartition):
    """Some lines of one version of a queue, or of several queues.

    Args:
        runs: the name of each queue, and its lines, joined as in the blob.
    """

    def __init__(self, runs: tuple[tuple[str, bytes], ...]) -> None:
        super().__init__(runs)

    def __repr__(self) -> str:
        return f"LinesPartition({sum(len(text) for _, text in self.value)} bytes)"


class SnapshotReader(DataSourceReader):
    """Reads one version of each queue.

    Args:
        options: as Spark passes them.
        schema: the columns to make.

    Raises:
        InvalidJobError: an option is unknown or wrong, or a column does not exist.
        InvalidURLError: no queue is named.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        taken = parse_options(options, KNOWN)
        self.addresses = addresses_of(options)
        self.job_filter = JobFilter(taken.get("entrypoint"), taken.get("status"))
        self.count: int | None = taken.get("numPartitions")
        self.schema = schema
        check_schema(schema, fleet=names_several(self.addresses))

    def partitions(self) -> list[InputPartition]:
        """Read one version of each queue, and cut it into runs of lines.

        Raises:
            StorageError: a queue could not be read, or does not exist. The message names it.
        """
        runs = []
        contents: list[Content] = []

        async def read() -> None:  # `asyncio.run` would print a returned value with an error
            contents.extend(await read_all(self.addresses, self.job_filter))

        asyncio.run(read())
        for name, data, rows in contents:
            try:
                lines = job_lines(data, self.job_filter)
            except InvalidBlobError as error:
                raise InvalidBlobError(f"{name}: {error}") from None
            _warn(name, lines.set_aside)
            runs += [(name, lines.text), (name, rows)]
        return [LinesPartition(part) for part in cut(runs, self.count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition. A line that is not a job becomes no row."""
        from jqueue.spark.snapshot.line_rows import LineCounts, batches_of

        for name, text in partition.value:
            counts = LineCounts()
            yield from batches_of(text, self.schema, name, counts)
            _warn(name, counts.set_aside)


def _warn(name: str, set_aside: int) -> None:
    if set_aside:
        logger.warning("%s: %s left out: not readable as jobs", name, counted(set_aside, "line was", "lines were"))


Run = tuple[str, bytes]


def cut(runs: list[Run], count: int | None) -> list[tuple[Run, ...]]:
    """Cut runs of lines at line ends, and combine them into parts of about the same size.

    Args:
        runs: the name of each queue, and its lines.
        count: number of parts, if there are as many lines; None: chosen by the size.
    """
    runs = [(name, text) for name, text in runs if text]
    total = sum(len(text) + len(SEPARATOR) for _, text in runs)
    if count is None:
        count = max(1, min(PARTITIONS, total // SMALLEST), -(-total // LARGEST))
    parts: list[list[Run]] = [[]]
    done = 0
    for name, text in runs:
        begin = 0
        while begin < len(text):
            room = total * len(parts) // count - done
            end = text.find(SEPARATOR, max(begin, room - len(SEPARATOR)))
            end = len(text) if end < 0 else end
            parts[-1].append((name, text[begin:end]))
            begin = end + len(SEPARATOR)
            if begin >= room:
                parts.append([])
        done += begin
    return [tuple(part) for part in parts if part] or [()]
