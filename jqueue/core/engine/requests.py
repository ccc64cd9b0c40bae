"""A call on its way: what was asked, until when, and what became of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable, Sequence
from datetime import datetime
from typing import Any, Protocol

from jqueue.domain.commits import Verdict
from jqueue.domain.draft import Draft
from jqueue.domain.errors import (
    DeadlineExceededError,
    JQueueError,
    QueueFullError,
    StorageError,
    UnknownOutcomeError,
)
from jqueue.domain.models import Claim
from jqueue.domain.operations import Operation, perform

Outcome = list[Any] | JQueueError
"""What one request got from one try: a result (or an error) for each operation, or the error that undid them all."""


class Home(Protocol):
    """Where requests come from: what they need of it once they are on their way."""

    def note(self, operations: Sequence[Operation], outcome: Outcome) -> None:
        """A caller gets this outcome now."""

    def reopen(self, operations: Sequence[Operation]) -> None:
        """The caller did not get the outcome after all."""

    def take_back(self, claims: Sequence[Claim]) -> None:
        """Claims that nobody received go back to the queue."""

    async def find_out(self, request: Request, timeout: float | None) -> list[Any]:
        """The results of a request whose outcome was unknown."""


class Request:
    """One call: operations that go into one commit, and the future that its caller waits on.

    Args:
        operations: prepared, in order.
        future: what the caller waits on.
        home: the writer that carries it.
        atomic: whether one refused operation undoes the others and is the caller's error.
        convert: makes of the results what the caller's call returns, should its outcome become known only later.

    Attributes:
        claims_jobs: whether it hands out claims.
        due: when it expires, on the clock of the event loop, if nothing else sees to that.
        patient: whether an empty answer is no answer yet: the request waits for jobs.
        seen_empty: whether an empty answer was found in a state read after the call.
        open_tries: writes that carried it and whose fate is not known.
        in_flight: whether a write that carries it is under way.
        verdict: what became of it, once that is known.
        landed: its outcome, if it landed.
        last_error: why it has not been done yet.
    """

    __slots__ = (
        "__weakref__",
        "_convert",
        "_home",
        "atomic",
        "claims_jobs",
        "due",
        "future",
        "in_flight",
        "landed",
        "last_error",
        "open_tries",
        "operations",
        "patient",
        "seen_empty",
        "verdict",
    )

    def __init__(
        self,
        operations: Sequence[Operation],
        future: asyncio.Future[list[Any]],
        home: Home,
        *,
        atomic: bool = True,
        convert: Callable[[list[Any]], Any] = list,
    ) -> None:
        self.operations = operations
        self.future = future
        self.atomic = atomic
        self.claims_jobs = (
            operations[0].claims_jobs
            if len(operations) == 1
            else any(operation.claims_jobs for operation in operations)
        )
        self.due = math.inf
        self.patient = False
        self.seen_empty = False
        self.open_tries = 0
        self.in_flight = False
        self.verdict: Verdict | None = None
        self.landed: Outcome | None = None
        self.last_error: BaseException | None = None
        self._home = home
        self._convert = convert

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for it."""
        return not self.future.done()

    @property
    def search_key(self) -> Hashable | None:
        """The key of its operation, if it is one that only searches: see `Operation.search_key`."""
        return self.operations[0].search_key() if len(self.operations) == 1 else None

    def perform(self, draft: Draft, now: datetime) -> Outcome:
        """Apply the operations. Refused ones leave the draft as it was; if atomic, so do the others."""
        if len(self.operations) == 1:
            result = perform(self.operations[0], draft, now)
            return result if isinstance(result, JQueueError) and self.atomic else [result]
        savepoint = draft.savepoint()
        results = []
        for operation in self.operations:
            result = perform(operation, draft, now)
            if self.atomic and isinstance(result, JQueueError):
                draft.rollback(savepoint)
                return result
            results.append(result)
        return results

    def lose_patience(self) -> None:
        """The wait is over: an empty answer will do, and if one was found already, that is it."""
        self.patient = False
        if self.seen_empty and not self.in_flight and not self.open_tries:
            self.settle([[] for _ in self.operations])

    def expire(self) -> None:
        """The deadline has passed."""
        if self.in_flight or self.open_tries:
            self.fail(self.unknown("the deadline passed before the store's answer was certain", self.last_error))
        elif isinstance(self.last_error, QueueFullError):
            self.fail(self.last_error)
        else:
            why = f" (last: {self.last_error})" if self.last_error is not None else ""
            self.fail(DeadlineExceededError(f"the deadline passed, and nothing was done{why}"))

    def unknown(self, what: str, cause: BaseException | None) -> UnknownOutcomeError:
        """The error that says that the outcome is not known, and how to find out."""
        ids = [job_id for operation in self.operations for job_id in operation.job_ids()]
        error = UnknownOutcomeError(
            what, cause, job_ids=ids, resolver=lambda timeout: self._home.find_out(self, timeout)
        )
        return error.returning(self._convert)

    def deliver(self, outcome: Outcome) -> None:
        """An outcome that counts: committed, or found in a state read after the call."""
        if self.patient and is_empty(outcome):
            self.seen_empty = True
        else:
            self.settle(outcome)

    def release(self, verdict: Verdict) -> None:
        """A write that carried it did not land, or nobody can say. If it is still wanted, it can be sent again."""
        if verdict is Verdict.UNKNOWABLE and self.verdict is None:
            self.verdict = verdict
            self.fail(
                self.unknown("the record of the write is gone; it may or may not have been done", self.last_error)
            )
        elif not self.wanted and not self.open_tries and self.verdict is None:
            self.verdict = verdict

    def settle(self, outcome: Outcome) -> None:
        """It is done: the outcome was committed, or needed no commit."""
        self.verdict, self.landed = Verdict.LANDED, outcome
        if not self.future.done():
            self._home.note(self.operations, outcome)
            if isinstance(outcome, JQueueError):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)
        else:
            self.orphan(outcome)

    def fail(self, error: BaseException) -> None:
        """It ends with an error."""
        if self.wanted:
            self.future.set_exception(error)

    def orphan(self, outcome: Outcome) -> None:
        """Nobody is there to take the outcome: the claims in it go back."""
        if isinstance(outcome, list):
            pairs = zip(self.operations, outcome, strict=True)
            claims = [claim for operation, result in pairs for claim in _claims(operation, result)]
            if claims:
                self._home.take_back(claims)

    def abandoned(self) -> None:
        """Its waiter was cancelled, in whatever moment: no claim is left with nobody."""
        if self.future.done() and not self.future.cancelled() and self.future.exception() is None:
            self._home.reopen(self.operations)
            self.orphan(self.future.result())


async def rest(requests: Sequence[Request], seconds: float) -> None:
    """Wait so many seconds, but no longer than one of these requests is wanted."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    for request in requests:  # one after the other: a wait for ten thousand futures at once would hold the loop up
        if request.wanted and (left := until - loop.time()) > 0:
            await asyncio.wait([request.future], timeout=left)


def is_empty(outcome: Outcome) -> bool:
    """Whether an outcome says that there was nothing to claim."""
    return isinstance(outcome, list) and not any(outcome)


def as_storage_error(error: BaseException) -> StorageError:
    """Any failure of a store as a StorageError: what is one already stays as it is."""
    if isinstance(error, StorageError):
        return error
    if isinstance(error, TimeoutError):
        return StorageError("the store did not answer in time", error if str(error) else None)
    return StorageError(f"the storage adapter raised {type(error).__name__}", error)


def _claims(operation: Operation, result: Any) -> Sequence[Claim]:
    return () if isinstance(result, JQueueError) else operation.claims(result)
