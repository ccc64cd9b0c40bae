"""`Worker`: registers handlers and runs them."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast, overload

from jqueue.domain.cron import check_cron
from jqueue.domain.errors import InvalidJobError
from jqueue.ports.queue import JobQueue
from jqueue.worker.declaring import Cron
from jqueue.worker.handler_options import (
    HandlerArguments,
    HandlerOptions,
    Lifespan,
    Middleware,
    OtherArguments,
    ThreadMiddleware,
    WorkerSettings,
)
from jqueue.worker.handlers import NO_PAYLOAD, BatchHandler, Handler
from jqueue.worker.report import RunReport
from jqueue.worker.run import Run
from jqueue.worker.signatures import is_async, name_of

P = ParamSpec("P")
R = TypeVar("R")

LifespanT = TypeVar("LifespanT", bound=Lifespan)
MiddlewareT = TypeVar("MiddlewareT", bound=Middleware)
ThreadMiddlewareT = TypeVar("ThreadMiddlewareT", bound=ThreadMiddleware)
MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def _checks_first_argument(name: str, hint: str) -> Callable[[MethodT], MethodT]:
    """Have a method say what to write if its first argument is not a string, as in `@worker.handler` or `handler()`."""

    def decorate(method: MethodT) -> MethodT:
        @functools.wraps(method)
        def checked(self: Worker, *given: Any, **options: Any) -> Any:
            if not isinstance(given[0] if given else options.get(name), str):
                raise TypeError(hint)
            return method(self, *given, **options)

        return cast(MethodT, checked)

    return decorate


def _takes(settings: Callable[P, object]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a method the keyword arguments of the settings: for type checkers, editors and `help`."""

    def decorate(method: Any) -> Callable[Concatenate[Any, P], None]:
        own = inspect.signature(method).parameters["self"]
        parameters = [own, *inspect.signature(settings).parameters.values()]
        method.__signature__ = inspect.Signature(parameters, return_annotation=None)
        return cast(Callable[Concatenate[Any, P], None], method)

    return decorate


class Worker:
    """Handlers for jobs, and the loop that claims, runs, retries and finishes them.

        worker = Worker(concurrency=50)

        @worker.handler("send_email", max_attempts=8, timeout=30)
        async def send_email(message: Email, ctx: Context) -> None: ...

        await worker.run(queue)

    Args:
        settings: see `WorkerSettings`.

    Attributes:
        settings: the settings, as a frozen `WorkerSettings`. `dataclasses.replace` makes others.
        handlers: the handlers, by entrypoint.
        crons: the cron entries of the handlers.
    """

    @_takes(WorkerSettings)
    def __init__(self, **settings: Any) -> None:
        self.settings = WorkerSettings(**settings)
        self.handlers: dict[str, Handler[..., Any]] = {}
        self.crons: list[Cron] = []
        self._middlewares: list[Middleware] = []
        self._thread_middlewares: list[ThreadMiddleware] = []
        self._run: Run | None = None

    @overload
    def handler(
        self, entrypoint: str, *, batch: int, **options: Unpack[OtherArguments]
    ) -> Callable[[Callable[P, R]], BatchHandler[P, R]]: ...
    @overload
    def handler(
        self, entrypoint: str, **options: Unpack[HandlerArguments]
    ) -> Callable[[Callable[P, R]], Handler[P, R]]: ...
    @_checks_first_argument("entrypoint", 'write @worker.handler("name"), with the name under which jobs are enqueued')
    def handler(
        self, entrypoint: str, **options: Unpack[HandlerArguments]
    ) -> Callable[[Callable[P, R]], Handler[P, R]]:
        """Register a function as the handler of an entrypoint.

        It takes a payload, a `Context`, both or none. The payload is parsed as the annotation of its parameter says:
        `bytes`, `str`, or anything that pydantic can validate from JSON. A function without `async` runs in a thread.
        If it is a handler of another worker, only its function is used, not its options.

        With `batch`, it takes a list of payloads, a `BatchContext`, both or none. It returns None if all jobs
        succeeded, or a list with the result of each. An exception in the list fails its job alone; an exception that
        is raised fails all jobs of the batch.

        Args:
            entrypoint: the name under which jobs are enqueued.
            options: max_attempts, backoff, timeout, max_running, rate, concurrency_limit, process, priority,
                keep_result, batch and batch_wait; see `HandlerOptions`.

        Returns:
            A decorator that makes a `Handler`. It can be called like the function, and it enqueues jobs.

        Raises:
            InvalidJobError: an option has an invalid value, or the entrypoint has a handler already.
            TypeError: the function takes something that a worker cannot give, or an option does not exist.
        """
        checked = HandlerOptions(**options)

        def decorate(function: Callable[P, R]) -> Handler[P, R]:
            make: Callable[..., Handler[P, R]] = Handler if checked.batch is None else BatchHandler
            return self._register(make(function, entrypoint, checked, sys._getframe(1).f_locals))

        return decorate

    @_checks_first_argument("cron", 'write @worker.cron("0 3 * * *"), with the times at which jobs are enqueued')
    def cron(
        self,
        cron: str,
        *,
        timezone: str = "UTC",
        name: str | None = None,
        payload: Any = NO_PAYLOAD,
        unique_key: str | None = None,
        **options: Unpack[HandlerArguments],
    ) -> Callable[[Callable[P, R]], Handler[P, R]]:
        """Register a function as a handler whose jobs are enqueued on a schedule, once for any number of workers.

        Args:
            cron: five fields, as in a crontab, or six, the first for seconds.
            timezone: time zone of the fields.
            name: name of the schedule and of the entrypoint; by default, the name of the function.
            payload: payload of the jobs, if the handler takes one.
            unique_key: unique key of the jobs. While a job with this key is unfinished, further ones are left out.
            options: the options of `handler`.

        Raises:
            InvalidJobError: the schedule is invalid, or an option has an invalid value.
            TypeError: the function takes something that a worker cannot give, or an option does not exist.
        """
        checked = HandlerOptions(**options)

        def decorate(function: Callable[P, R]) -> Handler[P, R]:
            make: Callable[..., Handler[P, R]] = Handler if checked.batch is None else BatchHandler
            handler = make(function, name or name_of(function), checked, sys._getframe(1).f_locals)
            entry = Cron(handler.entrypoint, cron, timezone, handler, handler.encode(payload), unique_key)
            check_cron(cron, timezone)
            self._register(handler)
            self.crons.append(entry)
            return handler

        return decorate

    def middleware(self, function: MiddlewareT) -> MiddlewareT:
        """Register a function that is called around every handler. The first that is registered is the outermost.

        async def timed(ctx, call_next):
            return await call_next()
        """
        self._middlewares.append(function)
        return function

    def thread_middleware(self, function: ThreadMiddlewareT) -> ThreadMiddlewareT:
        """Register a function that is called in the thread of each handler without `async`, around the handler.

        def traced(ctx, call_next):
            return call_next()

        Raises:
            TypeError: the function is async.
        """
        if is_async(function):
            raise TypeError("a thread_middleware is a function without async: for async functions, use middleware")
        self._thread_middlewares.append(function)
        return function

    def lifespan(self, function: LifespanT) -> LifespanT:
        """Register the context manager of the resources that all handlers share: see `Worker`.

        Raises:
            InvalidJobError: the worker has a lifespan already.
        """
        if self.settings.lifespan is not None:
            raise InvalidJobError("this worker already has a lifespan: open everything in that one")
        self.settings = replace(self.settings, lifespan=function)
        return function

    async def run(self, queue: JobQueue, *, drain: bool = False, signals: bool = True) -> RunReport:
        """Do the jobs of a queue until stopped by `stop`, SIGTERM, SIGHUP or SIGINT.

        A stopped worker claims no more jobs. Running jobs get `grace` to finish; the rest are handed back unharmed. A
        second signal hands back at once.

        Args:
            queue: any queue. A queue that needs opening and is not open is opened here, and closed in the end.
            drain: True to end when nothing is ready and nothing runs. Jobs that are scheduled for later do not count.
            signals: True to stop at these signals, which works only in the main thread.

        Returns:
            The number of jobs by outcome.

        Raises:
            RuntimeError: the worker runs already, or has no handlers.
            InvalidJobError: the queue does not support what a handler declares.
            StorageFatalError: the queue cannot be used, and could not since the start, or for `give_up_after`.
            JQueueError: handlers that do not stop have taken all slots for `give_up_after`.
            QueueClosedError: the queue was closed meanwhile.
            KeyboardInterrupt: a handler raised it, with `signals=False` and the event loop in the main thread. The run
                ends as after a second signal: all jobs are handed back first.
        """
        if self._run is not None and not self._run.is_over:
            raise RuntimeError("this worker is already running: stop it first, or make another one")
        if not self.handlers:
            raise RuntimeError('this worker has no handlers: register one with @worker.handler("name")')
        handlers = {name: self._wrapped(handler) for name, handler in self.handlers.items()}
        self._run = run = Run(self.settings, handlers, tuple(self.crons), queue, drain=drain, signals=signals)
        try:
            return await run.perform()
        finally:
            self._run = None

    def stop(self) -> None:
        """Stop as SIGTERM does; a second call stops at once. Any thread may call it. Does nothing between runs."""
        run = self._run
        if run is not None:
            run.stop_from_anywhere()

    def _register(self, handler: Handler[P, R]) -> Handler[P, R]:
        if handler.entrypoint in self.handlers:
            raise InvalidJobError(f"the entrypoint {handler.entrypoint!r} already has a handler")
        self.handlers[handler.entrypoint] = handler
        return handler

    def _wrapped(self, handler: Handler[..., Any]) -> Handler[..., Any]:
        """Return a handler with the middleware of this worker around it."""
        wrapped, tracing = copy.copy(handler), self.settings.tracing
        traced = () if tracing is None else (tracing.middleware,)
        wrapped.middlewares = (*traced, *self._middlewares, *handler.middlewares)
        wrapped.thread_middlewares = (*self._thread_middlewares, *handler.thread_middlewares)
        return wrapped

    def __repr__(self) -> str:
        name, concurrency = self.settings.name, self.settings.concurrency
        return f"Worker(name={name!r}, concurrency={concurrency}, handlers={sorted(self.handlers)})"
