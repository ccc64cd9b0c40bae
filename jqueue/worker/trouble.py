"""Trouble with the queue: ridden out with growing pauses, told when it begins, each minute, and when it ends.

A store that does not answer is waited for. A queue that cannot be used (gone, replaced, corrupt, refused) is tried on
for some minutes, as somebody may be restoring it; then the worker ends with the error, since it could do nothing.
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
"""Errors that may pass: the store's, its deadlines, and a buffer that is full."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 15.0

SILENCE = 2.0
"""Seconds without a first answer of the store, after which that is told."""

TELL_EVERY = 60.0
"""Seconds between two lines about trouble that lasts."""


class Health:
    """How a worker stands with its queue: what is told of it, and when the worker gives up.

    Args:
        name: of the queue, in the log.
        give_up_after: seconds for which a worker that can do nothing goes on; None: for ever.

    Attributes:
        hopeless: fails with the reason when the worker gives up.
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
        """The first call to the store begins: if nothing comes back soon, that is told."""
        self._silence = self._loop.call_later(SILENCE, tell_silence, self._name)

    def failed(self, what: str, error: Exception) -> None:
        """Calls of one kind fail: told when that begins, and each minute while it lasts."""
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
        """A call of one kind succeeded."""
        self._end_silence()
        self.useful(what)
        self._fatal.pop(what, None)
        if failures:
            self._troubles.pop(what, None)
            logger.info("%s answers again: %s, after %s", self._name, what, counted(failures, "failure"))

    def useless(self, why: str, error: Exception) -> None:
        """The worker can do nothing; unless that ends in time, it gives up with this error."""
        if self._give_up_after is not None and why not in self._patience:
            self._patience[why] = self._loop.call_later(self._give_up_after, self._give_up, error)

    def useful(self, why: str) -> None:
        """This does not keep the worker from its work any more."""
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
        """Tell nothing more. Returns what is still wrong with the queue, for the last line of the log."""
        self._end_silence()
        for why in list(self._patience):
            self.useful(why)
        self.hopeless.cancel()
        return "".join(f"; in the end, {what} failed: {error}" for what, error in self._fatal.items())


def _fatal_in(error: BaseException | None) -> StorageFatalError | None:
    """The error that says that a queue cannot be used, if that is why a call failed, or its outcome is unknown."""
    while isinstance(error, StorageError) and not isinstance(error, StorageFatalError):
        error = error.cause
    return error if isinstance(error, StorageFatalError) else None


def tell_silence(name: str) -> None:
    """Tell that the first answer of a queue's store takes long."""
    logger.warning("%s has not answered within %g s, and is tried on", name, SILENCE)


class Trouble:
    """How it goes with one kind of call to the queue.

    Args:
        what: the calls, as the log names them.
        entropy: draws the pauses.
        health: is told of it.
    """

    def __init__(self, what: str, entropy: Entropy, health: Health | None = None) -> None:
        self._what = what
        self._entropy = entropy
        self._health = Health("the queue", None) if health is None else health
        self._failures = 0

    def begins(self, error: Exception) -> float:
        """A call failed. Returns how many seconds to wait before the next."""
        self._failures += 1
        self._health.failed(self._what, error)
        bound = exponential_bound(self._failures, FIRST_PAUSE, LONGEST_PAUSE)
        return bound / 2 + self._entropy.jitter(bound / 2)

    def is_over(self) -> None:
        """A call was answered."""
        self._health.answered(self._what, self._failures)
        self._failures = 0


def stuck_everywhere(slots: int) -> JQueueError:
    """The error of a worker whose slots are all taken by handlers that do not stop."""
    return JQueueError(
        f"all {slots} slots of the worker are taken by handlers that go on although they were told to stop: give what"
        " they call a timeout of its own"
    )
