"""A call on its way: its operations, its deadline, and its outcome."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable, Sequence
from datetime import datetime
from typing import Any, Protocol

from jqueue.core.engine.callers import Awaited, Callers
from jqueue.domain.commits import Verdict
from jqueue.domain.draft import Draft
from jqueue.domain.errors import (
    DeadlineExceededError,
    JQueueError,
    QueueFullError,
    StorageError,
    UnknownOutcomeError,
)
from jqueue.domain.job import Claim
from jqueue.domain.operations import Operation, perform
from jqueue.domain.operations.base import ClaimLog
from jqueue.domain.segment_rows import RowsMissingError

LANDED = Verdict.LANDED

Outcome = list[Any] | JQueueError
"""The outcome of a request in one try: a result or an error for each operation, or the error that undid them all."""


class RequestOwner(Protocol):
    """The owner of requests, with the functions that they call back."""

    @property
    def claims(self) -> ClaimLog:
        """The claims that its callers hold."""

    def note(self, operations: Sequence[Operation], outcome: Outcome) -> None:
        """Note that a caller gets this outcome now."""

    def reopen(self, operations: Sequence[Operation]) -> None:
        """Note that the caller did not get the outcome after all."""

    def hand_back(self, claims: Sequence[Claim]) -> None:
        """Hand claims that no caller received back to the queue."""

    async def resolve(self, request: Request, timeout: float | None) -> list[Any]:
        """Return the results of a request whose outcome was unknown."""


class Request(Awaited):
    """One call: operations that go into one commit. Its caller awaits it, and gets their results.

    Args:
        operations: prepared, in order.
        callers: wakes the caller.
        owner: the writer that carries the request.
        atomic: True if one refused operation undoes the others and is raised to the caller.
        convert: converts the results to the return value of the call, if the outcome becomes known only later.

    Attributes:
        claims_jobs: True if it hands out claims.
        due: time at which it expires, on the clock of the event loop; infinite if it has an alarm of its own.
        until: end of the call, its wait for jobs included, on the clock of the event loop.
        waits_for_jobs: True while the request waits for jobs, so that an empty answer is no answer yet.
        seen_empty: True if a state read after the call gave an empty answer.
        open_writes: number of writes that carried it and whose fate is unknown.
        in_flight: True while a write that carries it is under way.
        verdict: its fate, once known.
        outcome: its outcome, if it landed.
        last_error: the last error that kept it from being done.
    """

    __slots__ = (
        "_convert",
        "_owner",
        "atomic",
        "claims_jobs",
        "due",
        "in_flight",
        "last_error",
        "open_writes",
        "operations",
        "seen_empty",
        "until",
        "verdict",
        "waits_for_jobs",
    )

    def __init__(
        self,
        operations: Sequence[Operation],
        callers: Callers,
        owner: RequestOwner,
        atomic: bool = True,
        convert: Callable[[list[Any]], Any] = list,
    ) -> None:
        self._callers = callers  # as `Awaited` does, without one more call of a function for each call of a queue
        self._loop = callers.loop
        self._asyncio_future_blocking = self.waits_for_jobs = self.seen_empty = self.in_flight = False
        self.awaited = True
        self.outcome: Outcome | None = None
        self.error = self.callback = None
        self.verdict: Verdict | None = None
        self.last_error: BaseException | None = None
        self.due = self.until = math.inf
        self.open_writes = 0
        self.operations = operations
        self.atomic = atomic
        self._owner = owner
        self._convert = convert
        if len(operations) == 1:
            self.claims_jobs = operations[0].claims_jobs
        else:
            self.claims_jobs = any(operation.claims_jobs for operation in operations)

    @property
    def search_key(self) -> Hashable | None:
        """The search key of a request with one operation that only searches; otherwise None.

        See `Operation.search_key`.
        """
        return self.operations[0].search_key() if len(self.operations) == 1 else None

    def perform(self, draft: Draft, now: datetime) -> Outcome:
        """Apply the operations. A refused one does not change the draft; in an atomic request, nor do the others.

        Raises:
            RowsMissingError: an operation needs rows that are not loaded. The draft is unchanged.
        """
        if len(self.operations) == 1:
            result = perform(self.operations[0], draft, now)
            return result if isinstance(result, JQueueError) and self.atomic else [result]
        savepoint = draft.savepoint()
        results = []
        for operation in self.operations:
            try:
                result = perform(operation, draft, now)
            except RowsMissingError:
                draft.rollback(savepoint)
                raise
            if self.atomic and isinstance(result, JQueueError):
                draft.rollback(savepoint)
                return result
            results.append(result)
        return results

    def stop_waiting(self) -> None:
        """End the wait for jobs. An empty answer is accepted from now on, and delivered if it was found already."""
        self.waits_for_jobs = False
        if self.seen_empty and not self.in_flight and not self.open_writes:
            self.settle([[] for _ in self.operations])

    def expire(self) -> None:
        """End the request, as its deadline has passed."""
        if self.in_flight or self.open_writes:
            self.fail(
                self.unknown(
                    "the deadline passed before it was certain whether the operation was done", self.last_error
                )
            )
        elif isinstance(self.last_error, QueueFullError):
            self.fail(self.last_error)
        else:
            why = f" (last error: {self.last_error})" if self.last_error is not None else ""
            failure = DeadlineExceededError(f"the deadline passed, and nothing was done{why}")
            failure.__cause__ = failure.cause = self.last_error
            self.fail(failure)

    def unknown(self, what: str, cause: BaseException | None) -> UnknownOutcomeError:
        """Return the error for an unknown outcome. Its `resolve` finds the outcome out."""
        ids = [job_id for operation in self.operations for job_id in operation.job_ids()]
        error = UnknownOutcomeError(
            what, cause, job_ids=ids, resolver=lambda timeout: self._owner.resolve(self, timeout)
        )
        error.__cause__ = cause
        return error.returning(self._convert)

    def deliver(self, outcome: Outcome) -> None:
        """Take an outcome that was committed, or found in a state read after the call."""
        if self.waits_for_jobs and is_empty(outcome):
            self.seen_empty = True
        else:
            self.settle(outcome)

    def release(self, verdict: Verdict) -> None:
        """Note that a write which carried it did not land, or that its fate can never be known.

        If it did not land, and the caller still waits, the request can be sent again.
        """
        if verdict is Verdict.UNKNOWABLE and self.verdict is None:
            self.verdict = verdict
            self.fail(
                self.unknown(
                    "the queue no longer has the record of the write, which may or may not have been done",
                    self.last_error,
                )
            )
        elif not self.awaited and not self.open_writes and self.verdict is None:
            self.verdict = verdict

    def settle(self, outcome: Outcome) -> None:
        """Finish the request with an outcome that was committed, or that needed no commit."""
        self.verdict = LANDED
        self.outcome = outcome
        if not self.awaited:
            self.hand_back_claims(outcome)
            return
        operations = self.operations
        if not isinstance(outcome, list):
            self._owner.note(operations, outcome)
            self.end(outcome)
            return
        if len(operations) == 1 and not isinstance(result := outcome[0], JQueueError):
            operations[0].tell(self._owner.claims, result)  # as `note` does, and below as `end` does
        else:
            self._owner.note(operations, outcome)
        self.awaited = False
        answered = self._callers.answered
        if not answered:
            self._callers.wake_soon()
        answered.append(self)

    def fail(self, error: BaseException) -> None:
        """Finish the request with an error."""
        if self.awaited:
            self.end(error)

    def hand_back_claims(self, outcome: Outcome) -> None:
        """Hand back the claims of an outcome that no caller takes."""
        if isinstance(outcome, list):
            pairs = zip(self.operations, outcome, strict=True)
            claims = [claim for operation, result in pairs for claim in _claims(operation, result)]
            if claims:
                self._owner.hand_back(claims)

    def caller_cancelled(self) -> None:
        """Note that the caller was cancelled. If the request was answered just now, its claims are handed back."""
        if not self.awaited and self.outcome is not None and self.error is None:
            self._owner.reopen(self.operations)
            self.hand_back_claims(self.outcome)


async def sleep_while_awaited(requests: Sequence[Request], seconds: float) -> None:
    """Wait this number of seconds, but only while one of these requests is awaited."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    for request in requests:  # one by one: a wait for ten thousand at once would block the loop
        if request.awaited and (left := until - loop.time()) > 0:
            await request.wait(left)


def is_empty(outcome: Outcome) -> bool:
    """True if the outcome says that there was nothing to claim."""
    return isinstance(outcome, list) and not any(outcome)


def as_storage_error(error: BaseException) -> StorageError:
    """Return a failure of a store as a StorageError. An error that already is one is returned unchanged."""
    if isinstance(error, StorageError):
        return error
    if isinstance(error, TimeoutError):
        return StorageError("the store did not answer in time", error if str(error) else None)
    return StorageError(f"the storage adapter raised {type(error).__name__}", error)


def _claims(operation: Operation, result: Any) -> Sequence[Claim]:
    return () if isinstance(result, JQueueError) else operation.claims(result)
