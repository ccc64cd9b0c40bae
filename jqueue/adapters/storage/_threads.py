"""The threads that wait for the disk, or do what takes long, so that no event loop has to.

They are not those of the event loop, which the handlers of jobs may hold all.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


def _begin() -> None:
    """A forked child has none of its parent's threads."""
    global _threads
    _threads = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="jqueue-storage")


_threads: concurrent.futures.ThreadPoolExecutor
_begin()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)


async def in_a_thread(work: Callable[..., Result], *arguments: Any, close_last: list[int] | None = None) -> Result:
    """Have a thread do something. Whoever is cancelled here leaves it to the thread, if that has begun.

    Args:
        work: what to do.
        arguments: of it.
        close_last: the descriptors that it puts here are closed when the answer is on its way.
    """
    call = _threads.submit(work, *arguments)
    answer = asyncio.wrap_future(call)
    if close_last is not None:
        call.add_done_callback(lambda _: _close_all(close_last))  # in that thread, after it has sent the answer
    try:
        return await answer
    except asyncio.CancelledError:
        if not call.done():  # `asyncio.run` does not return before what was begun is done
            with suppress(RuntimeError):
                asyncio.get_running_loop().run_in_executor(None, concurrent.futures.wait, [call])
        raise
    finally:
        del call, answer  # an error leads here by its traceback, and must not lead to itself


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):  # it was only read, and is nobody's concern any more
            os.close(descriptor)
