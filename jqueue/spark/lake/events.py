"""Events as rows of a lake, and the folders of days and entrypoints that they are in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from jqueue.domain.events import HistoryEvent

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
"""The columns of a file: the name and id of a queue, and the fields of a `HistoryEvent`."""

LAKE = ROWS.append(pa.field("day", pa.date32())).append(pa.field("entrypoint", pa.string()))
"""The columns of a lake: those of its files, and those in the names of folders."""

NO_ENTRYPOINT = "__HIVE_DEFAULT_PARTITION__"
"""Spark's name for null in the name of a folder."""

_SPECIAL = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]")
_LONGEST = 200
"""Most bytes of the name of an entrypoint in the name of a folder, of which a file system allows 255."""


def folder_of(day: str, entrypoint: str | None) -> str:
    """Return the name of the folder of a day and an entrypoint, below the lake.

    Args:
        day: in UTC, as in 2026-11-28.
        entrypoint: of the events; None for events of the queue itself. If it is too long, its name is cut.
    """
    if entrypoint is None:
        return f"day={day}/entrypoint={NO_ENTRYPOINT}"
    name = _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", entrypoint)
    if entrypoint == NO_ENTRYPOINT:
        name = f"%5F{entrypoint[1:]}"
    if len(encoded := name.encode()) > _LONGEST:
        start = re.sub(r"%.?\Z", "", encoded[: _LONGEST - 20].decode(errors="ignore"))
        name = f"{start}~{hashlib.sha256(entrypoint.encode()).hexdigest()[:16]}"
    return f"day={day}/entrypoint={name}"


class Columns(dict[str, list[Any]]):
    """Events of one folder by column: the events themselves need not be kept, which would be slow for many."""

    def __init__(self) -> None:
        super().__init__((name, []) for name in ROWS.names)

    def add(self, name: str, queue: str, events: Sequence[HistoryEvent]) -> None:
        """Add events of the queue with this name and id."""
        for column, cells in self.items():
            if column == "queue":
                cells += [name] * len(events)
            elif column == "queue_id":
                cells += [queue] * len(events)
            elif column == "rows":
                cells += [event.rows or None for event in events]
            else:
                cells += [getattr(event, column) for event in events]

    def table(self) -> pa.Table:
        """Return the events as a table."""
        return pa.table([pa.array(self[field.name], field.type) for field in ROWS], schema=ROWS)
