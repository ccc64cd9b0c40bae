"""What is due when, for all calls of a queue at once: one timer of the event loop instead of one for each call.

Nearly every call has the deadline that all others have, and ends long before it. So such calls only carry their time
with them, and are looked through when that of the first has come. Others are kept in a heap; what is not wanted any
more is passed over when its time comes, or dropped with others when it is more than half of all.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import weakref
from collections.abc import Callable, Iterable

from jqueue.core.engine.requests import Request

FLOOR = 256
"""So many entries are never looked through for those that are not wanted any more."""


class Alarms:
    """Rings when the time of a request has come that is still wanted.

    Args:
        live: every request that may be wanted.
    """

    def __init__(self, live: Callable[[], Iterable[Request]]) -> None:
        self._live = live
        self._entries: list[tuple[float, int, weakref.ref[Request], Callable[[Request], None]]] = []
        self._made = 0
        self._floor = FLOOR
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf

    def expire(self, request: Request, when: float) -> None:
        """Have a request expire that is due later than nearly all others: O(1).

        Args:
            request: one of the live ones.
            when: on the clock of the running event loop.
        """
        request.due = when
        if when < self._due:
            self._arm(when)

    def set(self, request: Request, when: float, ring: Callable[[Request], None]) -> None:
        """Have something done with a request at any time: O(log n).

        Args:
            request: whose time that is.
            when: on the clock of the running event loop.
            ring: what to do then.
        """
        self._made += 1
        # Not the request itself: with it, what its caller got would be kept until then.
        heapq.heappush(self._entries, (when, self._made, weakref.ref(request), ring))
        if len(self._entries) > self._floor:
            self._entries = [entry for entry in self._entries if _is_wanted(entry[2]())]
            heapq.heapify(self._entries)
            self._floor = max(FLOOR, 2 * len(self._entries))
        if when < self._due:
            self._arm(when)

    def clear(self) -> None:
        """Forget them all."""
        self._entries.clear()
        self._arm(math.inf)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = when
        self._timer = asyncio.get_running_loop().call_at(when, self._ring) if when < math.inf else None

    def _ring(self) -> None:
        now = max(self._due, asyncio.get_running_loop().time())  # a loop may be early by its resolution
        self._timer, self._due = None, math.inf
        while self._entries and (self._entries[0][0] <= now or not _is_wanted(self._entries[0][2]())):
            _, _, reference, ring = heapq.heappop(self._entries)
            if (request := reference()) is not None and request.wanted:
                ring(request)
        due = self._entries[0][0] if self._entries else math.inf
        for request in list(self._live()):
            if request.due <= now and request.wanted:
                request.expire()
            elif request.wanted:
                due = min(due, request.due)
        if due < self._due:
            self._arm(due)


def _is_wanted(request: Request | None) -> bool:
    return request is not None and request.wanted
