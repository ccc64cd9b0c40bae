"""A queue whose waiting jobs are in small segments, for tests."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from jqueue import DirectQueue
from jqueue.core.blob_queue import BlobQueue
from jqueue.domain.limits import Limits
from jqueue.ports.storage import ObjectStoragePort
from jqueue.testing.tuning import Numbers, tune

Queue = TypeVar("Queue", bound=BlobQueue)

TINY = Numbers(
    hot_bytes=0, fewest_rows=1, most_rows=64, chunk_rows=4, merged=100, holes=50, rows_ahead=0, commits_ahead=0
)


def direct_queue(storage: Any, **options: Any) -> Any:
    """Return a queue whose figures and claims the type checker takes as they come."""
    return DirectQueue(storage, **options)


def tiny_queue(storage: ObjectStoragePort, limits: Limits | None = None, **numbers: Any) -> DirectQueue:
    """Return a queue that moves every waiting job to a segment.

    Args:
        storage: holds it.
        limits: of the queue.
        numbers: those of `jqueue.testing.tune` that differ from `TINY`.
    """
    return in_segments(DirectQueue(storage, limits=limits or Limits()), **numbers)


def in_segments(queue: Queue, **numbers: Any) -> Queue:
    """Let a queue move every waiting job to a segment, and load no rows ahead."""
    return tune(queue, **{**TINY, **numbers})


async def spilled(queue: DirectQueue) -> None:
    """Commit until no waiting job is left in the queue's object."""
    for _ in range(100):
        await queue.pause("nothing")
        await queue.resume("nothing")
        state = await queue.read_state(hot=True)
        if not any(job.status == "queued" for job in state.jobs):
            return
        await asyncio.sleep(0.001)  # a segment is being written
    raise AssertionError("jobs stay in the queue's object")


async def remove_segment(storage: Any, name: str) -> bytes:
    """Remove a segment, and return it as it was."""
    segment = storage.beside(f".segments/{name}")
    whole, _ = await segment.read()
    await segment.remove()
    assert isinstance(whole, bytes)
    return whole


async def restore_segment(storage: Any, name: str, whole: bytes) -> None:
    """Write a segment as it was."""
    segment = storage.beside(f".segments/{name}")
    _, etag = await segment.read()
    await segment.write(whole, etag)
