"""`Worker`: registers handlers and runs them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from jqueue.domain.errors import InvalidJobError
from jqueue.ports.queue import JobQueue
from jqueue.worker.handler_options import Lifespan, OnDead, WorkerSettings
from jqueue.worker.handlers import A_QUEUE, AddsJobs, Handler
from jqueue.worker.router import Router
from jqueue.worker.run import Run, RunReport

P = ParamSpec("P")
R = TypeVar("R")

LifespanT = TypeVar("LifespanT", bound=Lifespan)
OnDeadT = TypeVar("OnDeadT", bound=OnDead)
Report = TypeVar("Report", covariant=True)


class AnyRun(Protocol[Report]):
    """A run of a worker: that of `Worker.run`, or the loop of a partition of a batch on Spark."""

    @property
    def is_over(self) -> bool:
        """True if the run will never end by itself."""

    @property
    def queues_here(self) -> Sequence[JobQueue]:
        """The queues of the run, for code on its event loop. Elsewhere there are none."""

    def stop_from_anywhere(self) -> None:
        """Stop in order, from any thread. A second call stops at once."""

    async def perform(self) -> Report:
        """Do the work, and end in order."""


def _takes(settings: Callable[P, object]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a method the keyword arguments of the settings: for type checkers, editors and `help`."""

    def decorate(method: Any) -> Callable[Concatenate[Any, P], None]:
        own = inspect.signature(method).parameters["self"]
        parameters = [own, *inspect.signature(settings).parameters.values()]
        method.__signature__ = inspect.Signature(parameters, return_annotation=None)
        return cast(Callable[Concatenate[Any, P], None], method)

    return decorate


class Worker(Router):
    """Handlers for jobs, and the loop that claims, runs, retries and finishes them.

        worker = Worker(concurrency=50)

        @worker.handler(max_attempts=8, timeout=30)
        async def send_email(message: Email, ctx: Context) -> None: ...

        await worker.run(queue)

    Args:
        settings: see `WorkerSettings`.

    Attributes:
        settings: the settings, as a frozen `WorkerSettings`. `dataclasses.replace` makes others.
        handlers: the handlers, by entrypoint, those of included routers among them.
        crons: the cron entries of the handlers.
        dependency_overrides: for tests: functions to call in place of those of `Depends`.
    """

    @_takes(WorkerSettings)
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings: WorkerSettings = WorkerSettings(**settings)
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._run: AnyRun[Any] | None = None
        self._queue: Any = None

    def __repr__(self) -> str:
        queues = "".join(f", queue={queue!r}" for queue in self.queues())
        return f"Worker(name={self.settings.name!r}{queues}, handlers={len(self.handlers)})"

    def lifespan(self, function: LifespanT) -> LifespanT:
        """Register the context manager of the resources that all handlers share: see `Worker`.

        Raises:
            InvalidJobError: the worker has a lifespan already.
        """
        if self.settings.lifespan is not None:
            raise InvalidJobError("this worker already has a lifespan: open everything in that one")
        self.settings = replace(self.settings, lifespan=function)
        return function

    def on_dead(self, function: OnDeadT) -> OnDeadT:
        """Register the function that is called with each job that is dead. It gets the `Job`, with its `error`.

        It is called after the commit in which the last attempt failed here, or in which the queue object of this worker
        found that a last attempt, of any handler, had died with its worker. At most once for each: if this process dies
        in between, or the commit is made where no worker runs, it is not called. `ls --status dead` and the history
        know all dead jobs. Its errors are logged, and change nothing. A worker that stops waits for its calls.

        Raises:
            InvalidJobError: the worker has such a function already.
        """
        if self.settings.on_dead is not None:
            raise InvalidJobError("this worker already has a function for dead jobs: call both in one")
        self.settings = replace(self.settings, on_dead=function)
        return function

    def include(self, router: Router) -> None:
        """Add the handlers and cron entries of a router, with its middleware around them, inside that of the worker.

        Raises:
            InvalidJobError: the router is included already, or an entrypoint has a handler already.
            TypeError: it is not a router.
        """
        if isinstance(router, Worker) or not isinstance(router, Router):
            raise TypeError(f"worker.include takes a Router, got {type(router).__name__}")
        if self in router.workers:
            raise InvalidJobError("this router is included in this worker already")
        for handler in router.handlers.values():
            self._check_name(handler)
        for name, handler in router.handlers.items():
            self.handlers[name] = wrapped = router.wrap(handler)
            wrapped.queues = self.queues
        self.crons.extend(router.crons)
        router.workers.append(self)

    def bind(self, queue: AddsJobs[Any]) -> None:
        """Set the queue of all calls that name none: `enqueue` and `result` of the handlers, and `run`.

        A second call replaces it. Until the first, code on the event loop of a running worker has the worker's queue.

        Args:
            queue: an async queue, or a `SyncQueue`, whose calls need no `await` and which cannot `run` a worker.

        Raises:
            TypeError: it is not a queue.
        """
        if not callable(getattr(queue, "enqueue", None)):
            raise TypeError(f"worker.bind takes a queue, got {type(queue).__name__}: {A_QUEUE}")
        self._queue = queue

    def queues(self) -> Sequence[Any]:
        """See `Router.queues`."""
        if self._queue is not None:
            return (self._queue,)
        return () if self._run is None else self._run.queues_here

    async def run(self, *queues: JobQueue, drain: bool = False, signals: bool = True) -> RunReport:
        """Do the jobs of one or several queues until stopped by `stop`, SIGTERM, SIGHUP or SIGINT.

        A stopped worker claims no more jobs. Running jobs get `grace` to finish; the rest are handed back unharmed. A
        second signal hands back at once.

        Args:
            queues: any queues; by default, the one to which the worker is bound. They use the slots of the worker in
                turn. A queue that needs opening and is not open is opened here, and closed in the end.
            drain: True to end when nothing is ready and nothing runs. Jobs that are scheduled for later do not count.
            signals: True to stop at these signals, which works only in the main thread.

        Returns:
            The number of jobs by outcome.

        Raises:
            RuntimeError: the worker runs already, or has no handlers.
            TypeError: there is no queue, or it is not one.
            InvalidJobError: a queue is given twice, or does not support what a handler declares.
            StorageFatalError: a queue cannot be used, and could not since the start, or for `give_up_after`.
            JQueueError: handlers that do not stop have taken all slots for `give_up_after`.
            QueueClosedError: a queue was closed meanwhile.
            KeyboardInterrupt: a handler raised it, with `signals=False` and the event loop in the main thread. The run
                ends as after a second signal: all jobs are handed back first.
        """
        if self._run is not None and not self._run.is_over:
            raise RuntimeError("this worker is already running: stop it first, or make another one")
        if not self.handlers:
            raise RuntimeError("this worker has no handlers: register one with @worker.handler, or include a Router")
        several = [each for each in queues or (self._queue,) if each is not None]
        if not several:
            raise TypeError("this worker has no queue: write `worker.run(queue)`, or `worker.bind(queue)` before")
        if len({id(queue) for queue in several}) < len(several):
            raise InvalidJobError("a queue is given to this worker twice: give each queue once")
        handlers = {name: self.wrap(handler) for name, handler in self.handlers.items()}
        return await self.perform(
            Run(self.settings, handlers, tuple(self.crons), several, drain=drain, signals=signals)
        )

    async def perform(self, run: AnyRun[Report]) -> Report:
        """Do a run, which `stop` ends."""
        self._run = run
        try:
            return await run.perform()
        finally:
            self._run = None

    def stop(self) -> None:
        """Stop as SIGTERM does; a second call stops at once. Any thread may call it. Does nothing between runs."""
        run = self._run
        if run is not None:
            run.stop_from_anywhere()

    def wrap(self, handler: Handler[P, R]) -> Handler[P, R]:
        """See `Router.wrap`. Tracing is outside of all middleware."""
        wrapped = super().wrap(handler)
        wrapped.override(self.dependency_overrides)
        if wrapped.options.retry is None:
            wrapped.options = replace(wrapped.options, retry=self.settings.retry)
        if self.settings.tracing is not None:
            wrapped.middlewares = (self.settings.tracing.middleware, *wrapped.middlewares)
        return wrapped
