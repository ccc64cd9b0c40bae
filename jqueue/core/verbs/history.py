"""The verb of `SupportsHistory`: what happened to the jobs of a queue."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from datetime import datetime

from jqueue.core.blob.history_reader import HistoryReader
from jqueue.core.blob.past_rows import PastRows
from jqueue.core.engine.view import QueueView
from jqueue.core.queue_base import QueueBase
from jqueue.domain.durations import Duration, check_time, to_seconds
from jqueue.domain.errors import ReplayError
from jqueue.domain.events import HistoryEvent
from jqueue.domain.limits import check_name
from jqueue.domain.models import QueueState
from jqueue.domain.option_names import checks_option_names
from jqueue.domain.replay import Replay, ReplayedJob
from jqueue.ports.queue import SupportsHistory
from jqueue.ports.storage import ObjectStoragePort, SupportsObjects


@checks_option_names
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
        header: QueueState | None,
        job_id: str | None,
        entrypoint: str | None,
        since: datetime | None,
        until: datetime | None,
        seconds: float,
    ) -> AsyncIterator[HistoryEvent]:
        if header is None:
            header = (await self._engine.look(seconds))[0].header
        reader = self.history_reader(seconds)
        reader.since = since
        reader.wanted = "" if job_id is None else json.dumps(job_id)
        async for event in reader.events(header):
            if (
                job_id in (None, event.job_id)
                and entrypoint in (None, event.entrypoint)
                and (until is None or event.at < until)
            ):
                yield event

    async def jobs_at(
        self, at: datetime, *, view: QueueView | None = None, deadline: Duration | None = None
    ) -> Mapping[str, ReplayedJob]:
        """Return the jobs that were in the queue at a time: see `jqueue.replay`.

        Args:
            at: the time.
            view: the present version of the queue, if it was read before.
            deadline: maximum time for each request to the store.
        """
        self.capabilities.require("history")
        seconds = self._seconds(deadline)
        view = await self._view(seconds) if view is None else view
        header = view.header
        history = header.history
        if history is None or history.stopped:
            raise ReplayError("the history of this queue is switched off: configure(history=...) switches it on")
        replay, event = Replay(history.last), None
        reader = self.history_reader(seconds)
        past = None
        if reader.objects is not None:
            past = PastRows(reader.objects, self.options.entropy, seconds, reader.call_timeout)
        async for job in view.jobs():
            replay.add(job)
        async with aclosing(reader.events(header)) as events:
            async for event in events:
                if event.at <= at:
                    return replay.jobs
                replay.undo(event, await past.of(event) if past is not None and event.rows else None)
        reaches = "has no events" if event is None else f"goes back only to {event.at.isoformat()}"
        raise ReplayError(f"the history of the queue {reaches}: choose a later time")

    def history_reader(self, seconds: float) -> HistoryReader:
        """Return a reader of the history. Each of its requests may take some seconds, with its repetitions."""
        objects = self.storage if isinstance(self.storage, SupportsObjects) else None
        timeout = to_seconds("call_timeout", self.options.call_timeout)
        return HistoryReader(objects, self.options.entropy, seconds, timeout)
