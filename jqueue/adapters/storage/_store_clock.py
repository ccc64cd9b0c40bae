"""The time by the clock of a store, as the dates of its answers tell it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from jqueue.ports.clock import Clock
from jqueue.runtime.system import SystemClock

ANSWERS_KEPT = 16

ROUGHLY = timedelta(seconds=2)
"""Estimates differ by less."""

_EARLIEST, _LATEST = datetime(1970, 1, 2, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""A date beyond these is nonsense, and too close to the ends of time to count from."""


class StoreClock:
    """Estimates the store's time now. Answers may be heard in any thread.

    An answer was sent after the moment that its date names, which is cut to a whole second, and before it came here:
    each date is too early by a little, and the latest of several estimates is the best. Only some are kept, so that a
    clock that was set back is believed after a while. What was told does not go back by so little as estimates differ.

    Args:
        clock: measures what has passed since an answer.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._epochs: tuple[datetime, ...] = ()
        self._told: datetime | None = None

    def heard(self, date: str | datetime | None) -> None:
        """An answer has come, of that date (as in HTTP, or a time with its zone); None or nonsense says nothing."""
        try:
            moment = parsedate_to_datetime(date) if isinstance(date, str) else date
        except (ValueError, OverflowError):
            return
        if moment is None or moment.utcoffset() is None or not _EARLIEST < moment < _LATEST:
            return
        epoch = moment.astimezone(UTC) - timedelta(seconds=self._clock.monotonic())
        self._epochs = (*self._epochs, epoch)[-ANSWERS_KEPT:]

    def now(self) -> datetime | None:
        """The store's time, UTC; None before the first answer."""
        epochs = self._epochs
        if not epochs:
            return None
        now = max(epochs) + timedelta(seconds=self._clock.monotonic())
        if self._told is not None and timedelta() < self._told - now < ROUGHLY:
            return self._told
        self._told = now
        return now
