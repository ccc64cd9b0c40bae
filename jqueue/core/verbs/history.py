"""The verb of `SupportsHistory`: what happened to the jobs of a queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

import msgspec

from jqueue.core.blob.history_reader import HistoryReader
from jqueue.core.queue_base import QueueBase
from jqueue.core.view import QueueView
from jqueue.domain.durations import Duration, check_time, to_seconds
from jqueue.domain.events import HistoryEvent
from jqueue.domain.header import Header
from jqueue.domain.limits import check_name
from jqueue.ports.queue import SupportsHistory
from jqueue.ports.storage import ObjectStoragePort, SupportsObjects


class HistoryVerbs(QueueBase, SupportsHistory):
    """The verb of `SupportsHistory`, for queues on one blob.

    Attributes:
        storage: holds the blob and the objects beside it.
    """

    storage: ObjectStoragePort

    def history(
        self,
        *,
        job_id: str | None = None,
        entrypoint: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        deadline: Duration | None = None,
    ) -> AsyncIterator[HistoryEvent]:
        self.capabilities.require("history")
        if job_id is not None:
            check_name("job_id", job_id, self.options.limits)
        if entrypoint is not None:
            check_name("entrypoint", entrypoint, self.options.limits)
        for name, time in (("since", since), ("until", until)):
            if time is not None:
                check_time(name, time)
        return self._history(None, job_id, entrypoint, since, until, self._seconds(deadline))

    def history_of(
        self,
        view: QueueView,
        *,
        job_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncIterator[HistoryEvent]:
        """Iterate over the events up to a version of the queue that was read before, as `history` does.

        Args:
            view: that version.
            job_id: events of this job only.
            since: events from this time on only.
            until: events before this time only.
        """
        self.capabilities.require("history")
        return self._history(view.header, job_id, None, since, until, self._seconds(None))

    async def _history(
        self,
        header: Header | None,
        job_id: str | None,
        entrypoint: str | None,
        since: datetime | None,
        until: datetime | None,
        seconds: float,
    ) -> AsyncIterator[HistoryEvent]:
        if header is None:
            header = (await self._seen(seconds)).header
        objects = self.storage if isinstance(self.storage, SupportsObjects) else None
        timeout = to_seconds("call_timeout", self.options.call_timeout)

        async def present() -> Header:
            return (await self._view(seconds)).header

        reader = HistoryReader(objects, self.options.entropy, seconds, timeout, present)
        reader.since = since
        reader.wanted = b"" if job_id is None else msgspec.json.encode(job_id)
        async for event in reader.events(header):
            if (
                job_id in (None, event.job_id)
                and entrypoint in (None, event.entrypoint)
                and (until is None or event.at < until)
            ):
                yield event
