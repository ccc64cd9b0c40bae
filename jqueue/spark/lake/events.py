"""Events as rows of a lake, and the folders of days and entrypoints that they are in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from io import BytesIO
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jqueue.domain.events import Batch, Kind, Places
from jqueue.domain.transitions import Verb

_SPAN = pa.struct([("first", pa.int64()), ("last", pa.int64())])
_TIME = pa.timestamp("us", tz="UTC")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

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


class FolderRows:
    """Events of one folder, collected in columns: no object is made for an event."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, Kind], int] = {}
        self._ints: dict[str, list[int]] = {"kind": [], "number": [], "at": [], "attempt": [], "jobs": []}
        self._seconds: list[float | None] = []
        self._created: list[int | None] = []
        self._texts: dict[str, list[str | None]] = {"job_id": [], "error": []}
        self._payloads: list[bytes | None] = []
        self._rows: list[list[dict[str, Any]] | None] = []

    def add(self, queue: str, queue_id: str, batch: Batch, places: Sequence[int]) -> None:
        """Add some events of a batch.

        Args:
            queue: name of the queue.
            queue_id: id of the queue.
            batch: the batch.
            places: the places of the events in it.
        """
        kinds = [self._kinds.setdefault((queue, queue_id, kind), len(self._kinds)) for kind in batch.kinds]
        at, events, ints = batch.at, [batch.events[place] for place in places], self._ints
        created = {age: micros(at - timedelta(seconds=age)) for age in {each.age for each in events} if age is not None}
        ints["kind"] += [kinds[each.kind] for each in events]
        ints["number"] += [batch.first + place for place in places]
        ints["at"] += [micros(at)] * len(places)
        ints["attempt"] += [each.attempt for each in events]
        ints["jobs"] += [each.jobs for each in events]
        self._seconds += [each.seconds for each in events]
        self._created += [None if each.age is None else created[each.age] for each in events]
        self._texts["job_id"] += [each.job_id for each in events]
        self._texts["error"] += [each.error for each in events]
        self._payloads += [each.payload for each in events]
        self._rows += [rows_of(each.rows) for each in events]

    def table(self) -> pa.Table:
        """Return the events as rows."""
        ints = {name: pa.array(values, pa.int64()) for name, values in self._ints.items()}
        queues, queue_ids, kinds = zip(*self._kinds, strict=True)
        claims = pa.array([kind.verb == Verb.CLAIM for kind in kinds]).take(ints["kind"])
        seconds, nothing = pa.array(self._seconds, pa.float64()), pa.scalar(None, pa.float64())
        columns = {
            "queue": pa.array(queues).take(ints["kind"]),
            "queue_id": pa.array(queue_ids).take(ints["kind"]),
            "number": ints["number"],
            "at": ints["at"].cast(_TIME),
            "jobs": ints["jobs"],
            "attempt": ints["attempt"],
            "wait_seconds": pc.if_else(claims, seconds, nothing),
            "run_seconds": pc.if_else(claims, nothing, seconds),
            "created_at": pa.array(self._created, pa.int64()).cast(_TIME),
            "payload": pa.array(self._payloads, pa.binary()),
            "rows": pa.array(self._rows, ROWS.field("rows").type),
        }
        for name, values in self._texts.items():
            columns[name] = pa.array(values, pa.string())
        for name in ("verb", "before", "after", "holder"):
            columns[name] = pa.array([getattr(kind, name) for kind in kinds], pa.string()).take(ints["kind"])
        return pa.table([columns[name] for name in ROWS.names], schema=ROWS)


def micros(time: datetime) -> int:
    """Return a time in microseconds since 1970."""
    return (time - EPOCH) // timedelta(microseconds=1)


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
