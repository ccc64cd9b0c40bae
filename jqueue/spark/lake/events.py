"""Events as rows of a lake, and the folders of days and entrypoints that they are in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jqueue.domain.events import Batch, EventRow
from jqueue.domain.transitions import Verb

_SPAN = pa.struct([("first", pa.int64()), ("last", pa.int64())])

_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(("queue", "queue_id"), pa.string()),
    **{"number": pa.int64(), "at": pa.timestamp("us", tz="UTC"), "verb": pa.string(), "job_id": pa.string()},
    **{"jobs": pa.int64(), "before": pa.string(), "after": pa.string(), "attempt": pa.int64(), "holder": pa.string()},
    **dict.fromkeys(("wait_seconds", "run_seconds"), pa.float64()),
    **{"created_at": pa.timestamp("us", tz="UTC"), "error": pa.string(), "payload": pa.binary()},
    "rows": pa.list_(pa.struct([("segment", pa.string()), ("spans", pa.list_(_SPAN))])),
    "asked_by": pa.string(),
}
ROWS = pa.schema(_TYPES)
"""The columns of a file: the name and id of a queue, and the fields of a `HistoryEvent`."""

LAKE = ROWS.append(pa.field("day", pa.date32())).append(pa.field("entrypoint", pa.string()))
"""The columns of a lake: those of its files, and those in the names of folders."""

_TYPES |= {"place": pa.int64(), "kind": pa.int64(), "seconds": pa.float64(), "age": pa.float64()}

_OF_KINDS = ("place", "queue", "queue_id", "at", "verb", "before", "after", "holder", "asked_by")
"""Values that all events of a kind in a batch share. The first is the number of their day, entrypoint and tail."""

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


class Columns:
    """Events of batches by column: the events themselves are not kept, which would be slow for many."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str | None, str], int] = {}
        self._kinds: list[tuple[Any, ...]] = []
        self._cells: dict[str, list[Any]] = {name: [] for name in ("number", *EventRow._fields)}

    def add(self, name: str, queue: str, batch: Batch, low: int, high: int, tail: str) -> int:
        """Add events of a queue, and return their number.

        Args:
            name: of the queue.
            queue: id of the queue.
            batch: a batch of its events.
            low: number of the first event to add. It may be before the batch, and `high` behind it.
            high: number of the last event to add.
            tail: id of the queue if the events are its latest, which are not final; otherwise "".
        """
        first, kinds = max(batch.first, low), len(self._kinds)
        day, events = batch.at.date().isoformat(), batch.events[first - batch.first : high - batch.first + 1]
        for kind in batch.kinds:
            place = self._places.setdefault((day, kind.entrypoint, tail), len(self._places))
            self._kinds.append((place, name, queue, batch.at, *kind[1:]))
        self._cells["number"] += range(first, first + len(events))
        for field, cells in zip(EventRow._fields, zip(*events, strict=True), strict=False):
            if field == "kind":
                cells = tuple(kinds + kind for kind in cells)
            self._cells[field] += [places or None for places in cells] if field == "rows" else cells
        return len(events)

    def tables(self) -> Iterator[tuple[str, str | None, str, pa.Table]]:
        """Yield the events of each day, entrypoint and tail, in the order in which they were added."""
        if not self._kinds:
            return
        columns = {name: pa.array(cells, _TYPES[name]) for name, cells in self._cells.items()}
        kinds = zip(_OF_KINDS, zip(*self._kinds, strict=True), strict=True)
        columns |= {name: pa.array(cells, _TYPES[name]).take(columns["kind"]) for name, cells in kinds}
        is_claim, seconds = pc.equal(columns["verb"], Verb.CLAIM.value), columns["seconds"]
        age = pc.cast(pc.round(pc.multiply(columns["age"], 1e6)), pa.int64()).cast(pa.duration("us"))
        columns["wait_seconds"] = pc.if_else(is_claim, seconds, None)
        columns["run_seconds"] = pc.if_else(is_claim, None, seconds)
        columns["created_at"] = pc.subtract(columns["at"], age)
        rows = pa.table([columns[name] for name in ROWS.names], schema=ROWS)
        for place, number in self._places.items():
            if (table := rows.filter(pc.equal(columns["place"], number))).num_rows:
                yield *place, table
