"""TextQueues as files, read and changed without an event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from jqueue import Job
from jqueue.adapters.formats.textqueue import TextQueueFile
from jqueue.core.store_queue import StoreQueue

LATER = datetime.now(UTC) + timedelta(days=1)
"""When all that a test has written is settled."""


def messages(path: Path, **options: Any) -> list[tuple[Job, bytes]]:
    """Each message of a file as a fresh process sees it, in order, with its payload."""
    store = TextQueueFile(path, **options)
    kept = sorted(store.scan(LATER), key=lambda kept: kept.job.sequence)
    jobs = store.payloads(kept)
    return [(job, job.payload) for job in jobs]


def on(path: Path, work: Callable[[StoreQueue], Awaitable[Any]], **options: Any) -> Any:
    """What somebody does with a queue of his own on a file."""

    async def run() -> Any:
        async with StoreQueue(TextQueueFile(path, **{"fsync": False, "settle": 0.0, **options})) as queue:
            return await work(queue)

    return asyncio.run(run())
