"""Close a connection when the task that serves it ends, even a task that was cancelled before it began.

A task cancelled before it began runs no `finally`. The garbage collector would then close its writer during a later
test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[object, object, None]]


def accepting(serve: Serve) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
    """A callback for `asyncio.start_server` that serves each connection in its own task."""
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(lambda _: writer.close())

    return accept
