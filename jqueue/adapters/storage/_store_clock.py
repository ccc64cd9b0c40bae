"""The time by the clock of a store, estimated from the dates of its answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from jqueue.ports.clock import Clock
from jqueue.runtime.system import SystemClock

ANSWERS_KEPT = 16

MIN_STEP_BACK = timedelta(seconds=2)
"""Bound on the difference between two estimates."""

_EARLIEST, _LATEST = datetime(1970, 1, 2, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""Bounds of a valid date. A date beyond them is an error, and too close to the ends of `datetime` to calculate with."""


class StoreClock:
    """Estimates the store's current time. Dates may be noted in any thread.

    The date of an answer is cut to a whole second, and the answer took some time to arrive. So each estimate is a
    little too early, and the latest of several is the best. Only the last `ANSWERS_KEPT` are used, so that a clock that
    was set back is believed after a while. The time returned never goes back by less than `MIN_STEP_BACK`.

    Args:
        clock: measures the time that has passed since an answer.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._epochs: tuple[datetime, ...] = ()
        self._last_returned: datetime | None = None

    def note_date(self, date: str | datetime | None) -> None:
        """Take note of an answer's date: as in HTTP, or a time with its zone. None and invalid dates are ignored."""
        try:
            moment = parsedate_to_datetime(date) if isinstance(date, str) else date
        except (ValueError, OverflowError):
            return
        if moment is None or moment.utcoffset() is None or not _EARLIEST < moment < _LATEST:
            return
        epoch = moment.astimezone(UTC) - timedelta(seconds=self._clock.monotonic())
        self._epochs = (*self._epochs, epoch)[-ANSWERS_KEPT:]

    def now(self) -> datetime | None:
        """Return the store's time, UTC; None before the first answer."""
        epochs = self._epochs
        if not epochs:
            return None
        now = max(epochs) + timedelta(seconds=self._clock.monotonic())
        if self._last_returned is not None and timedelta() < self._last_returned - now < MIN_STEP_BACK:
            return self._last_returned
        self._last_returned = now
        return now
