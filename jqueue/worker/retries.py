"""The decision about a failed job, made purely from the error and the job.

A handler can raise `Retry`, `Discard` or `Snooze` to choose what happens. Any other error is a failure.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from pydantic import ValidationError

from jqueue.domain.durations import Duration, exponential_bound, to_seconds
from jqueue.domain.errors import InvalidJobError, StepError, shown
from jqueue.domain.models import Job
from jqueue.ports.log import Logger, logger_of
from jqueue.worker.job_log import about
from jqueue.worker.payloads import PayloadError, UnkeptResultError, describe

logger: Logger = logger_of("jqueue.worker")

CALLS_FAIL = (Exception, SystemExit, asyncio.CancelledError)
"""The errors of a function of a user that is called without a job's own task around it."""

OutcomeKind = Literal["succeeded", "failed", "dead", "snoozed", "handed_back", "cancelled", "lost"]
"""The outcome of a job that this worker held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCounts:
    """Number of jobs that were claimed, by outcome.

    Attributes:
        succeeded: finished, and acked.
        failed: failed, and will be tried again.
        dead: failed for the last time, or discarded.
        snoozed: put off by their handler.
        handed_back: given back unharmed, as they were not done when the worker or the batch ended.
        cancelled: cancelled while they were in progress.
        lost: their claim was lost before their outcome was in the queue.
    """

    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    snoozed: int = 0
    handed_back: int = 0
    cancelled: int = 0
    lost: int = 0

    @property
    def total(self) -> int:
        """Number of jobs in all."""
        return sum(getattr(self, kind) for kind in get_args(OutcomeKind))

    def describe(self, *others: str) -> str:
        """Return the numbers that are not zero, as text, and those of other fields."""
        counts = {name: getattr(self, name) for name in (*get_args(OutcomeKind), *others)}
        return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count) or "no jobs"


class Retry(Exception):
    """Raised by a handler to have its job tried again. Counts as a failure.

    Args:
        after: time until the next try; by default, the handler's backoff decides.
        reason: text that is kept with the job.
    """

    def __init__(self, after: Duration | None = None, reason: str | None = None) -> None:
        super().__init__(after, reason)
        self.after: float | None = None if after is None else to_seconds("after", after)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "the handler asked for another try"


class Discard(Exception):
    """Raised by a handler whose job can never succeed. The job is dead at once.

    Args:
        reason: text that is kept with the job.
    """

    def __init__(self, reason: str = "the handler discarded the job") -> None:
        super().__init__(reason)
        self.reason = reason


class Snooze(Exception):
    """Raised by a handler to put its job off. The job comes back after the duration, and no failure is counted.

    Args:
        duration: a timedelta or seconds.
    """

    def __init__(self, duration: Duration) -> None:
        super().__init__(duration)
        self.duration: float = to_seconds("duration", duration)

    def __str__(self) -> str:
        return f"for {self.duration:g} s"


class HandlerTimeout(TimeoutError):
    """The handler took longer than its timeout."""


TEXT_ONLY = (PayloadError, StepError, UnkeptResultError, HandlerTimeout)
"""The errors that are described by their text alone, without the name of their class."""


Choice = Duration | Retry | Discard | Snooze | type[Retry] | type[Discard] | None
"""The fate of a failed job: the time until its next try, `Discard`, `Snooze(...)`, or None for the backoff."""

RetryRule = Mapping[type[BaseException], Choice] | Callable[[Any, int], Choice]
"""Choices by class of error, of which the most specific one counts, or a function of the error and of its number of
failures, from 1."""


def _asked(choice: Any) -> Retry | Discard | Snooze | None:
    """Return what a handler would raise to get a choice.

    Raises:
        InvalidJobError: it is none.
    """
    if choice is Retry or choice is Discard:
        return Retry() if choice is Retry else Discard()
    if choice is None or isinstance(choice, Retry | Discard | Snooze):
        return choice
    return Retry(to_seconds("a wait in retry", choice))


def check_rule(rule: Any) -> None:
    """Check the `retry` of a handler.

    Raises:
        InvalidJobError: it is neither a mapping of exception classes nor a function without `async`.
    """
    if isinstance(rule, Mapping):
        for kind, choice in rule.items():
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise InvalidJobError(f"the keys of retry must be exception classes, got {shown(kind)}")
            _asked(choice)
    elif not callable(rule) or isinstance(rule, type) or inspect.iscoroutinefunction(rule):
        raise InvalidJobError(
            "retry must be a mapping, as in retry={ValueError: Discard, TimeoutError: 60}, or a function without "
            f"async, as in retry=lambda error, failures: 60, got {type(rule).__name__}"
        )


def lineage_of(kind: type[BaseException]) -> tuple[str, ...]:
    """Return the names of a class and of its bases, the most specific first."""
    names = (f"{each.__module__}.{each.__qualname__}" for each in kind.__mro__)
    return tuple(name.replace("__mp_main__.", "__main__.") for name in names)  # its name in a process of a handler


def _chosen(error: BaseException, rule: RetryRule | None = None, failures: int = 0) -> Retry | Discard | Snooze | None:
    """Return what an error asks for, by itself or by a rule; of a group, the weightiest. None: the backoff decides.

    A group in which one error asks for nothing asks for nothing.
    """
    choices: list[Retry | Discard | Snooze | None] = []
    for leaf in leaves_of(error):
        if isinstance(leaf, Retry | Discard | Snooze):
            choices.append(leaf)
        elif isinstance(rule, Mapping):  # a group that was raised in a process has the lineage of each of its errors
            named = {lineage_of(kind)[0]: choice for kind, choice in rule.items()}
            lineages: Sequence[Sequence[str]] = getattr(leaf, "jqueue_lineages", ()) or [lineage_of(type(leaf))]
            choices += [_asked(next((named[name] for name in each if name in named), None)) for each in lineages]
        else:
            choices.append(None if rule is None else _asked(rule(leaf, failures)))
    decisions = [each for each in choices if each is not None]
    return max(decisions, key=_weight) if len(decisions) == len(choices) else None


@runtime_checkable
class Backoff(Protocol):
    """The wait before another try."""

    def bound(self, failures: int) -> float:
        """Return the longest wait in seconds after this many failures. The wait is drawn evenly from zero to it."""


@dataclass(frozen=True, slots=True)
class Exponential:
    """A bound that doubles after each failure, up to a cap. The wait is drawn evenly from zero to the bound.

    Attributes:
        base: the bound after the first failure: a timedelta or seconds, 1 by default.
        cap: the largest bound: a timedelta or seconds, 300 by default.
    """

    base: Duration = 1
    cap: Duration = 300

    def __post_init__(self) -> None:
        if not 0 < to_seconds("base", self.base) <= to_seconds("cap", self.cap):
            raise InvalidJobError("an Exponential backoff needs a base above zero and a cap of at least the base")

    def bound(self, failures: int) -> float:
        """See `Backoff`."""
        return exponential_bound(failures, to_seconds("base", self.base), to_seconds("cap", self.cap))


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a job that did not succeed.

    Attributes:
        kind: the field of the report that counts it.
        delay: seconds until the next try.
        error: text that is kept with the job.
        dead: True if the job will not be tried again.
        charge: True if it counts as a failure.
        traceback: frames that are kept beside the error.
    """

    kind: OutcomeKind
    delay: float | None = None
    error: str | None = None
    dead: bool = False
    charge: bool = True
    traceback: str | None = None


HAND_BACK = Decision("handed_back", charge=False)
CANCELLED = Decision("cancelled", error="the job was cancelled while it was in progress")


def leaves_of(error: BaseException) -> list[BaseException]:
    """Return the errors in an exception group and in the groups inside it; of any other error, the error alone."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves_of(each)]
    return [error]


def decisive(error: BaseException) -> BaseException:
    """Return the error that decides what becomes of a job, such as a `Discard` that an `asyncio.TaskGroup` wrapped.

    A group that holds only `Discard`, `Retry` and `Snooze` acts as one of them: as a `Discard`, or else as the `Retry`
    or the `Snooze` with the longest wait. Any other error is returned as it is.
    """
    return _chosen(error) or error


def _weight(error: BaseException) -> tuple[int, float]:
    if isinstance(error, Snooze):
        return 0, error.duration
    return (1, error.after or 0.0) if isinstance(error, Retry) else (2, 0.0)


def decide(
    error: BaseException,
    job: Job,
    max_attempts: int | None,
    backoff: Backoff,
    jitter: Callable[[float], float],
    rule: RetryRule | None = None,
) -> Decision:
    """Decide what becomes of a job whose handler raised an error.

    Args:
        error: the error raised.
        job: the job as it was claimed: the failure of this claim is already counted in `failures`.
        max_attempts: the handler's limit; the job's own comes first.
        backoff: the handler's backoff.
        jitter: draws a number from zero to its argument.
        rule: the handler's choices by class of error; an error that asks for something itself comes first.
    """
    is_bad = isinstance(error, PayloadError | StepError)  # it would be the same again, and its step done again
    try:
        choice = None if is_bad else _chosen(error, rule, job.failures)
    except CALLS_FAIL as failure:  # a rule that raises must not keep its job from being given back
        text = "job %s (%s): its retry=... failed with %s, so the backoff decides. Mend the function"
        logger.error(text, job.id, job.entrypoint, type(failure).__name__, extra=about(job))
        choice = None
    if isinstance(choice, Snooze):
        return Decision("snoozed", delay=choice.duration, charge=False)
    text = error_text(error)
    if is_bad or isinstance(choice, Discard) or job.failures >= attempts_of(job, max_attempts):
        return Decision("dead", error=text, dead=True)
    if choice is not None and choice.after is not None:
        return Decision("failed", delay=choice.after, error=text)
    try:
        bound = to_seconds("the bound of a backoff", backoff.bound(job.failures))
    except CALLS_FAIL:  # nor must a backoff
        bound = Exponential().bound(job.failures)
    return Decision("failed", delay=jitter(bound), error=text)


def attempts_of(job: Job, max_attempts: int | None) -> float:
    """Return the number of failures after which a job is dead: its own, else that of its handler."""
    most = max_attempts if job.max_attempts is None else job.max_attempts
    return math.inf if most is None else most


def error_text(error: BaseException) -> str:
    """Return the text of an error to keep with its job: its class and message; of a group, those of its errors too.

    Errors about a payload or a result do not quote it.
    """
    if isinstance(error, TEXT_ONLY):
        return str(error)
    if isinstance(error, ValidationError):
        return f"ValidationError: {describe(error)}"
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # the exception class of a user may raise anything
        text = type(error).__name__
    if isinstance(error, BaseExceptionGroup):
        return f"{text}: {'; '.join(map(error_text, leaves_of(error)))}"
    return text
