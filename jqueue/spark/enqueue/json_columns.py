"""The values of Arrow columns as JSON, a whole column at a time: texts of bytes, one for each row.

In JSON, objects keep the order of their fields, and null stays. Times are ISO 8601 in UTC; a timestamp without a time
zone stays without one. Binary is base64; a decimal is a string, so that no digit is lost; an interval is a number of
seconds. NaN and infinite numbers are refused, as JSON cannot hold them.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from jqueue.spark.enqueue.columns import MICROS

DAY = 86_400_000_000
"""Number of microseconds of a day."""

FEW = 8
"""Number of rows for each different value from which a column is made of its different values."""

SAMPLE = 1024
"""Number of rows that are looked at first: if they all differ, so do most values of the column."""

_ESCAPED = re.compile(rb'["\\\x00-\x1f]')


def joined(*parts: Any) -> pa.BinaryArray:
    """Return the texts of several columns, or bytes, joined row by row; null where one is null."""
    return pc.binary_join_element_wise(*parts, b"")


def binary(column: pa.Array) -> pa.BinaryArray:
    """Return a column of text or bytes as bytes."""
    return column.cast(pa.binary())


def bytes_of(column: pa.BinaryArray) -> tuple[np.ndarray[Any, Any], memoryview]:
    """Return the offsets of the values of a column, and the bytes that they are offsets in."""
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return places, memoryview(b"" if data is None else data)


def base64(column: pa.BinaryArray) -> pa.BinaryArray:
    """Return the values of a column that has no null in base64."""
    if not len(column):
        return column
    missing = -pc.binary_length(column).to_numpy() % 3
    if missing.any():
        column = joined(column, pa.array([b"", b"\0", b"\0\0"], pa.binary()).take(pa.array(missing)))
    places, data = bytes_of(column)
    text = np.frombuffer(b2a_base64(data[places[0] : places[-1]], newline=False), np.uint8).copy()
    ends = (places - places[0]) // 3 * 4
    text[ends[1:][missing > 0] - 1] = ord("=")
    text[ends[1:][missing > 1] - 2] = ord("=")
    return pa.Array.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(ends), pa.py_buffer(text)])


def quoted(column: pa.Array) -> pa.BinaryArray:
    """Return texts in quotes.

    Raises:
        UnicodeDecodeError: one is not UTF-8.
    """
    return joined(b'"', escaped(column), b'"')


def escaped(column: pa.Array) -> pa.BinaryArray:
    """Return texts as they stand between quotes.

    Raises:
        UnicodeDecodeError: one is not UTF-8.
    """
    places, data = bytes_of(column := binary(column))
    used = data[places[0] : places[-1]]
    str(used, "utf-8")
    if _ESCAPED.search(used) is None:
        return column
    texts = [None if each is None else msgspec.json.encode(each.decode())[1:-1] for each in column.to_pylist()]
    return pa.array(texts, pa.binary())


def spread(column: pa.Array) -> tuple[pa.Array, pa.Int32Array | None]:
    """Return the different values of a column, and the place of each row's among them, which is null for null.

    Without places, the values are the column itself, as most of them differ.
    """
    if types.is_nested(column.type) or (len(column) > SAMPLE and len(column[:SAMPLE].unique()) == SAMPLE):
        return column, None
    encoded = column.dictionary_encode()
    if len(encoded.dictionary) > len(column) // FEW:
        return column, None
    return encoded.dictionary, encoded.indices


def times(column: pa.Array) -> pa.BinaryArray:
    """Return microseconds since 1970 as ISO 8601, without a time zone.

    Raises:
        OverflowError: a year is not from 1 to 9999.
    """
    bounds = pc.min_max(column)
    if column.null_count < len(column) and not MICROS[0] <= bounds["min"].as_py() <= bounds["max"].as_py() <= MICROS[1]:
        raise OverflowError
    texts = pc.binary_replace_slice(column.cast(pa.timestamp("us")).cast(pa.string()), 10, 11, "T")
    return binary(pc.replace_substring(texts, ".000000", ""))


def json_of(column: pa.Array) -> pa.BinaryArray:
    """Return the values of a column in JSON.

    Raises:
        ArithmeticError: a number or a time is out of range.
        UnicodeDecodeError: a text is not UTF-8.
    """
    return pc.coalesce(_nullable(column), b"null") if len(column) else pa.array([], pa.binary())


def _nullable(column: pa.Array) -> pa.BinaryArray:
    """Return the values of a column in JSON; null where it is null."""
    kind = column.type
    if types.is_struct(kind):
        names = [kind.field(number).name for number in range(kind.num_fields)]
        return _where(column, objects_of(names, [json_of(child) for child in column.flatten()], len(column)))
    if types.is_map(kind):
        pairs = joined(quoted(children(column, column.keys)), b":", json_of(children(column, column.items)))
        return _lists(column, b"{", pairs, b"}")
    if types.is_list(kind) or types.is_large_list(kind):
        return _lists(column, b"[", json_of(children(column, column.values)), b"]")
    if types.is_string(kind) or types.is_large_string(kind):
        return quoted(column)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _where(column, joined(b'"', base64(binary(column.fill_null(b""))), b'"'))
    if types.is_decimal(kind):
        return quoted(pa.array([None if each is None else f"{each:f}" for each in column.to_pylist()], pa.string()))
    if types.is_duration(kind):
        return _numbers(seconds(column))
    if types.is_floating(kind):
        return _numbers(column)
    if types.is_timestamp(kind):
        zone = b'"' if kind.tz is None else b'+00:00"'
        return joined(b'"', times(column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())), zone)
    if types.is_date(kind):
        days = times(pc.multiply(column.cast(pa.int32()).cast(pa.int64()), DAY))
        return joined(b'"', pc.binary_slice(days, 0, 10), b'"')
    if types.is_time(kind):
        return joined(b'"', binary(pc.replace_substring(column.cast(pa.string()), ".000000", "")), b'"')
    if types.is_null(kind):
        return pa.nulls(len(column), pa.binary())
    return binary(column.cast(pa.string()))


def objects_of(names: Sequence[str], columns: Sequence[pa.BinaryArray], rows: int) -> pa.BinaryArray:
    """Return one object for each row, given the JSON of its fields."""
    parts: list[Any] = [pa.array([b"{"] * rows, pa.binary())]
    for name, column in zip(names, columns, strict=True):
        parts += [b"," if len(parts) > 1 else b"", msgspec.json.encode(name) + b":", column]
    return joined(*parts, b"}")


def seconds(column: pa.Array) -> pa.DoubleArray:
    """Return numbers, or intervals, as seconds."""
    if types.is_duration(column.type):
        return pc.divide(column.cast(pa.duration("us")).cast(pa.int64()).cast(pa.float64()), 1e6)
    return column.cast(pa.float64())


def _numbers(column: pa.Array) -> pa.BinaryArray:
    """Return numbers with a fraction or an exponent."""
    if pc.any(pc.invert(pc.is_finite(column))).as_py():
        raise FloatingPointError
    texts = column.cast(pa.string())
    whole = pc.binary_join_element_wise(texts, ".0", "")
    return binary(pc.if_else(pc.match_substring_regex(texts, "[.e]"), texts, whole))


def _where(column: pa.Array, texts: pa.BinaryArray) -> pa.BinaryArray:
    """Return texts; null where a column is null."""
    return texts if not column.null_count else pc.if_else(column.is_valid(), texts, None)


def children(column: pa.ListArray, values: pa.Array) -> pa.Array:
    """Return the elements of all lists of a column, which may be a slice."""
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return values.slice(first, last - first)


def _lists(column: pa.ListArray, start: bytes, elements: pa.BinaryArray, end: bytes) -> pa.BinaryArray:
    """Return the elements of each list with commas between them."""
    offsets = pc.subtract(column.offsets, column.offsets[0]).cast(pa.int32())
    return _where(column, joined(start, pc.binary_join(pa.ListArray.from_arrays(offsets, elements), b","), end))
