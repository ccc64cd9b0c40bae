"""The observers of one engine, and the moments at which they are told something."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from types import TracebackType

from jqueue.core.engine.open_writes import SentWrite
from jqueue.ports.clock import Clock
from jqueue.ports.log import logger_of
from jqueue.ports.observer import LandedCommit, Observer

logger = logger_of("jqueue")

UNTIMED = nullcontext()


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

    def timing(self, call: str) -> AbstractContextManager[None]:
        """Return a context in which to call the store: the observers are told when it ends.

        Args:
            call: see `Observer.store_called`.
        """
        return _Timing(self._clock, call, self._tell) if self._present else UNTIMED

    @asynccontextmanager
    async def limited(self, call: str, seconds: float) -> AsyncIterator[None]:
        """Call the store within some seconds, and tell the observers when the call ends.

        Args:
            call: see `Observer.store_called`.
            seconds: maximum time; then TimeoutError is raised.
        """
        with self.timing(call):
            async with asyncio.timeout(seconds):
                yield

    def landed(self, sent: SentWrite, seconds: float, *, recognised: bool) -> None:
        """Tell the observers of a commit that has landed: see `LandedCommit`."""
        if self._present:
            calls = [(request.operations, outcome) for request, outcome in sent.outcomes]
            commit = LandedCommit(sent.commit.base_version + 1, calls, seconds, recognised)
            self._tell(lambda observer: observer.committed(commit))

    def _tell(self, tell: Callable[[Observer], None]) -> None:
        for observer in self._present:
            try:
                tell(observer)
            except Exception:
                logger.exception("the observer %s of a queue failed", type(observer).__name__)


class _Timing(AbstractContextManager[None]):
    """One call to the store."""

    def __init__(self, clock: Clock, call: str, tell: Callable[[Callable[[Observer], None]], None]) -> None:
        self._clock = clock
        self._call = call
        self._tell = tell

    def __enter__(self) -> None:
        self._started = self._clock.monotonic()

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        seconds = self._clock.monotonic() - self._started
        self._tell(lambda observer: observer.store_called(self._call, seconds, error))
