"""Files of jobs as DataFrames: the format of a file, and columns of the types that jobs need.

CSV knows only texts, and JSON no maps, no bytes and no times. Left to guess, Spark would take an order number with
leading zeros for a number, and the headers of all jobs for one struct with the keys of all of them. So the columns that
jobs know are read with their own types. Only the types of the others, which become the payload, are guessed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jqueue.domain.errors import InvalidJobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = {
    ".parquet": "parquet", ".pq": "parquet",
    ".csv": "csv", ".tsv": "csv",
    ".json": "json", ".jsonl": "json", ".ndjson": "json",
}  # fmt: skip
"""Formats by the ending of a name."""

PACKED = (".gz", ".bz2", ".zst", ".snappy", ".lz4", ".deflate")
"""Endings that may follow it, of files that Spark unpacks by itself."""

TEXTS = ("entrypoint", "payload", "unique_key")

CORRUPT = "_corrupt_record"
"""The column that Spark adds for records that it cannot read."""

_PATTERN = re.compile(r"[*?\[{]")


def format_of(source: str) -> str | None:
    """Return the format that a name tells, or the common format of the files in a folder here. None if unknown."""
    told = _by_ending(source)
    if told is None and os.path.isdir(source):
        found = {_by_ending(path.name) for path in Path(source).iterdir() if not path.name.startswith(("_", "."))}
        told = found.pop() if len(found) == 1 else None
    return told


def _by_ending(name: str) -> str | None:
    stem, ending = os.path.splitext(name.rstrip("/").lower())
    if ending in PACKED:
        ending = os.path.splitext(stem)[1]
    return FORMATS.get(ending)


def is_missing(source: str) -> bool:
    """Return True if the source certainly does not exist. Then Spark, which takes seconds to start, is not started."""
    return "://" not in source and not _PATTERN.search(source) and not os.path.exists(source)


def read_jobs(session: SparkSession, source: str, kind: str, options: Mapping[str, str]) -> DataFrame:
    """Return the rows of a file or folder, with columns as a bulk enqueue takes them.

    Args:
        session: reads it.
        source: a path, a pattern of paths, or a URL that Spark can read.
        kind: "parquet", "csv" or "json".
        options: of Spark's reader, for example `sep`.

    Raises:
        InvalidJobError: it has no columns.
    """
    if kind == "parquet":
        return session.read.options(**options).parquet(source)
    defaults: dict[str, Any] = {"mode": "FAILFAST"}
    if kind == "csv":
        sep = "\t" if ".tsv" in source.lower() else ","
        defaults |= {"header": "true", "sep": sep, "multiLine": "true", "escape": '"'}  # a quote is written twice
    elif _is_array(source):
        defaults["multiLine"] = "true"
    given = {name.lower() for name in options}
    settled = {**{name: value for name, value in defaults.items() if name.lower() not in given}, **options}
    reader = session.read.format(kind).options(**settled)
    guessed = reader.option("mode", "PERMISSIVE").option("inferSchema", "true").load(source)
    if not set(guessed.columns) - {CORRUPT}:
        why = f"SOURCE cannot be read as {kind}" if guessed.columns else "SOURCE has no rows"
        raise InvalidJobError(f"nothing to enqueue: {why}")
    frame = session.read.format(kind).options(**settled).schema(_meant(guessed, kind)).load(source)
    return _headers_as_map(frame) if kind == "csv" else frame


def _is_array(source: str) -> bool:
    """Return True if a JSON file here is one array, and not one object a line."""
    return any(_begins_with_bracket(path) for path in _some_files(source))


def _some_files(source: str) -> Iterator[Path]:
    path = Path(source)
    if "://" not in source and path.is_file():
        yield path


def _begins_with_bracket(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def _meant(guessed: DataFrame, kind: str) -> Any:
    """Return the schema, with the columns that jobs know in their own types.

    A payload that is an object stays the text that it is in the file: it gets no keys of other rows.
    """
    from pyspark.sql import types as sql

    meant: dict[str, sql.DataType] = {name: sql.StringType() for name in TEXTS}
    meant["run_at"] = sql.TimestampType()
    meant["headers"] = sql.StringType() if kind == "csv" else sql.MapType(sql.StringType(), sql.StringType())
    fields = [
        sql.StructField(field.name, meant.get(field.name.lower(), field.dataType)) for field in guessed.schema.fields
    ]
    return sql.StructType([field for field in fields if field.name != CORRUPT])


def _headers_as_map(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions

    for name in frame.columns:
        if name.lower() == "headers":
            as_map = functions.from_json(functions.col(f"`{name}`"), "map<string,string>", {"mode": "FAILFAST"})
            frame = frame.withColumn(name, as_map)
    return frame
