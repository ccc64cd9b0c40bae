"""Trouble with the store: ridden out with growing pauses, and said once when it begins and once when it ends."""

from __future__ import annotations

import logging

from jqueue.domain.backoff import exponential_bound
from jqueue.domain.errors import QueueFullError, StorageError
from jqueue.ports.clock import Entropy

logger = logging.getLogger("jqueue.worker")

TROUBLE = (StorageError, QueueFullError)
"""Errors that may pass: the store's, its deadlines, and a buffer that is full."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 15.0


class Trouble:
    """How it goes with one kind of call to the queue.

    Args:
        what: the calls, as the log names them.
        entropy: draws the pauses.
    """

    def __init__(self, what: str, entropy: Entropy) -> None:
        self._what = what
        self._entropy = entropy
        self._failures = 0

    def begins(self, error: Exception) -> float:
        """A call failed. Returns how many seconds to wait before the next."""
        self._failures += 1
        if self._failures == 1:
            logger.warning("the queue does not answer: %s fails, and is tried again: %s", self._what, error)
        bound = exponential_bound(self._failures, FIRST_PAUSE, LONGEST_PAUSE)
        return bound / 2 + self._entropy.jitter(bound / 2)

    def is_over(self) -> None:
        """A call was answered."""
        if self._failures:
            logger.info("the queue answers again: %s, after %d failures", self._what, self._failures)
            self._failures = 0
