"""Assertions on the jobs that wait in a queue, written like the call that enqueues them.

Their errors show the arguments of jobs, as a test is where its author wants to see them. Nothing else in jqueue does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar, overload

from jqueue.domain.errors import QueueMissingError
from jqueue.domain.job_options import ALL_OPTIONS
from jqueue.domain.models import Job, JobStatus, QueueState
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.ports.queue import JobQueue
from jqueue.testing.virtual_time import EPOCH
from jqueue.worker.handlers import AddsJobs, Handler
from jqueue.worker.payloads import PayloadError

T = TypeVar("T")

Target = Handler[..., Any] | str
"""A handler, or the entrypoint of jobs whose handler is elsewhere."""

FIELDS: Mapping[str, str] = {
    "delay": "run_at",
    **{name: option.field for name, option in ALL_OPTIONS.items() if option.field is not None},
}
"""The fields of a job that tell the options of its enqueue."""


@overload
def enqueued(queue: AddsJobs[Job], handler: Target | None = None) -> list[Job]: ...
@overload
def enqueued(queue: JobQueue, handler: Target | None = None) -> Coroutine[Any, Any, list[Job]]: ...
def enqueued(queue: Any, handler: Target | None = None) -> Any:
    """Return the jobs that wait in a queue, also those that are due later.

    Args:
        queue: the queue. With an async queue, the call is awaited; with a `SyncQueue`, it is not.
        handler: the handler of the jobs, or their entrypoint; by default, all jobs are returned.
    """
    return _look(
        queue, lambda jobs: jobs if handler is None else [job for job in jobs if job.entrypoint == _name(handler)]
    )


@overload
def assert_enqueued(queue: AddsJobs[Job], handler: Target, /, *arguments: Any, **keywords: Any) -> Job: ...
@overload
def assert_enqueued(
    queue: JobQueue, handler: Target, /, *arguments: Any, **keywords: Any
) -> Coroutine[Any, Any, Job]: ...
def assert_enqueued(queue: Any, handler: Target, /, *arguments: Any, **keywords: Any) -> Any:
    """Assert that a job waits in a queue, and return the first such job.

    Args:
        queue: the queue. With an async queue, the call is awaited; with a `SyncQueue`, it is not.
        handler: the handler of the job, or its entrypoint.
        arguments: the payload, as in `handler.enqueue`. Without any payload, that of the job may be any.
        keywords: more of the payload by name. Options are given by `handler.using(delay=60)`; beside an entrypoint,
            they are given here. Options that are left out may have any value.

    Raises:
        AssertionError: there is no such job. The message lists the arguments of the handler's jobs, with the options
            named here, and counts the other jobs.
        InvalidJobError: the payload is not what the handler takes, or an option has an invalid value.
    """
    sought = _Sought(handler, arguments, keywords)

    def check(jobs: Sequence[Job]) -> Job:
        __tracebackhide__ = True
        job = next(filter(sought.matches, jobs), None)
        if job is None:
            raise AssertionError(f"no waiting job of {sought.name!r} has {sought.wanted}; {sought.report(jobs)}")
        return job

    return _look(queue, check)


@overload
def assert_not_enqueued(queue: AddsJobs[Job], handler: Target, /, *arguments: Any, **keywords: Any) -> None: ...
@overload
def assert_not_enqueued(
    queue: JobQueue, handler: Target, /, *arguments: Any, **keywords: Any
) -> Coroutine[Any, Any, None]: ...
def assert_not_enqueued(queue: Any, handler: Target, /, *arguments: Any, **keywords: Any) -> Any:
    """Assert that no such job waits in a queue. The arguments are those of `assert_enqueued`.

    Raises:
        AssertionError: there is such a job.
        InvalidJobError: the payload is not what the handler takes, or an option has an invalid value.
    """
    sought = _Sought(handler, arguments, keywords)

    def check(jobs: Sequence[Job]) -> None:
        __tracebackhide__ = True
        if any(map(sought.matches, jobs)):
            raise AssertionError(f"a waiting job of {sought.name!r} has {sought.wanted}; {sought.report(jobs)}")

    return _look(queue, check)


class _Sought:
    """A job as a test describes it.

    Attributes:
        name: its entrypoint.
        wanted: its arguments, if some are given, and the options that are given, by name.
    """

    def __init__(self, handler: Target, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        self.name = _name(handler)
        self._signature = None if isinstance(handler, str) else handler.signature
        named: dict[str, Any] = {"job_id": "sought"}
        self._with_payload = bool(arguments or (keywords and not isinstance(handler, str)))
        if not isinstance(handler, str) and self._with_payload:
            payload, encoding = handler.encode_call(arguments, keywords)
            arguments, named["encoding"] = (payload,), encoding
        options = keywords if isinstance(handler, str) else handler.own_options
        self._options = [name for name in options if name in FIELDS]
        operation = Enqueue(self.name, *arguments, **{**named, **options})
        _, job = operation.apply(QueueState(), EPOCH)
        self.wanted = self._facts(job)

    def matches(self, job: Job) -> bool:
        return job.entrypoint == self.name and self._facts(job) == self.wanted

    def report(self, jobs: Sequence[Job]) -> str:
        facts = [f"\n  {self._facts(job, all_arguments=True)}" for job in jobs if job.entrypoint == self.name]
        others = Counter(job.entrypoint for job in jobs if job.entrypoint != self.name)
        counts = ", ".join(f"{count} of {name!r}" for name, count in others.items())
        return f"its waiting jobs:{''.join(facts) or ' none'}\nother waiting jobs: {counts or 'none'}"

    def _facts(self, job: Job, *, all_arguments: bool = False) -> dict[str, Any]:
        arguments = self._arguments(job) if self._with_payload or all_arguments else {}
        return arguments | {name: _option(job, name) for name in self._options}

    def _arguments(self, job: Job) -> dict[str, Any]:
        if self._signature is None:
            return {"payload": job.payload}
        try:
            value = self._signature.parse(job)
        except PayloadError as error:
            return {"payload": error}
        return value


def _name(handler: Target) -> str:
    return handler if isinstance(handler, str) else handler.entrypoint


def _option(job: Job, name: str) -> Any:
    """Return the value that a job has for an option of its enqueue."""
    value = getattr(job, FIELDS[name])
    return value - job.created_at if name == "delay" and value is not None else value


def _look(queue: Any, check: Callable[[list[Job]], T]) -> Any:
    """Return what a check makes of the waiting jobs, or for an async queue, an awaitable of it."""

    async def look() -> T:
        __tracebackhide__ = True
        try:
            return check([job async for job in queue.iterate_jobs(JobStatus.QUEUED)])
        except QueueMissingError:
            return check([])

    if getattr(queue, "blocks", False) is not True:
        return look()
    __tracebackhide__ = True
    try:
        return check(list(queue.iterate_jobs(JobStatus.QUEUED)))
    except QueueMissingError:
        return check([])
