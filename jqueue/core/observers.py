"""The observers of one engine, and the moments at which they are told something."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from datetime import datetime
from typing import ParamSpec, TypeVar

from jqueue.core.requests import Outcome, Request
from jqueue.core.tasks import Outage
from jqueue.domain.commits import CommitId
from jqueue.domain.job import DEAD, JobRecord
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import AllOrNothing, ClientBatch
from jqueue.domain.transitions import Move, Verb
from jqueue.ports.clock import Clock
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.observer import AppliedCall, AppliedCalls, CallOutcome, LandedCommit, Observer, SentCall

logger: Logger = logger_of("jqueue")

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


class Observers:
    """The observers of one engine. It has none by default.

    Args:
        clock: measures the calls to the store.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._present: tuple[Observer, ...] = ()
        self._outage = Outage()

    def add(self, observer: Observer) -> None:
        """Add an observer, if it is not there."""
        if observer not in self._present:
            self._present += (observer,)

    def remove(self, observer: Observer) -> None:
        """Remove an observer, if it is there."""
        self._present = tuple(each for each in self._present if each is not observer)

    async def call(
        self,
        call: str,
        seconds: float,
        request: Callable[Arguments, Awaitable[Answer]],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Answer:
        """Call the store, and return its answer. The observers are told when the call ends.

        Args:
            call: see `Observer.store_called`.
            seconds: maximum time; then TimeoutError is raised.
            request: the method of the store.
            arguments: its arguments.
            named: further arguments of it, by name.
        """
        started = self._clock.monotonic() if self._present else None
        try:
            async with asyncio.timeout(seconds):
                answer = await request(*arguments, **named)
        except BaseException as error:
            self._outage.failed(error)
            if started is not None:
                self._called(call, started, error)
            raise
        if call in ("write", "create"):
            self._outage.written()
        if started is not None:
            self._called(call, started, None)
        return answer

    async def look(self, read: Callable[[], Awaitable[object]], request: Request) -> None:
        """Read the store for calls that wait for jobs, in the context of one of them.

        The task that reads began with another call, whose trace would get the polls of hours.
        """

        async def looking() -> None:
            self._tell(lambda observer: observer.looking())
            await read()

        context = getattr(request, "context", None) or copy_context()
        await asyncio.get_running_loop().create_task(looking(), name="jqueue-look", context=context.copy())

    def broker_called(self, error: BaseException | None) -> None:
        """Tell the observers of a client without a store that its broker has failed, or answers again."""
        self._tell(lambda observer: observer.store_called("read", 0.0, error))

    def _called(self, call: str, started: float, error: BaseException | None) -> None:
        seconds = self._clock.monotonic() - started
        self._tell(lambda observer: observer.store_called(call, seconds, error))

    def applied(
        self,
        base: int,
        now: datetime,
        outcomes: Sequence[tuple[Request, Outcome]],
        own: tuple[int, Operation, int] | None,
        commit: CommitId | None = None,
    ) -> None:
        """Tell the observers of calls that were applied: see `AppliedCalls`.

        Args:
            base: number of the version.
            now: the time by which they were applied.
            outcomes: the calls with their outcomes, in order.
            own: an operation of the engine with its result, and the number of calls before it; None for no such one.
            commit: id of the write that carries them, if one does.
        """
        if self._present and any(type(each).applied is not Observer.applied for each in self._present):
            calls = [  # a poll may have a thousand
                AppliedCall(request.operations, outcome, getattr(request, "context", None))
                for request, outcome in outcomes
            ]
            if own is not None:
                place, operation, result = own
                calls.insert(place, AppliedCall((operation,), [result], None))
            applied = AppliedCalls(base, now, calls, commit)
            self._tell(lambda observer: observer.applied(applied))

    def sent(self, name: str, requests: Iterable[Request]) -> None:
        """Tell the observers of calls that go to a broker: see `Observer.sent`."""
        if self._present:
            calls = [SentCall(each.operations, getattr(each, "context", None)) for each in requests]
            self._tell(lambda observer: observer.sent(name, calls))

    def died(self, moves: Iterable[Move]) -> list[JobRecord]:
        """Return the jobs for `LandedCommit.dead` among the transitions of a commit, if there is an observer."""
        if not self._present:
            return []
        return [job for verb, _, job, _ in moves if verb is Verb.REVOKE and job is not None and job.status is DEAD]

    def landed(
        self,
        commit: CommitId,
        outcomes: Sequence[tuple[Request, Outcome]],
        seconds: float,
        dead: Sequence[JobRecord],
        *,
        recognised: bool,
    ) -> None:
        """Tell the observers of a commit that has landed: see `LandedCommit`."""
        if self._present:
            calls = [call for request, outcome in outcomes for call in _calls(request.operations, outcome)]
            landed = LandedCommit(commit.base_version + 1, calls, seconds, recognised, dead)
            self._tell(lambda observer: observer.committed(landed))

    def _tell(self, tell: Callable[[Observer], None]) -> None:
        for observer in self._present:
            try:
                tell(observer)
            except Exception:
                logger.exception("the observer %s of a queue failed", type(observer).__name__)


def _calls(operations: Sequence[Operation], outcome: Outcome) -> Iterator[CallOutcome]:
    """Yield a call with its outcome; or those of a batch that came from another process."""
    if not isinstance(operations[0], ClientBatch) or not isinstance(outcome, list):
        yield operations, outcome
        return
    for operation, result in zip(operations[0].operations, outcome[0], strict=True):
        if isinstance(operation, AllOrNothing) and isinstance(result, list):
            yield operation.operations, result
        else:
            yield (operation,), [result]
