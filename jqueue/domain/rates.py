"""Rate limits: at most so many claims within any so many seconds, whatever the window.

The claims that still count are kept as spans: how many there were between two moments that lie close together. A span
counts until its last moment is out of the window, so that never too many are allowed, and little has to be kept.

Times come from the clocks of several writers. A span counts as long as it is within the window on either side: a clock
that was ahead for a while holds claims back for no longer than two windows, and clocks that differ by less than a
window, or two seconds, do not let more through.
"""

from __future__ import annotations

from collections.abc import Sequence

from jqueue.domain.rules import Usage

SPANS = 64
"""A window is divided into so many spans: a claim may count longer than it must by this part of the window."""

MOST_SPANS = 3 * SPANS
"""With more spans than that, what is over, but may count for somebody whose clock is behind, is put together."""

OLD_SPANS = 16
"""Into so many spans, about."""

FAR_AHEAD = 86400.0
"""Seconds. No clock is ahead of another by more; what says so is forgotten."""

CLOCKS_DIFFER = 2.0
"""Seconds by which the clocks of writers may differ: the time of a store is told in whole seconds."""


def counting(usage: Sequence[Usage], now: float, per: float) -> list[Usage]:
    """The spans that count now.

    Args:
        usage: claims made before.
        now: seconds since 1970.
        per: the length of the window, in seconds.
    """
    return [span for span in usage if span.first - per < now < span.last + per]


def claims_left(usage: Sequence[Usage], now: float, rate: int, per: float) -> int:
    """How many claims may be made now; see `counting`."""
    return max(0, rate - sum(span.claims for span in counting(usage, now, per)))


def with_claim(usage: Sequence[Usage], now: float, per: float) -> tuple[Usage, ...]:
    """The spans with one claim more, without those that do not count any more for anybody.

    They are kept for longer than they count: a writer whose clock is behind still has to count what is over here.
    """
    spans = still_needed(usage, now, per)
    width = per / SPANS
    for place in range(len(spans) - 1, -1, -1):
        first, last, claims = spans[place]
        if last - width <= now <= first + width:
            spans[place] = Usage(min(first, now), max(last, now), claims + 1)
            return tuple(spans)
    return (*spans, Usage(now, now, 1))


def still_needed(usage: Sequence[Usage], now: float, per: float) -> list[Usage]:
    """The spans without those that do not count any more for anybody; see `counting`.

    If there are many, what is over here is put together into few, which can only make others wait for longer. What lies
    ahead, by the clock of somebody else, is kept for him.
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
    """Whether none of the spans counts any more, by whatever clock."""
    return all(span.last + per + FAR_AHEAD <= now for span in usage)


def opens_at(usage: Sequence[Usage], now: float, rate: int, per: float) -> float | None:
    """When the next claim may be made, in seconds since 1970; None if it may be made now."""
    left = claims_left(usage, now, rate, per)
    if left:
        return None
    missing = 1 - (rate - sum(span.claims for span in counting(usage, now, per)))
    for span in sorted(counting(usage, now, per), key=lambda span: span.last):
        missing -= span.claims
        if missing <= 0:
            return span.last + per
    return now + per
