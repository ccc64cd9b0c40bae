"""Rate limits: at most `rate` claims within any `per` seconds (the window), wherever the window begins.

Claims that still count are kept as spans: the number of claims between two moments that are close together. A span
counts until its last moment has left the window. So never too many claims are allowed, and little has to be stored.

Times come from the clocks of several writers. A span counts while it is less than a window away, in the past or in the
future. A clock that was ahead for a while holds claims back for no longer than two windows. Clocks that differ by less
than a window, or by less than two seconds, do not let more claims through.
"""

from __future__ import annotations

from collections.abc import Sequence

from jqueue.domain.rules import Usage

SPANS = 64
"""Number of spans in a window. A claim may count longer than it must by one span: the window divided by this number."""

MOST_SPANS = 3 * SPANS
"""Number of spans above which old ones are merged. They no longer count here, but may where a clock is behind."""

OLD_SPANS = 16
"""About how many spans are left of those after the merge."""

FAR_AHEAD = 86400.0
"""Seconds by which one clock may be ahead of another, at the most. Spans further ahead are dropped."""

CLOCKS_DIFFER = 2.0
"""Seconds by which writers' clocks may differ, however short the window: stores tell the time in whole seconds."""


def counting(usage: Sequence[Usage], now: float, per: float) -> list[Usage]:
    """Return the spans that count now.

    Args:
        usage: claims made before.
        now: seconds since 1970.
        per: the length of the window, in seconds.
    """
    return [span for span in usage if span.first - per < now < span.last + per]


def claims_left(usage: Sequence[Usage], now: float, rate: int, per: float) -> int:
    """Return the number of claims that may be made now; the arguments are as in `counting`."""
    return max(0, rate - sum(span.claims for span in counting(usage, now, per)))


def with_claim(usage: Sequence[Usage], now: float, per: float, claims: int = 1) -> tuple[Usage, ...]:
    """Return the spans with some more claims, without spans that no longer count by any writer's clock.

    Spans are kept for longer than they count here, because a writer whose clock is behind still has to count them.
    """
    spans = still_needed(usage, now, per)
    width = per / SPANS
    for place in range(len(spans) - 1, -1, -1):
        first, last, before = spans[place]
        if last - width <= now <= first + width:
            spans[place] = Usage(min(first, now), max(last, now), before + claims)
            return tuple(spans)
    return (*spans, Usage(now, now, claims))


def still_needed(usage: Sequence[Usage], now: float, per: float) -> list[Usage]:
    """Return the spans that may still count by some writer's clock; the arguments are as in `counting`.

    If there are many, spans that are over by this clock are merged into few, which can only make other writers wait
    longer. Spans that are ahead of this clock are kept for the writers whose clocks are ahead.
    """
    keep = per + max(per, CLOCKS_DIFFER)
    spans = [span for span in usage if span.last + keep > now and span.first - now <= FAR_AHEAD]
    if len(spans) <= MOST_SPANS:
        return spans
    kept: list[Usage] = []
    for span in sorted(spans):
        if kept and span.last + per <= now and span.last - kept[-1].first <= keep / OLD_SPANS:
            first, last, claims = kept.pop()
            kept.append(Usage(first, max(last, span.last), claims + span.claims))
        else:
            kept.append(span)
    return kept


def is_long_over(usage: Sequence[Usage], now: float, per: float) -> bool:
    """Return True if no span counts any longer by any writer's clock."""
    return all(span.last + per + FAR_AHEAD <= now for span in usage)


def opens_at(usage: Sequence[Usage], now: float, rate: int, per: float) -> float | None:
    """Return the time of the next allowed claim, in seconds since 1970; None if a claim is allowed now."""
    left = claims_left(usage, now, rate, per)
    if left:
        return None
    missing = 1 - (rate - sum(span.claims for span in counting(usage, now, per)))
    for span in sorted(counting(usage, now, per), key=lambda span: span.last):
        missing -= span.claims
        if missing <= 0:
            return span.last + per
    return now + per
