"""Lines that are alike, read in columns: no object is made for a row.

The rows of a segment usually differ in their id, payload and sequence number only; a few may have another time or other
options. Arrow and NumPy cut such lines at the same texts, and decode all payloads at once. The caller reads one line of
each kind by the codec, and so knows all other fields of the rest.

It is a shortcut, not a second definition of the format: it promises that each of the lines is valid if the examples
are, and has their other fields. Any other text is refused, and must be read line by line.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from jqueue.core.blob.lines import plain_texts

LARGEST_TEXT = (1 << 31) - 1
"""Bytes of text that can be read at once: the offsets of a column have 32 bits."""

ROWS_OF_A_KIND = 8
"""Least number of lines for each kind, on average: with more kinds it is quicker to read the lines one by one."""

SEQUENCE_DIGITS = 15
"""Most digits of a sequence number that is read here, as in `jqueue.core.blob.lines`."""

_HEAD = re.compile(rb'"[^"\\\x00-\x1f]+(": \{"entrypoint": "[^"\\\x00-\x1f]+", "payload": ")')
"""Beginning of a line up to the payload. The group ends the id, and is the same in all lines."""

_MIDDLE = plain_texts("", "", datetime.min).middle
"""Text between the payload and the sequence number of a queued job."""

_DECIDING = (b'"payload', b'"sequence"', b"\\u", b"\n")
"""Texts that may not be in the rest of a line: names that decide about what stands before, escapes, and line breaks."""

_ID_END, _PAYLOAD_END, _NUMBER_END = 1, 9, 16
"""Quotes of a line, counted from 0: the ends of its id and its payload, and the one behind its sequence number."""

_NEWLINE, _QUOTE, _BACKSLASH, _SPACE, _PAD, _ZERO, _NINE, _FILLING = b'\n"\\ =09A'


@dataclass(frozen=True)
class PlainLines:
    """The lines of queued jobs of one entrypoint.

    Attributes:
        ids: of the jobs, as a column of strings.
        payloads: as a column of binary values.
        sequences: their sequence numbers as the lines have them, as a column of 64-bit numbers.
        examples: one line of each kind, without the line break. Fields besides these three are the same in each
            line of a kind.
        kinds: for each line, the number of its example; None if there is only one.
    """

    ids: pa.Array
    payloads: pa.Array
    sequences: pa.Array
    examples: Sequence[bytes]
    kinds: pa.Array | None

    def __len__(self) -> int:
        return len(self.ids)


def read_plain_lines(text: bytes | memoryview) -> PlainLines | None:
    """Return the lines in columns; None if they must be read one by one.

    Args:
        text: lines of jobs, each with a line break behind it, as in a chunk of a segment or in several that follow
            each other.
    """
    found = _HEAD.match(text)
    if found is None or len(text) > LARGEST_TEXT:
        return None
    try:
        return _read(text, found[1])
    except ValueError:  # as by Arrow, and by the decoder of base64
        return None


class _NotPlainError(ValueError):
    """The lines must be read one by one."""


def _require(plain: bool) -> None:
    if not plain:
        raise _NotPlainError


def _read(text: bytes | memoryview, head: bytes) -> PlainLines:
    """Cut the lines, given the text between id and payload.

    Raises:
        ValueError: they must be read one by one.
    """
    whole = _Text(text)
    starts, ends, id_ends, payload_ends, number_ends = _places(whole.codes) or _found_places(whole.codes)
    payload_starts, number_starts = id_ends + len(head), payload_ends + len(_MIDDLE)
    _require(bool((whole.codes[starts] == _QUOTE).all()))
    # pieces must not overlap, even those of lines that turn out to be no lines of jobs
    _require(bool((starts < id_ends).all() and (payload_starts <= payload_ends).all()))
    _require(bool((number_starts < number_ends).all() and (number_ends < ends).all()))
    _require(_all_are(whole.pieces(id_ends, payload_starts), head))
    _require(_all_are(whole.pieces(payload_ends, number_starts), _MIDDLE))

    examples, kinds = _kinds(whole, starts, number_ends, ends)
    return PlainLines(
        ids=_ids(whole.pieces(starts + 1, id_ends)),
        payloads=_payloads(whole.pieces(payload_starts, payload_ends)),
        sequences=_sequences(whole.pieces(number_starts, number_ends)),
        examples=examples,
        kinds=kinds,
    )


class _Text:
    """A text that is cut into columns.

    Attributes:
        codes: its bytes as numbers.
    """

    def __init__(self, text: bytes | memoryview) -> None:
        self.codes: Any = np.frombuffer(text, np.uint8)
        self._buffer = pa.py_buffer(text)

    def pieces(self, starts: Any, ends: Any) -> pa.Array:
        """Return a piece of each line as a column of binary values. Pieces must be in order and not overlap."""
        count = len(starts)
        bounds = np.empty(2 * count, np.int32)
        bounds[::2], bounds[1::2] = starts, ends
        every = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), self._buffer])
        return every.take(pa.array(np.arange(0, 2 * count, 2)))


def _places(codes: Any) -> Sequence[Any] | None:
    """Return the places of `_found_places` for lines of one length, by the first line; None if there are others.

    That the other lines have the same texts at these places is for the caller to see.
    """
    width = int((codes == _NEWLINE).argmax()) + 1
    if len(codes) % width or not bool((codes[width - 1 :: width] == _NEWLINE).all()):
        return None
    starts = np.arange(0, len(codes), width)
    return [starts + place[0] for place in _found_places(codes[:width])]


def _found_places(codes: Any) -> Sequence[Any]:
    """Return where lines begin and end, and where their ids, payloads and sequence numbers end."""
    ends = np.flatnonzero(codes == _NEWLINE)
    _require(len(ends) > 0 and int(ends[-1]) == len(codes) - 1)
    starts = np.concatenate(([0], ends[:-1] + 1))
    quotes = np.flatnonzero(codes == _QUOTE)
    first = np.searchsorted(quotes, starts)
    _require(int(first[-1]) + _NUMBER_END < len(quotes))
    return starts, ends, quotes[first + _ID_END], quotes[first + _PAYLOAD_END], quotes[first + _NUMBER_END] - len(b", ")


def _offsets(values: pa.Array) -> Any:
    """Return the offsets of a column that `pieces` has made."""
    return np.frombuffer(values.buffers()[1], np.int32, len(values) + 1)


def _codes(values: pa.Array) -> Any:
    """Return the bytes of all values of a column that `pieces` has made, one behind the other, as numbers."""
    data = values.buffers()[2]
    return np.frombuffer(b"" if data is None else data, np.uint8)[: int(_offsets(values)[-1])]


def _all_are(values: pa.Array, text: bytes) -> bool:
    """Return True if each value of a column that `pieces` has made is this text."""
    offsets = _offsets(values)
    if int(offsets[-1]) != len(values) * len(text) or not bool((np.diff(offsets) == len(text)).all()):
        return False
    return bool((_codes(values).reshape(len(values), -1) == np.frombuffer(text, np.uint8)).all())


def _kinds(whole: _Text, starts: Any, number_ends: Any, ends: Any) -> tuple[list[bytes], pa.Array | None]:
    """Return an example of each kind, and the kind of each line. Lines of a kind have the same end."""
    rests = whole.pieces(number_ends, ends)
    first = bytes(whole.codes[number_ends[0] : ends[0]])
    if _all_are(rests, first):
        distinct, kinds, rows = [first], None, [0]
    else:
        encoded = rests.dictionary_encode()
        distinct, kinds = encoded.dictionary.to_pylist(), encoded.indices
        _require(len(distinct) * ROWS_OF_A_KIND <= len(starts))
        rows = np.unique(kinds.to_numpy(), return_index=True)[1].tolist()
    _require(not any(name in rest for rest in distinct for name in _DECIDING))
    return [bytes(whole.codes[starts[row] : ends[row]]) for row in rows], kinds


def _ids(values: pa.Array) -> pa.Array:
    codes = _codes(values)
    _require(int(np.diff(_offsets(values)).min()) > 0)
    _require(not bool(((codes < _SPACE) | (codes == _QUOTE) | (codes == _BACKSLASH)).any()))
    return values.cast(pa.string())  # refuses what is no UTF-8


def _sequences(values: pa.Array) -> pa.Array:
    codes, offsets = _codes(values), _offsets(values)
    lengths = np.diff(offsets)
    _require(int(lengths.min()) > 0 and int(lengths.max()) <= SEQUENCE_DIGITS)
    _require(not bool(((codes < _ZERO) | (codes > _NINE)).any()))
    _require(not bool((codes[offsets[:-1]] == _ZERO).any()))
    return values.cast(pa.string()).cast(pa.int64())


def _payloads(values: pa.Array) -> pa.Array:
    """Decode base64, as `a2b_base64` does it in its strict mode, but all values at once."""
    offsets = _offsets(values)
    lengths = np.diff(offsets)
    _require(not bool((lengths % 4).any()))
    codes = _codes(values)
    pads = np.zeros(len(lengths), np.int32)
    filled = np.flatnonzero(lengths)
    last = offsets[1:][filled] - 1
    pads[filled] = (codes[last] == _PAD) * (1 + (codes[last - 1] == _PAD))
    if pads.any():
        codes = codes.copy()
        codes[offsets[1:][pads > 0] - 1] = codes[offsets[1:][pads > 1] - 2] = _FILLING
    content = np.frombuffer(a2b_base64(codes, strict_mode=True), np.uint8)
    _require(len(content) == len(codes) // 4 * 3)
    if pads.any():
        content = _without_pads(content, offsets[1:] // 4 * 3, pads)
    bounds = np.zeros(len(values) + 1, np.int32)
    np.cumsum(lengths // 4 * 3 - pads, out=bounds[1:])
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(bounds), pa.py_buffer(content)])


def _without_pads(content: Any, ends: Any, pads: Any) -> Any:
    """Return decoded values without the bytes that stand for padding, given the end of each value."""
    width, pad = int(ends[0]), int(pads[0])
    if width * len(ends) == len(content) and bool((pads == pad).all()) and bool((np.diff(ends) == width).all()):
        return content.reshape(len(ends), width)[:, : width - pad].ravel()
    kept = np.ones(len(content), bool)
    kept[ends[pads > 0] - 1] = kept[ends[pads > 1] - 2] = False
    return content[kept]
