"""Makes text from a queue safe to show: anyone may have written its ids, entrypoints and errors."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return the text as one line that is harmless to a terminal: unprintable characters become escapes."""
    return text if text.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
