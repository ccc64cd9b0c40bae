"""`replay`: the jobs of a queue at an earlier time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any

from jqueue.connect import connect_queue
from jqueue.core.blob_queue import BlobQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain.durations import Duration, check_time
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.replay import ReplayedJob


async def replay(
    queue: str | os.PathLike[str] | BlobQueue, at: datetime, *, deadline: Duration | None = None
) -> Mapping[str, ReplayedJob]:
    """Return the jobs that were in a queue at a time, by id: entrypoint, status and attempt of each.

    It begins with the present jobs, and undoes the events of the history down to that time. Each event is checked
    against the ones after it.

    Args:
        queue: the URL or the path of a queue with a history, or a queue object on one.
        at: a time since the history was switched on.
        deadline: maximum time for each request to the store.

    Raises:
        ReplayError: the history does not reach back so far, or an event does not fit the ones after it.
        InvalidJobError: an argument is wrong, or the queue cannot keep a history.
        StorageError: the store failed.
    """
    check_time("at", at)
    if isinstance(queue, BlobQueue):
        return await queue.jobs_at(at, deadline=deadline)
    if not isinstance(queue, str | os.PathLike):
        raise InvalidJobError(f"replay takes a URL, a path, a DirectQueue or a BrokerQueue, got {type(queue).__name__}")
    opened: Any = connect_queue(queue, DirectQueue)
    async with aclosing(opened):
        if not isinstance(opened, DirectQueue):
            raise InvalidJobError(f"the format of {opened!r} has no history")
        return await opened.jobs_at(at, deadline=deadline)
