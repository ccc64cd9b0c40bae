"""Retry arithmetic: the longest time to wait before the next try. The caller draws a random time within it."""

from __future__ import annotations

LARGEST_EXPONENT = 32


def exponential_bound(failures: int, base: float, cap: float) -> float:
    """Return the upper bound of a full-jitter backoff, in seconds.

    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

    Args:
        failures: number of failures so far, from 1.
        base: the bound after the first failure, in seconds.
        cap: the largest bound, in seconds.
    """
    return float(min(cap, base * 2 ** min(max(failures, 1) - 1, LARGEST_EXPONENT)))
