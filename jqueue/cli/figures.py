"""Totals, rates and times of a queue as JSON values."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from jqueue.domain.counters import KINDS, Histogram, Totals


def totals_values(totals: Totals | None) -> dict[str, Any]:
    """Return totals as JSON values; nulls if the queue does not count."""
    if totals is None:
        return dict.fromkeys(("totals", "rates", "wait_seconds", "run_seconds"))
    return {
        "totals": {kind: getattr(totals, kind) for kind in KINDS},
        "rates": {window: asdict(getattr(totals, window)) for window in ("last_minute", "last_hour", "last_day")},
        "wait_seconds": _times(totals.waits),
        "run_seconds": _times(totals.runs),
    }


def _times(times: Histogram) -> dict[str, Any]:
    """Return the mean of some times and the bounds below which half and 95% of them are, in seconds."""
    mean = times.mean
    return {
        "count": times.count,
        "mean": None if mean is None else round(mean, 6),
        "median": times.quantile(0.5),
        "p95": times.quantile(0.95),
    }
