"""Counts in words, with the noun in singular or plural."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a count in words: "1 job", "2 jobs", "1,000 jobs".

    Args:
        number: the count.
        one: the noun, perhaps with its verb, for one thing.
        many: the same for several things; by default, `one` with an s.
    """
    return f"1 {one}" if number == 1 else f"{number:,} {many or one + 's'}"
