"""Times as the formats write them: whole microseconds since 1970."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds(moment: datetime) -> int:
    """A moment as microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def moment(number: int) -> datetime:
    """The moment so many microseconds after 1970; the last one that there is, if that is too late."""
    try:
        return _EPOCH + number * _MICROSECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
