"""Times in whole microseconds since 1970, as the formats write them."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds(moment: datetime) -> int:
    """Return a moment as microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def moment(number: int) -> datetime:
    """Return the moment `number` microseconds after 1970, or the latest datetime if that is too late."""
    try:
        return _EPOCH + number * _MICROSECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
