"""Trouble with the queue: retried with growing pauses, and logged when it begins, each minute, and when it ends.

A store that does not answer is waited for. A queue that cannot be used (gone, replaced, corrupt, refused) is retried
for some minutes, as an operator may be restoring it. Then the worker ends with the error, since it could do nothing.
"""

from __future__ import annotations

import asyncio

from jqueue.domain.backoff import exponential_bound
from jqueue.domain.counting import counted
from jqueue.domain.errors import JQueueError, QueueFullError, StorageError, StorageFatalError
from jqueue.ports.clock import Entropy
from jqueue.ports.log import logger_of

logger = logger_of("jqueue.worker")

TROUBLE = (StorageError, QueueFullError)
"""Errors that may pass: errors of the store, missed deadlines, and a full buffer."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 15.0

SILENCE = 2.0
"""Seconds to wait for the store's first answer before its silence is logged."""

TELL_EVERY = 60.0
"""Seconds between two log lines about trouble that lasts."""


class Health:
    """State of a worker's calls to its queue. It logs trouble, and decides when the worker gives up.

    Args:
        name: name of the queue in the log.
        give_up_after: seconds for which a worker that can do nothing goes on; None: for ever.

    Attributes:
        hopeless: future that fails with the reason when the worker gives up.
    """

    def __init__(self, name: str, give_up_after: float | None) -> None:
        self._name = name
        self._give_up_after = give_up_after
        self._loop = asyncio.get_running_loop()
        self._troubles: dict[str, bool] = {}
        self._fatal: dict[str, Exception] = {}
        self._since = 0.0
        self._told = 0.0
        self._patience: dict[str, asyncio.TimerHandle] = {}
        self._silence: asyncio.TimerHandle | None = None
        self.hopeless: asyncio.Future[None] = self._loop.create_future()

    def expect_answer(self) -> None:
        """Note that the first call to the store begins. If no answer comes soon, that is logged."""
        self._silence = self._loop.call_later(SILENCE, tell_silence, self._name)

    def failed(self, what: str, error: Exception) -> None:
        """Note that a call failed. Logged when calls of its kind begin to fail, and each minute while they do."""
        now = self._loop.time()
        self._end_silence()
        if not self._troubles:
            self._since = now
        fatal = _fatal_in(error)
        if fatal is not None:
            self._fatal[what] = fatal
            self.useless(what, fatal)
        is_fatal = fatal is not None
        if self._troubles.get(what) is not is_fatal or now - self._told >= TELL_EVERY:
            self._told = now
            self._tell(what, fatal or error, now - self._since)
        self._troubles[what] = is_fatal

    def _tell(self, what: str, error: Exception, seconds: float) -> None:
        lasting = f" for {seconds:.0f} s" if seconds >= 1 else ""
        if isinstance(error, StorageFatalError):
            logger.error("%s cannot be used%s: %s fails, and is tried again: %s", self._name, lasting, what, error)
        elif isinstance(error, QueueFullError):
            logger.warning("%s takes no more%s: %s fails, and is tried again: %s", self._name, lasting, what, error)
        else:
            logger.warning("%s does not answer%s: %s fails, and is tried again: %s", self._name, lasting, what, error)

    def answered(self, what: str, failures: int) -> None:
        """Note that a call succeeded, after this number of failures of its kind."""
        self._end_silence()
        self.useful(what)
        self._fatal.pop(what, None)
        if failures:
            self._troubles.pop(what, None)
            logger.info("%s answers again: %s, after %s", self._name, what, counted(failures, "failure"))

    def useless(self, why: str, error: Exception) -> None:
        """Note that the worker can do nothing. Unless that ends in time, it gives up with this error."""
        if self._give_up_after is not None and why not in self._patience:
            self._patience[why] = self._loop.call_later(self._give_up_after, self._give_up, error)

    def useful(self, why: str) -> None:
        """Note that `why` no longer keeps the worker from its work."""
        timer = self._patience.pop(why, None)
        if timer is not None:
            timer.cancel()

    def _give_up(self, error: Exception) -> None:
        if not self.hopeless.done():
            assert self._give_up_after is not None
            logger.error("the worker gives up after %g s in which it could do nothing", self._give_up_after)
            self.hopeless.set_exception(error)

    def _end_silence(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def close(self) -> str:
        """Log nothing more. Return the trouble that remains, for the last log line."""
        self._end_silence()
        for why in list(self._patience):
            self.useful(why)
        self.hopeless.cancel()
        return "".join(f"; in the end, {what} failed: {error}" for what, error in self._fatal.items())


def _fatal_in(error: BaseException | None) -> StorageFatalError | None:
    """Return the error that says a queue cannot be used, if it caused the failure or the unknown outcome of a call."""
    while isinstance(error, StorageError) and not isinstance(error, StorageFatalError):
        error = error.cause
    return error if isinstance(error, StorageFatalError) else None


def tell_silence(name: str) -> None:
    """Log that the first answer of a queue's store takes long."""
    logger.warning("%s has not answered within %g s, and is tried on", name, SILENCE)


class Trouble:
    """Failures in a row of one kind of call to the queue.

    Args:
        what: name of the calls in the log.
        entropy: draws the pauses.
        health: is told of failures and answers.
    """

    def __init__(self, what: str, entropy: Entropy, health: Health | None = None) -> None:
        self._what = what
        self._entropy = entropy
        self._health = Health("the queue", None) if health is None else health
        self._failures = 0

    def begins(self, error: Exception) -> float:
        """Note that a call failed. Return the seconds to wait before the next one."""
        self._failures += 1
        self._health.failed(self._what, error)
        bound = exponential_bound(self._failures, FIRST_PAUSE, LONGEST_PAUSE)
        return bound / 2 + self._entropy.jitter(bound / 2)

    def is_over(self) -> None:
        """Note that a call was answered."""
        self._health.answered(self._what, self._failures)
        self._failures = 0


def stuck_everywhere(slots: int) -> JQueueError:
    """Return the error of a worker whose slots are all taken by handlers that do not stop."""
    return JQueueError(
        f"all {slots} slots of the worker are taken by handlers that go on although they were told to stop: give what"
        " they call a timeout of its own"
    )
