"""Groups of jobs: the verb `group`, and what it returns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, Self, Unpack

from msgspec.structs import replace

from jqueue.core.verbs.operator import OperatorVerbs
from jqueue.core.verbs.producer import ProducerVerbs
from jqueue.domain.durations import LONGEST, Duration, to_seconds
from jqueue.domain.errors import InvalidJobError, JQueueError, ResultTimeoutError
from jqueue.domain.job import JobStatus
from jqueue.domain.job_options import EnqueueOptions
from jqueue.domain.large_values import PayloadSource
from jqueue.domain.models import Job
from jqueue.domain.operations.call import Call, NewJob, NewJobs
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.groups import AwaitGroup, CancelGroup, CloseGroup, GroupStatus, LookAtGroup, OpenGroup
from jqueue.domain.operations.operator import Redrive, Redriven
from jqueue.domain.selection import Selection, phases_of
from jqueue.ports.queue import JobGroup


class GroupVerbs(ProducerVerbs, OperatorVerbs):
    """The verbs of `Producer` and `Operator`, with groups."""

    def group(self, id: str | None = None, *, then: NewJob | None = None, on_end: NewJob | None = None) -> Group:
        return Group(self, self._preparation.new_id() if id is None else id, then, on_end)


class Group(JobGroup):
    """See `JobGroup`.

    Args:
        queue: the queue that has its jobs.
        id: its id.
        then, on_end: see `Producer.group`.
    """

    def __init__(self, queue: GroupVerbs, id: str, then: NewJob | None = None, on_end: NewJob | None = None) -> None:
        self.id = id
        self._queue = queue
        self._jobs = {"then": then, "on_end": on_end}

    def __repr__(self) -> str:
        return f"Group({self.id!r})"

    def on(self, queue: Any) -> Group:
        """Return the same group of another object of its queue."""
        return Group(queue, self.id, **self._jobs)

    async def __aenter__(self) -> Self:
        await self._repeated(OpenGroup(self.id, **self._jobs))
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        if exc_type is None:
            await self._repeated(CloseGroup(self.id))
        else:
            with suppress(JQueueError):  # the error of the block goes on
                await self.cancel()

    async def _repeated(self, operation: Any, deadline: Duration | None = None, wait: float = 0.0) -> Any:
        """Return the result of an operation that may be done twice."""
        queue = self._queue
        return await queue._searched(queue._prepared(operation), queue._seconds(deadline), wait)

    async def enqueue(
        self,
        job: str | NewJob,
        payload: PayloadSource = b"",
        priority: int = 0,
        *,
        deadline: Duration | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Job:
        if isinstance(job, str):
            options["group"] = self.id
            return await self._queue.enqueue(job, payload, priority, deadline=deadline, **options)
        if payload or priority or options:
            raise InvalidJobError("a call has its own arguments and options: give them with it")
        [added] = await self._queue.apply(member_of(self.id, job), deadline=deadline)
        enqueued: Job = added
        return enqueued

    async def enqueue_many(self, jobs: NewJobs, *, deadline: Duration | None = None) -> Sequence[Job]:
        group = self.id
        if isinstance(jobs, AsyncIterable):
            members = (member_of(group, job) async for job in jobs)
            return await self._queue.enqueue_many(members, deadline=deadline)
        return await self._queue.enqueue_many((member_of(group, job) for job in jobs), deadline=deadline)

    async def status(self, *, deadline: Duration | None = None) -> GroupStatus:
        status: GroupStatus = await self._repeated(LookAtGroup(self.id), deadline)
        return status

    async def wait(self, timeout: Duration | None = None, *, deadline: Duration | None = None) -> GroupStatus:
        seconds = LONGEST if timeout is None else to_seconds("timeout", timeout)
        statuses: list[GroupStatus] = await self._repeated(AwaitGroup(self.id), deadline, seconds)
        if not statuses:
            raise ResultTimeoutError(self.id, seconds, "Group")
        return statuses[0]

    async def cancel(self, *, deadline: Duration | None = None) -> GroupStatus:
        status: GroupStatus = await self._repeated(CancelGroup(self.id), deadline)
        return status

    async def redrive(self, *, deadline: Duration | None = None) -> Redriven:
        redriven: Redriven = await self._queue._done(Redrive(group=self.id), deadline)
        return redriven

    async def results(self, *, deadline: Duration | None = None) -> AsyncGenerator[Job, None]:
        queue, selection = self._queue, Selection(phases_of([JobStatus.COMPLETED]), group=self.id)
        is_empty = True
        async with aclosing(queue._iterate(selection, queue._seconds(deadline))) as jobs:
            async for job in jobs:
                is_empty = False
                if job.result_object is not None:
                    job = job.evolve(result=await queue.result(job, deadline=deadline))
                yield job
        if is_empty:
            await self.status(deadline=deadline)  # refuses an id that is misspelled


def member_of(group: str, job: NewJob) -> Enqueue:
    """Return the enqueue of a member of a group.

    Raises:
        InvalidJobError: it is neither an `Enqueue` nor a call of a handler.
    """
    new = job.operation() if isinstance(job, Call) else job
    if not isinstance(new, Enqueue):
        raise InvalidJobError(f"a group takes Enqueue(...) or a call of a handler, got {type(job).__name__}")
    return replace(new, group=group)
