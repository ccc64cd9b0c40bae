"""Events as rows of a lake, and the folders of days and entrypoints that they are in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import date
from io import BytesIO
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from jqueue.domain.events import HistoryEvent, Places

_SPAN = pa.struct([("first", pa.int64()), ("last", pa.int64())])
_TIME = pa.timestamp("us", tz="UTC")

ROWS = pa.schema(
    [
        ("queue", pa.string()),
        ("queue_id", pa.string()),
        ("number", pa.int64()),
        ("at", _TIME),
        ("verb", pa.string()),
        ("job_id", pa.string()),
        ("jobs", pa.int64()),
        ("before", pa.string()),
        ("after", pa.string()),
        ("attempt", pa.int64()),
        ("holder", pa.string()),
        ("wait_seconds", pa.float64()),
        ("run_seconds", pa.float64()),
        ("created_at", _TIME),
        ("error", pa.string()),
        ("payload", pa.binary()),
        ("rows", pa.list_(pa.struct([("segment", pa.string()), ("spans", pa.list_(_SPAN))]))),
    ]
)
"""The columns of a file."""

DDL = (
    "queue string, queue_id string, number long, at timestamp, verb string, job_id string, jobs long, before string, "
    "after string, attempt long, holder string, wait_seconds double, run_seconds double, created_at timestamp, "
    "error string, payload binary, rows array<struct<segment:string,spans:array<struct<first:long,last:long>>>>, "
    "day date, entrypoint string"
)
"""The columns of a lake: those of its files, and those in the names of folders."""

COLUMNS: dict[str, str] = dict(column.split(" ") for column in DDL.split(", "))
"""The same by name, each with its type."""

NO_ENTRYPOINT = "__HIVE_DEFAULT_PARTITION__"
"""Spark's name for null in the name of a folder."""

_SPECIAL = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]")
_LONGEST = 200
"""Most bytes of the name of an entrypoint in the name of a folder, of which a file system allows 255."""


class Folder(NamedTuple):
    """The place of events in a lake.

    Attributes:
        day: of the events, in UTC.
        entrypoint: of the events; None for events of the queue itself.
    """

    day: date
    entrypoint: str | None

    @property
    def name(self) -> str:
        """The name of the folder below the lake."""
        return f"day={self.day.isoformat()}/entrypoint={_escaped(self.entrypoint)}"

    @property
    def is_cut(self) -> bool:
        """True if the name of the folder is too short for the entrypoint."""
        return self.entrypoint is not None and len(_whole(self.entrypoint).encode()) > _LONGEST


def _escaped(entrypoint: str | None) -> str:
    if entrypoint is None:
        return NO_ENTRYPOINT
    whole = _whole(entrypoint)
    encoded = whole.encode()
    if len(encoded) <= _LONGEST:
        return whole
    digest = hashlib.sha256(entrypoint.encode()).hexdigest()[:16]
    start = re.sub(r"%.?\Z", "", encoded[: _LONGEST - 20].decode(errors="ignore"))
    return f"{start}~{digest}"


def _whole(entrypoint: str) -> str:
    if entrypoint == NO_ENTRYPOINT:
        return f"%5F{entrypoint[1:]}"
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", entrypoint)


def table_of(events: Sequence[tuple[str, str, HistoryEvent]]) -> pa.Table:
    """Return events as rows.

    Args:
        events: each with the name and the id of its queue.
    """
    columns: dict[str, list[Any]] = {
        "queue": [name for name, _, _ in events],
        "queue_id": [queue for _, queue, _ in events],
    }
    only = [event for _, _, event in events]
    for name in ROWS.names[len(columns) :]:
        columns[name] = [getattr(event, name) for event in only]
    columns["rows"] = [rows_of(each) for each in columns["rows"]]
    return pa.table([pa.array(columns[field.name], field.type) for field in ROWS], schema=ROWS)


def rows_of(places: Places) -> list[dict[str, Any]] | None:
    """Return the rows of the jobs of an event, as a value of the column `rows`."""
    if not places:
        return None
    return [
        {"segment": name, "spans": [{"first": first, "last": last} for first, last in spans]} for name, spans in places
    ]


def parquet_of(table: pa.Table) -> bytes:
    """Return rows as the content of a Parquet file."""
    sink = BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()
