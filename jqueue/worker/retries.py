"""The decision about a failed job, made purely from the error and the job.

A handler can raise `Retry`, `Discard` or `Snooze` to choose what happens. Any other error is a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from pydantic import ValidationError

from jqueue.domain.durations import Duration, exponential_bound, to_seconds
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import Job
from jqueue.worker.payloads import PayloadError, ResultError, describe

OutcomeKind = Literal["succeeded", "failed", "dead", "snoozed", "handed_back", "cancelled", "lost"]
"""The outcome of a job that this worker held."""


class Retry(Exception):
    """Raised by a handler to have its job tried again. Counts as a failure.

    Args:
        after: time until the next try; by default, the handler's backoff decides.
        reason: text that is kept with the job.
    """

    def __init__(self, after: Duration | None = None, reason: str | None = None) -> None:
        super().__init__(after, reason)
        self.after = None if after is None else to_seconds("after", after)
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
        self.duration = to_seconds("duration", duration)

    def __str__(self) -> str:
        return f"for {self.duration:g} s"


class HandlerTimeout(Exception):
    """The handler took longer than its timeout."""


@runtime_checkable
class Backoff(Protocol):
    """The wait before another try."""

    def bound(self, failures: int) -> float:
        """Return the longest wait in seconds after this many failures. The wait is drawn evenly from zero to it."""


@dataclass(frozen=True, slots=True)
class Exponential:
    """A bound that doubles after each failure, up to a cap. The wait is drawn evenly from zero to the bound.

    Attributes:
        base: the bound after the first failure: a timedelta or seconds.
        cap: the largest bound.
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
    leaves, left = [], [error]
    while left:
        first = left.pop()
        if isinstance(first, BaseExceptionGroup):
            left += reversed(first.exceptions)
        else:
            leaves.append(first)
    return leaves


def decisive(error: BaseException) -> BaseException:
    """Return the error that decides what becomes of a job, such as a `Discard` that an `asyncio.TaskGroup` wrapped.

    A group that holds only `Discard`, `Retry` and `Snooze` acts as one of them: as a `Discard`, or else as the `Retry`
    or the `Snooze` with the longest wait. Any other error is returned as it is.
    """
    leaves = leaves_of(error)
    if not all(isinstance(leaf, Discard | Retry | Snooze) for leaf in leaves):
        return error
    return max(leaves, key=_weight)


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
) -> Decision:
    """Decide what becomes of a job whose handler raised an error.

    Args:
        error: the error raised.
        job: the job as it was claimed: the failure of this claim is already counted in `failures`.
        max_attempts: the handler's limit; the job's own comes first.
        backoff: the handler's backoff.
        jitter: draws a number from zero to its argument.
    """
    if isinstance(error, Snooze):
        return Decision("snoozed", delay=error.duration, charge=False)
    text = error_text(error)
    if isinstance(error, Discard | PayloadError | ResultError) or is_last(job, max_attempts):
        return Decision("dead", error=text, dead=True)
    if isinstance(error, Retry) and error.after is not None:
        return Decision("failed", delay=error.after, error=text)
    return Decision("failed", delay=_wait(backoff, job.failures, jitter), error=text)


def _wait(backoff: Backoff, failures: int, jitter: Callable[[float], float]) -> float:
    """Return the seconds until the next try. A backoff that raises must not keep its job from being given back."""
    try:
        bound = to_seconds("the bound of a backoff", backoff.bound(failures))
    except Exception:
        bound = Exponential().bound(failures)
    return jitter(bound)


def is_last(job: Job, max_attempts: int | None) -> bool:
    """True if a job that fails now has no attempts left."""
    most = max_attempts if job.max_attempts is None else job.max_attempts
    return most is not None and job.failures >= most


def is_spent(job: Job, max_attempts: int | None) -> bool:
    """True if a job had no attempts left before this claim: its earlier workers ended before they could report."""
    most = max_attempts if job.max_attempts is None else job.max_attempts
    return most is not None and job.failures > most


def failures_of(job: Job, max_attempts: int | None) -> str:
    """Return which failure this is, in words: "failure 1 of 20". An attempt that was handed back was none."""
    most = max_attempts if job.max_attempts is None else job.max_attempts
    return f"failure {job.failures}" + ("" if most is None else f" of {most}")


def error_text(error: BaseException) -> str:
    """Return the text of an error to keep with its job: its class and message; of a group, those of its errors too.

    Errors about a payload or a result do not quote it.
    """
    if isinstance(error, PayloadError | ResultError | HandlerTimeout):
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
