"""Rows become staged jobs.

In JSON, objects keep the order of their fields, and null stays. Times are ISO 8601 in UTC; a timestamp without a time
zone stays without one. Binary is base64; a decimal is a string, so that no digit is lost; an interval is a number of
seconds. NaN and infinite numbers are refused, as JSON cannot hold them.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from jqueue.core.blob.segment_staging import InvalidRowError, SegmentStager
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job_options import IN_BULK
from jqueue.spark.enqueue.columns import Columns
from jqueue.spark.option_parsing import in_options

Convert = Callable[[Any], Any]


class RowEncoder:
    """Encodes the rows of one task.

    Args:
        columns: the use of each column.
        staged: encodes the jobs.
        partition: names the task in errors.
    """

    def __init__(self, columns: Columns, staged: SegmentStager, partition: int) -> None:
        self._columns, self._staged, self._partition = columns, staged, partition
        self._rows = 0  # before this batch

    def add(self, batch: pa.RecordBatch) -> None:
        """Encode a batch of rows.

        Raises:
            InvalidJobError: a row cannot be a job. The message names the row, and shows nothing of its payload.
        """
        for name, place in self._columns.unset:
            self._refuse_values(name, batch.column(place))
        names, payloads = self._entrypoints(batch), self._payloads(batch)
        options = {name: values for name in IN_BULK if (values := self._values(name, batch)) is not None}
        try:
            self._staged.add(names, payloads, options)
        except InvalidRowError as error:
            raise self._wrong(error.row, str(error)) from None
        self._rows += batch.num_rows

    def _entrypoints(self, batch: pa.RecordBatch) -> list[str]:
        place = self._columns.places.get("entrypoint")
        if place is None:
            return [self._columns.constants["entrypoint"]] * batch.num_rows
        column = batch.column(place)
        self._refuse_nulls("entrypoint", column)
        return self._pylist("entrypoint", column)

    def _payloads(self, batch: pa.RecordBatch) -> list[bytes]:
        place = self._columns.places.get("payload")
        if place is None:
            names = [name for name, _ in self._columns.fields]
            return self._objects(names, [batch.column(number) for _, number in self._columns.fields])
        column = batch.column(place)
        self._refuse_nulls("payload", column)
        kind = column.type
        if pa.types.is_struct(kind):
            fields = column.flatten()  # a struct that is null is null in each of its fields
            return self._objects([kind.field(number).name for number in range(kind.num_fields)], fields, len(column))
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            column = column.cast(pa.large_binary())  # its bytes are UTF-8
        values = self._pylist("payload", column)
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            return values
        return self._as_json(map(_converter(kind) or _same, values))

    def _objects(self, names: list[str], columns: list[pa.Array], rows: int = 0) -> list[bytes]:
        """Return one JSON object for each row of the columns."""
        if not columns:
            return [b"{}"] * rows
        values = []
        for name, column in zip(names, columns, strict=True):
            convert, found = _converter(column.type), self._pylist(name, column)
            values.append(found if convert is None else [convert(value) for value in found])
        return self._as_json(dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))

    def _as_json(self, values: Iterable[Any]) -> list[bytes]:
        payloads: list[bytes] = []
        encode = _JSON.encode
        try:
            for value in values:
                payloads.append(encode(value).encode())
        except ValueError:
            number = len(payloads)
        else:
            return payloads
        raise self._wrong(number, "payload has a number that JSON cannot hold: NaN or infinity")

    def _values(self, name: str, batch: pa.RecordBatch) -> list[Any] | None:
        """Return the values of a part of the jobs, row by row; None if all rows have the default."""
        place = self._columns.places.get(name)
        if place is None:
            constant = self._columns.constants.get(name)
            return None if constant is None else [constant] * batch.num_rows
        column = batch.column(place)
        if column.null_count == len(column):
            return None
        values = self._pylist(name, column)
        kind = IN_BULK[name].kind
        if kind is timedelta:
            return [None if value is None else _seconds(value) for value in values]
        if kind is Mapping:
            return [None if pairs is None else tuple(pairs) for pairs in values]
        return values

    def _pylist(self, name: str, column: pa.Array) -> list[Any]:
        try:
            return list(column.to_pylist())
        except UnicodeDecodeError:
            what = "a string that is not UTF-8: cast it to binary"
        except (ValueError, OverflowError):
            what = "a time that is out of range: years are from 1 to 9999"
        number = next(number for number, value in enumerate(column) if not _is_readable(value))
        raise self._wrong(number, f"{name} has {what}")

    def _refuse_nulls(self, name: str, column: pa.Array) -> None:
        if column.null_count:
            raise self._wrong(column.is_null().index(True).as_py(), f"{name} is null")

    def _refuse_values(self, name: str, column: pa.Array) -> None:
        if column.null_count < len(column):
            number = column.is_valid().index(True).as_py()
            raise self._wrong(number, f"{name} is not null, and only the queue sets it: leave it out of the INSERT")

    def _wrong(self, number: int, what: str) -> InvalidJobError:
        return InvalidJobError(f"row {self._rows + number} of partition {self._partition}: {in_options(what)}")


def _same(value: Any) -> Any:
    return value


def _seconds(value: Any) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def _is_readable(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except (ValueError, OverflowError):
        return False
    return True


def _converter(kind: pa.DataType) -> Convert | None:
    """Return a function that makes objects of maps, which Arrow passes as lists of pairs; None if there is no map."""
    if pa.types.is_map(kind):
        of_value = _converter(kind.item_type) or _same
        return _unless_null(lambda pairs: {key: of_value(value) for key, value in pairs})
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        of_item = _converter(kind.value_type)
        return None if of_item is None else _unless_null(lambda items: [of_item(item) for item in items])
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        of_fields = {field.name: _converter(field.type) for field in fields}
        if not any(of_fields.values()):
            return None
        return _unless_null(lambda row: {name: (of_fields[name] or _same)(value) for name, value in row.items()})
    return None


def _unless_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _written(value: object) -> Any:
    """Return the JSON form of a value for which the encoder has none."""
    if isinstance(value, datetime):
        return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_written)
