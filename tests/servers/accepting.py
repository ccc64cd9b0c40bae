"""Connections that are closed when the task that serves them ends, even one that was cancelled before it began.

Such a task runs no `finally`. Its writer would be found by the garbage collector, in the middle of a later test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[object, object, None]]


def accepting(serve: Serve) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
    """What to give to `asyncio.start_server`, so that this serves each connection."""
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(lambda _: writer.close())

    return accept
