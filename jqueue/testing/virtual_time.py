"""Virtual time: the clock jumps to the next timer when nothing else can run, so a sleep of five minutes takes none.

`run` drives a coroutine on an event loop whose clock jumps to the next timer whenever no task is ready. All waiting
by asyncio happens in that time. `VirtualClock` reads it, for code that takes a `jqueue.ports.clock.Clock`.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import heapq
import selectors
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

Result = TypeVar("Result")

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""Time that a virtual wall clock shows at first."""

RESOLUTION = 1e-6
"""Smallest step of the clock, in seconds: a smaller one would be lost in rounding after some months."""

REAL_WAIT = 5.0
"""Seconds of real time to wait for threads before a loop with nothing else to do is declared stuck."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer when no callback is ready.

    The clock does not jump while work runs in threads (`asyncio.to_thread`): the loop waits for it in real time.
    """

    def __init__(self) -> None:
        self._virtual_now = 0.0
        self._threads_busy = 0
        self._timers: list[tuple[float, int, Callback]] = []
        self._timers_made = 0
        super().__init__(_BoundedSelector())
        self._ready: collections.deque[Callback]

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._virtual_now

    def stand_still(self, seconds: float) -> None:
        """Let time pass while nothing runs, as if the process was stopped: timers come late."""
        self._virtual_now += seconds

    def close(self) -> None:
        """As in asyncio: what still waits for its time never runs, and is freed."""
        super().close()
        self._timers.clear()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Callback:
        """As in asyncio."""
        handle = Callback(self, callback, args, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Callback:
        """As in asyncio, whose own makes a handle of another class since Python 3.14."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        handle = self.call_soon(callback, *args, context=context)
        self._write_to_self()  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Callback:
        """As in asyncio; timers for the same time run in the order in which they were made."""
        timer = Callback(self, callback, args, context, when)
        self._timers_made += 1
        heapq.heappush(self._timers, (when, self._timers_made, timer))
        return timer

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """As in asyncio. The clock stands still until the function has returned."""
        future = super().run_in_executor(executor, func, *args)
        self._threads_busy += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        """As in asyncio. The clock stands still meanwhile."""
        self._threads_busy += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self._threads_busy -= 1

    def _thread_done(self, _: object) -> None:
        self._threads_busy -= 1

    def _run_once(self) -> None:
        """Run one turn of the loop. The turn of asyncio asks the system twice whether a socket is ready."""
        if self._threads_busy:
            super()._run_once()  # type: ignore[misc]
            return
        timers, ready = self._timers, self._ready
        if not ready:
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
            if timers:
                self._virtual_now = max(timers[0][0], self._virtual_now + RESOLUTION)
            elif not self._stopping:  # type: ignore[attr-defined]
                raise RuntimeError(
                    "the virtual clock cannot advance: all tasks wait, and no timer is set"
                    " (virtual time does not wait for sockets)"
                )
        while timers and timers[0][0] <= self._virtual_now:
            ready.append(heapq.heappop(timers)[2])
        self._run_ready(len(ready))

    def _run_ready(self, count: int) -> None:
        """Run the first `count` callbacks that are ready, and none that they make ready."""
        ready = self._ready
        for _ in range(count):
            ready.popleft().run()


class Callback:
    """A small `asyncio.Handle` and `asyncio.TimerHandle` in one: a simulation makes millions of them.

    Attributes:
        context: the context in which it runs.
    """

    __slots__ = ("__weakref__", "_args", "_callback", "_cancelled", "_loop", "_when", "context")

    _source_traceback = None

    def __init__(
        self,
        loop: VirtualTimeLoop,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        when: float = 0.0,
    ) -> None:
        self._loop = loop
        self._callback = callback
        self._args = args
        self.context: contextvars.Context = contextvars.copy_context() if context is None else context
        self._when = when
        self._cancelled = False

    def when(self) -> float:
        """Return the time at which the callback is due, in seconds of the loop."""
        return self._when

    def cancel(self) -> None:
        """Cancel the callback: it will never run."""
        self._cancelled = True

    def cancelled(self) -> bool:
        """True if the callback was cancelled and will never run."""
        return self._cancelled

    def run(self) -> None:
        """Run it, unless it was cancelled."""
        if self._cancelled:
            return
        try:
            self.context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            details = {
                "message": f"an exception in the callback {self._callback!r}",
                "exception": error,
                "handle": self,
            }
            self._loop.call_exception_handler(details)

    _run = run  # what asyncio's loop calls


class _BoundedSelector(selectors.SelectSelector):
    """A selector that waits for threads, but not forever."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(REAL_WAIT if timeout is None else timeout)


class VirtualClock:
    """A clock that shows the running loop's time, and can be set wrong.

    Args:
        skew: time by which its wall clock is ahead of the others.
    """

    def __init__(self, skew: timedelta = timedelta()) -> None:
        self.skew = skew

    def now(self) -> datetime:
        """Return the time of the wall clock, in UTC."""
        return EPOCH + timedelta(seconds=self.monotonic()) + self.skew

    def monotonic(self) -> float:
        """Return the loop's time in seconds, or 0 if no loop runs."""
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return 0.0


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end in virtual time, and return its result."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
