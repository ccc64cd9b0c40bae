"""Lines of a blob as rows, many at a time: columns are read and checked as a whole, by the rules of a job's fields.

It is a shortcut, not a second definition of the format. If anything about some lines is unusual (a field that this
version does not know, a value of another type, a name that stands twice), the codec reads them one by one.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute
from pydantic import TypeAdapter
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, TimestampType

from jqueue.core.blob.lines import has_claim_time, load_json, read_line
from jqueue.core.blob.pages import SEPARATOR
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.models import LARGEST, Job, JobStatus
from jqueue.domain.ranges import Range
from jqueue.domain.segment_index import whole_lines
from jqueue.domain.stored_object import is_apart
from jqueue.spark.plain_lines import PlainLines, read_plain_lines
from jqueue.spark.rows import QUEUE, SNAPSHOT_SCHEMA, arrow_of, batch_of, json_text
from jqueue.spark.snapshot.blob_lines import BATCH_BYTES, members

Row = dict[str, Any]

_FIELDS = {name: field for name, field in Job.model_fields.items() if name != "id"}
_TIMES = frozenset(field.name for field in SNAPSHOT_SCHEMA if isinstance(field.dataType, TimestampType))
_STATUSES = frozenset(status.value for status in JobStatus)
_SPACED_NAME = re.compile(rb'"\s+:')


class UnusualError(ValueError):
    """Something about these lines is unusual: they must be read one by one."""


_UNUSUAL = (ValueError, TypeError, KeyError, OverflowError, InvalidBlobError)
"""Errors of reading in bulk. In each case the codec reads the lines, and decides."""


@dataclass
class LineCounts:
    """Counts of the ways in which lines were read. Of most, a batch of rows was made at once.

    Attributes:
        in_columns: number of lines of which columns were made, without an object for a row.
        one_by_one: number of lines that were read one by one.
        set_aside: number of these that are not jobs.
    """

    in_columns: int = 0
    one_by_one: int = 0
    set_aside: int = 0


def batches_of(text: bytes, schema: StructType, queue: str | None, counts: LineCounts) -> Iterator[pa.RecordBatch]:
    """Return lines as batches. Each line must be readable alone; a line that is not a job becomes no row.

    Args:
        text: the lines, joined as in a blob.
        schema: of the batches.
        queue: the value of the column `queue`.
        counts: where lines are counted.
    """
    arrow = to_arrow_schema(schema, timezone="UTC")
    for some in _pieces(text):
        try:
            cells, rows = _cells(some)
        except _UNUSUAL:
            found = [read_line(line) for line in some.split(SEPARATOR)]
            jobs = [job for job in found if isinstance(job, Job)]
            counts.one_by_one += len(found)
            counts.set_aside += len(found) - len(jobs)
            if jobs:
                yield arrow_of(jobs, schema, queue)
            continue
        cells[QUEUE] = [queue] * rows
        yield batch_of(cells, rows, arrow)


def batches_of_rows(
    text: bytes, texts: Sequence[bytes], schema: StructType, queue: str | None, counts: LineCounts
) -> Iterator[pa.RecordBatch]:
    """Return the rows of chunks as one batch if they are alike, and otherwise as `batches_of` does it.

    Args:
        text: rows of a segment as they are stored. They should have about the size of a batch.
        texts: the texts that `MARKS` stand for in them.
        schema: of the batches.
        queue: the value of the column `queue`.
        counts: where lines are counted.
    """
    plain = read_plain_lines(text, texts)
    batch = None if plain is None else _plain_batch(plain, to_arrow_schema(schema, timezone="UTC"), queue)
    if batch is None:
        lines = whole_lines(text, texts).removesuffix(b"\n")
        yield from batches_of(lines.replace(b"\n", SEPARATOR), schema, queue, counts)
    else:
        counts.in_columns += batch.num_rows
        yield batch


def _plain_batch(lines: PlainLines, arrow: pa.Schema, queue: str | None) -> pa.RecordBatch | None:
    """Return lines that are alike as a batch; None if their examples are unusual."""
    try:
        cells, kinds = _cells(SEPARATOR.join(lines.examples))
    except _UNUSUAL:
        return None
    cells[QUEUE] = [queue] * kinds
    examples = batch_of(cells, kinds, arrow)
    own = {"id": lines.ids, "payload": lines.payloads, "sequence": lines.sequences}
    of_rows = pa.array(np.zeros(len(lines), np.int32)) if lines.kinds is None else lines.kinds
    columns = []
    for name, column in zip(arrow.names, examples.columns, strict=True):
        if name in own:
            columns.append(own[name])
        elif column.null_count == kinds:
            columns.append(pa.nulls(len(lines), column.type))
        else:
            columns.append(column.take(of_rows))
    return pa.RecordBatch.from_arrays(columns, schema=arrow)


def with_offset(batch: pa.RecordBatch, offset: int) -> pa.RecordBatch:
    """Return a batch with a number added to its sequence numbers."""
    place = batch.schema.get_field_index("sequence")
    if not offset or place < 0:
        return batch
    return batch.set_column(place, batch.schema.field(place), compute.add(batch.column(place), offset))


def under_claim(batch: pa.RecordBatch, held: Range) -> pa.RecordBatch:
    """Return a batch of waiting jobs as they are in progress under the claim of a range, as `in_progress` does."""
    more = {"attempt": held.claims, "failures": held.failures}
    same = {
        "status": JobStatus.IN_PROGRESS.value,
        "heartbeat_at": held.heartbeat_at,
        "claim_timeout": held.claim_timeout,
        "holder": held.holder,
        "claimed_at": None if held.holder is None else held.claimed_at,
    }
    for place, field in enumerate(batch.schema):
        if field.name in more:
            column = compute.add(batch.column(place), more[field.name])
        elif field.name in same:
            column = pa.repeat(pa.scalar(same[field.name], field.type), batch.num_rows)
        else:
            continue
        batch = batch.set_column(place, field, column)
    return batch


def _pieces(text: bytes) -> Iterator[bytes]:
    """Cut the lines into pieces of about the size of a batch."""
    begin = 0
    while begin < len(text):
        end = text.find(SEPARATOR, begin + BATCH_BYTES)
        end = len(text) if end < 0 else end
        yield text[begin:end]
        begin = end + len(SEPARATOR)


def _cells(text: bytes) -> tuple[dict[str, Sequence[Any]], int]:
    """Return the values of the columns, and the number of rows.

    Raises:
        UnusualError: the lines must be read one by one. Any other error in `_UNUSUAL` means the same.
    """
    entries: dict[str, Row] = members(text)
    rows = list(entries.values())
    present: set[str] = set().union(*rows)  # a row that is not a dict fails below
    _require(len(rows) == text.count(SEPARATOR) + 1 and present <= _FIELDS.keys())
    names = len(rows) + sum(map(len, rows))
    if "holder" in present:
        present.add("claimed_at")
        for row in filter(has_claim_time, rows):
            row.setdefault("claimed_at", row.get("heartbeat_at"))
    columns = {name: _column(name, rows) for name in present | {"entrypoint", "payload", "created_at"}}
    columns["id"] = _validated("id", list(entries))
    names += sum(map(len, columns.get("headers", ())))
    names += sum(_names(result) for result in columns.get("result", ()) if result is not None)
    if _names_written(text) != names:
        load_json(b"{" + text + b"}")  # refuses a name that stands twice
    _check(columns, len(rows))
    if "payload_object" in columns:  # the snapshot does not read the objects of large payloads
        pairs = zip(columns["payload"], columns["payload_object"], strict=True)
        columns["payload"] = [None if is_apart(payload, stored) else payload for payload, stored in pairs]
    if "result" in columns:
        columns["result"] = [None if result is None else json_text(result) for result in columns["result"]]
    for name in ("priority", "attempt", "attempts_before", "failures", "sequence", "status", "headers"):
        columns.setdefault(name, [_default(name)] * len(rows))
    return columns, len(rows)


def _require(usual: bool) -> None:
    if not usual:
        raise UnusualError("to be read one by one")


def _names_written(text: bytes) -> int:
    """Return the number of names in the lines, or a larger one."""
    return text.count(b'":') + len(_SPACED_NAME.findall(text))


def _names(value: Any) -> int:
    """Return the number of names in a value."""
    if isinstance(value, dict):
        return len(value) + sum(map(_names, value.values()))
    return sum(map(_names, value)) if isinstance(value, list) else 0


def _column(name: str, rows: list[Row]) -> Sequence[Any]:
    """Return the values of a field, checked, with the default for missing ones."""
    if _FIELDS[name].is_required() or name == "created_at":
        raw = [row[name] for row in rows]
    else:
        default = _default(name)
        raw = [row.get(name, default) for row in rows]
    if name == "payload":
        return [a2b_base64(value, strict_mode=True) for value in raw]
    if name in _TIMES:
        moments = _moments(name, raw)
        return [moments[value] for value in raw]
    if name == "status":
        _require(_STATUSES.issuperset(raw))
        return raw
    return raw if name == "result" else _validated(name, raw)


def _default(name: str) -> Any:
    return _FIELDS[name].default


def _moments(name: str, texts: list[Any]) -> dict[Any, datetime | None]:
    """Return the distinct times by their texts. Each is parsed once, as jobs of one commit share their times."""
    distinct = list(set(texts))
    return dict(zip(distinct, _validated(name, distinct), strict=True))


def _validated(name: str, values: list[Any]) -> Sequence[Any]:
    checked: Sequence[Any] = _validator(name)(values)
    return checked


@cache
def _validator(name: str) -> Callable[[list[Any]], Any]:
    """Return a function that validates many values of a field at once, as a job validates one."""
    field = Job.model_fields[name]
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    return TypeAdapter(list[kind]).validate_python


def _check(columns: dict[str, Sequence[Any]], rows: int) -> None:
    """Check the rules of a job besides the types of its fields."""
    for name in ("attempt", "failures"):
        _require(max(columns.get(name, (0,))) <= LARGEST)
    statuses = columns.get("status", ())
    if JobStatus.IN_PROGRESS in statuses:
        attempts = zip(statuses, columns.get("attempt", [0] * rows), strict=True)
        _require(all(attempt for status, attempt in attempts if status == JobStatus.IN_PROGRESS))
    if JobStatus.COMPLETED in statuses:
        for name in ("keep_result", "finished_at"):
            values = zip(statuses, columns.get(name, [None] * rows), strict=True)
            _require(all(value is not None for status, value in values if status == JobStatus.COMPLETED))
