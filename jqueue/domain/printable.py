"""Text from a queue as it may be shown: ids, entrypoints and errors are written by strangers."""

from __future__ import annotations


def printable(text: str) -> str:
    """A text that does nothing to a terminal: one line, with all that cannot be printed written out."""
    return text if text.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
