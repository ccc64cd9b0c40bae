"""`Context` and `BatchContext`: a job or a batch and its surroundings, for handlers and middleware.

A context is made for every job whose handler or middleware takes one, so it holds little and makes the rest on demand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
    Sized,
)
from datetime import datetime
from functools import partial
from typing import Any, Generic, ParamSpec, Protocol, TypedDict, Unpack, cast, overload

from typing_extensions import TypeVar

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job import Claim, Progress
from jqueue.domain.limits import check_progress
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.call import Call
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.queue import JobQueue, payload_of
from jqueue.worker.dependencies import without_loop
from jqueue.worker.job_log import about
from jqueue.worker.reports import Reports
from jqueue.worker.steps import Steps

logger: Logger = logger_of("jqueue.worker")


class Untyped:
    """Type parameter of a plain `Context`, whose `resources` may be anything. Any would hide the types of handlers."""


R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True, default=Untyped)


class _Resources(Protocol):
    @overload
    def __get__(self, context: Surroundings[Untyped], owner: Any = ...) -> Any: ...
    @overload
    def __get__(self, context: Surroundings[R], owner: Any = ...) -> R: ...


class Pieces:
    """A payload in pieces: `async for piece in pieces`, or `for piece in pieces` in a handler that runs in a thread."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], loop: asyncio.AbstractEventLoop | None) -> None:
        self._pieces = pieces
        self._loop = loop
        self.aclose: Callable[[], Awaitable[None]] = pieces.aclose

    def __aiter__(self) -> AsyncGenerator[bytes, None]:
        return self._pieces

    def __iter__(self) -> Iterator[bytes]:
        loop = self._loop
        if loop is None:
            raise RuntimeError("this handler is async: write `async for piece in ctx.open_payload()`")

        async def on_loop(function: Callable[..., Any], *args: Any) -> Any:
            return await function(*args)

        try:
            reading = partial(on_loop, anext, self._pieces, None)
            while (piece := asyncio.run_coroutine_threadsafe(reading(), loop).result()) is not None:
                yield piece
        finally:
            asyncio.run_coroutine_threadsafe(on_loop(self.aclose), loop).result()


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records have what names the job, and the `extra` of their call."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """See `logging.LoggerAdapter`."""
        return msg, {**kwargs, "extra": {**(self.extra or {}), **(kwargs.get("extra") or {})}}


class Around(TypedDict, total=False):
    """Keyword arguments of a context: the queue, the resources, and the deadline of the handler."""

    queue: JobQueue | None
    resources: Any
    deadline: datetime | None


P = ParamSpec("P")
T = TypeVar("T")


class Surroundings(Generic[R_co]):
    """Base of the contexts of a job and of a batch. Its type parameter is the type of `resources`.

    Attributes:
        deadline: time by which the handler must have ended, aware and in UTC; None if it has no timeout.
        is_cancelled: True once the handler must stop. Handlers in threads check it now and then.
        loop: the worker's event loop, if the handler runs in a thread.
    """

    __slots__ = ("_event", "_logger", "_queue", "_resources", "deadline", "is_cancelled", "loop")

    _contexts: Sequence[Surroundings[R_co]] = ()  # of the jobs of a batch

    def __init__(
        self, *, queue: JobQueue | None = None, resources: Any = None, deadline: datetime | None = None
    ) -> None:
        self.deadline: datetime | None = deadline
        self.is_cancelled: bool = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self._queue = queue
        self._resources = resources
        self._event: asyncio.Event | None = None
        self._logger: logging.LoggerAdapter[logging.Logger] | None = None

    @property
    def queue(self) -> JobQueue:
        """The queue that the job came from.

        Raises:
            RuntimeError: the handler runs in another process, where there is no queue object.
        """
        if self._queue is None:
            raise RuntimeError("a handler with process=True has no queue: it runs in another process")
        return self._queue

    def _opened(self) -> Any:
        """Value that the worker's lifespan yielded; None without one.

        Raises:
            RuntimeError: the handler runs in another process, where the lifespan is not opened.
        """
        if self._queue is None and self._resources is None:
            raise RuntimeError(
                "a handler with process=True has no resources: the lifespan is opened in the process of the worker."
                " Open what the handler needs in its module, once, by a function with functools.cache"
            )
        return self._resources

    resources: _Resources = cast(_Resources, property(_opened))

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records have `entrypoint` and, of a single job, `job_id` and `attempt`."""
        if self._logger is None:
            self._logger = _JobLogger(logger, self._about())
        return self._logger

    @property
    def cancelled(self) -> asyncio.Event:
        """Event that is set when the claim is lost, the job is cancelled or out of time, or the worker ends.

        It is for handlers on the event loop. Handlers in threads check `is_cancelled`.
        """
        if self._event is None:
            self._event = asyncio.Event()
            if self.is_cancelled:
                self._event.set()
        return self._event

    def stop(self) -> None:
        """Tell the handler to stop."""
        self.is_cancelled = True
        if self._event is not None:
            self._event.set()
        for context in self._contexts:
            context.stop()

    def move_deadline(self, deadline: datetime | None) -> None:
        """Set the time by which the handler must have ended."""
        for each in (self, *self._contexts):
            each.deadline = deadline

    def enter_thread(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Note that the handler runs in a thread beside this event loop; None if it is on the loop."""
        for each in (self, *self._contexts):
            each.loop = loop

    def _about(self) -> dict[str, Any]:
        """Return the fields of the records of `logger`."""
        raise NotImplementedError


class Context(Surroundings[R_co]):
    """One job in the hands of its handler. `Context[Resources]` says of which type `resources` is.

    Args:
        job: the job as it was claimed.
        lost: called if the handler finds that the claim on the job is lost.
        reports: takes the progress of the job; None: nobody looks at it.
        report: takes it in another process.

    Attributes:
        job: the job as it was claimed.
        companions: the operations that were given to `on_ack`.
        in_batch: True if the handler takes a batch.
        parents: the results of the job's parents by their ids, in the order of `after`. A parent that is not done, or
            had left the queue before this job was enqueued, has none. Empty in handlers with `process=True`.
    """

    __slots__ = ("_lost", "_report", "_reports", "_steps", "companions", "in_batch", "job", "parents")

    def __init__(
        self,
        job: Job,
        lost: Callable[[Job], object] | None = None,
        reports: Reports | None = None,
        report: Callable[[Job, Progress], object] | None = None,
        **around: Unpack[Around],
    ) -> None:
        super().__init__(**around)
        self.job: Job = job
        self.companions: list[Operation] = []
        self.in_batch: bool = False
        self._lost, self._reports = lost, reports
        self._report = report if reports is None else reports.add
        self._steps: Steps | None = None
        self.parents: Mapping[str, Any] = {}

    @property
    def entrypoint(self) -> str:
        """The name of the handler."""
        return self.job.entrypoint

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The job, as the `jobs` of a `BatchContext`, for middleware of both."""
        return (self.job,)

    @property
    def attempt(self) -> int:
        """Number of times that the job has been claimed, this time included.

        It also counts claims that were handed back unharmed. The number to compare with `max_attempts` is
        `ctx.job.failures`, which counts this claim as well, in case it fails.
        """
        return self.job.tries

    @property
    def claim(self) -> Claim:
        """The claim that the worker holds on the job."""
        return self.job.claim

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the job: texts by name."""
        return self.job.headers

    def open_payload(self) -> Pieces:
        """Return the payload in pieces: `async for piece in ctx.open_payload()`. For payloads larger than memory.

        It is for handlers that take no payload. One in a thread writes `for piece in ctx.open_payload()`. The payload
        is checked at its end.

        Raises:
            ObjectDamagedError: the object of the payload has other bytes than were stored. Do not use the pieces.
            ObjectMissingError: the object does not exist.
            RuntimeError: the handler runs in another process, where there is no queue object.
        """
        return Pieces(payload_of(self.queue, self.job), self.loop)

    def progress(self, done: int, total: int | None = None, text: str = "") -> None:
        """Report how far the work is: `ctx.progress(3, 10, "page 3")`, for `find`, `watch`, `jqueue ls` and the page.

        A report takes no time: the latest one goes with the next commit of the worker, or alone after two seconds.

        Args:
            done: number of parts that are done.
            total: number of all parts; None if it is not known.
            text: what is being done, cut at 120 bytes.

        Raises:
            InvalidJobError: a number is negative, or more is done than there is.
            RuntimeError: the handler takes a batch.
        """
        report = check_progress(done, total, text)
        if self.in_batch:
            raise RuntimeError("a handler with batch=... reports no progress: its jobs are done together")
        if self._report is not None:
            self._report(self.job, report)

    @overload
    def track(self, rows: AsyncIterable[T], total: int | None = None, text: str = "") -> AsyncGenerator[T, None]: ...
    @overload
    def track(self, rows: Iterable[T], total: int | None = None, text: str = "") -> Iterator[T]: ...
    def track(
        self, rows: Iterable[T] | AsyncIterable[T], total: int | None = None, text: str = ""
    ) -> Iterator[T] | AsyncGenerator[T, None]:
        """Iterate over rows, and report each that is done: `for row in ctx.track(rows)`, or `async for` if rows are.

        Args:
            rows: any iterable.
            total: number of rows; by default their `len`, if they have one.
            text: as in `progress`.
        """
        total = len(rows) if total is None and isinstance(rows, Sized) else total
        if isinstance(rows, AsyncIterable):
            return self._track_async(rows, total, text)
        return self._track(rows, total, text)

    def _track(self, rows: Iterable[T], total: int | None, text: str) -> Iterator[T]:
        self.progress(0, total, text)
        for done, row in enumerate(rows, 1):
            yield row
            self.progress(done, total, text)

    async def _track_async(self, rows: AsyncIterable[T], total: int | None, text: str) -> AsyncGenerator[T, None]:
        self.progress(done := 0, total, text)
        async for row in rows:
            yield row
            self.progress(done := done + 1, total, text)

    @overload
    def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Do a step of the job once, and return its result: `paid = await ctx.step("charge", charge, order)`.

        The function is called, and its result is recorded with the job. If the job is tried again, or put off, the step
        is not: it returns what is recorded. Steps of one name are told apart by their order, and must not run at once.
        An ack drops the steps.

        In a handler without `async` the function has none either: `paid = ctx.step("charge", charge, order)`.

        Args:
            name: of the step.
            function: does it. Its result must come back equal from JSON; the annotation of its result says how.
            args: for the function.
            kwargs: for the function.

        Raises:
            StepError: the result cannot be recorded, or what is recorded does not fit the function. The job is dead.
            ClaimLostError: another worker has the job. The handler is cancelled, too.
            QueueFullError: the queue has no room for the result.
            RuntimeError: the handler takes a batch, or runs in another process.
        """
        if self.in_batch:
            raise RuntimeError("a handler with batch=... has no steps: enqueue a job with steps for each of its jobs")
        if self._queue is None:
            raise RuntimeError(
                "a handler with process=True has no steps, as it runs in another process: take the steps in a handler "
                "without it, which enqueues a job for the work that needs a process"
            )
        if self._steps is None:
            self._steps = Steps(self.job, self.queue, self._lost, self._reports)
        call, loop, steps = partial(function, *args, **kwargs), self.loop, self._steps
        if loop is None:
            return steps.do(name, call, lambda: self.is_cancelled)

        async def wait(work: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(work, loop).result()

        return without_loop(steps.do(name, call, lambda: self.is_cancelled, wait))

    def on_ack(self, *operations: Operation | Call[Any]) -> None:
        """Add operations to the commit that finishes this job: `ctx.on_ack(following.call("ada"))`.

        If the handler fails or one of the operations is refused, none of them is done.

        Raises:
            InvalidJobError: an argument is not an operation, or the queue cannot do several things in one commit.
        """
        added = [each.operation() if isinstance(each, Call) else each for each in operations]
        for each in added:
            if not isinstance(each, Operation):
                raise InvalidJobError(f"on_ack takes handler.call(...) or operations, got {type(each).__name__}")
        self.queue.capabilities.require("transactions")
        self.companions.extend(added)  # in one step, as threads of a handler may call this

    def change_on_ack(self, change: Callable[[Operation], Operation]) -> None:
        """Replace each operation that was given to `on_ack` by what `change` returns for it."""
        self.companions = list(map(change, self.companions))

    def _about(self) -> dict[str, Any]:
        return about(self.job)

    def __repr__(self) -> str:
        return f"Context(job={self.job.id!r}, entrypoint={self.job.entrypoint!r}, attempt={self.job.tries})"


class BatchContext(Surroundings[R_co], Sequence[Context[R_co]]):
    """A batch of jobs in the hands of its handler: a sequence of their contexts, in the order of the payloads.

    Args:
        entrypoint: the name of the handler.
        contexts: the context of each job.

    Attributes:
        entrypoint: the name of the handler.
    """

    __slots__ = ("_contexts", "entrypoint")

    def __init__(self, entrypoint: str, contexts: Sequence[Context[R_co]], **around: Unpack[Around]) -> None:
        super().__init__(**around)
        self.entrypoint: str = entrypoint
        self._contexts: Sequence[Context[R_co]] = tuple(contexts)
        for context in contexts:
            context.in_batch = True

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs as they were claimed."""
        return tuple(context.job for context in self._contexts)

    @overload
    def __getitem__(self, place: int) -> Context[R_co]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Context[R_co]]: ...
    def __getitem__(self, place: int | slice) -> Context[R_co] | Sequence[Context[R_co]]:
        """Return the context of the job at a place."""
        return self._contexts[place]

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self._contexts)

    def change_on_ack(self, change: Callable[[Operation], Operation]) -> None:
        """See `Context.change_on_ack`: for each job."""
        for context in self._contexts:
            context.change_on_ack(change)

    def _about(self) -> dict[str, Any]:
        return {"entrypoint": self.entrypoint}
