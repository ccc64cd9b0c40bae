"""The time by the clock of a store, as the dates of its answers tell it."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from jqueue.adapters.system import SystemClock
from jqueue.ports.clock import Clock

ANSWERS_KEPT = 16


class StoreClock:
    """Estimates the store's time now.

    An answer was sent after the moment that its date names, which is cut to a whole second, and before it came here:
    each date is too early by a little, and the latest of several estimates is the best. Only some are kept, so that a
    clock that was set back is believed after a while.

    Args:
        clock: measures what has passed since an answer.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._epochs: deque[datetime] = deque(maxlen=ANSWERS_KEPT)
        self._latest: datetime | None = None

    def heard(self, date: str | datetime | None) -> None:
        """An answer has come, of that date (as in HTTP, or a time with its zone); None or nonsense says nothing."""
        if isinstance(date, str):
            try:
                date = parsedate_to_datetime(date)
            except ValueError:
                return
        if date is None or date.tzinfo is None:
            return
        self._epochs.append(date.astimezone(UTC) - timedelta(seconds=self._clock.monotonic()))
        self._latest = max(self._epochs)

    def now(self) -> datetime | None:
        """The store's time, UTC; None before the first answer."""
        return None if self._latest is None else self._latest + timedelta(seconds=self._clock.monotonic())
