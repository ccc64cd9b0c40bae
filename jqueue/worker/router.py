"""`Router`: registers handlers, cron entries and middleware. A worker is one that also runs them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from jqueue.domain.cron import check_cron
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.operations.rules import SetSchedule
from jqueue.worker.handler_options import (
    HandlerArguments,
    HandlerOptions,
    Middleware,
    OtherArguments,
    ThreadMiddleware,
)
from jqueue.worker.handlers import BatchHandler, Handler
from jqueue.worker.payloads import MISSING
from jqueue.worker.signatures import has_async, name_of

P = ParamSpec("P")
R = TypeVar("R")

MiddlewareT = TypeVar("MiddlewareT", bound=Middleware)
ThreadMiddlewareT = TypeVar("ThreadMiddlewareT", bound=ThreadMiddleware)


class Router:
    """Handlers of a module that knows no worker. A worker takes them by `worker.include(router)`.

        router = Router(prefix="mail.", max_attempts=8)

        @router.handler
        async def send(message: Email) -> None: ...  # the entrypoint is "mail.send"

    Args:
        prefix: text before the name of each entrypoint and cron entry.
        defaults: options of its handlers, unless their decorators say otherwise: see `HandlerOptions`. `middleware` is
            around that of the handlers.

    Attributes:
        handlers: the handlers, by entrypoint.
        crons: the operations that set the cron entries of the handlers.
        workers: the workers that include it.
    """

    def __init__(self, prefix: str = "", **defaults: Unpack[OtherArguments]) -> None:
        HandlerOptions(**defaults)  # checks them
        self.handlers: dict[str, Handler[..., Any]] = {}
        self.crons: list[SetSchedule] = []
        self.workers: list[Router] = []
        self._prefix = prefix
        self._middlewares = [each for each in defaults.get("middleware", ()) if has_async(each)]
        self._thread_middlewares = [each for each in defaults.pop("middleware", ()) if not has_async(each)]
        self._defaults = defaults

    @overload
    def handler(self, entrypoint: Callable[P, R]) -> Handler[P, R]: ...
    @overload
    def handler(
        self, entrypoint: str | None = None, *, batch: int, **options: Unpack[OtherArguments]
    ) -> Callable[[Callable[P, R]], BatchHandler[P, R]]: ...
    @overload
    def handler(
        self, entrypoint: str | None = None, **options: Unpack[HandlerArguments]
    ) -> Callable[[Callable[P, R]], Handler[P, R]]: ...
    def handler(self, entrypoint: Any = None, **options: Unpack[HandlerArguments]) -> Any:
        """Register a function as the handler of an entrypoint: `@worker.handler`, or `@worker.handler("name", ...)`.

        It may take a `Context`, and dependencies by `Depends`. Every other parameter is payload, which is parsed as
        their annotations say: `bytes`, `str`, or anything that pydantic can validate from JSON. Several are a JSON
        object by name. A function without `async` runs in a thread. If it is a handler of another worker, only its
        function is used, not its options.

        With `batch`, it takes a list of payloads and a `BatchContext` instead. It returns None if all jobs
        succeeded, or a list with the result of each. An exception in the list fails its job alone; an exception that
        is raised fails all jobs of the batch.

        Args:
            entrypoint: the name under which jobs are enqueued; by default, the name of the function.
            options: max_attempts, backoff, retry, timeout, max_running, rate, rate_per_key, concurrency_limit,
                fair_by_concurrency_key, process, priority, keep_result, extra, aliases, middleware, batch and
                batch_wait; see `HandlerOptions`.

        Returns:
            A decorator that makes a `Handler`. It can be called like the function, and it enqueues jobs.

        Raises:
            InvalidJobError: an option has an invalid value, or the entrypoint has a handler already.
            TypeError: the function takes something that a worker cannot give, or an option does not exist.
        """
        if callable(entrypoint):
            return self._register(self._handler(entrypoint, None, self._options(options), sys._getframe(1).f_locals))
        if entrypoint is not None and not isinstance(entrypoint, str):
            raise TypeError(f'write @worker.handler or @worker.handler("name"), got {type(entrypoint).__name__}')
        checked = self._options(options)

        def decorate(function: Callable[P, R]) -> Handler[P, R]:
            return self._register(self._handler(function, entrypoint, checked, sys._getframe(1).f_locals))

        return decorate

    def cron(
        self,
        cron: str,
        *,
        timezone: str = "UTC",
        name: str | None = None,
        payload: Any = MISSING,
        unique_key: str | None = None,
        **options: Unpack[HandlerArguments],
    ) -> Callable[[Callable[P, R]], Handler[P, R]]:
        """Register a function as a handler whose jobs are enqueued on a schedule, once for any number of workers.

        Args:
            cron: five fields, as in a crontab, or six, the first for seconds.
            timezone: time zone of the fields.
            name: name of the schedule and of the entrypoint; by default, the name of the function.
            payload: payload of the jobs, if the handler takes one; of several parameters, a mapping by their names.
            unique_key: unique key of the jobs. While a job with this key is unfinished, further ones are left out.
            options: the options of `handler`.

        Raises:
            InvalidJobError: the schedule is invalid, or an option has an invalid value.
            TypeError: the function takes something that a worker cannot give, or an option does not exist.
        """
        if not isinstance(cron, str):
            raise TypeError('write @worker.cron("0 3 * * *"), with the times at which jobs are enqueued')
        checked = self._options(options)

        def decorate(function: Callable[P, R]) -> Handler[P, R]:
            handler = self._handler(function, name, checked, sys._getframe(1).f_locals)
            arguments: Mapping[str, Any] = {}
            if payload is not MISSING:
                names = handler.signature.names
                is_by_name = len(names) > 1 and isinstance(payload, Mapping)
                arguments = payload if is_by_name else {names[0] if names else "payload": payload}
            encoded, encoding = handler.encode_call((), arguments)
            check_cron(cron, timezone)
            entry = SetSchedule(
                handler.entrypoint,
                cron,
                handler.entrypoint,
                encoded,
                timezone=timezone,
                unique_key=unique_key,
                by="program",
                encoding=encoding,
                **handler.options_given(),
            )
            self._register(handler)
            self.crons.append(entry)
            return handler

        return decorate

    def middleware(self, function: MiddlewareT) -> MiddlewareT:
        """Register a function that is called around every handler. The first that is registered is the outermost.

        It gets the context of the job, and the function that calls what is inside:

            @worker.middleware
            async def timed(ctx, call_next):
                return await call_next()
        """
        self._check_open()
        self._middlewares.append(function)
        return function

    def thread_middleware(self, function: ThreadMiddlewareT) -> ThreadMiddlewareT:
        """Register a function that is called in the thread of each handler without `async`, around the handler.

            @worker.thread_middleware
            def traced(ctx, call_next):
                return call_next()

        Raises:
            TypeError: the function is async.
        """
        if has_async(function):
            raise TypeError("a thread_middleware is a function without async: for async functions, use middleware")
        self._check_open()
        self._thread_middlewares.append(function)
        return function

    def wrap(self, handler: Handler[P, R]) -> Handler[P, R]:
        """Return a copy of a handler with the middleware around it."""
        wrapped = copy.copy(handler)
        wrapped.middlewares = (*self._middlewares, *handler.middlewares)
        wrapped.thread_middlewares = (*self._thread_middlewares, *handler.thread_middlewares)
        return wrapped

    def queues(self) -> Sequence[Any]:
        """Return the queues to which its workers are bound."""
        return [queue for worker in self.workers for queue in worker.queues()]

    def _options(self, options: HandlerArguments) -> HandlerOptions:
        own: Any = {**self._defaults, **options}
        return HandlerOptions(**own)

    def _handler(
        self, function: Callable[P, R], name: str | None, options: HandlerOptions, local_names: Mapping[str, Any]
    ) -> Handler[P, R]:
        make: Callable[..., Handler[P, R]] = Handler if options.batch is None else BatchHandler
        entrypoint = self._prefix + (name_of(function) if name is None else name)
        handler = make(function, entrypoint, options, local_names)
        handler.queues = self.queues
        return handler

    def _register(self, handler: Handler[P, R]) -> Handler[P, R]:
        self._check_open()
        for name in (handler.entrypoint, *(self._prefix + each for each in handler.options.aliases)):
            named = copy.copy(handler) if name != handler.entrypoint else handler
            named.entrypoint = name
            self._check_name(named)
            self.handlers[name] = named
        return handler

    def _check_open(self) -> None:
        if self.workers:
            raise InvalidJobError("a worker includes this router already: register all that it has before `include`")

    def _check_name(self, handler: Handler[..., Any]) -> None:
        other = self.handlers.get(handler.entrypoint)
        if other is not None:
            raise InvalidJobError(
                f"the entrypoint {handler.entrypoint!r} already has a handler: {other.place}. Give {handler.place} "
                "another name"
            )
