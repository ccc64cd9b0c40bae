"""Checks of a queue object before a worker uses it: it is opened, named for the log, and tested for writing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from jqueue.domain.errors import QueueClosedError, StorageError, StorageFatalError
from jqueue.ports.log import logger_of
from jqueue.ports.queue import Consumer
from jqueue.ports.storage import SupportsWriteCheck, describe
from jqueue.worker.queue_health import RETRIED_ERRORS

logger = logger_of("jqueue.worker")

PROBE_DEADLINE = 0.001
"""Deadline in seconds of the call that tests if a queue is open. A queue that is not open refuses it at once."""


async def open_queue(queue: Consumer, stack: AsyncExitStack, names: Sequence[str]) -> None:
    """Open the queue if it can be opened and is not open yet. The stack closes it.

    Raises:
        TypeError: the object is not a queue.
        StorageFatalError: the queue cannot be used.
    """
    if not hasattr(queue, "dequeue"):
        raise TypeError(
            f"a worker runs on a queue, got {type(queue).__name__}: `connect(url, BrokerQueue)` makes a queue"
        )
    manager: Any = queue
    if not hasattr(manager, "__aenter__"):
        return
    try:
        await queue.dequeue(names, batch_size=0, deadline=PROBE_DEADLINE)  # claims nothing
    except QueueClosedError:
        await stack.enter_async_context(manager)
    except StorageFatalError:
        raise
    except RETRIED_ERRORS:
        return


def name_of(queue: object) -> str:
    """Return the name of a queue for the log: its place, without secrets."""
    place = getattr(queue, "store", None) or getattr(queue, "storage", None)
    if place is None:
        return "the queue"
    known = type(place).__module__.startswith("jqueue.adapters.")
    return f"the queue at {describe(place) if known else type(place).__name__}"


async def check_writable(queue: object) -> None:
    """Check that the queue can be written, if the store can tell. Otherwise the first claim would fail.

    Raises:
        StorageFatalError: this process may not write or create the queue.
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
