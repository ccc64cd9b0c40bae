"""A call on its way: its operations, its deadline, and its outcome."""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Hashable, Sequence
from contextlib import suppress
from typing import Any

from jqueue.core.claims import ClaimRegistry
from jqueue.domain.commits import Verdict
from jqueue.domain.errors import (
    DeadlineExceededError,
    JQueueError,
    QueueFullError,
    UnknownOutcomeError,
)
from jqueue.domain.job import Claim
from jqueue.domain.operations.base import Operation

Callback = Callable[[Any], object]


LANDED = Verdict.LANDED

Outcome = list[Any] | JQueueError
"""The outcome of a request in one try: a result or an error for each operation, or the error that undid them all."""


class Callers:
    """The callers of one queue object on one event loop. It wakes them in the order in which they are answered.

    A future of asyncio would do the same for one caller, with a callback of the event loop for each. A commit answers
    hundreds of calls at once, so that these callbacks would take a part of the time of every call.

    Args:
        loop: the event loop.
        claims: remembers the claims that callers hold.
        hand_back: hands claims that no caller received back to the queue.
        resolve: returns the results of a request whose outcome was unknown.
        waking: called when callers are about to be woken; None: nothing is.

    Attributes:
        answered: the answered calls whose callers are woken next.
        woken: set when callers are woken.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        claims: ClaimRegistry,
        hand_back: Callable[[Sequence[Claim]], None],
        resolve: Callable[[Request, float | None], Awaitable[list[Any]]],
        waking: Callable[[], None] | None,
    ) -> None:
        self.loop = loop
        self.claims = claims
        self.hand_back = hand_back
        self.resolve = resolve
        self.answered: deque[Request] = deque()
        self.waking = waking
        self.woken: asyncio.Event = asyncio.Event()

    def wake(self) -> None:
        """Wake the callers of the answered calls."""
        answered, self.answered = self.answered, deque()
        self.woken.set()
        if self.waking is not None:
            self.waking()
        try:
            while answered:
                call = answered.popleft()  # each is freed when its caller goes on: the garbage collector starts later
                callback = call.callback
                if callback is not None:
                    call.callback, context = None, call.context
                    if call.in_flight or call.open_writes:  # observers are told of it while its caller goes on
                        call.context = context.copy()
                    context.run(callback, call)
        finally:  # a task has let KeyboardInterrupt or SystemExit through: if the loop goes on, the others are woken
            if answered:
                if not self.answered:
                    self.loop.call_soon(self.wake)
                self.answered += answered


class Request:
    """One call: operations that go into one commit. To its caller's task it is like a future of their results.

    Args:
        operations: prepared, in order.
        callers: wakes the caller.
        atomic: True if one refused operation undoes the others and is raised to the caller.
        convert: converts the results to the return value of the call, if the outcome becomes known only later.

    Attributes:
        awaited: True until it is answered, has failed or is cancelled.
        outcome: its outcome, if it landed.
        error: raised to the caller, if it has failed or is cancelled. Then it is dropped.
        verdict: its fate, once known.
        claims_jobs: True if it hands out claims.
        due: time at which it expires, on the clock of the event loop; infinite if it has an alarm of its own.
        until: end of the call, its wait for jobs included, on the clock of the event loop.
        waits_for_jobs: True while the request waits for jobs, so that an empty answer is no answer yet.
        poll: seconds between two looks at the store while it waits for jobs, at most; None: as often as its queue does.
        seen_empty: True if a state read after the call gave an empty answer.
        open_writes: number of writes that carried it and whose fate is unknown.
        in_flight: True while a write that carries it is under way.
        doubtful: True if a broker may still claim jobs for it, as its message may come late.
        last_error: the last error that kept it from being done.
        callers: wakes the caller.
        callback: called when it has ended.
        ending: called after it has failed, was cancelled, or its wait was ended.
        context: the context of the callback. Once it was called, a copy as it was then, if the request goes on.
    """

    context: contextvars.Context
    awaited: bool = True
    waits_for_jobs: bool = False
    seen_empty: bool = False
    in_flight: bool = False
    doubtful = _asyncio_future_blocking = False
    outcome: Outcome | None = None
    error: BaseException | None = None
    last_error: BaseException | None = None
    verdict: Verdict | None = None
    callback: Callback | None = None
    ending: Callback | None = None
    due: float = math.inf
    until: float = math.inf
    wait_until: float = math.inf
    poll: float | None = None
    open_writes = 0

    def __init__(
        self,
        operations: Sequence[Operation],
        callers: Callers,
        atomic: bool = True,
        convert: Callable[[list[Any]], Any] = list,
    ) -> None:
        self.operations = operations
        self.atomic = atomic
        self._convert = convert
        self.callers = callers
        self._loop = callers.loop  # where a task looks for the loop of a future
        self.claims_jobs: bool = (
            operations[0].claims_jobs if len(operations) == 1 else any(each.claims_jobs for each in operations)
        )

    # The methods of a future that a task uses

    def __await__(self) -> Generator[Any, None, Any]:
        if self.awaited:
            self._asyncio_future_blocking = True
            try:
                yield self
            except asyncio.CancelledError:
                self.caller_cancelled()
                raise
        if (error := self.error) is not None:
            self.error = None  # its traceback has the frames of the caller, and this object would be in a cycle
            try:
                raise error
            finally:
                del error
        return self.outcome

    def result(self) -> None:
        """Return at once: `__await__` returns the outcome or raises the error."""

    def cancel(self, msg: Any | None = None) -> bool:
        """End it, as its caller is cancelled. Return False if it had ended before."""
        if self.awaited:
            self.fail(asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg))
            return True
        return False

    def add_done_callback(self, callback: Callback, *, context: contextvars.Context) -> None:
        """Call a function with this object when it has ended: its caller's task asks for that, and nobody else."""
        self.callback = callback
        self.context = context

    # Its way through the engine

    @property
    def search_key(self) -> Hashable | None:
        """The search key of a request with one operation that only searches; otherwise None.

        See `Operation.search_key`.
        """
        return self.operations[0].search_key() if len(self.operations) == 1 else None

    def stop_waiting(self) -> None:
        """End the wait for jobs. An empty answer is accepted from now on, and delivered if it was found already."""
        self.waits_for_jobs = False
        if self.awaited and self.seen_empty and not self.in_flight and not self.open_writes:
            self.settle([[] for _ in self.operations])

    def expire(self) -> None:
        """End the request, as its deadline has passed."""
        last = self.last_error
        why = f" (last error: {last})" if last is not None else ""
        failure = DeadlineExceededError(f"the deadline passed, and nothing was done{why}")
        failure.__cause__ = failure.cause = last
        error = last if isinstance(last, QueueFullError) else failure
        self.give_up(error, "the deadline passed before it was certain whether the operation was done", last)

    def give_up(self, error: BaseException, unsure: str, cause: BaseException | None) -> None:
        """Fail with an error that says "not done"; or with an unknown outcome, if it may be done or become done."""
        if self.in_flight or self.open_writes or self.doubtful:
            error = self.unknown(unsure, cause)
        self.fail(error)

    def refuse(self, error: BaseException) -> None:
        """Fail with an error of the store or of a broker, with which nothing was done."""
        self.in_flight = False
        self.fail(error)
        self.verdict = self.verdict or Verdict.NOT_DONE

    def unknown(self, what: str, cause: BaseException | None) -> UnknownOutcomeError:
        """Return the error for an unknown outcome. Its `resolve` finds the outcome out."""
        ids = [job_id for operation in self.operations for job_id in operation.job_ids()]
        error = UnknownOutcomeError(
            what, cause, job_ids=ids, resolver=lambda timeout: self.callers.resolve(self, timeout)
        )
        error.__cause__ = cause
        return error.returning(self._convert)

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
        """Take an outcome that was committed, or found in a state read after the call.

        An empty outcome does not end a request that waits for jobs.
        """
        self.in_flight = False
        if self.waits_for_jobs and is_empty(outcome):
            self.seen_empty, self.last_error = True, None
            return
        self.verdict = LANDED
        self.outcome = outcome
        if not self.awaited:
            self.hand_back_claims(outcome)
            return
        callers = self.callers
        claims = callers.claims
        if outcome.__class__ is not list:
            assert isinstance(outcome, JQueueError)
            claims.lose(outcome)
            self.outcome, self.error = None, outcome
        else:
            for operation, result in zip(self.operations, outcome, strict=True):
                claims.note(operation, result)
        self.awaited = False
        if not callers.answered:
            callers.loop.call_soon(callers.wake)
        callers.answered.append(self)

    def fail(self, error: BaseException) -> None:
        """Finish the request with an error, unless it has ended."""
        if self.awaited:
            self.error = error
            self.awaited = False
            callers = self.callers
            if self.ending is not None:  # asyncio.run cancels the last tasks while no loop runs
                callers.loop.call_soon(self.ending, self)
            if not callers.answered:
                callers.loop.call_soon(callers.wake)
            callers.answered.append(self)

    def hand_back_claims(self, outcome: Outcome) -> None:
        """Hand back the claims of an outcome that no caller takes."""
        if isinstance(outcome, list):
            pairs = zip(self.operations, outcome, strict=True)
            claims = [claim for operation, result in pairs for claim in _claims(operation, result)]
            if claims:
                self.callers.hand_back(claims)

    def caller_cancelled(self) -> None:
        """Note that the caller was cancelled. If the request was answered just now, its claims are handed back."""
        if not self.awaited and self.outcome is not None and self.error is None:
            self.callers.claims.reopen(self.operations)
            self.hand_back_claims(self.outcome)


async def sleep_while_awaited(requests: Sequence[Request], seconds: float) -> None:
    """Wait this number of seconds, but only while one of these requests is awaited."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    for request in requests:  # each is left behind once it has ended: ten thousand cost one look each
        woken = request.callers.woken  # a broker commits for callers of other processes beside its own
        while request.awaited and (left := until - loop.time()) > 0:
            woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await woken.wait()


def is_empty(outcome: Outcome) -> bool:
    """True if the outcome says that there was nothing to claim."""
    return isinstance(outcome, list) and not any(outcome)


def _claims(operation: Operation, result: Any) -> Sequence[Claim]:
    return () if isinstance(result, JQueueError) else operation.claims(result)
