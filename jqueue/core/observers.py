"""The observers of one engine, and the moments at which they are told something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from types import TracebackType

from jqueue.core.requests import Outcome, Request
from jqueue.domain.commits import CommitId
from jqueue.domain.operations.base import Operation
from jqueue.ports.clock import Clock
from jqueue.ports.log import logger_of
from jqueue.ports.observer import AppliedCall, AppliedCalls, LandedCommit, Observer

logger = logger_of("jqueue")


class Observers:
    """The observers of one engine. It has none by default.

    Args:
        clock: measures the calls to the store.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._present: tuple[Observer, ...] = ()

    def add(self, observer: Observer) -> None:
        """Add an observer, if it is not there."""
        if observer not in self._present:
            self._present += (observer,)

    def remove(self, observer: Observer) -> None:
        """Remove an observer, if it is there."""
        self._present = tuple(each for each in self._present if each is not observer)

    def limited(self, call: str, seconds: float) -> Limited:
        """Return a context in which to call the store, within some seconds. The observers are told when the call ends.

        Args:
            call: see `Observer.store_called`.
            seconds: maximum time; then TimeoutError is raised.
        """
        return Limited(self, call, seconds)

    def called(self, call: str, started: float, error: BaseException | None) -> None:
        """Tell the observers of a call to the store that began at a time of the monotonic clock."""
        seconds = self._clock.monotonic() - started
        self._tell(lambda observer: observer.store_called(call, seconds, error))

    def now(self) -> float | None:
        """Return the monotonic time; None if there is no observer."""
        return self._clock.monotonic() if self._present else None

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
        if self._present:
            calls = [
                AppliedCall(request.operations, outcome, getattr(request, "context", None))
                for request, outcome in outcomes
            ]
            if own is not None:
                place, operation, result = own
                calls.insert(place, AppliedCall((operation,), [result], None))
            applied = AppliedCalls(base, now, calls, commit)
            self._tell(lambda observer: observer.applied(applied))

    def landed(
        self, commit: CommitId, outcomes: Sequence[tuple[Request, Outcome]], seconds: float, *, recognised: bool
    ) -> None:
        """Tell the observers of a commit that has landed: see `LandedCommit`."""
        if self._present:
            calls = [(request.operations, outcome) for request, outcome in outcomes]
            landed = LandedCommit(commit.base_version + 1, calls, seconds, recognised)
            self._tell(lambda observer: observer.committed(landed))

    def _tell(self, tell: Callable[[Observer], None]) -> None:
        for observer in self._present:
            try:
                tell(observer)
            except Exception:
                logger.exception("the observer %s of a queue failed", type(observer).__name__)


class Limited:
    """One call to the store: see `Observers.limited`."""

    def __init__(self, observers: Observers, call: str, seconds: float) -> None:
        self._observers = observers
        self._call = call
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        self._started = self._observers.now()
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as late:
            error = late
            raise
        finally:
            if self._started is not None:
                self._observers.called(self._call, self._started, error)
