"""The observer of a queue object: it is told of the commits and of the calls to the store, for metrics and traces.

A queue object has none by default, and then spends nothing on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Context
from datetime import datetime
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jqueue.domain.commits import CommitId
from jqueue.domain.errors import JQueueError
from jqueue.domain.job import JobRecord
from jqueue.domain.operations.base import Operation

CallOutcome = tuple[Sequence[Operation], list[Any] | JQueueError]
"""A call in a commit: its operations, and a result or an error for each, or the error that undid them all."""


class LandedCommit(NamedTuple):
    """A commit of this queue object that is in the store.

    Attributes:
        version: the version of the queue that it made.
        calls: its calls, with their outcomes.
        seconds: time of the write; 0 for a recognised commit.
        recognised: True if the answer to the write was not a clean success, and a later read found the commit.
        dead: the jobs whose last attempt had died with its holder: it made them dead, as their claims were stale.
    """

    version: int
    calls: Sequence[CallOutcome]
    seconds: float
    recognised: bool
    dead: Sequence[JobRecord] = ()


class AppliedCall(NamedTuple):
    """A call as it was applied to the queue, or what the queue object does by itself: the sweep of stale claims.

    Attributes:
        operations: prepared, in the order in which they were applied.
        outcome: a result or an error for each, or the error that undid them all.
        context: the context in which its caller awaits it, or a copy of that as it was when the caller stopped. It has
            no meaning for what the queue object does by itself.
    """

    operations: Sequence[Operation]
    outcome: list[Any] | JQueueError
    context: Context | None


class AppliedCalls(NamedTuple):
    """Calls that were applied together to a version of the queue.

    Attributes:
        base: number of the version.
        now: the time by which they were applied.
        calls: in the order in which they were applied.
        commit: id of the write that carries them, which is about to be sent: it may land, or not, or land unnoticed.
            None: nothing has changed, and they are answered from that version.
    """

    base: int
    now: datetime
    calls: Sequence[AppliedCall]
    commit: CommitId | None


class SentCall(NamedTuple):
    """A call that goes to a broker.

    Attributes:
        operations: prepared, in order.
        context: see `AppliedCall`.
    """

    operations: Sequence[Operation]
    context: Context | None


class Observer:
    """Base class of observers. Each method does nothing here.

    The methods are called on the event loop of the queue, and must return at once. An error in one is logged and has no
    other effect.
    """

    def applied(self, calls: AppliedCalls) -> None:
        """Note calls that are about to be written, or are answered at once. It does not say that a write has landed."""

    def sent(self, name: str, calls: Sequence[SentCall]) -> None:
        """Note calls that are about to go to a broker for the first time. Whoever commits them does so under the name.

        The name is the `token` of a `ClientBatch`, or the `call` of a dequeue.
        Those of a batch that no broker has taken may go on under another name.
        """

    def committed(self, commit: LandedCommit) -> None:
        """Note a commit that has landed."""

    def looking(self) -> None:
        """Note that the store is about to be read for calls that wait for jobs.

        It is called in the context of that read, a copy of the one in which the first of these calls is awaited.
        """

    def store_called(self, call: str, seconds: float, error: BaseException | None) -> None:
        """Note that a call to the store has ended.

        A client that reaches the store through a broker only notes as reads each call to the broker that fails, and the
        first one after it that succeeds.

        Args:
            call: "read" or "write" of the queue's object; "create", "fetch", "list" or "remove" of objects beside it.
            seconds: time that it took.
            error: its error; None if it succeeded.
        """


@runtime_checkable
class SupportsObservers(Protocol):
    """A queue object that tells observers about its commits and its calls to the store."""

    def observe(self, observer: Observer) -> None:
        """Add an observer, if it is not there."""

    def unobserve(self, observer: Observer) -> None:
        """Remove an observer, if it is there."""
