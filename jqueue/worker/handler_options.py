"""The options of a handler, of one of its jobs, and of a worker, with their checks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidJobError, shown
from jqueue.domain.job_options import OnceOptions, PriorityOption, RepeatedOptions
from jqueue.domain.limits import check_integer, check_priority
from jqueue.domain.models import Job
from jqueue.telemetry.exporters import address_of
from jqueue.worker.retries import Backoff, Exponential, RetryRule, check_rule

if TYPE_CHECKING:
    from jqueue.telemetry.otel_tracing import OpenTelemetryTracing
    from jqueue.telemetry.prometheus import PrometheusMetrics

MAX_ATTEMPTS = 20
"""Number of times a job may fail, unless it or its handler says otherwise. That takes some half an hour by default."""

DEFAULT_BACKOFF = Exponential()
"""The backoff of a handler that sets none."""

MIN_CLAIM_TIMEOUT = 0.05
"""The shortest claim timeout, in seconds. A shorter claim could hardly be confirmed in time."""

MOST_CLAIMED = 10_000
"""The number of jobs that one dequeue may claim: the largest batch, and the largest concurrency."""

MIB = 2**20
"""Number of bytes in the unit of `max_memory`."""


Middleware = Callable[[Any, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Function called around every handler: `async def timed(ctx, call_next): return await call_next()`.

It gets a `Context`, or a `BatchContext` around a batch handler.
"""

ThreadMiddleware = Callable[[Any, Callable[[], Any]], Any]
"""Function called in the thread of a handler, around it: `def traced(ctx, call_next): return call_next()`."""

OnDead = Callable[[Job], Any]
"""Function called with each job that is dead: `async def tell(job): ...`. Without `async` it is called in a thread."""

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens the resources that all handlers share. They stay open from before the first job until after the last."""


def seconds_of(what: str, value: Duration | None) -> float | None:
    """Return an optional duration in seconds.

    Raises:
        InvalidJobError: it is not a duration.
    """
    return None if value is None else to_seconds(what, value)


def _check(options: Any, durations: Sequence[str], kinds: Sequence[tuple[str, Any, str]]) -> None:
    """Check the options that a handler and a worker have alike.

    Args:
        options: the options.
        durations: the names of the options that are durations.
        kinds: the names of others, with their type and its description.

    Raises:
        InvalidJobError: an option has an invalid value.
    """
    for name in durations:
        seconds_of(name, getattr(options, name))
    for name, kind, words in kinds:
        value = getattr(options, name)
        if not isinstance(value, kind):
            raise InvalidJobError(f"{name} must be {words}, got {type(value).__name__}")
    if options.retry is not None:
        check_rule(options.retry)


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` claims within any span of `per`.

    Attributes:
        count: number of claims.
        per: the span, a timedelta or seconds; one second by default.
    """

    count: int
    per: Duration = 1

    def __post_init__(self) -> None:
        check_integer("Rate's count", self.count, 1, 2**31)
        if not to_seconds("Rate's per", self.per):
            raise InvalidJobError("Rate's per must be greater than zero")


class OtherArguments(TypedDict, total=False):
    """Keyword arguments of `Worker.handler` besides `batch`, by which type checkers tell the two kinds of handlers."""

    max_attempts: int | None
    backoff: Backoff
    retry: RetryRule | None
    timeout: Duration | None
    max_running: int | None
    rate: Rate | None
    rate_per_key: Rate | None
    concurrency_limit: int | None
    fair_by_concurrency_key: bool
    process: bool
    priority: int
    keep_result: Duration | None
    extra: Literal["forbid", "ignore"]
    aliases: Sequence[str]
    batch_wait: Duration
    middleware: Sequence[Middleware | ThreadMiddleware]


class HandlerArguments(OtherArguments, total=False):
    """Keyword arguments of `Worker.handler` and `Worker.cron`: see `HandlerOptions`."""

    batch: int | None


class EnqueueArguments(PriorityOption, OnceOptions, RepeatedOptions, total=False):
    """Keyword arguments of `Handler.enqueue`: those of `Enqueue`, and `deadline`, the time that the call may take."""

    deadline: Duration | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """The options of a handler. Durations are timedeltas or seconds.

    Attributes:
        max_attempts: number of failures after which a job is dead, unless the job says otherwise; 20 by default, None:
            never.
        backoff: the wait before the next try.
        retry: what becomes of a job by the class of its error: `{RateLimited: 60, ValueError: Discard}`, or a function
            of the error and the number of failures. The backoff decides about errors that it does not name.
        timeout: time that the handler may take, a timedelta or seconds; None for no limit.
        max_running: number of these jobs that may run at once, over all workers; None: any number.
        rate: number of these jobs that may be claimed within a span of time, over all workers.
        rate_per_key: the same for the jobs with the same `concurrency_key`, or if they have none, `fair_key`.
        concurrency_limit: number of jobs with the same `concurrency_key` that may run at once, given with each enqueue;
            None: one.
        fair_by_concurrency_key: True if the `concurrency_key` of a job is its `fair_key`, too.
        process: True to run the handler in a separate process.
        priority: priority of the jobs that the handler enqueues; lower is served first, and 0 is the default.
        keep_result: time to keep the result, a timedelta or seconds; None: it is not kept.
        extra: "ignore" to drop arguments of a job that the handler does not know; such a job is dead by default.
        aliases: earlier names of the handler, whose jobs it runs too. Limits hold for each name by itself.
        batch: largest number of jobs in one call of the handler, which then takes a list of payloads; None: each call
            takes one payload.
        batch_wait: time to wait for more jobs if a batch is not full. By default, it takes the jobs that are ready.
        middleware: functions called around this handler, inside those of its worker, the outermost first. A function
            without `async` is called in the thread of the handler.
    """

    max_attempts: int | None = MAX_ATTEMPTS
    backoff: Backoff = DEFAULT_BACKOFF
    retry: RetryRule | None = None
    timeout: Duration | None = None
    max_running: int | None = None
    rate: Rate | None = None
    rate_per_key: Rate | None = None
    concurrency_limit: int | None = None
    fair_by_concurrency_key: bool = False
    process: bool = False
    priority: int = 0
    keep_result: Duration | None = None
    extra: Literal["forbid", "ignore"] = "forbid"
    aliases: Sequence[str] = ()
    batch: int | None = None
    batch_wait: Duration = 0
    middleware: Sequence[Middleware | ThreadMiddleware] = ()

    def __post_init__(self) -> None:
        for name in ("max_attempts", "max_running", "concurrency_limit"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, 2**31)
        rates = [(name, Rate | None, "a Rate(count, per=seconds)") for name in ("rate", "rate_per_key")]
        kinds = [("backoff", Backoff, "an Exponential(...)"), *rates]
        _check(self, ("timeout", "keep_result", "batch_wait"), kinds)
        if self.batch is not None:
            check_integer("batch", self.batch, 1, MOST_CLAIMED)
        elif self.batch_wait:
            raise InvalidJobError("batch_wait is the time to fill a batch: give the handler batch=... too")
        check_priority(self.priority)
        if self.extra not in ("forbid", "ignore"):
            raise InvalidJobError(f'extra must be "forbid" or "ignore", got {shown(self.extra)}')
        if not isinstance(self.aliases, list | tuple) or not all(isinstance(each, str) for each in self.aliases):
            raise InvalidJobError('aliases must be a list of names, as in aliases=["old_name"]')
        if not isinstance(self.middleware, list | tuple) or not all(map(callable, self.middleware)):
            raise InvalidJobError("middleware must be a list of functions, as in middleware=[timing]")

    @property
    def attempts_said(self) -> int | None:
        """The `max_attempts` to store with each job, or None for the usual number, as not every queue can store it."""
        return None if self.max_attempts == MAX_ATTEMPTS else self.max_attempts

    @property
    def wait_seconds(self) -> float:
        """The `batch_wait` in seconds."""
        return to_seconds("batch_wait", self.batch_wait)

    @property
    def seconds(self) -> float | None:
        """The timeout in seconds."""
        return seconds_of("timeout", self.timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of a worker. Durations are timedeltas or seconds.

    Attributes:
        concurrency: number of jobs at a time; 50 by default. A batch counts as one.
        grace: time that running jobs get to finish when the worker is stopped; 30 seconds by default.
        cancel_grace: time that a handler gets to end after it was told to stop; 5 seconds by default. A worker that
            ends waits no longer, and gives the job back. One that goes on keeps the claim until the handler ends.
        claim_timeout: time that a claim lasts without a heartbeat, at least 0.05 seconds; None for the queue's
            `stale_timeout`. A job whose worker has died is claimed by another worker after this time.
        give_up_after: time that a worker goes on when it can do nothing, before `run` raises; 300 seconds by default,
            None: for ever. It can do nothing if its queue is gone, replaced, corrupt or refused, or if handlers that do
            not stop take all slots. A store that does not answer is waited for regardless.
        max_jobs: number of jobs after which the worker claims no more, finishes its claimed jobs, and ends, so that
            another one takes its place: see `RunReport.worn`. None: no limit.
        max_memory: memory in MiB above which the worker ends in this way, once a job has ended. A process of handlers
            that takes more is replaced by itself. None: no limit.
        name: name of the worker in the log, and of the holder of its claims: `name@host:pid`.
        lifespan: an async context manager for resources that all handlers share. It yields `ctx.resources`.
        on_dead: called with each job that is dead, after the commit that made it so.
        retry: what becomes of jobs by the class of their error, for handlers without a `retry` of their own.
        show_errors: True to log the message and the traceback of each failure. They may quote the payload.
        log_done: True to log each job that is done, with the seconds that it took, at INFO.
        health: address of the probes, such as "127.0.0.1:8080", which serves `/healthz`, `/readyz` and `/metrics`.
        metrics: an exporter of metrics, such as `PrometheusMetrics()`.
        tracing: traces the queue and the handlers, such as `OpenTelemetryTracing()`.
    """

    concurrency: int = 50
    grace: Duration = 30
    cancel_grace: Duration = 5
    claim_timeout: Duration | None = None
    give_up_after: Duration | None = 300
    max_jobs: int | None = None
    max_memory: int | None = None
    name: str = "worker"
    lifespan: Lifespan | None = None
    on_dead: OnDead | None = None
    retry: RetryRule | None = None
    show_errors: bool = False
    log_done: bool = False
    health: str | None = None
    metrics: PrometheusMetrics | None = None
    tracing: OpenTelemetryTracing | None = None

    def __post_init__(self) -> None:
        check_integer("concurrency", self.concurrency, 1, MOST_CLAIMED)
        for name, limit in (("max_jobs", self.max_jobs), ("max_memory", self.max_memory)):
            if limit is not None:
                check_integer(name, limit, 1, 2**31)
        kinds = (
            ("name", str, "a text"),
            ("on_dead", Callable | None, "a function that takes the job"),
            ("health", str | None, "HOST:PORT, such as 127.0.0.1:8080"),
        )
        _check(self, ("grace", "cancel_grace", "claim_timeout", "give_up_after"), kinds)
        if self.claim_timeout is not None and to_seconds("claim_timeout", self.claim_timeout) < MIN_CLAIM_TIMEOUT:
            raise InvalidJobError(
                f"claim_timeout must be at least {MIN_CLAIM_TIMEOUT:g} s, to leave time for heartbeats"
            )
        for name, value, method, words in (
            ("metrics", self.metrics, "watch", "PrometheusMetrics()"),
            ("tracing", self.tracing, "instrument", "OpenTelemetryTracing()"),
        ):
            if value is not None and not hasattr(value, method):
                raise InvalidJobError(f"{name} must be {words} or the like, got {type(value).__name__}")
        if self.health is not None:
            address_of(self.health)
