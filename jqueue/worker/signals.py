"""SIGTERM and SIGINT, for as long as a worker runs."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT") if hasattr(signal, name))


@contextmanager
def heeded(stop: Callable[[], None]) -> Iterator[bool]:
    """While the block runs, have signals call a function on the event loop. What was there before is there after.

    Yields:
        Whether they do: only the main thread of a program may say what signals do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    loop = asyncio.get_running_loop()

    def heed(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop)  # it also wakes the loop

    before = {number: signal.signal(number, heed) for number in SIGNALS}
    try:
        yield True
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
