"""Time that passes only when nothing else can: sleeping five minutes takes none, and a test says what time it is.

`run` drives a coroutine on an event loop whose clock jumps to the next timer whenever no task is ready. Everything
that waits by asyncio waits in that time; `VirtualClock` reads it, for whatever takes a `jqueue.ports.clock.Clock`.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

Result = TypeVar("Result")

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""What a virtual wall clock shows at first."""

RESOLUTION = 1e-6
"""Seconds by which the clock moves at the least: less would be lost in rounding after some months."""

REAL_WAIT = 5.0
"""Seconds of real time that threads may take before a loop with nothing else to do is declared stuck."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer when no callback is ready.

    Work in threads (`asyncio.to_thread`) is waited for in real time before the clock jumps.
    """

    def __init__(self) -> None:
        self._virtual_now = 0.0
        self._threads_busy = 0
        super().__init__(_JumpingSelector(self._jump))
        self._clock_resolution = RESOLUTION

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._virtual_now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """As in asyncio; the clock stands still meanwhile."""
        future = super().run_in_executor(executor, func, *args)
        self._threads_busy += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        """As in asyncio; the clock stands still meanwhile."""
        self._threads_busy += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self._threads_busy -= 1

    def _thread_done(self, _: object) -> None:
        self._threads_busy -= 1

    def _jump(self, seconds: float | None) -> float:
        """Called when the loop would wait: how long it may really wait."""
        if self._threads_busy:
            return REAL_WAIT
        if seconds is None:
            raise RuntimeError("the virtual clock stands still: every task waits for something that never comes")
        self._virtual_now += max(seconds, RESOLUTION)
        return 0.0


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, jump: Callable[[float | None], float]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        wait = self._jump(timeout)
        return super().select(wait) if wait else []


class VirtualClock:
    """A clock that shows the running loop's time, and can be set wrong.

    Args:
        skew: how far its wall clock is ahead of the others.
    """

    def __init__(self, skew: timedelta = timedelta()) -> None:
        self.skew = skew

    def now(self) -> datetime:
        """The wall clock, UTC."""
        return EPOCH + timedelta(seconds=self.monotonic()) + self.skew

    def monotonic(self) -> float:
        """The loop's time, in seconds."""
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return 0.0


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
