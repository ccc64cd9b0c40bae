"""`Handler`: a function that does jobs, with the options given to its decorator."""

from __future__ import annotations

import copy
import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from itertools import filterfalse
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from pydantic_core import to_json

from jqueue.domain.durations import Duration
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job import Encoding
from jqueue.domain.job_options import check_names
from jqueue.domain.models import Job
from jqueue.domain.operations.call import Call
from jqueue.domain.printable import counted
from jqueue.worker.dependencies import Dependencies, Function, Step
from jqueue.worker.handler_options import EnqueueArguments, HandlerOptions, Middleware, ThreadMiddleware
from jqueue.worker.signatures import (
    BatchVerb,
    Signature,
    has_async,
    is_async,
    name_of,
    read_signature,
    routine_of,
    step_of,
    steps_of,
    takes_payload,
)

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


Where = Literal["loop", "thread", "process"]
"""The place where a function runs."""

A_QUEUE = "`connect(url)` makes a queue, and `SyncQueue(url)` one for code without asyncio"
"""The end of an error about a queue that is missing or is something else."""


class AddsJobs(Protocol[R_co]):
    """A queue that adds jobs: `enqueue` of a `SyncQueue` returns the job, that of an async queue an awaitable."""

    def enqueue(self, *arguments: Any, **options: Any) -> R_co:
        """See `Producer.enqueue`."""


class Handler(Generic[P, R_co]):
    """A decorated function. Calling it calls the function.

    Attributes:
        function: the decorated function.
        entrypoint: the name under which its jobs are enqueued.
        options: the options given to its decorator.
        signature: its parameters and its return type.
        runs_in: the place where it runs: the event loop, a thread, or a process.
        middlewares: the functions called around it, the outermost first.
        thread_middlewares: the functions called around it in its thread, if it runs in one, the outermost first.
        own_options: the options given by `using`.
        queues: returns the queue given by `using`, or those to which its workers are bound.
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
        self.signature: Signature = read_signature(
            function, local_names, takes_batch=options.batch is not None, extra=options.extra
        )
        self.function: Callable[P, R_co] = function
        self.entrypoint = entrypoint
        self.options = options
        if options.keep_result is not None:
            self.signature.returns.adapter()  # a type whose values cannot be kept is refused here
        self.own_options: dict[str, Any] = {}
        self.queues: Callable[[], Sequence[Any]] = tuple
        self.runs_in: Where = "process" if options.process else "loop" if is_async(function) else "thread"
        self.middlewares: tuple[Middleware, ...] = tuple(filter(has_async, options.middleware))
        self.thread_middlewares: tuple[ThreadMiddleware, ...] = tuple(filterfalse(has_async, options.middleware))
        functools.update_wrapper(self, routine_of(function), updated=())
        self.__name__ = name_of(function)
        self.__wrapped__ = function
        if self.runs_in == "process" and (is_async(function) or not hasattr(function, "__qualname__")):
            raise TypeError(
                f"handler {self.__name__!r}: with process=True it must be a function without async that can be imported"
                " by its name"
            )
        if self.thread_middlewares and self.runs_in != "thread":
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

    def using(self, queue: AddsJobs[Any] | None = None, /, **options: Unpack[EnqueueArguments]) -> Self:
        """Return this handler with a queue or options for its calls: `h.using(queue, delay=60).enqueue("ada")`.

        Args:
            queue: the queue of `enqueue` and `result`, or a `SyncQueue` for `enqueue_sync` and `result_sync`; by
                default, the queue to which the worker is bound.
            options: those of `queue.enqueue`: delay, priority, headers and so on. They override those of the handler
                and of an earlier `using`.

        Raises:
            TypeError: an option does not exist, or the first argument is not a queue.
        """
        check_names("using", options, EnqueueArguments.__annotations__)
        if queue is not None and not callable(getattr(queue, "enqueue", None)):
            raise TypeError(f"{self.__name__}.using takes a queue, got {type(queue).__name__}: {A_QUEUE}")
        other = copy.copy(self)
        other.own_options = {**self.own_options, **options}
        if queue is not None:
            other.queues = lambda: (queue,)
        return other

    @takes_payload
    def enqueue(self, /, *arguments: Any, **keywords: Any) -> Coroutine[Any, Any, Job]:
        """Add a job for this handler to its queue, and return it.

        The arguments are those of a call of the handler, without the context and dependencies. Parameters with a
        default may be left out. A batch handler takes one payload of its list.

        Raises:
            InvalidJobError: the arguments are not what the handler takes, or an option has an invalid value.
            TypeError: there is no queue, or it is a `SyncQueue`.
        """
        queue = self._queue(blocks=False)
        return _awaited(lambda: self._add(queue, arguments, keywords))

    @takes_payload
    def enqueue_sync(self, /, *arguments: Any, **keywords: Any) -> Job:
        """Add a job for this handler to a `SyncQueue`, and return it: see `enqueue`."""
        job: Job = self._add(self._queue(blocks=True), arguments, keywords)
        return job

    @takes_payload
    def call(self, /, *arguments: Any, **keywords: Any) -> Call[R_co]:
        """Return the call that `enqueue` would make, as a value for `queue.enqueue_many` and `ctx.on_ack`.

        Raises:
            InvalidJobError: the arguments are not what the handler takes.
            TypeError: there is a `deadline` among the options: give it to `enqueue_many`.
        """
        (payload, encoding), options = self.encode_call(arguments, keywords), self.options_given()
        if "deadline" in options:
            raise TypeError(f"{self.__name__}.using(deadline=...).call: a deadline is for the call that adds the job")
        return Call(self.entrypoint, payload, encoding, options)

    def follow(self, arguments: Mapping[str, Any]) -> Call[R_co]:
        """Return a call whose first argument is the result of another job: see `Call.then`.

        Raises:
            InvalidJobError: the handler has no first argument, or does not take the others.
        """
        _, *others = self.signature.names or (None,)
        if not self.signature.names or (unknown := arguments.keys() - {*others}):
            wrong = f"takes no other argument {min(unknown)!r}" if self.signature.names else "takes no argument"
            raise InvalidJobError(f"the handler {self.entrypoint!r} {wrong}: it cannot follow another job so")
        return Call(self.entrypoint, to_json(dict(arguments)), "chained", self.options_given())

    def _add(self, queue: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        keeps = getattr(getattr(queue, "capabilities", None), "encodings", True)
        payload, encoding = self.encode_call(arguments, keywords, as_value=not keeps)
        options = self.options_given()
        if encoding is not None:
            options["encoding"] = encoding
        return queue.enqueue(self.entrypoint, payload, **options)

    def _queue(self, *, blocks: bool) -> Any:
        """Return the queue of a call.

        Args:
            blocks: True if it must be a `SyncQueue`, whose verbs return their results.
        """
        queues = {id(queue): queue for queue in self.queues()}
        if len(queues) != 1:
            why = "its worker has several, or its workers have" if queues else "none was given, and none is bound"
            raise TypeError(
                f"the handler {self.entrypoint!r} needs a queue: {why}. Give it to each call, as in "
                f"`{self.__name__}.using(queue).enqueue(...)`, or once: `worker.bind(queue)`. {A_QUEUE}"
            )
        [queue] = queues.values()
        if (getattr(queue, "blocks", False) is True) is not blocks:  # this room cannot import the class of a SyncQueue
            way = "a SyncQueue: call enqueue_sync and result_sync" if not blocks else "async: await enqueue and result"
            raise TypeError(f"the queue of the handler {self.entrypoint!r} is {way}")
        return queue

    @overload
    def result(
        self: Handler[..., Awaitable[T]], job: Job | str, *, timeout: Duration | None = None
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def result(self, job: Job | str, *, timeout: Duration | None = None) -> Coroutine[Any, Any, R_co]: ...
    def result(self, job: Job | str, *, timeout: Duration | None = None) -> Any:
        """Wait until a job of this handler is finished, and return what the handler returned.

        Args:
            job: the job or its id. It must have been enqueued with `keep_result`.
            timeout: time to wait, a timedelta or seconds; by default, there is no limit.

        Raises:
            JobFailedError: the job is dead.
            ResultTimeoutError: the job was not finished in that time.
            ResultNotKeptError: the job is finished, but its result was not kept.
            TypeError: there is no queue, or it is a `SyncQueue`.
        """
        queue = self._queue(blocks=False)
        return _awaited(lambda: queue.result(job, timeout=timeout), self.signature.returns.parse)

    @overload
    def result_sync(self: Handler[..., Awaitable[T]], job: Job | str, *, timeout: Duration | None = None) -> T: ...
    @overload
    def result_sync(self, job: Job | str, *, timeout: Duration | None = None) -> R_co: ...
    def result_sync(self, job: Job | str, *, timeout: Duration | None = None) -> Any:
        """Wait in a `SyncQueue` until a job of this handler is finished: see `result`."""
        return self.signature.returns.parse(self._queue(blocks=True).result(job, timeout=timeout))

    def override(self, functions: Mapping[Function, Function]) -> None:
        """Have other functions called in place of those of dependencies.

        Raises:
            InvalidJobError: the handler runs in a process, which knows nothing of them.
            TypeError: a function takes something that a dependency cannot get.
        """
        call = self.signature.call
        if not isinstance(call, Dependencies) or functions.keys().isdisjoint(call.steps):
            return
        if self.runs_in == "process":
            raise InvalidJobError(f"the handler {self.entrypoint!r} runs in a process, where overrides do not reach it")

        def read(named: str, function: Function) -> Step:
            if function not in functions and function in call.steps:
                return call.steps[function]
            return step_of(named, functions.get(function, function), None, self.options.batch is not None)

        steps = steps_of(f"handler {self.__name__!r}", call.handler, read)
        self.signature = replace(self.signature, call=replace(call, steps=steps))

    def encode_call(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any], *, as_value: bool = False
    ) -> tuple[bytes, Encoding | None]:
        """Return the payload of a call with these arguments, and its encoding: see `Signature.encode`.

        Raises:
            InvalidJobError: they are not what the handler takes.
        """
        names, most = self.signature.names, self.signature.positional
        named_values = {**dict(zip(names, arguments, strict=False)), **keywords}
        wrong = ""
        if len(arguments) > most:
            takes = f"at most {counted(most, 'argument')} by position" if names else "no payload"
            wrong = f"takes {takes}, got {len(arguments)}"
        elif unknown := named_values.keys() - set(names):
            wrong = f"takes no argument {min(unknown)!r} (its payload: {', '.join(names) or 'none'})"
        elif len(named_values) < len(arguments) + len(keywords):
            twice = next(name for name in names[: len(arguments)] if name in keywords)
            wrong = f"got its argument {twice!r} twice"
        if wrong:
            is_queue = bool(arguments) and callable(getattr(arguments[0], "enqueue", None))
            if is_queue or not EnqueueArguments.__annotations__.keys().isdisjoint(keywords):
                wrong += f". A queue and options go into `{self.__name__}.using(queue, delay=60).enqueue(...)`"
            raise InvalidJobError(f"the handler {self.entrypoint!r} {wrong}")
        return self.signature.encode(named_values, as_value=as_value)

    def options_given(self) -> dict[str, Any]:
        """Return the options of its calls: its own, and over them those of `using`."""
        own = self.options
        options: dict[str, Any] = {"priority": own.priority, "max_attempts": own.attempts_said}
        options |= {"keep_result": own.keep_result, **self.own_options}
        if own.concurrency_limit is not None and options.get("concurrency_key") is not None:
            options.setdefault("concurrency_limit", own.concurrency_limit)
        if own.fair_by_concurrency_key:
            options.setdefault("fair_key", options.get("concurrency_key"))
        return options

    def __repr__(self) -> str:
        return f"Handler({self.entrypoint!r}, {self.__module__}.{self.__qualname__})"


class BatchHandler(Handler[P, R_co]):
    """A decorated function that takes a batch of jobs. Each job is enqueued with one payload of its list."""

    if TYPE_CHECKING:
        enqueue: BatchVerb[Coroutine[Any, Any, Job]]
        enqueue_sync: BatchVerb[Job]
        call: BatchVerb[Call[Any]]

        def result(self, job: Job | str, *, timeout: Duration | None = None) -> Coroutine[Any, Any, Any]:
            """See `Handler.result`."""

        def result_sync(self, job: Job | str, *, timeout: Duration | None = None) -> Any:
            """See `Handler.result_sync`."""


async def _awaited(call: Callable[[], Awaitable[Any]], parse: Callable[[Any], Any] = lambda value: value) -> Any:
    """Make a call once it is awaited, so that its errors are raised there."""
    return parse(await call())
