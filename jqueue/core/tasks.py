"""Work on an event loop: in slices, with turns for others between them, and requests that are sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from jqueue.domain.durations import exponential_bound
from jqueue.domain.errors import (
    CASConflictError,
    DeadlineExceededError,
    JQueueError,
    StorageError,
    StorageFatalError,
    StorageThrottledError,
)
from jqueue.domain.slices import Result, Slices
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.log import Logger, logger_of
from jqueue.runtime.tasks import all_at_once

Answer = TypeVar("Answer")
logger: Logger = logger_of("jqueue")

LONGEST_WAIT = 0.005
"""Seconds for which a slice of work that can wait is put off at most. A commit on a file is mostly faster."""

Turn = Callable[[], Awaitable[None]]
"""Called between two slices."""


async def one_turn() -> None:
    """Give the event loop one turn."""
    await asyncio.sleep(0)


async def in_turns(slices: Slices[Result], turn: Turn = one_turn) -> Result:
    """Run the slices, with a turn of the event loop between them, and return the result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: Result = end.value
            return result
        await turn()


class SpareTurns:
    """Turns for work that can wait: it stands back while a commit is written.

    A write in a thread needs the interpreter's lock after each of its system calls, some twenty times. If the event
    loop were busy meanwhile, the write would wait for a slice each time, and all its callers with it.

    Attributes:
        writing: True while a commit is being written.
    """

    def __init__(self) -> None:
        self.writing: bool = False
        self._end: asyncio.Future[None] | None = None  # awaited by work that stands back

    def written(self) -> None:
        """Note that the write has ended."""
        self.writing = False
        if self._end is not None:
            self._end.set_result(None)
            self._end = None

    async def next(self) -> None:
        """Give the event loop a turn, and wait for the end of a write, for some milliseconds at most."""
        await one_turn()
        if self.writing:
            if self._end is None:
                self._end = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._end], timeout=LONGEST_WAIT)


# Again after failures

FAILURE_BASE, FAILURE_CAP = 0.05, 5.0
THROTTLED_BASE, THROTTLED_CAP = 0.5, 10.0

TRANSIENT = (StorageError, OSError, TimeoutError)
"""Errors after which another try is made, except for StorageFatalError."""


class Backoff(msgspec.Struct):
    """The pauses between the tries of one request or commit: growing, with full jitter.

    Attributes:
        entropy: draws them.
        failures: number of tries that have failed.
    """

    entropy: Entropy
    failures: int = 0

    def after(self, error: BaseException) -> float:
        """Return the seconds to wait after a failure of the store; more if it asked for fewer requests."""
        self.failures += 1
        throttled = isinstance(error, StorageThrottledError)
        base, cap = (THROTTLED_BASE, THROTTLED_CAP) if throttled else (FAILURE_BASE, FAILURE_CAP)
        return self.entropy.jitter(exponential_bound(self.failures, base, cap))


def as_storage_error(error: BaseException) -> StorageError:
    """Return a failure of a store as a StorageError. An error that already is one is returned unchanged."""
    if isinstance(error, StorageError):
        return error
    if isinstance(error, TimeoutError):
        return StorageError("the store did not answer in time", error if str(error) else None)
    return StorageError(f"the storage adapter raised {type(error).__name__}", error)


class Outage:
    """Logs a failure of a store that lasts until a user removes its cause: when it begins, and when it ends."""

    _lasts = False

    def failed(self, error: BaseException) -> None:
        """Note that a call to the store has failed."""
        if not self._lasts and isinstance(error, StorageError) and error.needs_user:
            self._lasts = True
            logger.warning("%s. Calls are tried again until their deadlines", error)

    def written(self) -> None:
        """Note that a call has changed the store."""
        if self._lasts:
            self._lasts = False
            logger.info("the store takes writes again")


async def retried(
    seconds: float,
    request: Callable[[], Awaitable[Answer]],
    entropy: Entropy,
    failed: str,
    *,
    streams: bool = False,
) -> Answer:
    """Send a request that may be repeated, again and again while the store fails.

    Args:
        seconds: maximum time.
        request: sends it once.
        entropy: draws the pauses.
        failed: the error if it was not answered in time; the reason is added.
        streams: True if a request that has begun may take longer.

    Raises:
        DeadlineExceededError: it was not answered in time.
        StorageError: the store refused.
    """
    loop = asyncio.get_running_loop()
    until, backoff, why = loop.time() + seconds, Backoff(entropy), None
    while True:
        try:
            async with asyncio.timeout_at(None if streams else until):
                return await request()
        except StorageFatalError:
            raise
        except (CASConflictError, *TRANSIENT) as error:
            why, pause = error if str(error) else why, backoff.after(error)
        except JQueueError:
            raise
        except Exception as error:
            raise as_storage_error(error) from error
        await asyncio.sleep(max(0.0, min(pause, until - loop.time())))
        if loop.time() >= until:
            silent = "" if why else ": the store did not answer"
            raise DeadlineExceededError(f"{failed} before the deadline{silent}", why) from why


# Beside the calls

TO_CANCEL = 1.0
"""Seconds to wait for tasks that were cancelled."""


async def end_tasks(tasks: Iterable[asyncio.Task[Any]], seconds: float = 0.0) -> None:
    """Wait until tasks have ended, for some seconds at most, and then cancel them."""
    several = [task for task in tasks if not task.done()]
    if several and seconds > 0:
        await asyncio.wait(several, timeout=seconds)
    for task in several:
        task.cancel()
    if several:
        done, _ = await asyncio.wait(several, timeout=TO_CANCEL)
        await asyncio.gather(*done, return_exceptions=True)  # retrieves errors by which they answered


SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds from a failure in the background to the next try: they double from the first to the second."""


class Background:
    """Runs tasks one after the other, beside the commits. A task that fails is logged, and tried again after a pause.

    Args:
        clock: measures pauses.
        name: of the tasks.
        failed: the text that is logged for an error.

    Attributes:
        task: the task under way.
        pause: seconds between the last failure and the next task; 0 after a success.
    """

    def __init__(self, clock: Clock, name: str, failed: str) -> None:
        self._clock = clock
        self._name = name
        self._failed = failed
        self.task: asyncio.Task[None] | None = None
        self.pause: float = 0.0
        self._not_before = -float("inf")

    @property
    def is_free(self) -> bool:
        """True if the next task may begin."""
        return self.task is None and self._clock.monotonic() >= self._not_before

    def wait(self, seconds: float) -> None:
        """Begin no task for some seconds."""
        self._not_before = self._clock.monotonic() + seconds

    def begin(self, work: Callable[[], Awaitable[Answer]], done: Callable[[Answer], None]) -> None:
        """Begin a task, which calls `work`. `done` is called with the result."""
        self.task = asyncio.get_running_loop().create_task(self._run(work, done), name=self._name)

    async def _run(self, work: Callable[[], Awaitable[Answer]], done: Callable[[Answer], None]) -> None:
        try:
            result = await work()
            self.pause = 0.0
            done(result)
        except Exception as error:
            self.pause = min(LONGEST_PAUSE, max(SHORTEST_PAUSE, self.pause * 2))
            self.wait(self.pause)
            logger.warning("%s, and will be tried again: %r", self._failed, error)
        finally:
            self.task = None


AT_ONCE = 8
"""Number of requests that one call sends at the same time."""


async def some_at_once(do: Callable[[Any], Awaitable[None]], things: Sequence[Any]) -> None:
    """Do something with each thing, a few at a time. The first error ends all."""
    if len(things) <= 1:
        for thing in things:
            await do(thing)
        return
    rest = iter(things)

    async def worker() -> None:
        for thing in rest:
            await do(thing)

    await all_at_once(*(worker() for _ in range(min(AT_ONCE, len(things)))))
