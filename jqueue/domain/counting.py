"""Numbers of things in words, whose nouns agree with them."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number of things: "1 job", "2 jobs", "1,000 jobs".

    Args:
        number: of them.
        one: the noun, and perhaps its verb, for one thing.
        many: the same for several; by default, with an s.
    """
    return f"1 {one}" if number == 1 else f"{number:,} {many or one + 's'}"
