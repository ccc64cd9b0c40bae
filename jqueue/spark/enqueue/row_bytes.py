"""The bytes of many rows at once: growing memory, base64, and numbers as digits. NumPy does the work, not a loop."""

from __future__ import annotations

from binascii import b2a_base64
from typing import Any

import numpy as np
import pyarrow as pa

BINARY = pa.large_binary()

ID_DIGITS = 8
"""Number of hexadecimal digits of a 32-bit number."""

FIRST_BYTES, GROWTH = 1 << 20, 8
"""Bytes of fresh memory, and the factor by which it grows when it is full: the system hands out what is written to."""

HEX_DIGITS = np.frombuffer(b"".join(b"%04x" % number for number in range(1 << 16)), np.uint32)
"""The four hexadecimal digits of each 16-bit number, in the bytes of one number."""

DECIMALS = np.frombuffer(b"".join(b"%04d" % number for number in range(10_000)), np.uint32)
"""The four decimal digits of each number below 10,000, in the bytes of one number."""


class GrowingBytes:
    """Bytes to which more are added. The system takes longer to hand out fresh memory than a row takes to be written.

    Args:
        memory: an array to use again; None: a new one.
    """

    def __init__(self, memory: Any = None) -> None:
        self._memory: Any = np.empty(FIRST_BYTES, np.uint8) if memory is None else memory
        self._size = 0

    def room(self, size: int) -> Any:
        """Add bytes, and return the array to write them to. It must be written before more are added."""
        start, self._size = self._size, self._size + size
        if self._size > len(self._memory):
            larger = np.empty(max(self._size, GROWTH * len(self._memory)), np.uint8)
            larger[:start] = self._memory[:start]
            self._memory = larger
        return self._memory[start : self._size]

    def add(self, text: bytes) -> None:
        """Add these bytes."""
        self.room(len(text))[:] = np.frombuffer(text, np.uint8)

    def view(self) -> memoryview:
        """Return a view of all bytes. Its `obj` is the memory, which may be used again."""
        whole: memoryview = self._memory.data
        return whole[: self._size]

    def ended_by(self, text: bytes) -> memoryview:
        """Add the last bytes, and return a view of all."""
        self.add(text)
        return self.view()


class Base64:
    """Some binary values as base64.

    Args:
        values: without nulls, at least one.

    Attributes:
        lengths: number of bytes of each text.
        width: that number, if it is the same for all; otherwise None.
    """

    def __init__(self, values: pa.Array) -> None:
        wide = values.cast(BINARY)
        offsets = np.frombuffer(wide.buffers()[1], np.int64, len(wide) + 1, wide.offset * 8)
        data = wide.buffers()[2]
        self._raw = np.frombuffer(b"" if data is None else data, np.uint8)[offsets[0] : offsets[-1]]
        self._starts = offsets[:-1] - offsets[0]
        self._bytes = np.diff(offsets)
        self.lengths = -(-self._bytes // 3) * 4
        are_alike = self._bytes.min() == self._bytes.max()
        self.width = int(self.lengths[0]) if are_alike else None

    def write(self, texts: Any) -> None:
        """Write them into the rows of an array. They must have the same length."""
        if not self.width:
            return
        rows, size = len(self._bytes), int(self._bytes[0])
        values = self._raw.reshape(rows, size)
        rest = size % 3
        if rest:
            padded = np.zeros((rows, self.width // 4 * 3), np.uint8)
            padded[:, :size] = values
            values = padded
        texts[:] = np.frombuffer(b2a_base64(values.data, newline=False), np.uint8).reshape(rows, self.width)
        if rest:
            texts[:, -(3 - rest) :] = ord("=")

    def column(self) -> pa.Array:
        """Return them as a column. Each is padded to whole groups, and all are encoded at once."""
        ends = np.concatenate(([0], np.cumsum(self.lengths)))
        padded = np.zeros(int(ends[-1]) // 4 * 3, np.uint8)
        padded[np.arange(len(self._raw)) + np.repeat(ends[:-1] // 4 * 3 - self._starts, self._bytes)] = self._raw
        text = np.frombuffer(b2a_base64(padded.data, newline=False), np.uint8).copy()
        rests = self._bytes % 3
        text[ends[1:][rests > 0] - 1] = ord("=")
        text[ends[1:][rests == 1] - 2] = ord("=")
        return pa.Array.from_buffers(BINARY, len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(text)])


def binary_column(rows: Any) -> pa.Array:
    """Return the rows of a two-dimensional array of bytes as a column."""
    count, width = rows.shape
    return pa.Array.from_buffers(pa.binary(width), count, [None, pa.py_buffer(rows)]).cast(BINARY)


def hexadecimal(numbers: Any) -> Any:
    """Return the eight hexadecimal digits of each 32-bit number, as rows of bytes."""
    return HEX_DIGITS[np.stack([numbers >> 16, numbers & 0xFFFF], axis=1)].view(np.uint8)


def write_decimals(rows: Any, numbers: Any) -> None:
    """Write numbers of 32 bits into the rows of an array of bytes, which are as wide as each of the numbers."""
    left, rest = rows.shape[1], numbers.astype(np.uint32)
    while left:
        width = min(4, left)
        digits = DECIMALS[rest % 10_000].view(np.uint8).reshape(len(rows), 4)
        rows[:, left - width : left] = digits[:, 4 - width :]
        left, rest = left - width, rest // 10_000
