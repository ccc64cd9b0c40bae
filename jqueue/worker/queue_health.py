"""The queue of a worker: opened and tested at the start, and watched while calls to it fail.

Failed calls are retried with growing pauses, and logged when they begin, each minute, and when they end.
A store that does not answer is waited for. A queue that cannot be used (gone, replaced, corrupt, refused) is retried
for some minutes, as an operator may be restoring it. Then the worker ends with the error, since it could do nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from jqueue.domain.durations import exponential_bound
from jqueue.domain.errors import JQueueError, QueueClosedError, QueueFullError, StorageError, StorageFatalError
from jqueue.domain.printable import counted
from jqueue.ports.clock import Entropy
from jqueue.ports.log import logger_of
from jqueue.ports.queue import Consumer
from jqueue.ports.storage import SupportsWriteCheck, describe

logger = logger_of("jqueue.worker")

RETRIED_ERRORS = (StorageError, QueueFullError)
"""Errors that may pass: errors of the store, missed deadlines, and a full buffer."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 15.0

SILENCE_LIMIT = 2.0
"""Seconds to wait for the store's first answer before its silence is logged."""

LOG_EVERY = 60.0
"""Seconds between two log lines about calls that still fail."""


class QueueHealth:
    """State of a worker's calls to its queue. It logs failures, and decides when the worker gives up.

    Args:
        name: name of the queue in the log.
        give_up_after: seconds for which a worker that can do nothing goes on; None: for ever.
        end_run: ends the run of the worker by an error, when it gives up.

    Attributes:
        given_up: True once the worker has given up.
        has_answered: True once a call has succeeded.
    """

    def __init__(
        self, name: str, give_up_after: float | None, end_run: Callable[[Exception], None] = lambda error: None
    ) -> None:
        self._name = name
        self._end_run = end_run
        self._give_up_after = give_up_after
        self._loop = asyncio.get_running_loop()
        self._failing: dict[str, bool] = {}
        self._fatal: dict[str, Exception] = {}
        self._since = 0.0
        self._logged_at = 0.0
        self._give_up_timers: dict[str, asyncio.TimerHandle] = {}
        self._silence: asyncio.TimerHandle | None = None
        self.given_up = False
        self.has_answered = False

    @property
    def trouble(self) -> list[str]:
        """The reasons for which the worker cannot do its work now."""
        return [f"{what} fails" for what in self._failing] + ["no slot is free"] * ("slots" in self._give_up_timers)

    def expect_answer(self) -> None:
        """Note that the first call to the store begins. If no answer comes soon, that is logged."""
        self._silence = self._loop.call_later(SILENCE_LIMIT, log_silence, self._name)

    def failed(self, what: str, error: Exception) -> None:
        """Note that a call failed. Logged when calls of its kind begin to fail, and each minute while they do."""
        now = self._loop.time()
        self._end_silence()
        if not self._failing:
            self._since = now
        fatal = _fatal_in(error)
        if fatal is not None:
            self._fatal[what] = fatal
            self.block(what, fatal)
        is_fatal = fatal is not None
        if self._failing.get(what) is not is_fatal or now - self._logged_at >= LOG_EVERY:
            self._logged_at = now
            self._log(what, fatal or error, now - self._since)
        self._failing[what] = is_fatal

    def _log(self, what: str, error: Exception, seconds: float) -> None:
        lasting = f" for {seconds:.0f} s" if seconds >= 1 else ""
        if isinstance(error, StorageFatalError):
            logger.error("%s cannot be used%s: %s fails and is retried: %s", self._name, lasting, what, error)
        elif isinstance(error, QueueFullError):
            logger.warning("%s is full%s: %s fails and is retried: %s", self._name, lasting, what, error)
        else:
            logger.warning("%s does not answer%s: %s fails and is retried: %s", self._name, lasting, what, error)

    def answered(self, what: str, failures: int) -> None:
        """Note that a call succeeded, after this number of failures of its kind."""
        self.has_answered = True
        self._end_silence()
        self.unblock(what)
        self._fatal.pop(what, None)
        if failures:
            self._failing.pop(what, None)
            logger.info("%s answers again: %s succeeded after %s", self._name, what, counted(failures, "failure"))

    def forget(self, what: str) -> None:
        """Note that no more calls of a kind are made, so that its failures tell nothing about the queue now."""
        self.unblock(what)
        self._fatal.pop(what, None)
        self._failing.pop(what, None)

    def block(self, why: str, error: Exception) -> None:
        """Note that the worker can do nothing. Unless that ends in time, it gives up with this error."""
        if self._give_up_after is not None and why not in self._give_up_timers:
            self._give_up_timers[why] = self._loop.call_later(self._give_up_after, self._give_up, error)

    def unblock(self, why: str) -> None:
        """Note that `why` no longer keeps the worker from its work."""
        timer = self._give_up_timers.pop(why, None)
        if timer is not None:
            timer.cancel()

    def _give_up(self, error: Exception) -> None:
        if not self.given_up:
            assert self._give_up_after is not None
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


def log_silence(name: str) -> None:
    """Log that the first answer of a queue's store takes long."""
    logger.warning("%s has not answered within %g s, still trying", name, SILENCE_LIMIT)


class CallFailures:
    """Failures in a row of one kind of call to the queue.

    Args:
        what: name of the calls in the log.
        entropy: draws the pauses.
        health: is told of failures and answers.
    """

    def __init__(self, what: str, entropy: Entropy, health: QueueHealth | None = None) -> None:
        self._what = what
        self._entropy = entropy
        self._health = QueueHealth("the queue", None) if health is None else health
        self._count = 0

    def add(self, error: Exception) -> float:
        """Note that a call failed. Return the seconds to wait before the next one."""
        self._count += 1
        self._health.failed(self._what, error)
        bound = exponential_bound(self._count, FIRST_PAUSE, LONGEST_PAUSE)
        return bound / 2 + self._entropy.jitter(bound / 2)

    def clear(self) -> None:
        """Note that a call was answered."""
        self._health.answered(self._what, self._count)
        self._count = 0

    def forget(self) -> None:
        """Note that there is nothing more to call for."""
        if self._count:
            self._health.forget(self._what)
            self._count = 0


def all_slots_stuck(slots: int) -> JQueueError:
    """Return the error of a worker whose slots are all taken by handlers that do not stop."""
    return JQueueError(
        f"all {slots} slots of the worker are taken by handlers that still run although they were told to stop: set"
        " timeouts on the calls that they make"
    )


PROBE_DEADLINE = 0.001
"""Deadline in seconds of the call that tests if a queue is open. A queue that is not open refuses it at once."""


async def open_queue(queue: Consumer, stack: AsyncExitStack, names: Sequence[str]) -> None:
    """Open the queue if it can be opened and is not open yet. The stack closes it.

    Raises:
        TypeError: the object is not a queue.
        StorageFatalError: the queue cannot be used.
    """
    if not hasattr(queue, "dequeue"):
        raise TypeError(
            f"a worker runs on a queue, got {type(queue).__name__}: `connect(url, BrokerQueue)` makes a queue"
        )
    manager: Any = queue
    if not hasattr(manager, "__aenter__"):
        return
    try:
        await queue.dequeue(names, batch_size=0, deadline=PROBE_DEADLINE)  # claims nothing
    except QueueClosedError:
        await stack.enter_async_context(manager)
    except StorageFatalError:
        raise
    except RETRIED_ERRORS:
        return


def name_of(queue: object) -> str:
    """Return the name of a queue for the log: its place, without secrets."""
    place = getattr(queue, "store", None) or getattr(queue, "storage", None)
    if place is None:
        return "the queue"
    known = type(place).__module__.startswith("jqueue.adapters.")
    return f"the queue at {describe(place) if known else type(place).__name__}"


async def check_writable(queue: object) -> None:
    """Check that the queue can be written, if the store can tell. Otherwise the first claim would fail.

    Raises:
        StorageFatalError: this process may not write or create the queue.
    """
    place = getattr(queue, "store", None) or getattr(queue, "storage", None)
    if not isinstance(place, SupportsWriteCheck):
        return
    try:
        await place.check_writable()
    except StorageFatalError:
        raise
    except StorageError as error:
        logger.warning("%s cannot be written now: %s", name_of(queue), error)
