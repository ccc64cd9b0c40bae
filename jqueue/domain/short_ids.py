"""The shortest beginnings by which the ids of a queue can be told apart."""

from __future__ import annotations

from collections.abc import Iterable

SHORTEST = 8
"""Smallest number of characters of a short id."""


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return a short id for each id: a beginning that no other of them has, of 8 characters at least."""
    ordered = sorted(ids)
    short = {}
    before = ""
    for job_id, after in zip(ordered, [*ordered[1:], ""], strict=True):
        shared = max(_shared(before, job_id), _shared(job_id, after))
        short[job_id] = job_id[: max(SHORTEST, shared + 1)]
        before = job_id
    return short


def _shared(one: str, other: str) -> int:
    """Return the number of characters with which both begin."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
