"""The verb of `SupportsHistory`: what happened to the jobs of a queue."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime

from jqueue.core.blob.history_reader import HistoryReader
from jqueue.core.blob.past_rows import PastRows
from jqueue.core.engine.view import QueueView
from jqueue.core.queue_base import QueueBase
from jqueue.domain.durations import Duration, check_time, to_seconds
from jqueue.domain.errors import JobsUnreadableError, ReplayError
from jqueue.domain.events import HistoryEvent
from jqueue.domain.limits import check_name
from jqueue.domain.models import QueueState
from jqueue.domain.option_names import checks_option_names
from jqueue.domain.replay import Replay, ReplayedJob, Row, Touched, check_begun
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
            header = (await self._seen(seconds)).header
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
        return {job_id: job async for job_id, job in self.past_jobs(at, view=view, deadline=deadline)}

    async def past_jobs(
        self, at: datetime, *, view: QueueView | None = None, deadline: Duration | None = None
    ) -> AsyncGenerator[tuple[str, ReplayedJob], None]:
        """Iterate over the jobs that were in the queue at a time. Memory grows with the jobs that have changed since.

        The events since then are read twice: the first time, only to know which jobs they name.

        Args:
            at: the time.
            view: the present version of the queue, if it was read before.
            deadline: maximum time for each request to the store.

        Raises:
            ReplayError: the history does not reach back so far, or, at the end, an event does not fit.
            JobsUnreadableError: at the end, if segments are missing or damaged.
            StorageError: the store failed.
        """
        self.capabilities.require("history")
        seconds = self._seconds(deadline)
        view = await self._seen(seconds) if view is None else view
        history = view.header.history
        if history is None or history.stopped:
            raise ReplayError("the history of this queue is switched off: configure(history=...) switches it on")
        touched, replay = Touched(), Replay(history.last)
        async with aclosing(self._events_back_to(at, view.header, seconds)) as events:
            async for event, rows in events:
                touched.add(event, rows)
        damage = None
        try:
            async with aclosing(view.jobs()) as jobs:
                async for job in jobs:
                    if touched.has(job):
                        replay.add(job)
                    else:
                        yield job.id, ReplayedJob(job.entrypoint, job.status, job.attempt)
        except JobsUnreadableError as error:  # all others were found
            damage = error
        try:
            async with aclosing(self._events_back_to(at, view.header, seconds)) as events:
                async for event, rows in events:
                    replay.undo(event, rows)
        except ReplayError:
            if damage is None:
                raise
            raise damage from None  # the event may be of a job that cannot be read
        for each in replay.jobs.items():
            yield each
        if damage is not None:
            raise damage

    async def _events_back_to(
        self, at: datetime, header: QueueState, seconds: float
    ) -> AsyncGenerator[tuple[HistoryEvent, Sequence[Row] | None], None]:
        """Iterate over the events after a time, the newest first, with the jobs of their rows if these are known.

        Raises:
            ReplayError: the history does not reach back so far.
        """
        reader, event, past = self.history_reader(seconds), None, None
        if reader.objects is not None:
            past = PastRows(reader.objects, self.options.entropy, seconds, reader.call_timeout)
        async with aclosing(reader.events(header)) as events:
            async for event in events:
                if event.at <= at:
                    return
                check_begun(event)
                yield event, await past.of(event) if past is not None and event.rows else None
        reaches = "has no events" if event is None else f"goes back only to {event.at.isoformat()}"
        raise ReplayError(f"the history of the queue {reaches}: choose a later time")

    def history_reader(self, seconds: float) -> HistoryReader:
        """Return a reader of the history. Each of its requests may take some seconds, with its repetitions."""
        objects = self.storage if isinstance(self.storage, SupportsObjects) else None
        timeout = to_seconds("call_timeout", self.options.call_timeout)

        async def present() -> QueueState:
            return (await self._engine.look(seconds))[0].header

        return HistoryReader(objects, self.options.entropy, seconds, timeout, present)
