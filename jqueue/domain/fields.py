"""The field types of records, with the limits that a reader checks, and the largest numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Self

import msgspec
from msgspec import Meta

from jqueue.domain.durations import LONGEST, exact_time

PRIORITY_MIN, PRIORITY_MAX = -(2**31), 2**31 - 1
"""The range of the priorities that enqueue takes: a signed 32-bit integer. A blob of 1.0.0 may hold larger ones."""

COUNT_MAX = 2**63 - 1
"""The largest whole number that a blob may hold."""

LEAST_WEIGHT = 0.01
"""The least weight of a fair key: one turn in a hundred rounds."""

LARGEST = 2**53
"""The largest version, attempt and number of failures. None grows beyond, so that all can be read back."""

Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Positive = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
Tries = Annotated[int, Meta(ge=0, le=LARGEST)]
Priority = Annotated[int, Meta(ge=-COUNT_MAX, le=COUNT_MAX)]
Priority32 = Annotated[int, Meta(ge=PRIORITY_MIN, le=PRIORITY_MAX)]
Seconds = Annotated[float, Meta(ge=0)]
Weight = Annotated[float, Meta(ge=LEAST_WEIGHT, le=1)]
Moment = Annotated[datetime, Meta(tz=True)]
Name = Annotated[str, Meta(min_length=1)]
JobId = Name
GivenDuration = timedelta | Annotated[float, Meta(ge=0, le=int(LONGEST))] | Annotated[int, Meta(ge=0, le=int(LONGEST))]

if TYPE_CHECKING:
    Duration = GivenDuration
else:
    Duration = Annotated[float, Meta(ge=0, le=int(LONGEST))]  # prepared, an operation has seconds, and so it travels


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, gc=False, kw_only=True):
    """A record whose unknown fields are kept.

    Attributes:
        extra: fields that this version does not know; None if there are none.
    """

    extra: dict[str, Any] | None = msgspec.field(default=None, name="")

    def evolve(self, **changes: Any) -> Self:
        """Return the same record with some fields replaced."""
        return msgspec.structs.replace(self, **changes)


def to_utc(moment: datetime) -> datetime:
    """Return a time in UTC. A time without a zone, as in foreign blobs, is taken as UTC.

    Raises:
        ValueError: in UTC it is not in the years 1 to 9999.
    """
    try:
        return exact_time(moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment)
    except OverflowError:
        raise ValueError("a time must be in the years 1 to 9999 in UTC") from None


class FrozenHeaders(dict[str, str]):
    """A job's headers: an immutable, hashable mapping."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a job's headers cannot be changed; pass new ones to enqueue")

    __setitem__: Any = _refuse
    __delitem__: Any = _refuse
    __ior__: Any = _refuse
    clear: Any = _refuse
    pop: Any = _refuse
    popitem: Any = _refuse
    setdefault: Any = _refuse
    update: Any = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenHeaders], tuple[dict[str, str]]]:
        return FrozenHeaders, (dict(self),)


NO_HEADERS = FrozenHeaders()
