"""The settings that every queue takes, each with a default value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT
from jqueue.domain.limits import Limits, check_integer, check_name
from jqueue.ports.clock import Clock, Entropy
from jqueue.runtime.system import SystemClock, SystemEntropy

Made = TypeVar("Made")
Constructor = TypeVar("Constructor", bound=Callable[..., None])


@dataclass(kw_only=True)
class QueueOptions:
    """Settings of a queue object. Durations are timedeltas or seconds.

    Attributes:
        stale_timeout: Time without a heartbeat after which a claim is stale, and its job can be claimed again; 5
            minutes by default. It is kept with the claim.
        deadline: Longest time for a call that gives no `deadline` of its own; 30 seconds by default. A call that is
            not done by then raises DeadlineExceededError or UnknownOutcomeError.
        call_timeout: Longest time for one request to the store; 15 seconds by default.
        poll_interval: Longest time between two looks at the store while a dequeue waits for jobs; 1 second by default.
        max_pending: Number of calls that may wait for the store; 10,000 by default. Further calls wait for room
            until their deadline, and then raise QueueFullError. Acks, nacks and heartbeats need no room.
        limits: Largest sizes that the queue accepts: `Limits(...)`.
        holder: Name kept with claims: who works on the jobs. None: this process, as `host:pid`.
        must_exist: True if a queue that does not exist is BlobMissingError, and is never created by this queue object.
        share: True if calls go to the broker of the queue when another process offers one. False: never.
        clock: Source of the time if the store does not tell it.
        entropy: Source of ids and jitter.
    """

    stale_timeout: Duration = DEFAULT_CLAIM_TIMEOUT
    deadline: Duration = field(default=timedelta(seconds=30), repr=False)
    call_timeout: Duration = field(default=timedelta(seconds=15), repr=False)
    poll_interval: Duration = field(default=timedelta(seconds=1), repr=False)
    max_pending: int = field(default=10_000, repr=False)
    limits: Limits = field(default_factory=Limits, repr=False)
    holder: str | None = field(default=None, repr=False)
    must_exist: bool = field(default=False, repr=False)
    share: bool = field(default=True, repr=False)
    clock: Clock = field(default_factory=SystemClock, repr=False)
    entropy: Entropy = field(default_factory=SystemEntropy, repr=False)

    def check(self) -> None:
        """Check the settings.

        Raises:
            InvalidJobError: a setting is wrong; the message says which.
        """
        for name in ("stale_timeout", "deadline", "call_timeout", "poll_interval"):
            to_seconds(name, getattr(self, name))
        check_integer("max_pending", self.max_pending, 1, 2**31)
        if self.holder is not None:
            check_name("holder", self.holder, self.limits)


def options_of(queue: object) -> QueueOptions:
    """Return the settings of a queue object, or the defaults if it has none, as a user's own class may."""
    options = getattr(queue, "options", None)
    return options if isinstance(options, QueueOptions) else QueueOptions()


def takes_queue_options(constructor: Constructor) -> Constructor:
    """Make an `__init__` that ends in `**options` show each option in its help."""
    own = [each for each in _parameters(constructor) if each.kind is not each.VAR_KEYWORD]
    named = {each.name for each in own}
    options = [each for each in _parameters(QueueOptions) if each.name not in named]
    constructor.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
    return constructor


def lists_queue_options(kind: type[Made]) -> type[Made]:
    """Class decorator: append the description of each option to the docstring."""
    if kind.__doc__ and QueueOptions.__doc__:  # not with python -OO
        _, _, listed = inspect.cleandoc(QueueOptions.__doc__).partition("Attributes:\n")
        kind.__doc__ = f"{inspect.cleandoc(kind.__doc__)}\n\nOptions:\n{listed}"
    return kind


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())
