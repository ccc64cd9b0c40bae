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
        live: returns every request that may be awaited. Those with a `due` expire then.

    Attributes:
        first: the next time at which requests are looked at. It must be at most the `due` of each: see `arm`.
    """

    def __init__(self, live: Callable[[], Iterable[Request]]) -> None:
        self._live = live
        self._entries: list[tuple[float, int, weakref.ref[Request], Callable[[Request], None]]] = []
        self._made = 0
        self._floor = FLOOR
        self._timer: asyncio.TimerHandle | None = None
        self.first = math.inf

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
        if when < self.first:
            self.arm(when)

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self.arm(math.inf)

    def arm(self, when: float) -> None:
        """Wake up at a time."""
        if self._timer is not None:
            self._timer.cancel()
        self.first = when
        self._timer = asyncio.get_running_loop().call_at(when, self._on_timer) if when < math.inf else None

    def _on_timer(self) -> None:
        now = max(self.first, asyncio.get_running_loop().time())  # a loop may fire early by its clock resolution
        self._timer, self.first = None, math.inf
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
        if due < self.first:
            self.arm(due)


def _is_awaited(request: Request | None) -> bool:
    return request is not None and request.awaited
