"""Figures in words, the same in the terminal and on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from jqueue.domain.printable import printable

UNITS = (("d", 86400), ("h", 3600), ("min", 60))

LONGEST_NAME = 40
"""Largest number of characters of a name in a table of the terminal."""


def duration(seconds: float | None) -> str:
    """Return a rounded duration, in two or three digits; an empty text if it is unknown."""
    if seconds is None:
        return ""
    for name, unit in UNITS:
        if seconds >= 2 * unit:
            return f"{_digits(seconds / unit)} {name}"
    return f"{_digits(seconds)} s" if seconds >= 1 or not seconds else f"{max(1, round(seconds * 1000))} ms"


def _digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}".removesuffix(".0")


def number(count: int) -> str:
    """Return a number, its thousands apart."""
    return f"{count:,}"


def mean(value: float | None) -> str:
    """Return a mean, to two places at most."""
    return "" if value is None else f"{value:.2f}".rstrip("0").rstrip(".")


def moment(time: datetime) -> str:
    """Return a time in UTC, to the second."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def ahead(time: datetime | None, now: datetime) -> str:
    """Return the time left until a time; an empty text if there is none."""
    return "" if time is None else f"in {duration(max(0.0, (time - now).total_seconds()))}"


def name(text: str, longest: int = LONGEST_NAME) -> str:
    """Return a name that is safe to print on a terminal, without its middle if it is long."""
    shown = printable(text)
    if len(shown) <= longest:
        return shown
    tail = longest // 3
    return f"{shown[: longest - tail - 1]}…{shown[-tail:]}"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return a short form of each name: as many of its last parts as tell it from all others."""
    parts = {each: each.split("/") for each in names}
    found: dict[str, str] = {}
    for size in range(1, max(map(len, parts.values()), default=0) + 1):
        ends = {each: "/".join(of[-size:]) for each, of in parts.items()}
        often = Counter(ends.values())
        for each, end in ends.items():
            if often[end] == 1 and end:
                found.setdefault(each, end)
    return {each: found.get(each, each) for each in parts}
