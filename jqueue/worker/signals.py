"""SIGTERM and SIGINT, for as long as workers run."""

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

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT") if hasattr(signal, name))

_stops: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
"""How to stop each worker of this program that heeds signals, and the loop to do it on."""

_before: dict[int, Any] = {}
"""What the signals did before the first of them."""


@contextmanager
def heeded(stop: Callable[[], None]) -> Iterator[bool]:
    """While the block runs, have signals call a function on the event loop, and those of other blocks too.

    What was there before the first block is there after the last; what a program had set is called as well.

    Yields:
        Whether they do: only the main thread of a program may say what signals do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    entry = asyncio.get_running_loop(), stop
    if not _stops:
        _before.update({number: signal.signal(number, _heed) for number in SIGNALS})
    _stops.append(entry)
    try:
        yield True
    finally:
        _stops.remove(entry)
        while not _stops and _before:
            number, handler = _before.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def leave_at_signals() -> None:
    """From now on, have a signal end this program at once, with the status 0: its work is done.

    The system's own answer to SIGTERM would make a failure of an end that only took long.
    """
    for number in SIGNALS:
        if number in _before:
            _before[number] = _leave  # what is there after the last block
        else:
            signal.signal(number, _leave)
    # At its very end, the interpreter puts the system's answers back, except where a signal is ignored.
    atexit.register(lambda: [signal.signal(number, signal.SIG_IGN) for number in SIGNALS])


def _leave(number: int, frame: FrameType | None) -> None:
    with suppress(Exception):  # the signal may have come while it is written to
        sys.stdout.flush()
    os._exit(0)


def _heed(number: int, frame: FrameType | None) -> None:
    for loop, stop in list(_stops):
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop)  # it also wakes the loop
    before: Any = _before.get(number)
    if _is_the_programs(before):
        before(number, frame)


def _is_the_programs(handler: Any) -> bool:
    """Whether it is what a program does at a signal, such as a web server that the worker runs in: that goes on.

    What Python and asyncio do by themselves would only cut short what the worker has to finish.
    """
    function = getattr(handler, "func", handler)
    return (
        callable(handler)
        and handler is not signal.default_int_handler
        and not isinstance(handler, signal.Handlers)
        and not isinstance(getattr(function, "__self__", None), asyncio.Runner)
    )
