"""`Handler`: a function that does jobs, with the options given to its decorator."""

from __future__ import annotations

import copy
import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from itertools import filterfalse
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from jqueue.domain.durations import Duration
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import Job
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.printable import counted
from jqueue.ports.queue import Producer
from jqueue.worker.dependencies import Dependencies, Function, Step
from jqueue.worker.handler_options import EnqueueArguments, HandlerOptions, Middleware, ThreadMiddleware
from jqueue.worker.payloads import MISSING
from jqueue.worker.signatures import (
    AddsJobs,
    BatchVerb,
    Signature,
    enqueue_by_payload,
    has_async,
    is_async,
    name_of,
    operation_by_payload,
    read_signature,
    routine_of,
    step_of,
    steps_of,
)

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


Home = Literal["loop", "thread", "process"]
"""The place where a function runs."""


class Handler(Generic[P, R_co]):
    """A decorated function. Calling it calls the function.

    Attributes:
        function: the decorated function.
        entrypoint: the name under which its jobs are enqueued.
        options: the options given to its decorator.
        signature: its parameters and its return type.
        home: the place where it runs: the event loop, a thread, or a process.
        middlewares: the functions called around it, the outermost first.
        thread_middlewares: the functions called around it in its thread, if it runs in one, the outermost first.
        queues: returns the queues to which its workers are bound.
    """

    __name__: str
    __qualname__: str

    def __init__(
        self,
        function: Callable[P, R_co],
        entrypoint: str,
        options: HandlerOptions,
        local_names: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(function, Handler):
            function = function.function
        self.signature: Signature = read_signature(function, local_names, takes_batch=options.batch is not None)
        self.function: Callable[P, R_co] = function
        self.entrypoint = entrypoint
        self.options = options
        if options.keep_result is not None:
            self.signature.returns.adapter()  # a type whose values cannot be kept is refused here
        self._options: dict[str, Any] = {}
        self.queues: Callable[[], Sequence[Any]] = tuple
        self.home: Home = "process" if options.process else "loop" if is_async(function) else "thread"
        self.middlewares: tuple[Middleware, ...] = tuple(filter(has_async, options.middleware))
        self.thread_middlewares: tuple[ThreadMiddleware, ...] = tuple(filterfalse(has_async, options.middleware))
        functools.update_wrapper(self, routine_of(function), updated=())
        self.__name__ = name_of(function)
        self.__wrapped__ = function
        if self.home == "process" and (is_async(function) or not hasattr(function, "__qualname__")):
            raise TypeError(
                f"handler {self.__name__!r}: with process=True it must be a function without async that can be imported"
                " by its name"
            )
        if self.thread_middlewares and self.home != "thread":
            wrong = name_of(self.thread_middlewares[0])
            raise TypeError(f"handler {self.__name__!r} runs in no thread: its middleware {wrong!r} must be async")

    @property
    def place(self) -> str:
        """The module and name of the function, and its line, for errors."""
        code = getattr(routine_of(self.function), "__code__", None)
        line = "" if code is None else f", line {code.co_firstlineno}"
        return f"{self.__module__}.{self.__qualname__}{line}"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function itself, as in a test of it."""
        return self.function(*args, **kwargs)

    @enqueue_by_payload
    def enqueue(self, /, *arguments: Any, **keywords: Any) -> Any:
        """Add a job for this handler, and return it. With an async queue, the call is awaited.

        Keywords that are named like a payload parameter of the handler are payload; all others are options.

        Args:
            arguments: the queue, an async queue or a `SyncQueue`, and the payload, as in a call of the handler.
                Parameters with a default may be left out. A first argument that has no method `enqueue` is no queue:
                the job is then added to the queue to which the worker is bound.
            keywords: more of the payload by name, and the options of `queue.enqueue`: delay, priority, headers and so
                on, which override those of `with_options` and of the handler.

        Raises:
            InvalidJobError: the payload is not what the handler takes, or an option has an invalid value.
            TypeError: an option does not exist, or there is no queue.
        """
        queue, payload = self._queue_and_rest(arguments)

        def add() -> Any:
            data, options = self._split(payload, keywords)
            return queue.enqueue(self.entrypoint, data, **options)

        return add() if _blocks(queue) else _awaited(add)

    def _queue_and_rest(self, arguments: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """Return the queue of a call, and its arguments behind the queue."""
        if arguments and callable(getattr(arguments[0], "enqueue", None)):
            return arguments[0], arguments[1:]
        queues = {id(queue): queue for queue in self.queues()}
        if len(queues) == 1:
            return queues.popitem()[1], arguments
        why = "its router is in workers with different queues" if queues else "none was given, and none is bound"
        raise TypeError(
            f"the handler {self.entrypoint!r} needs a queue: {why}. Give it first, as in "
            f"`{self.__name__}.enqueue(queue, ...)`, or once for all calls: `worker.bind(queue)`. "
            "`connect(url)` makes a queue, and `SyncQueue(url)` one for code without asyncio"
        )

    @operation_by_payload
    def operation(self, /, *payload: Any, **keywords: Any) -> Enqueue:
        """Return an operation that adds a job for this handler: for `queue.apply`, `enqueue_many` and `ctx.on_ack`.

        Args:
            payload: the payload, as for `enqueue`.
            keywords: more of the payload by name, and the options of `Enqueue`.

        Raises:
            InvalidJobError: the payload is not what the handler takes.
            TypeError: an option does not exist.
        """
        data, options = self._split(payload, keywords)
        return Enqueue(self.entrypoint, data, **options)

    def with_options(self, **options: Unpack[EnqueueArguments]) -> Self:
        """Return this handler with options for its `enqueue` and `operation`: `h.with_options(delay=60).enqueue(...)`.

        It can give every option, also one that has the name of a payload parameter.
        """
        other = copy.copy(self)
        other._options = {**self._options, **options}
        return other

    @overload
    def result(
        self: Handler[..., Awaitable[T]], queue: AddsJobs[Job], job: Job | str, *, timeout: Duration | None = None
    ) -> T: ...
    @overload
    def result(self, queue: AddsJobs[Job], job: Job | str, *, timeout: Duration | None = None) -> R_co: ...
    @overload
    def result(
        self: Handler[..., Awaitable[T]], queue: Producer, job: Job | str, *, timeout: Duration | None = None
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def result(
        self, queue: Producer, job: Job | str, *, timeout: Duration | None = None
    ) -> Coroutine[Any, Any, R_co]: ...
    @overload
    def result(self, queue: Job | str, *, timeout: Duration | None = None) -> Any: ...
    def result(self, queue: Any, job: Job | str | None = None, *, timeout: Duration | None = None) -> Any:
        """Wait until a job of this handler is finished, and return what the handler returned.

        Args:
            queue: the queue that holds the job: an async queue, whose call is awaited, or a `SyncQueue`. It is left out
                if the worker is bound to a queue.
            job: the job or its id. It must have been enqueued with `keep_result`.
            timeout: time to wait, a timedelta or seconds; by default, there is no limit.

        Raises:
            JobFailedError: the job is dead.
            ResultTimeoutError: the job was not finished in that time.
            ResultNotKeptError: the job is finished, but its result was not kept.
            TypeError: there is no queue.
        """
        queue, [job] = self._queue_and_rest((queue,) if job is None else (queue, job))
        ask = functools.partial(queue.result, job, timeout=timeout)
        parse = self.signature.returns.parse
        return parse(ask()) if _blocks(queue) else _awaited(ask, parse)

    def override(self, functions: Mapping[Function, Function]) -> None:
        """Have other functions called in place of those of dependencies.

        Raises:
            InvalidJobError: the handler runs in a process, which knows nothing of them.
            TypeError: a function takes something that a dependency cannot get.
        """
        call = self.signature.call
        if not isinstance(call, Dependencies) or functions.keys().isdisjoint(call.steps):
            return
        if self.home == "process":
            raise InvalidJobError(f"the handler {self.entrypoint!r} runs in a process, where overrides do not reach it")

        def read(named: str, function: Function) -> Step:
            if function not in functions and function in call.steps:
                return call.steps[function]
            return step_of(named, functions.get(function, function), None, self.options.batch is not None)

        steps = steps_of(f"handler {self.__name__!r}", call.handler, read)
        self.signature = replace(self.signature, call=replace(call, steps=steps))

    def keep_result_of(self, job: Job) -> Duration | None:
        """Return the time to keep the result of a job: the job's own, else the handler's. None: it is not kept."""
        return self.options.keep_result if job.keep_result is None else job.keep_result

    def encode(self, payload: Any = MISSING) -> bytes:
        """Return a payload of this handler as bytes. That of several parameters is a mapping by their names.

        Raises:
            InvalidJobError: the payload is not what the handler takes.
        """
        codec = self.signature.codec
        if codec is None:
            if payload is not MISSING:
                raise InvalidJobError(f"the handler {self.entrypoint!r} takes no payload")
            return b""
        payload = codec.default if payload is MISSING else payload
        if payload is MISSING:
            raise InvalidJobError(f"the handler {self.entrypoint!r} takes a payload, but none was given")
        return codec.encode(payload)

    def _split(self, payload: Sequence[Any], keywords: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        """Return the encoded payload in the arguments of a call, and its options, completed by the handler's own."""
        names = self.signature.names
        if len(payload) > self.signature.positional:
            takes = f"at most {counted(self.signature.positional, 'argument')} by position" if names else "no payload"
            raise InvalidJobError(f"the handler {self.entrypoint!r} takes {takes}, got {len(payload)}")
        arguments = dict(zip(names, payload, strict=False))
        for name in names:
            if name in keywords and name in arguments:
                raise InvalidJobError(f"the handler {self.entrypoint!r} got its argument {name!r} twice")
            if name in keywords:
                arguments[name] = keywords.pop(name)
        if unknown := keywords.keys() - EnqueueArguments.__annotations__.keys():
            raise TypeError(
                f"the handler {self.entrypoint!r} takes no argument {min(unknown)!r}, and there is no such option of"
                f" enqueue (its payload: {', '.join(names) or 'none'})"
            )
        own = self.options
        options: dict[str, Any] = {"priority": own.priority, "max_attempts": own.attempts_said}
        options |= {"keep_result": own.keep_result, **self._options, **keywords}
        if own.concurrency_limit is not None and options.get("concurrency_key") is not None:
            options.setdefault("concurrency_limit", own.concurrency_limit)
        return self.encode(arguments if len(names) > 1 else next(iter(arguments.values()), MISSING)), options

    def __repr__(self) -> str:
        return f"Handler({self.entrypoint!r}, {self.__module__}.{self.__qualname__})"


class BatchHandler(Handler[P, R_co]):
    """A decorated function that takes a batch of jobs. Each job is enqueued with one payload of its list."""

    if TYPE_CHECKING:
        enqueue: BatchVerb[Any]
        operation: BatchVerb[Enqueue]

        def result(self, queue: Any, job: Any = None, *, timeout: Duration | None = None) -> Any:
            """See `Handler.result`."""


def _blocks(queue: object) -> bool:
    """True for a `SyncQueue`, whose verbs return their results. This room cannot import its class."""
    return getattr(queue, "blocks", False) is True


async def _awaited(call: Callable[[], Awaitable[Any]], parse: Callable[[Any], Any] = lambda value: value) -> Any:
    """Make a call once it is awaited, so that its errors are raised there."""
    return parse(await call())
