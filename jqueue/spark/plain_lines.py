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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute

from jqueue.core.blob.lines import plain_texts
from jqueue.domain.segment_index import MARKS, whole_lines

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

_MARKED_HEAD = re.compile(rb'([^"\\\x00-\x1f]*)": \{"entrypoint": "[^"\\\x00-\x1f]+", "payload": "')
"""Text between the id and the payload in lines with marks. The group is the end of the id."""

_NUMBER_GOES_ON = re.compile(rb"[0-9.eE]")
"""Beginning of a text that would be a part of the number before it."""

_MARKS = b"".join(MARKS[:3])
"""The marks in a line: those of the texts behind its id, behind its payload and behind its sequence number."""

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


def read_plain_lines(text: bytes, texts: Sequence[bytes] = ()) -> PlainLines | None:
    """Return the lines in columns; None if they must be read one by one.

    Args:
        text: lines of jobs, each with a line break behind it, as in a chunk of a segment or in several that follow
            each other.
        texts: the texts that `MARKS` stand for in them.
    """
    with suppress(ValueError):  # as by Arrow, and by the decoder of base64
        return _read_marked(text, texts)
    with suppress(ValueError):
        return _read(whole_lines(text, texts))
    return None


class _NotPlainError(ValueError):
    """The lines must be read one by one."""


def _require(plain: bool) -> None:
    if not plain:
        raise _NotPlainError


def _read(text: bytes) -> PlainLines:
    """Cut whole lines.

    Raises:
        ValueError: they must be read one by one.
    """
    found = _HEAD.match(text)
    if found is None:
        raise _NotPlainError
    head, whole = found[1], _Text(text)
    starts, ends, id_ends, payload_ends, number_ends = _places(whole.codes, _quotes) or _quotes(whole.codes)
    payload_starts, number_starts = id_ends + len(head), payload_ends + len(_MIDDLE)
    lines = _columns(whole, _Cut(starts, id_ends, payload_starts, payload_ends, number_starts, number_ends, ends))
    _require(_all_are(whole.pieces(id_ends, payload_starts), head))
    _require(_all_are(whole.pieces(payload_ends, number_starts), _MIDDLE))
    return lines


def _read_marked(text: bytes, texts: Sequence[bytes]) -> PlainLines:
    """Cut lines in which a mark stands between id and payload, one behind the payload, and one behind the number.

    Raises:
        ValueError: they must be read one by one.
    """
    _require(len(texts) == len(_MARKS) and texts[1] == _MIDDLE)
    head = _MARKED_HEAD.fullmatch(texts[0])
    if head is None or _NUMBER_GOES_ON.match(texts[2]):
        raise _NotPlainError
    short = _Text(text)
    starts, ends, id_ends, payload_ends, number_ends = _places(short.codes, _marks) or _marks(short.codes)
    for mark, places in zip(_MARKS, (id_ends, payload_ends, number_ends), strict=True):
        _require(bool((short.codes[places] == mark).all()))
    cut = _Cut(starts, id_ends, id_ends + 1, payload_ends, payload_ends + 1, number_ends, ends)
    return _columns(short, cut, texts, head[1].decode())


class _Cut(NamedTuple):
    """Where each line begins and ends, and its pieces. The piece behind the sequence number begins at its end."""

    starts: Any
    id_ends: Any
    payload_starts: Any
    payload_ends: Any
    number_starts: Any
    number_ends: Any
    ends: Any


def _columns(text: _Text, cut: _Cut, texts: Sequence[bytes] = (), id_end: str = "") -> PlainLines:
    """Return the columns of lines, given the texts of their marks, and the text behind the id in each."""
    _require(bool((text.codes[cut.starts] == _QUOTE).all()))
    # pieces must not overlap, even those of lines that turn out to be no lines of jobs
    _require(bool((cut.starts < cut.id_ends).all() and (cut.payload_starts <= cut.payload_ends).all()))
    _require(bool((cut.number_starts < cut.number_ends).all() and (cut.number_ends < cut.ends).all()))
    examples, kinds = _kinds(text, cut, texts)
    return PlainLines(
        ids=_ids(text.pieces(cut.starts + 1, cut.id_ends), id_end),
        payloads=_payloads(text.pieces(cut.payload_starts, cut.payload_ends)),
        sequences=_sequences(text.pieces(cut.number_starts, cut.number_ends)),
        examples=examples,
        kinds=kinds,
    )


class _Text:
    """A text that is cut into columns.

    Attributes:
        codes: its bytes as numbers.
    """

    def __init__(self, text: bytes) -> None:
        _require(len(text) <= LARGEST_TEXT)
        self.codes: Any = np.frombuffer(text, np.uint8)
        self._buffer = pa.py_buffer(text)

    def pieces(self, starts: Any, ends: Any) -> pa.Array:
        """Return a piece of each line as a column of binary values. Pieces must be in order and not overlap."""
        count = len(starts)
        bounds = np.empty(2 * count, np.int32)
        bounds[::2], bounds[1::2] = starts, ends
        every = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), self._buffer])
        return every.take(pa.array(np.arange(0, 2 * count, 2)))


def _places(codes: Any, found: Callable[[Any], Sequence[Any]]) -> Sequence[Any] | None:
    """Return the places that `found` finds for lines of one length, by the first line; None if there are others.

    That the other lines have the same texts at these places is for the caller to see.
    """
    width = int((codes == _NEWLINE).argmax()) + 1
    if len(codes) % width or not bool((codes[width - 1 :: width] == _NEWLINE).all()):
        return None
    starts = np.arange(0, len(codes), width)
    return [starts + place[0] for place in found(codes[:width])]


def _quotes(codes: Any) -> Sequence[Any]:
    """Return where whole lines begin and end, and where their ids, payloads and sequence numbers end."""
    starts, ends = _bounds(codes)
    quotes = np.flatnonzero(codes == _QUOTE)
    first = np.searchsorted(quotes, starts)
    _require(int(first[-1]) + _NUMBER_END < len(quotes))
    return starts, ends, quotes[first + _ID_END], quotes[first + _PAYLOAD_END], quotes[first + _NUMBER_END] - len(b", ")


def _marks(codes: Any) -> Sequence[Any]:
    """Return the same places for lines with marks."""
    starts, ends = _bounds(codes)
    marks = np.flatnonzero((codes > 0) & (codes <= _MARKS[-1]))
    _require(len(marks) == len(_MARKS) * len(starts))
    places = marks.reshape(len(starts), len(_MARKS)).T
    _require(bool((starts < places[0]).all() and (places[-1] < ends).all()))
    return starts, ends, *places


def _bounds(codes: Any) -> tuple[Any, Any]:
    """Return where the lines begin and end."""
    ends = np.flatnonzero(codes == _NEWLINE)
    _require(len(ends) > 0 and int(ends[-1]) == len(codes) - 1)
    return np.concatenate(([0], ends[:-1] + 1)), ends


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


def _kinds(text: _Text, cut: _Cut, texts: Sequence[bytes]) -> tuple[list[bytes], pa.Array | None]:
    """Return an example of each kind, and the kind of each line. Lines of a kind have the same last piece."""
    rests = text.pieces(cut.number_ends, cut.ends)
    first = bytes(text.codes[cut.number_ends[0] : cut.ends[0]])
    if _all_are(rests, first):
        distinct, kinds, rows = [first], None, [0]
    else:
        encoded = rests.dictionary_encode()
        distinct, kinds = encoded.dictionary.to_pylist(), encoded.indices
        _require(len(distinct) * ROWS_OF_A_KIND <= len(cut.starts))
        rows = np.unique(kinds.to_numpy(), return_index=True)[1].tolist()
    _require(not any(name in whole_lines(rest, texts) for rest in distinct for name in _DECIDING))
    return [whole_lines(bytes(text.codes[cut.starts[row] : cut.ends[row]]), texts) for row in rows], kinds


def _ids(values: pa.Array, end: str) -> pa.Array:
    """Return ids, given the text behind each."""
    codes = _codes(values)
    _require(int(np.diff(_offsets(values)).min()) > 0)
    _require(not bool(((codes < _SPACE) | (codes == _QUOTE) | (codes == _BACKSLASH)).any()))
    ids = values.cast(pa.string())  # refuses what is no UTF-8
    return compute.binary_join_element_wise(ids, end, "") if end else ids


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
