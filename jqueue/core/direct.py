"""`DirectQueue`: one compare-and-set cycle for each call, nothing to start or stop."""

from __future__ import annotations

from typing import Any

from jqueue.core.blob_queue import BlobQueue
from jqueue.core.queue_base import UsableAtOnce
from jqueue.domain.limits import check_integer
from jqueue.ports.storage import ObjectStoragePort
from jqueue.runtime.queue_options import QueueOptions, lists_queue_options, takes_queue_options


@lists_queue_options
class DirectQueue(BlobQueue, UsableAtOnce):
    """The simplest queue, for scripts and single workers: each call is a commit of its own.

    Waiting calls share commits while other writers commit, too, and on a store that refuses writes which come too soon.
    Some take only one a second.

    The queue can be used at once. `async with`, or `aclose` at the end, waits for the calls still under way.

    Args:
        storage: holds the queue's object.
        max_retries: maximum number of lost races in one call; the next one raises CASConflictError. None: only the
            deadline ends the call.
        options: by name: those of `QueueOptions`.
    """

    @takes_queue_options
    def __init__(self, storage: ObjectStoragePort, max_retries: int | None = None, **options: Any) -> None:
        if max_retries is not None:
            check_integer("max_retries", max_retries, 0, 2**31)
        super().__init__(storage, QueueOptions(**options), batch_limit=1, max_retries=max_retries)

    @property
    def max_retries(self) -> int | None:
        """Maximum number of lost races in one call; the next one raises CASConflictError.

        With None, only the deadline ends a call.

        """
        return self._max_retries

    def __repr__(self) -> str:
        return f"DirectQueue(storage={self.storage!r}, max_retries={self.max_retries!r})"

    def _settings(self) -> dict[str, Any]:
        return {"max_retries": self.max_retries, **super()._settings()}
