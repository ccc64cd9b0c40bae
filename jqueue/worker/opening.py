"""What a worker needs of a queue object besides its verbs: that it is open, has a name, and can be written."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from jqueue.adapters.storage.names import describe
from jqueue.domain.errors import QueueClosedError, StorageError, StorageFatalError
from jqueue.ports.log import logger_of
from jqueue.ports.queue import Consumer
from jqueue.ports.storage import SupportsWriteCheck
from jqueue.worker.trouble import TROUBLE

logger = logger_of("jqueue.worker")

A_MOMENT = 0.001
"""Seconds; a queue that is not open says so at once."""


async def opened(queue: Consumer, stack: AsyncExitStack, names: Sequence[str]) -> None:
    """Open a queue that is to be opened and is not; the stack closes it.

    Raises:
        TypeError: it is no queue.
        StorageFatalError: it cannot be used.
    """
    if not hasattr(queue, "dequeue"):
        raise TypeError(
            f"a worker runs on a queue, got {type(queue).__name__}: `connect(url, BrokerQueue)` makes a queue"
        )
    manager: Any = queue
    if not hasattr(manager, "__aenter__"):
        return
    try:
        await queue.dequeue(names, batch_size=0, deadline=A_MOMENT)  # claims nothing
    except QueueClosedError:
        await stack.enter_async_context(manager)
    except StorageFatalError:
        raise
    except TROUBLE:
        return


def name_of(queue: object) -> str:
    """What the log calls a queue: where it is, without secrets."""
    place = getattr(queue, "store", None) or getattr(queue, "storage", None)
    if place is None:
        return "the queue"
    known = type(place).__module__.startswith("jqueue.adapters.")
    return f"the queue at {describe(place) if known else type(place).__name__}"


async def check_writable(queue: object) -> None:
    """Find out at the start what would fail at the first claim, if the store can tell.

    Raises:
        StorageFatalError: this process may not write the queue, or not create it.
    """
    place = getattr(queue, "store", None) or getattr(queue, "storage", None)
    if not isinstance(place, SupportsWriteCheck):
        return
    try:
        await place.check_writable()
    except StorageFatalError:
        raise
    except StorageError as error:
        logger.warning("%s cannot be written now: %s", name_of(queue), error)
