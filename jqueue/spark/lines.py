"""The encoded lines of jobs as columns of Arrow, and as rows.

Whatever is done to a value is done to its whole column: no job becomes an object of Python.
"""

from __future__ import annotations

import json
from binascii import a2b_base64
from collections.abc import Callable, Iterable, Mapping

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.json import ParseOptions, ReadOptions, read_json

from jqueue.domain.job import StoredObject
from jqueue.spark.rows import QUEUE


class _Nested(msgspec.Struct):
    """Fields of a line that are not one value, or not always."""

    headers: dict[str, str] | None = None
    result: msgspec.Raw = msgspec.Raw()
    payload_object: StoredObject | None = None


_decode_nested: Callable[[bytes], list[_Nested]] = msgspec.json.Decoder(_Nested).decode_lines
_REQUIRED = {"id", "entrypoint", "payload", "status", "created_at", "sequence"}
_COUNTS = {"priority", "attempt", "failures", "attempts_before"}
"""Columns that are 0 where a line says nothing."""

Places = npt.NDArray[np.int64]
"""Offsets in a text, one for each line."""


def columns_of(lines: bytes, number: int, wanted: Iterable[pa.Field]) -> dict[str, pa.Array]:
    """Return columns of jobs by name.

    Args:
        lines: the encoded records of the jobs, with a line break between two.
        number: number of the jobs.
        wanted: the columns. No other field is read: unknown fields are ignored.

    Raises:
        ValueError: a line is not a job, or there are more or fewer lines.
    """
    if not lines.endswith(b"\n"):
        lines += b"\n"
    kinds = {field.name: field.type for field in wanted}
    read = {name: kind for name, kind in kinds.items() if name not in ("headers", "result")}
    columns, nested = _cut(lines, read), list[_Nested]()
    if not columns:
        columns = _parsed(lines, read)
        nested = _decode_nested(lines) if kinds.keys() & {"payload", "headers", "result"} else []
    for name in _REQUIRED & columns.keys():
        if columns[name].null_count:
            raise ValueError(f"a line has no {name}")
    for name in _COUNTS & columns.keys():
        columns[name] = columns[name].fill_null(0)
    if "payload" in kinds:
        columns["payload"] = _decoded(columns["payload"])
        if any(each.payload_object for each in nested):
            sizes = pa.array([each.payload_object and each.payload_object.size for each in nested], pa.int32())
            is_apart = pc.not_equal(pc.binary_length(columns["payload"]), sizes).fill_null(False)
            columns["payload"] = pc.if_else(is_apart, None, columns["payload"])
    if "headers" in kinds:
        cells = [list((each.headers or {}).items()) for each in nested]
        columns["headers"] = pa.array(cells or [[]] * number, kinds["headers"])
    if "result" in kinds:
        texts = [bytes(each.result).decode() for each in nested] or [""] * number
        columns["result"] = pa.array([None if text in ("", "null") else text for text in texts], kinds["result"])
    if any(len(column) != number for column in columns.values()):
        raise ValueError(f"they are not {number} lines")
    return columns


def _parsed(lines: bytes, kinds: Mapping[str, pa.DataType]) -> dict[str, pa.Array]:
    """Return columns of any lines.

    Raises:
        ValueError: a line is not JSON, or a value has another type.
    """
    try:
        table = read_json(
            pa.BufferReader(lines),
            ReadOptions(use_threads=False, block_size=len(lines) + 1),
            ParseOptions(explicit_schema=pa.schema(kinds.items()), unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid as error:
        raise ValueError(str(error).partition(", couldn't parse")[0]) from None  # without the value
    return {name: table[name].combine_chunks() for name in kinds}


def _cut(lines: bytes, kinds: Mapping[str, pa.DataType]) -> dict[str, pa.Array]:
    """Return columns of lines that have the same fields, in one order. Return nothing if they differ, or have escapes.

    The text between two values is then the same on all lines, as the quotes show where each value begins and ends. To
    compare that text, and to copy the values, takes a quarter of the time of reading JSON.
    """
    first = lines[: lines.find(b"\n")]
    fields = json.loads(first) if first.startswith(b"{") and b"\\" not in lines else {}
    quotes = np.flatnonzero(np.frombuffer(lines, np.uint8) == ord('"'))
    marks = sum(4 if isinstance(value, str) else 2 for value in fields.values())
    is_flat = "result" not in fields and all(isinstance(each, str | int | float) for each in fields.values())
    if not (marks and is_flat) or len(quotes) % marks:
        return {}
    quote = np.ascontiguousarray(quotes.reshape(-1, marks).T)
    begins = quote[0] - 1
    behind = np.append(begins[1:], len(lines))
    pieces, values, place = list[tuple[Places, Places, bytes]](), dict[str, tuple[Places, Places]](), 0
    end, piece = begins, b"{"
    for name, value in fields.items():
        sign = b'"' if isinstance(value, str) else b""
        start = quote[place + 1] + 2 + len(sign)
        pieces.append((end, start, b'%b"%b":%b' % (piece, name.encode(), sign)))
        place += 4 if sign else 2
        end, piece = quote[place - 1] if sign else quote[place] - 1 if place < marks else behind - 2, sign + b","
        values[name] = start, end
    pieces.append((end, behind, sign + b"}\n"))
    try:
        if all(_is_between(lines, *each) for each in pieces):
            absent = {name: pa.nulls(len(begins), kind) for name, kind in kinds.items() if name not in values}
            return absent | {name: _copied(lines, *values[name], kinds[name]) for name in kinds.keys() & values}
    except (pa.ArrowException, IndexError):  # a value of another type, or a line is cut: the reader of JSON decides
        pass
    return {}


def _is_between(lines: bytes, starts: Places, ends: Places, piece: bytes) -> bool:
    """Return True if the same text is between all starts and ends."""
    if (ends - starts != len(piece)).any():
        return False
    places = np.ndarray((len(lines) - len(piece) + 1,), f"V{len(piece)}", lines, strides=(1,))
    return places[starts].tobytes() == piece * len(starts)


def _copied(lines: bytes, starts: Places, ends: Places, kind: pa.DataType) -> pa.Array:
    """Return the values between starts and ends."""
    offsets = np.zeros(2 * len(starts) + 1, np.int32)
    offsets[1::2], offsets[2::2] = starts, ends
    cells = pa.Array.from_buffers(pa.binary(), 2 * len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(lines)])
    values = cells.take(pa.array(np.arange(1, len(cells), 2)))
    return values if kind == values.type else values.cast(pa.string()).cast(kind)


def _decoded(texts: pa.Array) -> pa.Array:
    """Return the bytes that base64 texts stand for. All are decoded at once.

    Raises:
        ValueError: one of them is not base64.
    """
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[: len(texts) + 1].astype(np.int64)
    text = b"" if data is None else data[: ends[-1]].to_pybytes()
    sizes, last = np.diff(ends), ends[1:][ends[1:] > ends[:-1]]
    signs = np.frombuffer(text, np.uint8) == ord("=")
    padding = np.zeros(len(texts), np.int64)
    padding[sizes > 0] = signs[last - 1] * (1 + signs[last - 2])
    decoded = a2b_base64(text.replace(b"=", b"A"))
    if (sizes % 4).any() or len(decoded) * 4 != len(text) * 3 or padding.sum() != signs.sum():
        raise ValueError("a payload is not base64")
    ends = ends // 4 * 3
    if padding.any():
        is_payload = np.ones(len(decoded), bool)
        is_payload[ends[1:][padding > 0] - 1] = False
        is_payload[ends[1:][padding > 1] - 2] = False
        decoded = np.frombuffer(decoded, np.uint8)[is_payload].tobytes()
        ends[1:] -= padding.cumsum()
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(decoded)]
    return pa.Array.from_buffers(pa.binary(), len(texts), buffers)


def rows_of(lines: bytes, schema: pa.Schema, queue: str | None = None) -> pa.RecordBatch:
    """Return jobs as a batch of rows. `queue` is the column of that name; for the rest, see `columns_of`."""
    number = lines.count(b"\n") + 1
    columns = columns_of(lines, number, [field for field in schema if field.name != QUEUE])
    if QUEUE in schema.names:
        columns[QUEUE] = pa.repeat(pa.scalar(queue, pa.string()), number)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
