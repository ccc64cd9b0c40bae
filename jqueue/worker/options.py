"""What can be said of a handler, of one of its jobs, and of a worker, with the checks of each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypedDict

from jqueue.domain import option_names
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job_options import EnqueueOptions, PriorityOption
from jqueue.domain.limits import check_integer, check_priority
from jqueue.domain.option_names import names_its_options
from jqueue.worker.retries import Backoff, Exponential

MAX_ATTEMPTS = 20
"""How often a job may fail, if neither it nor its handler says: with the usual backoff, for half an hour or so."""

USUAL = Exponential()
"""The backoff of a handler that says nothing of it."""

SHORTEST_CLAIM = 0.05
"""Seconds. A claim that ended sooner could hardly be confirmed in time."""

MOST = 10_000
"""The largest concurrency: as many jobs as one dequeue may claim."""


@names_its_options
@dataclass(frozen=True, slots=True)
class Rate:
    """At most so many claims within any span of so many seconds.

    Attributes:
        count: how many.
        per: the span, as a timedelta or in seconds.
    """

    count: int
    per: Duration = 1

    def __post_init__(self) -> None:
        check_integer("Rate's count", self.count, 1, 2**31)
        if not to_seconds("Rate's per", self.per):
            raise InvalidJobError("Rate's per must be longer than nothing")


class HandlerArguments(TypedDict, total=False):
    """What `Worker.handler` and `Worker.cron` take by name: see `HandlerOptions`."""

    max_attempts: int | None
    backoff: Backoff
    timeout: Duration | None
    max_running: int | None
    rate: Rate | None
    concurrency_limit: int | None
    process: bool
    priority: int
    keep_result: Duration | None


class OperationArguments(PriorityOption, EnqueueOptions, total=False):
    """What `Handler.operation` takes by name: see `Enqueue`."""


class EnqueueArguments(OperationArguments, total=False):
    """What `Handler.enqueue` takes by name: see `Enqueue`, and `deadline`, how long the call may take."""

    deadline: Duration | None


OF_A_HANDLER = tuple(HandlerArguments.__annotations__)
OF_AN_OPERATION = tuple(OperationArguments.__annotations__)
OF_AN_ENQUEUE = tuple(EnqueueArguments.__annotations__)

ELSEWHERE = {
    **dict.fromkeys(["retries", "max_retries", "max_tries"], "max_attempts"),
    **dict.fromkeys(["time_limit", "soft_time_limit", "job_timeout"], "timeout"),
    **dict.fromkeys(["countdown", "_defer_by"], "delay"),
    **dict.fromkeys(["eta", "_defer_until"], "run_at"),
    **dict.fromkeys(["expires", "_expires"], "expires_at"),
    **dict.fromkeys(["task_id", "_job_id"], "job_id"),
    "result_ttl": "keep_result",
}
"""What other systems call our options."""


def check_names(verb: str, given: Collection[str], known: Collection[str], more: str = "") -> None:
    """Check that there are such options: see `jqueue.domain.option_names`. Names of other systems are known, too.

    Raises:
        TypeError: there is no such option; the message says what to write.
    """
    option_names.check_names(verb, given, known, more, _advice)


def _advice(name: str, known: Collection[str]) -> str:
    ours = ELSEWHERE.get(name, name)
    if name in ("queue", "queue_name"):
        return ": make one queue object per queue"
    if ours in known:
        return f": it is {ours!r} here" + (", which counts the first try as well" if "retries" in name else "")
    if ours in OF_A_HANDLER:
        return f': {ours!r} is said of the handler, as in @worker.handler("name", {ours}=...)'
    if ours in OF_AN_ENQUEUE:
        return f": {ours!r} is said of a job, as in enqueue(queue, payload, {ours}=...)"
    return option_names.closest(name, known)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """How the jobs of a handler are run. Durations are timedeltas or seconds.

    Attributes:
        max_attempts: after so many failures a job is dead, unless it says otherwise itself; None: never.
        backoff: how long to wait before the next try.
        timeout: how long the handler may take; None: as long as it likes.
        max_running: how many of these jobs may run at once, over all workers.
        rate: how many may be claimed within a span of time, over all workers.
        concurrency_limit: how many jobs with the same `concurrency_key` may run at once, given with each enqueue.
        process: whether it runs in a process of its own.
        priority: of the jobs that the handler enqueues; lower is served first.
        keep_result: how long the result is kept.
    """

    max_attempts: int | None = MAX_ATTEMPTS
    backoff: Backoff = USUAL
    timeout: Duration | None = None
    max_running: int | None = None
    rate: Rate | None = None
    concurrency_limit: int | None = None
    process: bool = False
    priority: int = 0
    keep_result: Duration | None = None

    def __post_init__(self) -> None:
        for name in ("max_attempts", "max_running", "concurrency_limit"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, 2**31)
        for name in ("timeout", "keep_result"):
            if getattr(self, name) is not None:
                to_seconds(name, getattr(self, name))
        check_priority(self.priority)
        if not isinstance(self.backoff, Backoff):
            raise InvalidJobError(f"backoff must be an Exponential(...), got {type(self.backoff).__name__}")
        if self.rate is not None and not isinstance(self.rate, Rate):
            raise InvalidJobError(f"rate must be a Rate(count, per=seconds), got {type(self.rate).__name__}")

    @property
    def attempts_said(self) -> int | None:
        """What is said with each job; the usual number is not, as the worker knows it: not every queue keeps it."""
        return None if self.max_attempts == MAX_ATTEMPTS else self.max_attempts

    @property
    def seconds(self) -> float | None:
        """The timeout in seconds."""
        return None if self.timeout is None else to_seconds("timeout", self.timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How a worker works. Durations are in seconds.

    Attributes:
        concurrency: how many jobs at a time.
        grace: how long running jobs get to finish when the worker is stopped.
        claim_timeout: how long a claim lasts without a heartbeat; None: as the queue says.
        cancel_grace: how long a cancelled handler gets to end before its job is given back regardless.
        settle: how long outcomes are tried to be sent at the end.
        give_up_after: how long a worker that can do nothing goes on; None: for ever.
        show_errors: whether messages and tracebacks of failed handlers are logged.
    """

    concurrency: int
    grace: float
    claim_timeout: float | None
    cancel_grace: float
    settle: float
    give_up_after: float | None
    show_errors: bool


def settings_of(worker: Any) -> WorkerSettings:
    """The settings of a worker, checked.

    Raises:
        InvalidJobError: one is wrong.
    """
    claim_timeout = worker.claim_timeout
    if claim_timeout is not None and to_seconds("claim_timeout", claim_timeout) < SHORTEST_CLAIM:
        raise InvalidJobError(f"claim_timeout must be at least {SHORTEST_CLAIM:g} s: claims end that are not confirmed")
    return WorkerSettings(
        concurrency=check_integer("concurrency", worker.concurrency, 1, MOST),
        grace=to_seconds("grace", worker.grace),
        claim_timeout=None if claim_timeout is None else to_seconds("claim_timeout", claim_timeout),
        cancel_grace=to_seconds("cancel_grace", worker.cancel_grace),
        settle=to_seconds("settle_timeout", worker.settle_timeout),
        give_up_after=None if worker.give_up_after is None else to_seconds("give_up_after", worker.give_up_after),
        show_errors=bool(worker.show_errors),
    )
