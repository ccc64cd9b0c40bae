"""The deadlines of all calls of a queue, with one timer of the event loop instead of one for each call.

Nearly every call has the same deadline as all others, and ends long before it. Such calls only store their time, and
are all checked when the time of the first has come. Other times are kept in a heap. Entries of finished calls are
skipped when their time comes, or dropped together whenever the heap has doubled.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import weakref
from collections.abc import Callable, Iterable

from jqueue.core.engine.requests import Request

FLOOR = 256
"""Number of heap entries up to which finished calls are not removed early."""


class Alarms:
    """Acts on requests that are still awaited when their time comes.

    Args:
        live: returns every request that may be awaited.
    """

    def __init__(self, live: Callable[[], Iterable[Request]]) -> None:
        self._live = live
        self._entries: list[tuple[float, int, weakref.ref[Request], Callable[[Request], None]]] = []
        self._made = 0
        self._floor = FLOOR
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf

    def expire(self, request: Request, when: float) -> None:
        """Set the time at which a request expires, if that is later than the time of nearly all others: O(1).

        Args:
            request: one of the live requests.
            when: time on the clock of the running event loop.
        """
        request.due = when
        if when < self._due:
            self._arm(when)

    def set(self, request: Request, when: float, callback: Callable[[Request], None]) -> None:
        """Set a function to call with a request at any time: O(log n).

        Args:
            request: the request.
            when: time on the clock of the running event loop.
            callback: the function to call then.
        """
        self._made += 1
        # A weak reference: a strong one would keep the result of the call alive until then.
        heapq.heappush(self._entries, (when, self._made, weakref.ref(request), callback))
        if len(self._entries) > self._floor:
            self._entries = [entry for entry in self._entries if _is_awaited(entry[2]())]
            heapq.heapify(self._entries)
            self._floor = max(FLOOR, 2 * len(self._entries))
        if when < self._due:
            self._arm(when)

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._arm(math.inf)

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = when
        self._timer = asyncio.get_running_loop().call_at(when, self._on_timer) if when < math.inf else None

    def _on_timer(self) -> None:
        now = max(self._due, asyncio.get_running_loop().time())  # a loop may fire early by its clock resolution
        self._timer, self._due = None, math.inf
        while self._entries and (self._entries[0][0] <= now or not _is_awaited(self._entries[0][2]())):
            _, _, reference, callback = heapq.heappop(self._entries)
            if (request := reference()) is not None and request.awaited:
                callback(request)
        due = self._entries[0][0] if self._entries else math.inf
        for request in list(self._live()):
            if request.due <= now and request.awaited:
                request.expire()
            elif request.awaited:
                due = min(due, request.due)
        if due < self._due:
            self._arm(due)


def _is_awaited(request: Request | None) -> bool:
    return request is not None and request.awaited
