"""`read_lake(spark, lake)`: the events of a lake as a DataFrame, from the files that its marker names.

Spark itself reads a lake in a folder. Files in an object store are read by tasks, so that no connector is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from io import BytesIO
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from jqueue.domain.errors import InvalidURLError, StorageFatalError
from jqueue.spark.lake.events import COLUMNS, DDL, NO_ENTRYPOINT, ROWS
from jqueue.spark.lake.marker import DataFile, Marker, decode
from jqueue.spark.lake.store import FolderFile, LakeStore, awaited, lake_name, lost, open_lake, without_marker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BYTES_EACH = 32 << 20
"""Bytes of files that a task reads, about, if Spark does not read them itself."""

NAMES = pa.schema([("lot", pa.int32()), ("name", pa.string())])


def read_lake(spark: SparkSession, lake: str, columns: Sequence[str] | None = None) -> DataFrame:
    """Return the events of a lake, as its last run left them.

    Args:
        spark: the session.
        lake: path or URL of the lake.
        columns: the wanted columns; None: all.

    Raises:
        InvalidURLError: there is no lake, or it has no such column.
        StorageError: the store failed, or files of the lake are lost.
    """
    wanted = list(COLUMNS) if columns is None else list(columns)
    if unknown := [name for name in wanted if name not in COLUMNS]:
        raise InvalidURLError(f"a lake has no column {unknown[0]}: it has {', '.join(COLUMNS)}")
    folder, _ = open_lake(lake)
    marker = marker_of(lake)
    if not marker.files:
        return spark.createDataFrame([], DDL).select(*wanted)
    if not isinstance(folder, FolderFile):
        return _by_tasks(spark, lake, marker, wanted)
    paths = [f"{folder.path}/{name}" for name in marker.files]
    frame = spark.read.schema(DDL).option("basePath", folder.path).parquet(*paths)
    return _with_true_names(frame, marker).select(*wanted)


def marker_of(lake: str) -> Marker:
    """Return the marker of a lake whose files are all there.

    Raises:
        InvalidURLError: there is no lake.
        StorageError: the store failed, or files of the lake are lost.
    """

    async def read() -> tuple[bytes, str | None, set[str]]:
        async with LakeStore(lake) as store:
            return *await store.marker(), await store.names()

    data, etag, there = awaited(read())
    name = lake_name(lake)
    if etag is None and (problem := without_marker(name, there)):
        raise StorageFatalError(problem)
    if etag is None:
        raise InvalidURLError(
            f"there is no lake at {name}: check the name; `jqueue spark archive` makes a lake from the history of a "
            "queue"
        )
    marker = decode(data, name)
    if gone := sorted(marker.files.keys() - there):
        raise StorageFatalError(lost(name, gone))
    return marker


def _with_true_names(frame: DataFrame, marker: Marker) -> DataFrame:
    """Return the events with their entrypoints, although the names of some folders are cut."""
    from pyspark.sql import functions as F

    if not marker.names:
        return frame
    parts = [F.lit(text) for name, true in marker.names.items() for text in (_entrypoint(name), true)]
    return frame.withColumn("entrypoint", F.coalesce(F.create_map(*parts)[F.col("entrypoint")], F.col("entrypoint")))


def _entrypoint(folder: str) -> str | None:
    """Return the entrypoint in the name of a folder."""
    text = folder.partition("/entrypoint=")[2]
    return None if text == NO_ENTRYPOINT else unquote(text)


@dataclass(frozen=True)
class ReadTask:
    """Reads files of a lake. It may be pickled.

    Attributes:
        lake: URL of the lake.
        columns: the wanted columns.
        names: true entrypoints of folders whose names are cut.
    """

    lake: str = field(repr=False)
    columns: tuple[str, ...]
    names: dict[str, str] = field(repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the events of the files that are named in a partition."""
        for batch in batches:
            for name in batch.column("name").to_pylist():
                yield from self.table(name).to_batches(100_000)

    def table(self, name: str) -> pa.Table:
        """Return the events of one file."""

        async def read() -> bytes:
            async with LakeStore(self.lake) as store:
                return await store.read(name)

        stored = [column for column in self.columns if column in ROWS.names]
        table = pq.read_table(BytesIO(asyncio.run(read())), columns=stored or ["number"], partitioning=None)
        folder = name.rpartition("/")[0]
        day = date.fromisoformat(folder[len("day=") :].partition("/")[0])
        constant = {
            "day": pa.array([day] * table.num_rows, pa.date32()),
            "entrypoint": pa.array([self.names.get(folder, _entrypoint(folder))] * table.num_rows, pa.string()),
        }
        cells = {**constant, **{column: table[column] for column in stored}}
        return pa.table({column: cells[column] for column in self.columns})


def _by_tasks(spark: SparkSession, lake: str, marker: Marker, wanted: Sequence[str]) -> DataFrame:
    lots = list(_lots(marker.files.values()))
    rows = [(number, each.name) for number, lot in enumerate(lots) for each in lot]
    table = pa.table([[number for number, _ in rows], [name for _, name in rows]], schema=NAMES)
    task = ReadTask(lake, tuple(wanted), dict(marker.names))
    ddl = ", ".join(f"{name} {COLUMNS[name]}" for name in wanted)
    return spark.createDataFrame(table).repartitionById(len(lots), "lot").mapInArrow(task, ddl)


def _lots(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    lot: list[DataFile] = []
    for each in files:
        lot.append(each)
        if sum(other.size for other in lot) >= BYTES_EACH:
            yield lot
            lot = []
    if lot:
        yield lot
