"""A call on its way: its operations, its deadline, and its outcome."""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections import deque
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from jqueue.domain.commits import CommitId, Verdict
from jqueue.domain.draft import Draft
from jqueue.domain.errors import (
    DeadlineExceededError,
    JQueueError,
    QueueFullError,
    UnknownOutcomeError,
)
from jqueue.domain.job import Claim
from jqueue.domain.operations import Operation, perform
from jqueue.domain.operations.base import ClaimLog
from jqueue.domain.segment_rows import RowsMissingError

Callback = Callable[[Any], object]


class Callers:
    """Wakes callers of one event loop, in the order in which they are answered.

    Args:
        loop: the event loop.

    Attributes:
        loop: as in the arguments.
        answered: the answered calls whose callers are woken next.
        others: callbacks of calls that have more than one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.answered: deque[Awaited] = deque()
        self.others: dict[Awaited, list[tuple[Callback, contextvars.Context]]] = {}

    def wake_soon(self) -> None:
        """Wake the callers of the answered calls in the next turn of the event loop. `answered` must be empty yet."""
        self.loop.call_soon(self._wake)

    def _wake(self) -> None:
        answered, self.answered = self.answered, deque()
        try:
            while answered:
                call = answered.popleft()  # each is freed when its caller goes on: the garbage collector starts later
                callback = call.callback
                if callback is not None:
                    call.callback = None
                    call.context.run(callback, call)
                if self.others:
                    for callback, context in self.others.pop(call, ()):
                        self.loop.call_soon(callback, call, context=context)
        finally:  # a task has let KeyboardInterrupt or SystemExit through: if the loop goes on, the others are woken
            if answered:
                if not self.answered:
                    self.wake_soon()
                self.answered += answered


class Awaited:
    """An answer that a caller awaits. To a task, it is like a future.

    Args:
        callers: wakes the caller.

    Attributes:
        awaited: True until it is answered, has failed or is cancelled.
        outcome: the answer.
        error: raised to the caller, if it has failed or is cancelled.
        callback: called when it has ended.
        context: the context of the callback.
    """

    __slots__ = (
        "__weakref__",
        "_asyncio_future_blocking",
        "_callers",
        "_loop",
        "awaited",
        "callback",
        "context",
        "error",
        "outcome",
    )
    context: contextvars.Context

    def __init__(self, callers: Callers) -> None:
        self._asyncio_future_blocking = False
        self._callers = callers
        self._loop = callers.loop  # where a task looks for the loop of a future
        self.awaited = True
        self.outcome: Any = None
        self.error: BaseException | None = None
        self.callback: Callback | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        if self.awaited:
            self._asyncio_future_blocking = True
            yield self
        if self.error is not None:
            raise self.error
        return self.outcome

    async def wait(self, seconds: float) -> None:
        """Wait until it has ended, for some seconds at most."""
        ended = asyncio.Event()

        def note(_: Awaited) -> None:
            ended.set()

        self.add_done_callback(note)
        try:
            async with asyncio.timeout(seconds):
                await ended.wait()
        except TimeoutError:
            pass
        finally:
            self.remove_done_callback(note)

    def end(self, error: BaseException | None) -> None:
        """End the wait of the caller, with the outcome or with an error. It must not have ended before."""
        self.error = error
        self.awaited = False
        callers = self._callers
        if not callers.answered:
            callers.wake_soon()
        callers.answered.append(self)

    # Methods of a future that a task calls

    def result(self) -> None:
        """Return at once: `__await__` returns the outcome or raises the error."""

    def cancel(self, msg: Any | None = None) -> bool:
        """End it, as its caller is cancelled. Return False if it had ended before."""
        if self.awaited:
            self.end(asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg))
            return True
        return False

    def add_done_callback(self, callback: Callback, *, context: contextvars.Context | None = None) -> None:
        """Call a function with this object when it has ended."""
        if context is None:
            context = contextvars.copy_context()
        if self.awaited and self.callback is None:
            self.callback = callback
            self.context = context
        elif self.awaited:
            self._callers.others.setdefault(self, []).append((callback, context))
        else:
            self._loop.call_soon(callback, self, context=context)

    def remove_done_callback(self, callback: Callback) -> None:
        """Do not call a function after all."""
        if self.callback == callback:
            self.callback = None
        others = self._callers.others.pop(self, [])
        kept = [each for each in others if each[0] != callback]
        if kept:
            self._callers.others[self] = kept


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


def _claims(operation: Operation, result: Any) -> Sequence[Claim]:
    return () if isinstance(result, JQueueError) else operation.claims(result)


OPEN_WRITES_KEPT = 256
"""Number of writes of unknown fate that are remembered for callers that have left."""


@dataclass(frozen=True, slots=True, eq=False)
class SentWrite:
    """One write that was sent: the commit id that identifies it, and the outcome of each request if it landed."""

    commit: CommitId
    outcomes: tuple[tuple[Request, Outcome], ...]


def answer(outcomes: Sequence[tuple[Request, Outcome]]) -> None:
    """Deliver outcomes that needed no commit, or that one commit carried."""
    for request, outcome in outcomes:
        request.in_flight = False
        if request.waits_for_jobs:
            request.deliver(outcome)
        else:
            request.settle(outcome)


class OpenWrites:
    """The writes of one engine whose fate is unknown.

    Attributes:
        writes: these writes, the oldest first.
    """

    def __init__(self) -> None:
        self.writes: list[SentWrite] = []

    def add(self, sent: SentWrite) -> None:
        """Keep a write that got no clean answer."""
        self.writes.append(sent)
        for request, _ in sent.outcomes:
            request.open_writes += 1

    def close(self, verdicts: Mapping[SentWrite, Verdict], landed: SentWrite | None = None) -> None:
        """Close writes of known fate: deliver the outcomes if a write landed, and otherwise release its requests.

        Args:
            verdicts: the fate of writes that were open.
            landed: a write that was never open, as its answer was a clean success.
        """
        if verdicts:
            self.writes = [sent for sent in self.writes if sent not in verdicts]
            for sent in verdicts:
                for request, _ in sent.outcomes:
                    request.open_writes -= 1
        if landed is not None:
            answer(landed.outcomes)
        for sent, verdict in verdicts.items():
            if verdict is Verdict.LANDED:
                answer(sent.outcomes)
        for sent, verdict in verdicts.items():
            if verdict is not Verdict.LANDED:
                for request, _ in sent.outcomes:
                    request.release(verdict)

    def forget_old(self) -> None:
        """Drop the oldest writes that no caller waits for, as open writes pile up while none gets through."""
        old = [
            sent for sent in self.writes[:-OPEN_WRITES_KEPT] if not any(request.awaited for request, _ in sent.outcomes)
        ]
        if old:
            self.close(dict.fromkeys(old, Verdict.UNKNOWABLE))
