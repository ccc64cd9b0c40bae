"""The options of a handler, of one of its jobs, and of a worker, with their checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job_options import EnqueueOptions, PriorityOption
from jqueue.domain.limits import check_integer, check_priority
from jqueue.telemetry.exporters import Exporter, Tracing, address_of
from jqueue.worker.retries import Backoff, Exponential

MAX_ATTEMPTS = 20
"""Number of times a job may fail, unless it or its handler says otherwise. That takes some half an hour by default."""

DEFAULT_BACKOFF = Exponential()
"""The backoff of a handler that sets none."""

MIN_CLAIM_TIMEOUT = 0.05
"""The shortest claim timeout, in seconds. A shorter claim could hardly be confirmed in time."""

MAX_BATCH = 10_000
"""The largest number of jobs in one batch: the number that one dequeue may claim."""

MAX_CONCURRENCY = 10_000
"""The largest concurrency: the number of jobs that one dequeue may claim."""


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` claims within any span of `per`.

    Attributes:
        count: number of claims.
        per: the span, a timedelta or seconds.
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
    timeout: Duration | None
    max_running: int | None
    rate: Rate | None
    concurrency_limit: int | None
    process: bool
    priority: int
    keep_result: Duration | None
    batch_wait: Duration


class HandlerArguments(OtherArguments, total=False):
    """Keyword arguments of `Worker.handler` and `Worker.cron`: see `HandlerOptions`."""

    batch: int | None


class OperationArguments(PriorityOption, EnqueueOptions, total=False):
    """Keyword arguments of `Handler.operation`: see `Enqueue`."""


class EnqueueArguments(OperationArguments, total=False):
    """Keyword arguments of `Handler.enqueue`: those of `Enqueue`, and `deadline`, the time that the call may take."""

    deadline: Duration | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """The options of a handler. Durations are timedeltas or seconds.

    Attributes:
        max_attempts: number of failures after which a job is dead, unless the job says otherwise; None: never.
        backoff: the wait before the next try.
        timeout: time that the handler may take; None for no limit.
        max_running: number of these jobs that may run at once, over all workers.
        rate: number of these jobs that may be claimed within a span of time, over all workers.
        concurrency_limit: number of jobs with the same `concurrency_key` that may run at once, given with each enqueue.
        process: True to run the handler in a separate process.
        priority: priority of the jobs that the handler enqueues; lower is served first.
        keep_result: time to keep the result; None: it is not kept.
        batch: largest number of jobs in one call of the handler, which then takes a list of payloads; None: each call
            takes one payload.
        batch_wait: time to wait for more jobs if a batch is not full. By default, it takes the jobs that are ready.
    """

    max_attempts: int | None = MAX_ATTEMPTS
    backoff: Backoff = DEFAULT_BACKOFF
    timeout: Duration | None = None
    max_running: int | None = None
    rate: Rate | None = None
    concurrency_limit: int | None = None
    process: bool = False
    priority: int = 0
    keep_result: Duration | None = None
    batch: int | None = None
    batch_wait: Duration = 0

    def __post_init__(self) -> None:
        for name in ("max_attempts", "max_running", "concurrency_limit"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, 2**31)
        for name in ("timeout", "keep_result", "batch_wait"):
            if getattr(self, name) is not None:
                to_seconds(name, getattr(self, name))
        if self.batch is not None:
            check_integer("batch", self.batch, 1, MAX_BATCH)
        elif self.batch_wait:
            raise InvalidJobError("batch_wait is the time to fill a batch: give the handler batch=... too")
        check_priority(self.priority)
        if not isinstance(self.backoff, Backoff):
            raise InvalidJobError(f"backoff must be an Exponential(...), got {type(self.backoff).__name__}")
        if self.rate is not None and not isinstance(self.rate, Rate):
            raise InvalidJobError(f"rate must be a Rate(count, per=seconds), got {type(self.rate).__name__}")

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
        return None if self.timeout is None else to_seconds("timeout", self.timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of a worker. Durations are in seconds.

    Attributes:
        concurrency: number of jobs at a time. A batch counts as one.
        grace: time that running jobs get to finish when the worker is stopped.
        claim_timeout: time that a claim lasts without a heartbeat; None for the queue's default.
        cancel_grace: time that a cancelled handler gets to end before its job is given back regardless.
        settle: time to go on sending outcomes at the end.
        give_up_after: time for which a worker that can do nothing goes on; None: for ever.
        show_errors: True to log messages and tracebacks of failed handlers.
        health: the address of the probes; None without them.
        metrics: exports metrics; None without them.
        tracing: traces the queue and the handlers; None: they are not traced.
    """

    concurrency: int
    grace: float
    claim_timeout: float | None
    cancel_grace: float
    settle: float
    give_up_after: float | None
    show_errors: bool
    health: str | None
    metrics: Exporter | None
    tracing: Tracing | None


def settings_of(worker: Any) -> WorkerSettings:
    """Return the settings of a worker, checked.

    Raises:
        InvalidJobError: a setting is invalid.
    """
    claim_timeout = worker.claim_timeout
    if claim_timeout is not None and to_seconds("claim_timeout", claim_timeout) < MIN_CLAIM_TIMEOUT:
        raise InvalidJobError(f"claim_timeout must be at least {MIN_CLAIM_TIMEOUT:g} s, to leave time for heartbeats")
    return WorkerSettings(
        concurrency=check_integer("concurrency", worker.concurrency, 1, MAX_CONCURRENCY),
        grace=to_seconds("grace", worker.grace),
        claim_timeout=None if claim_timeout is None else to_seconds("claim_timeout", claim_timeout),
        cancel_grace=to_seconds("cancel_grace", worker.cancel_grace),
        settle=to_seconds("settle_timeout", worker.settle_timeout),
        give_up_after=None if worker.give_up_after is None else to_seconds("give_up_after", worker.give_up_after),
        show_errors=bool(worker.show_errors),
        health=_address("health", worker.health),
        metrics=_instance("metrics", worker.metrics, Exporter, "PrometheusMetrics()"),
        tracing=_instance("tracing", worker.tracing, Tracing, "OpenTelemetryTracing()"),
    )


def _address(name: str, value: str | None) -> str | None:
    if value is not None:
        if not isinstance(value, str):
            raise InvalidJobError(f"{name} must be HOST:PORT, such as 127.0.0.1:8080, got {type(value).__name__}")
        address_of(value)
    return value


def _instance(name: str, value: Any, kind: type, example: str) -> Any:
    if value is not None and not isinstance(value, kind):
        raise InvalidJobError(f"{name} must be {example} or the like, got {type(value).__name__}")
    return value
