"""Text for people: counts in words, and text from a queue made safe to show, as anyone may have written it."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return the text as one line that is harmless to a terminal: unprintable characters become escapes."""
    return text if text.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a count in words: "1 job", "2 jobs", "1,000 jobs".

    Args:
        number: the count.
        one: the noun, perhaps with its verb, for one thing.
        many: the same for several things; by default, `one` with an s.
    """
    return f"1 {one}" if number == 1 else f"{number:,} {many or one + 's'}"
