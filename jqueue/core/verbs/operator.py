"""The verbs of `Operator` and `SupportsPeek`: keep a queue in order, or inspect it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

import msgspec

from jqueue.core.blob.history import HistoryReader
from jqueue.core.queue_base import BlobBase, QueueBase, all_of
from jqueue.core.view import QueueView
from jqueue.domain.durations import LONGEST, Duration, check_time, to_seconds
from jqueue.domain.errors import InvalidJobError, JobNotFoundError, shown
from jqueue.domain.events import HistoryEvent
from jqueue.domain.header import Header
from jqueue.domain.job import JobStatus
from jqueue.domain.job_options import SCHEDULE_OPTIONS, ScheduleOptions, check_names, takes_options
from jqueue.domain.limits import check_name
from jqueue.domain.models import Job, QueueState, for_callers, job_of
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.dequeue import Dequeue, sought_names
from jqueue.domain.operations.ends import RequeueStale
from jqueue.domain.operations.lookups import AwaitChange, Find, Peek, face_of
from jqueue.domain.operations.operator import Cancel, Purge, Redrive, Reprioritise, Reschedule, StopWorker
from jqueue.domain.operations.rules import (
    Configure,
    Pause,
    Resume,
    SetLimits,
    SetSchedule,
    Unschedule,
)
from jqueue.domain.rules import Schedule, as_shown
from jqueue.domain.selection import Selection, phases_of
from jqueue.domain.stats import QueueStats
from jqueue.domain.transitions import Verb
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.queue import Operator, SupportsHistory, SupportsPeek
from jqueue.ports.storage import ObjectStoragePort, SupportsObjects

logger: Logger = logger_of("jqueue")


BEFORE = timedelta(minutes=1)
"""Time by which the clock of the program that enqueued a job may be ahead of that of the commit."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _verb(
    declared: Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Result]],
    operation: type[Operation],
    look: Operation | None = None,
) -> Callable[[object], Callable[Concatenate[QueueBase, Parameters], Coroutine[Any, Any, Result]]]:
    """Return a decorator that gives the method of a verb, which commits one operation. The decorated function is empty.

    The arguments of the verb are fields of the operation.

    Args:
        declared: the verb.
        operation: its operation.
        look: an operation that changes nothing. An equal one is refused if there is no queue.
    """
    signature = inspect.signature(declared)

    @wraps(declared)
    async def verb(self: QueueBase, /, *args: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            _, *pairs = signature.bind(self, *args, **options).arguments.items()
        except TypeError as error:
            raise TypeError(f"{declared.__name__}() {error}") from None
        fields = dict(pairs)
        deadline = fields.pop("deadline", None)
        done = operation(**fields)
        result: Result = for_callers(await self._done(done, deadline))
        if done == look:
            await self._require_queue()
        return result

    return lambda _: verb


class OperatorVerbs(QueueBase, Operator, SupportsPeek):
    """The verbs of `Operator`, and of `SupportsPeek`."""

    @_verb(Operator.cancel, Cancel)
    def cancel(self) -> None: ...
    @_verb(Operator.reschedule, Reschedule)
    def reschedule(self) -> None: ...
    @_verb(Operator.reprioritise, Reprioritise)
    def reprioritise(self) -> None: ...
    @_verb(Operator.redrive, Redrive)
    def redrive(self) -> None: ...
    @_verb(Operator.purge, Purge)
    def purge(self) -> None: ...
    @_verb(Operator.requeue_stale, RequeueStale)
    def requeue_stale(self) -> None: ...

    # Limits

    @_verb(Operator.pause, Pause)
    def pause(self) -> None: ...
    @_verb(Operator.resume, Resume)
    def resume(self) -> None: ...
    @_verb(Operator.limit, SetLimits)
    def limit(self) -> None: ...

    @_verb(Operator.configure, Configure, look=Configure())
    def configure(self) -> None: ...

    # Cron

    @takes_options(ScheduleOptions)
    async def schedule(
        self,
        name: str,
        cron: str,
        entrypoint: str,
        payload: bytes = b"",
        *,
        timezone: str = "UTC",
        deadline: Duration | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        check_names("schedule", options, SCHEDULE_OPTIONS)
        operation = SetSchedule(name, cron, entrypoint, payload, timezone=timezone, **options)
        result: Schedule = await self._done(operation, deadline)
        return result

    @_verb(Operator.unschedule, Unschedule)
    def unschedule(self) -> None: ...

    async def schedules(self, *, deadline: Duration | None = None) -> list[Schedule]:
        self.capabilities.require("schedules")
        header = (await self._seen(self._seconds(deadline))).header
        now = self._now()
        return [as_shown(schedule, now) for _, schedule in sorted(header.schedules.items())]

    @_verb(Operator.stop_worker, StopWorker)
    def stop_worker(self) -> None: ...

    # Looking

    async def peek(
        self, entrypoint: str | Sequence[str] | None = None, *, batch_size: int = 1, deadline: Duration | None = None
    ) -> list[Job]:
        operation = self._prepared(Peek(Dequeue(entrypoint, batch_size=batch_size)))
        [records] = await self._submit((operation,), deadline)
        if not records:
            await self._require_queue()
        return [job_of(job) for job in records]

    async def until_ready(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        wait: Duration,
        deadline: Duration | None = None,
    ) -> bool:
        operation = self._prepared(Peek(Dequeue(entrypoint)))
        request = self._enter((operation,), deadline, wait=wait, convert=all_of)
        request.seen_empty = request.waits_for_jobs  # no read needs to confirm the empty answer of before
        [ready] = await request
        return bool(ready)

    async def find(self, job_id: str, *, deadline: Duration | None = None) -> Job | None:
        records = await self._done(Find(job_id), deadline)
        if not records:
            await self._require_queue()
        return job_of(records[0]) if records else None

    async def watch(self, job_id: Job | str, *, deadline: Duration | None = None) -> AsyncGenerator[Job, None]:
        reference, seen = job_id.id if isinstance(job_id, Job) else job_id, ""
        while True:
            operation = self._checked(AwaitChange(reference, seen).prepared(self._preparation))
            try:
                jobs = await self._searched(operation, self._seconds(deadline), LONGEST)
            except JobNotFoundError:
                if not seen:
                    raise
                return
            for job in jobs:
                seen = face_of(job)
                yield job_of(job)
                if job.status in (JobStatus.DEAD, JobStatus.COMPLETED):
                    return

    async def view(self, known: QueueView | None = None, *, deadline: Duration | None = None) -> QueueView:
        """Return the queue as it is now, without making a model of each job.

        Args:
            known: an earlier view, returned again if the store says that the queue has not changed since.
            deadline: maximum time for the call.

        Raises:
            StorageError: the store failed, or the queue's object is gone or cannot be read.
        """
        return await self._view(self._seconds(deadline), known)

    async def read_state(self, *, hot: bool = False, deadline: Duration | None = None) -> QueueState:
        view = await self._view(self._seconds(deadline))
        return await view.state(self._now(), hot=hot)

    async def stats(self, *, deadline: Duration | None = None) -> QueueStats:
        seconds, time = self._seconds(deadline), asyncio.get_running_loop().time
        until = time() + seconds
        view = await self._seen(seconds)
        return await view.stats(self._now(), until - time())

    def iterate_jobs(
        self,
        *statuses: JobStatus,
        entrypoint: str | Sequence[str] | None = None,
        id_prefix: str = "",
        deadline: Duration | None = None,
    ) -> AsyncGenerator[Job, None]:
        try:
            wanted = [JobStatus(status) for status in statuses]
        except ValueError:
            possible = ", ".join(JobStatus)
            raise InvalidJobError(f"the statuses of jobs are {possible}; got {shown(statuses)}") from None
        if not isinstance(id_prefix, str):
            raise InvalidJobError(f"id_prefix must be a str, got {type(id_prefix).__name__}")
        names = frozenset(() if entrypoint is None else sought_names(entrypoint))
        return self._iterate(Selection(phases_of(wanted), names, id_prefix=id_prefix or None), self._seconds(deadline))

    async def _iterate(self, selection: Selection, seconds: float) -> AsyncGenerator[Job, None]:
        view = await self._seen(seconds)
        async with aclosing(view.jobs(self._now(), selection)) as jobs:
            async for job in jobs:
                yield job


class HistoryVerbs(BlobBase, SupportsHistory):
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
        after: int = 0,
        last_life: bool = False,
    ) -> AsyncIterator[HistoryEvent]:
        """Iterate over the events up to a version of the queue that was read before, as `history` does.

        Args:
            view: that version.
            job_id: events of this job only.
            since: events from this time on only.
            until: events before this time only.
            after: events with a higher number only.
            last_life: True to end with the enqueue of the job, so that objects from before it need not be read.
        """
        self.capabilities.require("history")
        return self._history(view.header, job_id, None, since, until, self._seconds(None), after, last_life)

    async def _history(
        self,
        header: Header | None,
        job_id: str | None,
        entrypoint: str | None,
        since: datetime | None,
        until: datetime | None,
        seconds: float,
        after: int = 0,
        last_life: bool = False,
    ) -> AsyncIterator[HistoryEvent]:
        if header is None:
            header = (await self._seen(seconds)).header
        objects = self.storage if isinstance(self.storage, SupportsObjects) else None
        timeout = to_seconds("call_timeout", self.options.call_timeout)

        async def present() -> Header:
            return (await self._view(seconds)).header

        reader = HistoryReader(objects, self.options.entropy, seconds, timeout, present)
        reader.since, reader.after = since, after
        reader.wanted = b"" if job_id is None else msgspec.json.encode(job_id)
        async with aclosing(reader.events(header)) as events:
            async for event in events:
                if (
                    job_id in (None, event.job_id)
                    and entrypoint in (None, event.entrypoint)
                    and (until is None or event.at < until)
                ):
                    yield event
                    if last_life and event.verb == Verb.ENQUEUE:
                        return
                    if last_life and event.after is None:
                        reader.since = event.created_at and event.created_at - BEFORE
