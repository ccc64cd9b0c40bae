"""`Handler`: a function that does jobs, with everything that was said of it when it was decorated."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, ParamSpec, TypeVar

from jqueue.domain.durations import Duration
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import Job
from jqueue.domain.operations import Enqueue
from jqueue.ports.queue import JobQueue
from jqueue.worker.options import HandlerOptions
from jqueue.worker.payloads import parse_result
from jqueue.worker.signatures import read_signature

P = ParamSpec("P")
R = TypeVar("R")

NO_PAYLOAD: Any = object()
"""Stands for a payload that is not given."""

Home = Literal["loop", "thread", "process"]
"""Where a function runs."""


class Handler(Generic[P, R]):
    """A decorated function. Calling it calls the function.

    Attributes:
        function: what was decorated.
        entrypoint: the name under which its jobs are enqueued.
        options: what was said of it.
        signature: what it takes and returns.
        home: where it runs: on the event loop, in a thread, or in a process.
    """

    __name__: str

    def __init__(
        self,
        function: Callable[P, R],
        entrypoint: str,
        options: HandlerOptions,
        local_names: Mapping[str, Any] | None = None,
    ) -> None:
        self.signature = read_signature(function, local_names)
        self.function = function
        self.entrypoint = entrypoint
        self.options = options
        self.home = _home_of(function, options)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as in a test of it."""
        return self.function(*args, **kwargs)

    async def enqueue(self, queue: JobQueue, payload: Any = NO_PAYLOAD, **options: Any) -> Job:
        """Add a job for this handler, and return it.

        Args:
            queue: where to.
            payload: what the handler takes; not given if it takes nothing.
            options: as of `queue.enqueue`: delay, priority, headers and so on. They override the handler's.

        Raises:
            InvalidJobError: the payload is not what the handler takes, or an option is wrong.
        """
        deadline = options.pop("deadline", None)
        data = self.encode(payload)
        return await queue.enqueue(self.entrypoint, data, **self._given(options), deadline=deadline)

    def operation(self, payload: Any = NO_PAYLOAD, **options: Any) -> Enqueue:
        """An operation that adds a job for this handler, for `queue.apply`, `enqueue_many` and `ctx.on_ack`.

        Args:
            payload: what the handler takes; not given if it takes nothing.
            options: as of `Enqueue`. They override the handler's.

        Raises:
            InvalidJobError: the payload is not what the handler takes.
        """
        return Enqueue(self.entrypoint, self.encode(payload), **self._given(options))

    async def result(self, queue: JobQueue, job: Job | str, *, timeout: Duration | None = None) -> Any:
        """Wait until a job of this handler is finished, and return what the handler returned.

        Args:
            queue: where the job is.
            job: the job or its id. It must have been enqueued with `keep_result`.
            timeout: how long to wait; by default, as long as it takes.

        Raises:
            JobFailedError: the job is dead.
            ResultTimeoutError: it is not finished yet.
            ResultNotKeptError: it is finished, and its result was not kept.
        """
        value = await queue.result(job, timeout=timeout)
        return parse_result(self.signature.returns, value)

    def encode(self, payload: Any = NO_PAYLOAD) -> bytes:
        """A payload of this handler as bytes.

        Raises:
            InvalidJobError: it is not what the handler takes.
        """
        codec = self.signature.codec
        if codec is None:
            if payload is not NO_PAYLOAD:
                raise InvalidJobError(f"the handler {self.entrypoint!r} takes no payload")
            return b""
        if payload is NO_PAYLOAD:
            raise InvalidJobError(f"the handler {self.entrypoint!r} takes a payload, and none was given")
        return codec.encode(payload)

    def _given(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of an enqueue, with the handler's where nothing else is said."""
        own = self.options
        given = {"priority": own.priority, "max_attempts": own.attempts_said, **options}
        if own.keep_result is not None:
            given.setdefault("keep_result", own.keep_result)
        if own.concurrency_limit is not None and given.get("concurrency_key") is not None:
            given.setdefault("concurrency_limit", own.concurrency_limit)
        return given

    def __repr__(self) -> str:
        return f"Handler({self.entrypoint!r}, {self.function.__module__}.{self.function.__qualname__})"


def _home_of(function: Callable[..., Any], options: HandlerOptions) -> Home:
    if not inspect.iscoroutinefunction(function):
        return "process" if options.process else "thread"
    if options.process:
        raise TypeError(f"handler {function.__name__!r}: with process=True it must be a plain function, without async")
    return "loop"
