"""`read_lake(spark, lake)`: the events of a lake as a DataFrame, from the files that its marker names.

Spark itself reads a lake in a folder. Files in an object store are read by tasks, so that no connector is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from jqueue.domain.errors import InvalidURLError
from jqueue.spark.lake.events import LAKE, ROWS
from jqueue.spark.lake.planning import in_lots
from jqueue.spark.lake.store import DataFile, FolderFile, LakeStore, lake_name, open_lake
from jqueue.sync.background import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FILES = pa.schema([("lot", pa.int32()), ("name", pa.string()), ("day", pa.string()), ("entrypoint", pa.string())])
"""The columns of a row that a task gets."""

BYTES_EACH = 32 << 20
"""Bytes of files that a task reads, about, if Spark does not read them itself."""


def lake_schema(columns: Sequence[str] | None = None) -> StructType:
    """Return the schema of columns of a lake; None: of all.

    Raises:
        InvalidURLError: a lake has no such column.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    wanted = LAKE.names if columns is None else columns
    if unknown := [name for name in wanted if name not in LAKE.names]:
        raise InvalidURLError(f"a lake has no column {unknown[0]}: it has {', '.join(LAKE.names)}")
    return from_arrow_schema(pa.schema([LAKE.field(name) for name in wanted]))


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
    from pyspark.sql import functions as F

    schema = lake_schema(columns)
    files, folder = wait_for(lambda: _files_of(lake)), lake_name(lake)
    if not files:
        return spark.createDataFrame([], schema)
    if not isinstance(open_lake(lake)[0], FolderFile):
        lots = in_lots(files, BYTES_EACH)
        rows = [(number, each.name, each.day, each.entrypoint) for number, lot in enumerate(lots) for each in lot]
        table = pa.table([*map(list, zip(*rows, strict=True))], schema=FILES)
        task = partial(_read_files, lake, schema.names)
        return spark.createDataFrame(table).repartitionById(len(lots), "lot").mapInArrow(task, schema)
    reader = spark.read.schema(lake_schema()).option("basePath", folder)
    events = reader.parquet(*(f"{folder}/{each.name}" for each in files))
    in_folders = {unquote(each.folder.partition("/entrypoint=")[2]): each.entrypoint for each in files}
    cut = [F.lit(name) for pair in in_folders.items() if pair[1] not in (None, pair[0]) for name in pair]
    if cut:
        whole = F.create_map(*cut)[F.col("entrypoint")]
        events = events.withColumn("entrypoint", F.coalesce(whole, F.col("entrypoint")))
    return events.select(*schema.names)


async def _files_of(lake: str) -> tuple[DataFile, ...]:
    """Return the files of a lake. All of them are there."""
    async with LakeStore(lake) as store:
        marker, etag = await store.marker()
        if etag is None:
            raise InvalidURLError(
                f"there is no lake at {store.name}: check the name; `jqueue spark archive` makes a lake from the "
                "history of a queue"
            )
        await store.check(marker)
        return marker.files


def _read_files(lake: str, columns: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the events of the files that are named in a partition."""

    async def read(name: str) -> bytes:
        async with LakeStore(lake) as store:
            return await store.read(name)

    stored = [column for column in columns if column in ROWS.names]
    for batch in batches:
        for file in batch.to_pylist():
            content = BytesIO(asyncio.run(read(file["name"])))
            table = pq.read_table(content, columns=stored or ["number"], partitioning=None)
            for column, value in (("day", date.fromisoformat(file["day"])), ("entrypoint", file["entrypoint"])):
                table = table.append_column(column, pa.array([value] * table.num_rows, LAKE.field(column).type))
            yield from table.select(columns).to_batches(100_000)
