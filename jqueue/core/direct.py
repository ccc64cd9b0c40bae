"""`DirectQueue`: one compare-and-set cycle for each operation, nothing to start or stop."""

from __future__ import annotations

from typing import Any

from jqueue.core.blob_queue import BlobQueue
from jqueue.core.options import QueueOptions, lists_queue_options, takes_queue_options
from jqueue.core.queue_base import UsableAtOnce
from jqueue.domain.limits import check_integer
from jqueue.ports.storage import ObjectStoragePort


@lists_queue_options
class DirectQueue(BlobQueue, UsableAtOnce):
    """A queue whose every call is a commit of its own: the simplest one, for scripts and single workers.

    Only while a store refuses writes that come too soon (some take one a second) do waiting calls share commits.

    It can be used at once. `async with`, or `aclose` at the end, waits for what is still under way.

    Args:
        storage: where the queue is.
        max_retries: after so many lost races in one call, CASConflictError; by default, only the deadline ends it.
        options: by name, as below.
    """

    @takes_queue_options
    def __init__(self, storage: ObjectStoragePort, max_retries: int | None = None, **options: Any) -> None:
        if max_retries is not None:
            check_integer("max_retries", max_retries, 0, 2**31)
        super().__init__(storage, QueueOptions(**options), batch_limit=1, max_retries=max_retries)

    @property
    def max_retries(self) -> int | None:
        """After so many lost races in one call, CASConflictError; None: only the deadline ends it."""
        return self._max_retries

    def __repr__(self) -> str:
        return f"DirectQueue(storage={self.storage!r}, max_retries={self.max_retries!r})"

    def _settings(self) -> dict[str, Any]:
        return {"max_retries": self.max_retries, **super()._settings()}
