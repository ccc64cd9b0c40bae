"""The queue of a worker: opened and tested at the start, and watched while calls to it fail.

Failed calls are retried with growing pauses, and logged when they begin, each minute, and when they end.
A store that does not answer is waited for. A queue that cannot be used (gone, replaced, corrupt, refused) is retried
for some minutes, as an operator may be restoring it. Then the worker ends with the error, since it could do nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from jqueue.domain.durations import exponential_bound
from jqueue.domain.errors import (
    BlobMissingError,
    CASConflictError,
    QueueClosedError,
    QueueFullError,
    StorageError,
    StorageFatalError,
)
from jqueue.domain.printable import counted
from jqueue.ports.clock import Entropy
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.queue import Consumer
from jqueue.ports.storage import SupportsWriteCheck, storage_of
from jqueue.telemetry.exporters import place_name

logger: Logger = logger_of("jqueue.worker")

RETRIED_ERRORS = (StorageError, QueueFullError, CASConflictError)
"""Errors that may pass: errors of the store, missed deadlines, a full buffer, and races lost to other writers."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 15.0

SILENCE_LIMIT = 2.0
"""Seconds to wait for the store's first answer before its silence is logged."""

LOG_EVERY = 60.0
"""Seconds between two log lines about calls that still fail."""


SLOTS = "slots"
"""The reason for which a worker is blocked whose slots are all taken by handlers that do not stop."""


class QueueHealth:
    """State of a worker's calls to its queue. It logs failures, and decides when the worker gives up.

    Args:
        name: name of the queue in the log.
        entropy: draws the pauses after failures.
        give_up_after: seconds for which a worker that can do nothing goes on; None: for ever.
        end_run: ends the run of the worker by an error, when it gives up.

    Attributes:
        given_up: True once the worker has given up.
        has_answered: True once a call has succeeded.
    """

    def __init__(
        self,
        name: str,
        entropy: Entropy,
        give_up_after: float | None = None,
        end_run: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._name = name
        self._entropy = entropy
        self._give_up_after = give_up_after
        self._end_run = end_run
        self._loop = asyncio.get_running_loop()
        self._failures: dict[str, int] = {}  # by kind of call: number of failures in a row
        self._fatal: dict[str, Exception] = {}
        self._since = self._logged_at = 0.0
        self._give_up_timers: dict[str, asyncio.TimerHandle] = {}
        self._silence: asyncio.TimerHandle | None = None
        self.given_up: bool = False
        self.has_answered: bool = False

    @property
    def trouble(self) -> list[str]:
        """The reasons for which the worker cannot do its work now."""
        return [f"{what} fails" for what in self._failures] + ["no slot is free"] * (SLOTS in self._give_up_timers)

    def expect_answer(self) -> None:
        """Note that the first call to the store begins. If no answer comes soon, that is logged."""
        self._silence = self._loop.call_later(SILENCE_LIMIT, log_silence, self._name)

    def failed(self, what: str, error: Exception) -> float:
        """Note that a call failed. Return the seconds to wait before the next one of its kind.

        The failure is logged when calls of its kind begin to fail, and each minute while they do.
        """
        now = self._loop.time()
        self._end_silence()
        if not self._failures:
            self._since = now
        is_news = what not in self._failures
        if (fatal := _fatal_in(error)) is not None:
            is_news = is_news or what not in self._fatal
            self._fatal[what] = fatal
            self.block(what, fatal)
        if is_news or now - self._logged_at >= LOG_EVERY:
            self._logged_at = now
            self._log(what, self._fatal.get(what, error), now - self._since)
        self._failures[what] = failures = self._failures.get(what, 0) + 1
        bound = exponential_bound(failures, FIRST_PAUSE, LONGEST_PAUSE)
        return bound / 2 + self._entropy.jitter(bound / 2)

    def _log(self, what: str, error: Exception, seconds: float) -> None:
        lasting = f" for {seconds:.0f} s" if seconds >= 1 else ""
        level, state = logging.WARNING, "does not answer"
        if isinstance(error, StorageFatalError):
            level, state = logging.ERROR, "cannot be used"
        elif isinstance(error, QueueFullError):
            state = "is full"
        elif isinstance(error, CASConflictError):
            state = "is busy with other writers"
        logger.log(level, "%s %s%s: %s fails and is retried: %s", self._name, state, lasting, what, error)

    def answered(self, what: str) -> None:
        """Note that a call succeeded."""
        self.has_answered = True
        self._end_silence()
        if failures := self._failures.get(what):
            self.forget(what)
            logger.info("%s answers again: %s succeeded after %s", self._name, what, counted(failures, "failure"))

    def forget(self, what: str) -> None:
        """Note that no more calls of a kind are made, so that its failures tell nothing about the queue now."""
        if self._failures.pop(what, None):
            self._fatal.pop(what, None)
            self.unblock(what)

    def block(self, why: str, error: Exception) -> None:
        """Note that the worker can do nothing. Unless that ends in time, it gives up with this error."""
        if self._give_up_after is not None and why not in self._give_up_timers:
            self._give_up_timers[why] = self._loop.call_later(self._give_up_after, self._give_up, error)

    def unblock(self, why: str) -> None:
        """Note that `why` no longer keeps the worker from its work."""
        if (timer := self._give_up_timers.pop(why, None)) is not None:
            timer.cancel()

    def _give_up(self, error: Exception) -> None:
        if not self.given_up:
            logger.error("the worker gives up: for %g s it could do nothing", self._give_up_after)
            self.given_up = True
            self._end_run(error)

    def _end_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def close(self) -> str:
        """Log nothing more. Return the calls that still fail, for the last log line."""
        self._end_silence()
        for why in list(self._give_up_timers):
            self.unblock(why)
        return "".join(f"; at the end, {what} still failed: {error}" for what, error in self._fatal.items())


def _fatal_in(error: BaseException | None) -> StorageFatalError | None:
    """Return the error that says a queue cannot be used, if it caused the failure or the unknown outcome of a call."""
    while isinstance(error, StorageError) and not isinstance(error, StorageFatalError):
        error = error.cause
    return error if isinstance(error, StorageFatalError) else None


def raise_if_final(error: Exception) -> None:
    """Raise an error of a start that no waiting mends. The object of a queue that is gone may be restored soon."""
    if isinstance(error, StorageFatalError) and not isinstance(error, BlobMissingError):
        raise error


def log_silence(name: str) -> None:
    """Log that the first answer of a queue's store takes long."""
    logger.warning("%s has not answered within %g s, still trying", name, SILENCE_LIMIT)


PROBE_DEADLINE = 0.001
"""Deadline in seconds of the call that tests if a queue is open. A queue that is not open refuses it at once."""


async def open_queue(queue: Consumer, stack: AsyncExitStack, names: Sequence[str]) -> None:
    """Open the queue if it can be opened and is not open yet. The stack closes it.

    Raises:
        TypeError: the object is not an async queue.
        StorageFatalError: the queue cannot be used.
    """
    if not hasattr(queue, "dequeue") or getattr(queue, "blocks", False):
        raise TypeError(f"a worker runs on an async queue, got {type(queue).__name__}: `connect(url)` makes one")
    manager: Any = queue
    if not hasattr(manager, "__aenter__"):
        return
    try:
        await queue.dequeue(names, batch_size=0, deadline=PROBE_DEADLINE)  # claims nothing
    except QueueClosedError:
        await stack.enter_async_context(manager)
    except RETRIED_ERRORS as error:
        raise_if_final(error)


def name_of(queue: object) -> str:
    """Return the name of a queue for the log: its place, without secrets."""
    return f"the queue at {place_name(queue)}"


async def check_writable(queue: object) -> None:
    """Check that the queue can be written, if the store can tell. Otherwise the first claim would fail.

    Raises:
        StorageFatalError: this process may not write or create the queue.
    """
    place = storage_of(queue)
    if not isinstance(place, SupportsWriteCheck):
        return
    try:
        await place.check_writable()
    except StorageFatalError:
        raise
    except StorageError as error:
        logger.warning("%s cannot be written now: %s", name_of(queue), error)
