"""Handling of SIGTERM, SIGINT and SIGHUP while workers run."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))

_stops: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
"""Event loop and stop function of each worker of this program that handles signals."""

_before: dict[int, Any] = {}
"""The signal handlers from before the first `handle_signals` block."""

_received, _heeded = 0, 0
"""Number of signals that this process has received, and of stops that they have led to."""

_passed_on: Callable[[], int] = int  # returns 0


def expect_passed_on(count: Callable[[], int]) -> None:
    """Tell signals that the parent passes on from those of others: a sender may have sent one to both.

    Args:
        count: returns the number of signals that the parent has received, each of which it passes on.
    """
    global _passed_on
    _passed_on = count


WAKE_EVERY = 0.25
"""Seconds between two wake-ups of an idle event loop, so that it notices a signal that another thread got.

Python runs a signal's handler in the main thread, as soon as that runs Python code. An idle event loop runs none:
without this, a signal that comes right before its wait, or in another thread, has no effect until the next event."""


@contextmanager
def handle_signals(stop: Callable[[], None]) -> Iterator[bool]:
    """While the block runs, have signals call `stop` on the event loop. A signal calls the functions of all blocks.

    SIGHUP is handled only where it would end the program: `nohup` ignores it, and many servers reload at it. The last
    block restores the earlier signal handlers. A handler that the program had set is called as well.

    Yields:
        True if signals call it. Only the main thread of a program can set signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    loop = asyncio.get_running_loop()
    if not _stops:
        _before.update({number: signal.signal(number, _on_signal) for number in _handled()})
    entry = loop, stop
    _stops.append(entry)
    timer: asyncio.TimerHandle

    def wake() -> None:
        nonlocal timer
        timer = loop.call_later(WAKE_EVERY, wake)

    wake()
    try:
        yield True
    finally:
        timer.cancel()
        _stops.remove(entry)
        while not _stops and _before:
            number, handler = _before.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def leave_at_signals() -> None:
    """From now on, have a signal end this program at once with status 0: its work is done.

    The default action of SIGTERM would report a failure, although the program was only slow to end.
    """
    for number in _handled():
        if number in _before:
            _before[number] = _leave  # restored after the last block
        else:
            signal.signal(number, _leave)
    # At its very end, the interpreter restores the default actions, except for a signal that is ignored.
    atexit.register(lambda: [signal.signal(number, signal.SIG_IGN) for number in SIGNALS])


def _handled() -> list[signal.Signals]:
    """Return the signals to handle."""
    hang_up = getattr(signal, "SIGHUP", None)
    before = hang_up and signal.getsignal(hang_up)
    is_taken = before in (None, signal.SIG_IGN) or _is_the_programs(before)
    return [number for number in SIGNALS if number != hang_up or not is_taken]


def _leave(number: int, frame: FrameType | None) -> None:
    with suppress(Exception):  # the signal may have interrupted a write to it
        sys.stdout.flush()
    os._exit(0)


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _received, _heeded
    _received += 1
    passed_on = _passed_on()
    while _heeded < max(passed_on, _received - passed_on):
        _heeded += 1
        for loop, stop in list(_stops):
            if not loop.is_closed():
                loop.call_soon_threadsafe(stop)  # it also wakes the loop
    before: Any = _before.get(number)
    if _is_the_programs(before):
        before(number, frame)


def _is_the_programs(handler: Any) -> bool:
    """True if the program itself set the handler, as a web server does that the worker runs in. It is still called.

    The own handlers of Python and asyncio are not: they would only cut short the end of the worker.
    """
    function = getattr(handler, "func", handler)
    return (
        callable(handler)
        and handler is not signal.default_int_handler
        and not isinstance(handler, signal.Handlers)
        and not str(getattr(function, "__module__", "")).startswith("jqueue.")
        and not isinstance(getattr(function, "__self__", None), asyncio.Runner)
    )
