"""`GroupCommitLoop`: every call in flight goes into the next commit, one commit at a time."""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import Any

from jqueue.core.blob_queue import BlobQueue
from jqueue.core.pacing import BATCH_LIMIT
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT
from jqueue.ports.sharing import SupportsSharing
from jqueue.ports.storage import ObjectStoragePort
from jqueue.runtime.queue_options import QueueOptions, lists_queue_options, takes_queue_options


@lists_queue_options
class GroupCommitLoop(BlobQueue):
    """The base class of `BrokerQueue`, started by `start()` and stopped by `stop()`.

    While one commit is on its way, new calls gather, and all of them go into the next one. Waiting consumers are
    answered in the commit that makes their job ready.

    Args:
        storage: holds the queue's object.
        stale_timeout: time without a heartbeat after which a claim made here is stale; 5 minutes by default.
        options: by name: those of `QueueOptions`.
    """

    @takes_queue_options
    def __init__(
        self, storage: ObjectStoragePort, stale_timeout: Duration = DEFAULT_CLAIM_TIMEOUT, **options: Any
    ) -> None:
        super().__init__(storage, QueueOptions(stale_timeout=stale_timeout, **options), batch_limit=BATCH_LIMIT)
        self._session.closed = f"this {type(self).__name__} is not started: {self._how_to_start}"
        if isinstance(storage, SupportsSharing):
            own = weakref.ref(self)

            def volunteer() -> None:
                if (queue := own()) is not None:
                    queue._offer_seat(lasting=False)

            self._session.volunteer = volunteer

    _how_to_start = "call start() first"

    @property
    def stale_timeout(self) -> Duration:
        """Time after which a claim made here is stale without a heartbeat."""
        return self.options.stale_timeout

    def __repr__(self) -> str:
        timeout = timedelta(seconds=to_seconds("stale_timeout", self.stale_timeout))
        return f"{type(self).__name__}(storage={self.storage!r}, stale_timeout={timeout!r})"

    async def start(self) -> None:
        """Begin to take calls.

        Raises:
            RuntimeError: it was started before, and has not been stopped.
        """
        before, session = self._session, self._here()
        if session is before and session.closed is None:
            raise RuntimeError(f"this {type(self).__name__} is started already: call start() once, or stop() first")
        self._open()

    async def stop(self, *, deadline: Duration | None = None) -> None:
        """Take no more calls, finish those under way, hand back claims that no caller took, and close the storage.

        Args:
            deadline: maximum time for all of this. Then the remaining calls fail, with an error that says whether they
                may have been done.
        """
        seconds = to_seconds("deadline", self.options.deadline if deadline is None else deadline)
        await self._close(f"this {type(self).__name__} is stopped: make a new one, or start it again", seconds)
