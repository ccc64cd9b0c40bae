"""Retry arithmetic: how long to wait at the most before the next try. The draw within that bound is the caller's."""

from __future__ import annotations

LARGEST_EXPONENT = 32


def exponential_bound(failures: int, base: float, cap: float) -> float:
    """The upper bound of a full-jitter backoff, in seconds.

    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

    Args:
        failures: how often it has failed so far, from 1.
        base: the bound after the first failure, in seconds.
        cap: the largest bound, in seconds.
    """
    return float(min(cap, base * 2 ** min(max(failures, 1) - 1, LARGEST_EXPONENT)))
