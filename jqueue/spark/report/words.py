"""Figures in words, the same in the terminal and on the page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime

from jqueue.domain.printable import printable

UNITS = {"d": 86400, "h": 3600, "min": 60, "s": 1}


def duration(seconds: float) -> str:
    """Return a rounded duration, in two or three digits."""
    if 0 < seconds < 1:
        return f"{max(1, round(seconds * 1000))} ms"
    name, unit = next(((name, unit) for name, unit in UNITS.items() if seconds >= 2 * unit), ("s", 1))
    return f"{rate(seconds / unit)} {name}"


def rate(value: float) -> str:
    """Return a number to one place, or to none if it is large."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")


def words(value: str | float | datetime | None) -> str:
    """Return a name, a count, a time, or a duration of so many seconds in words; an empty text if it is unknown."""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}".removesuffix(":00")
    if isinstance(value, int):
        return f"{value:,}"
    return duration(value) if isinstance(value, float) else value or ""


def mean(value: float) -> str:
    """Return a mean, to two places at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def name(text: str, longest: int = 40) -> str:
    """Return a name that is safe to show, without its middle if it is long."""
    shown = printable(text)
    tail = longest // 3
    return shown if len(shown) <= longest else f"{shown[: longest - tail - 1]}…{shown[-tail:]}"


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return each name without the folders that all have."""
    shared = os.path.commonprefix(list(names)).rfind("/") + 1  # noqa: RUF071 - URLs, not paths
    return {each: each[shared:] for each in names}
