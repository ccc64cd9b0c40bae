"""The shortest beginnings by which some ids of a queue can be told apart from all its other ids."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

SHORTEST = 8
"""Smallest number of characters of a short id."""


class ShortIds:
    """Finds a short id for each of some ids: a beginning that no other id of the queue has, of 8 characters at least.

    Memory grows with the ids to shorten only, whatever the number of ids in the queue.

    Args:
        shown: the ids to shorten.
    """

    def __init__(self, shown: Iterable[str]) -> None:
        self._ordered = sorted(shown)
        self._shared = [0] * len(self._ordered)

    def meet(self, job_id: str) -> None:
        """Note an id of the queue. All of them must be noted, those to shorten too."""
        ordered, place = self._ordered, bisect_left(self._ordered, job_id)
        for beside in range(max(0, place - 1), min(len(ordered), place + 2)):
            if ordered[beside] != job_id:
                self._shared[beside] = max(self._shared[beside], _shared(ordered[beside], job_id))

    def found(self) -> dict[str, str]:
        """Return the short id of each id."""
        pairs = zip(self._ordered, self._shared, strict=True)
        return {job_id: job_id[: max(SHORTEST, shared + 1)] for job_id, shared in pairs}


def _shared(one: str, other: str) -> int:
    """Return the number of characters with which both begin."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
