"""Bytes of a payload as lines that are harmless to a terminal: text if they are text, else hexadecimal."""

from __future__ import annotations

from collections.abc import Iterator

from jqueue.cli.printing import size
from jqueue.domain.printable import printable

TEXT_BYTES = 64 << 10
"""Largest payload that is shown in full, if it is text."""

HEX_BYTES = 512
"""Number of bytes shown of a payload that is not text."""

ROW = 16


def lines_of_bytes(content: bytes) -> Iterator[str]:
    """Yield the lines that show some bytes, each behind a bar, so that none looks like another part of the page."""
    if not content:
        yield "  (empty)"
        return
    text = _text(content[:TEXT_BYTES])
    if text is None:
        yield from _hexadecimal(content[:HEX_BYTES])
        shown = HEX_BYTES
    else:
        for line in text.splitlines():
            yield f"  | {printable(line.expandtabs())}"
        shown = TEXT_BYTES
    if len(content) > shown:
        yield f"  … {size(len(content) - shown)} more; --json has them all"


def _text(content: bytes) -> str | None:
    """Return bytes as text; None if they are not UTF-8, or hold control characters other than line breaks and tabs."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        if error.start < len(content) - 3 or len(content) < TEXT_BYTES:  # a character may be cut at the end
            return None
        text = content[: error.start].decode()
    return None if any(char < " " and char not in "\n\r\t" for char in text) else text


def _hexadecimal(content: bytes) -> Iterator[str]:
    for start in range(0, len(content), ROW):
        row = content[start : start + ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"  | {start:04x}  {row.hex(' '):<{3 * ROW - 1}}  {letters}"
