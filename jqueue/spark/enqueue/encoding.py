"""Rows become staged jobs: a batch of Arrow at a time, column by column.

In JSON, objects keep the order of their fields, and null stays. Times are ISO 8601 in UTC; a timestamp without a time
zone stays without one. Binary is base64; a decimal is a string, so that no digit is lost; an interval is a number of
seconds. NaN and infinite numbers are refused, as JSON cannot hold them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import types

from jqueue.core.blob.segment_staging import InvalidRowError, SegmentStager
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job_options import IN_BULK
from jqueue.spark.enqueue.columns import Columns

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

SLICE_ROWS, SLICE_BYTES = 1024, 8 << 20
"""Numbers of rows, and of bytes of rows, that are converted at once: few rows stay in the processor's cache."""

Values = Callable[[pa.Array], list[Any]]

_as_it_is: Values = pa.Array.to_pylist

_encode_lines = msgspec.json.Encoder().encode_lines


class RowEncoder:
    """Encodes the rows of one task.

    Args:
        columns: the use of each column.
        staged: encodes the jobs.
        partition: names the task in errors.
    """

    def __init__(self, columns: Columns, staged: SegmentStager, partition: int) -> None:
        self._columns, self._staged, self._partition = columns, staged, partition

    def add(self, batch: pa.RecordBatch) -> None:
        """Encode a batch of rows.

        Raises:
            InvalidJobError: a row cannot be a job. The message names the row, and shows nothing of its payload.
        """
        rows = max(1, min(SLICE_ROWS, batch.num_rows * SLICE_BYTES // max(1, batch.nbytes)))
        for first in range(0, batch.num_rows, rows):
            self._add(batch.slice(first, rows))

    def _add(self, batch: pa.RecordBatch) -> None:
        for name, place in self._columns.unset:
            self._refuse(
                batch.column(place).is_valid(),
                f"{name} is not null, and only the queue sets it: leave it out of the INSERT",
            )
        entrypoints = self._option("entrypoint", batch)
        options = {name: values for name in IN_BULK if (values := self._option(name, batch)) is not None}
        try:
            self._staged.add(entrypoints or [], self._payloads(batch), options)
        except InvalidRowError as error:
            why = str(error).replace("Limits(payload_bytes=...)", "the option max_payload_bytes")
            raise self._wrong(error.row, why) from None

    def _option(self, name: str, batch: pa.RecordBatch) -> list[Any] | None:
        """Return the entrypoints, or the values of an option, row by row; None if all rows have the default."""
        place, option = self._columns.places.get(name), IN_BULK.get(name)
        if place is None:
            constant = self._columns.constants.get(name)
            return None if constant is None else [constant] * batch.num_rows
        column = batch.column(place)
        if option is None:
            self._refuse(column.is_null(), f"{name} is null")
            return self._values(name, column)
        if column.null_count == len(column):
            return None
        return self._values(name, column, _CONVERTED.get(option.kind, _as_it_is))

    def _payloads(self, batch: pa.RecordBatch) -> Sequence[bytes]:
        place = self._columns.places.get("payload")
        if place is None:
            names = [name for name, _ in self._columns.fields]
            cells = [self._values(name, batch.column(number), _json) for name, number in self._columns.fields]
            return _lines([dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)])
        column = batch.column(place)
        self._refuse(column.is_null(), "payload is null")
        if types.is_nested(column.type):
            return _lines(self._values("payload", column, _json))
        is_text = types.is_string(column.type) or types.is_large_string(column.type)
        return self._values("payload", column.cast(pa.large_binary()) if is_text else column)  # in UTF-8

    def _values(self, name: str, column: pa.Array, values: Values = _as_it_is) -> list[Any]:
        """Return the values of a column.

        Raises:
            InvalidJobError: one cannot be read. The message names its row.
        """
        try:
            return values(column)
        except (ValueError, ArithmeticError):
            for number in range(len(column)):
                try:
                    values(column.slice(number, 1))
                except (ValueError, ArithmeticError) as error:
                    why = _FAULTS.get(type(error), "a time that is out of range: years are from 1 to 9999")
                    raise self._wrong(number, f"{name} has {why}") from None
            raise

    def _refuse(self, wrong: pa.BooleanArray, why: str) -> None:
        """Raise an error about the first row for which `wrong` is true."""
        if (number := wrong.index(True).as_py()) >= 0:
            raise self._wrong(number, why)

    def _wrong(self, number: int, why: str) -> InvalidJobError:
        return InvalidJobError(f"row {self._staged.jobs + number} of partition {self._partition}: {why}")


def _lines(values: Sequence[Any]) -> list[bytes]:
    """Return the JSON of each value."""
    return _encode_lines(values).split(b"\n")[:-1]


def _json(column: pa.Array) -> list[Any]:
    """Return the values of a column as the JSON encoder takes them."""
    kind = column.type
    if types.is_struct(kind):
        names = [kind.field(number).name for number in range(kind.num_fields)]
        cells = map(_json, column.flatten())  # a struct that is null is null in each of its fields
        values = [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)] or [{}] * len(column)
        return [value if there else None for value, there in zip(values, column.is_valid().to_pylist(), strict=True)]
    if types.is_map(kind):
        return _maps(column, _json)
    if types.is_list(kind) or types.is_large_list(kind):
        return _parts(column, _json(_children(column, column.values)))
    form = next((form for is_kind, form in _FORMS if is_kind(kind)), None)
    values = column.to_pylist()
    return values if form is None else [None if value is None else form(value) for value in values]


def _maps(column: pa.MapArray, values: Values = _as_it_is) -> list[Any]:
    """Return the maps of a column as dictionaries."""
    keys, items = (_children(column, each) for each in (column.keys, column.items))
    pairs = _parts(column, list(zip(keys.to_pylist(), values(items), strict=True)))
    return [None if each is None else dict(each) for each in pairs]


def _children(column: pa.ListArray, values: pa.Array) -> pa.Array:
    """Return the elements of all lists of a column, which may be a slice."""
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return values.slice(first, last - first)


def _parts(column: pa.ListArray, elements: list[Any]) -> list[list[Any] | None]:
    """Return the elements of each list of a column."""
    offsets, there = column.offsets.to_pylist(), column.is_valid().to_pylist()
    first = offsets[0]
    return [
        elements[start - first : stop - first] if is_there else None
        for (start, stop), is_there in zip(pairwise(offsets), there, strict=True)
    ]


def _durations(column: pa.Array) -> list[Any]:
    return _as_it_is(column.cast(pa.float64()) if types.is_decimal(column.type) else column)


def _times(column: pa.Array) -> list[Any]:
    """Return times in UTC. PyArrow takes some microseconds to make one."""
    numbers = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    return [None if number is None else _EPOCH + timedelta(microseconds=number) for number in numbers]


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise FloatingPointError
    return value


def _utc(value: datetime) -> str:
    return value.astimezone(UTC).isoformat()


_FAULTS = {
    FloatingPointError: "a number that JSON cannot hold: NaN or infinity",
    UnicodeDecodeError: "a string that is not UTF-8: cast it to binary",
}
"""The meaning of an error about a value of a column."""

_CONVERTED: Mapping[type, Values] = {datetime: _times, timedelta: _durations, Mapping: _maps}
"""The function that converts a column of options, by their kind, if they are not as they are."""

_FORMS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]]] = (
    (types.is_floating, _finite),
    (types.is_decimal, "{:f}".format),
    (types.is_duration, timedelta.total_seconds),
    (lambda kind: types.is_timestamp(kind) and kind.tz is not None, _utc),
)
"""The types whose form is not that of the encoder, and functions that make it."""
