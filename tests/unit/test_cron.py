"""Times of cron entries: the due times, also when clocks change, and the jobs of clocks that disagree."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain.cron import check_cron, last_until, next_after
from jqueue.domain.draft import Draft
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.rules import SetSchedule
from jqueue.domain.rules import SPANS_KEPT

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
MICROSECOND, MINUTE, HOUR, YEAR = (timedelta(microseconds=us) for us in (1, 6e7, 36e8, 365 * 864e8))
CHANGES = {
    # The local days on which clocks change: in Berlin at 01:00 UTC, in New York at 07:00 and at 06:00 UTC.
    "spring in Berlin": (BERLIN, datetime(2026, 3, 29)),
    "autumn in Berlin": (BERLIN, datetime(2026, 10, 25)),
    "spring in New York": (NEW_YORK, datetime(2026, 3, 8)),
    "autumn in New York": (NEW_YORK, datetime(2026, 11, 1)),
}
DUE = {
    ("30 2 * * *", "spring in Berlin"): ["28 01:30", "29 01:00"],
    ("30 2 * * *", "autumn in Berlin"): ["24 00:30", "25 00:30"],
    ("30 1 * * *", "spring in New York"): ["07 06:30", "08 06:30"],
    ("30 1 * * *", "autumn in New York"): ["31 05:30", "01 05:30"],
    ("0 1-3 * * *", "spring in Berlin"): ["28 00:00", "28 01:00", "28 02:00", "29 00:00", "29 01:00"],
    ("0 1-3 * * *", "autumn in Berlin"): ["23 23:00", "24 00:00", "24 01:00", "24 23:00", "25 00:00", "25 02:00"],
}
"""Due times, as day and time in UTC, of an entry with fixed times.

A time that the change skips is due at the change; a time that comes twice is due once.
"""
EXPRESSIONS = ["30 2 * * *", "0 1-3 * * *", "*/30 * * * *", "0 0 1 * *", "15 4 * * MON-FRI", "*/10 9-17 * * *"]


def window(change):
    """Return the zone, the start of the local day before the change and the end of the day of the change, in UTC."""
    zone, day = CHANGES[change]
    first, last = ((day + timedelta(days=days)).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) for days in (-1, 1))
    return zone, first, last


def due_times(expression, zone, first, last):
    """Return the due times of an entry within [first, last), each computed from the one before."""
    times, moment = [], first - MICROSECOND
    while (moment := next_after(expression, zone, moment)) < last:
        times.append(moment)
    return times


@pytest.mark.parametrize(("expression", "change"), DUE, ids=lambda value: value)
def test_an_entry_with_fixed_times_is_due_once_a_day_even_when_clocks_change(expression, change):
    zone, first, last = window(change)
    times = due_times(expression, zone, first, last)
    assert DUE[expression, change] == [f"{due:%d %H:%M}" for due in times]
    for moment in (first + 45 * MINUTE * number for number in range((last - first) // (45 * MINUTE))):
        later = [due for due in times if due > moment]
        assert not later or later[0] == next_after(expression, zone, moment)
        assert moment < times[0] or last_until(expression, zone, times[0], moment) == times[-len(later) - 1]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("expression", "minutes"), [("*/30 * * * *", 30), ("0 * * * *", 60), ("*/20 * * * *", 20)])
def test_an_entry_with_stars_follows_elapsed_time_when_clocks_change(expression, minutes, change):
    zone, first, last = window(change)
    step = timedelta(minutes=minutes)
    every_step = [first + step * number for number in range((last - first) // step)]
    assert every_step == due_times(expression, zone, first, last)


@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(["UTC", BERLIN, NEW_YORK, "Asia/Kolkata", "Australia/Lord_Howe"]),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)),
    st.timedeltas(timedelta(), timedelta(days=40)),
)
def test_the_last_time_missed_is_the_one_before_the_next(expression, zone, began, gap):
    first = next_after(expression, zone, began.replace(tzinfo=UTC))
    assert first > began.replace(tzinfo=UTC)
    moment = first + gap
    last = last_until(expression, zone, first, moment)
    assert first <= last <= moment
    assert next_after(expression, zone, last) > moment, "one between the two was passed over"


def test_a_time_is_due_strictly_after_the_moment_and_six_fields_begin_with_seconds():
    noon, day = datetime(2026, 5, 6, 12, tzinfo=UTC), timedelta(days=1)
    assert noon + day == next_after("0 12 * * *", "UTC", noon)
    assert noon == next_after("0 12 * * *", "UTC", noon - MICROSECOND)
    assert noon == last_until("0 12 * * *", "UTC", noon - 9 * day, noon)
    assert noon - day == last_until("0 12 * * *", "UTC", noon - 9 * day, noon - MICROSECOND)
    assert noon + timedelta(seconds=20) == next_after("*/20 * * * * *", "UTC", noon)


NEVER_DUE = "is a cron expression that is never due, as none of its months has such a day: change the day or the month"


@pytest.mark.parametrize(
    ("expression", "zone", "reason"),
    [
        ("@daily", "UTC", 'is not a cron expression, as names are not understood: write "0 0 * * *"'),
        ("0 0 30 2 *", "UTC", NEVER_DUE),
        ("0 0 31 2,4,11 *", "UTC", NEVER_DUE),
        ("0 0 32 2 *", "UTC", "is not a cron expression (bad day-of-month): write one such as"),
        ("61 * * * *", "UTC", "is not a cron expression (bad minute): write one such as"),
        ("0 0 1", "UTC", "is not a cron expression (wrong number of fields): write one such as"),
        (None, "UTC", "cron expression"),
        ("* * * * *", "Europe/Nowhere", "time zone"),
        ("* * * * *", "../../etc/passwd", "time zone"),
        ("* * * * *", None, "time zone"),
    ],
)
def test_an_impossible_expression_or_unknown_zone_is_refused_with_the_reason(expression, zone, reason):
    with pytest.raises(InvalidJobError) as raised:
        check_cron(expression, zone)
    assert reason in str(raised.value)


# Clocks that disagree: none stops an entry or fires an occurrence twice

THREE = datetime(2026, 1, 1, 3, tzinfo=UTC)
HOURLY, MINUTELY = "0 * * * *", "* * * * *"
LOOK = Dequeue(("nothing",), batch_size=1, claim_timeout=30.0)


def a_draft(now=THREE, expression=MINUTELY, zone="UTC"):
    draft = Draft()
    SetSchedule("n", expression, "x", timezone=zone).change(draft, now)
    draft.settle()
    return draft


def fire(draft, now):
    """Return the occurrences that a dequeue at this time fires."""
    before = set(draft.jobs)
    LOOK.change(draft, now)
    draft.settle()
    return [datetime.fromisoformat(job_id.split(":", 2)[2]) for job_id in draft.jobs if job_id not in before]


def test_an_entry_keeps_few_spans_of_fired_times_and_merges_the_earliest():
    draft = a_draft()
    fire(draft, THREE + YEAR)
    for hour in range(1, 30):
        assert [THREE + hour * HOUR] == fire(draft, THREE + hour * HOUR)
    assert SPANS_KEPT == len(draft.header.schedules["n"].fired)
    assert [] == fire(draft, THREE + 5 * HOUR), "the gap between the earliest spans is merged"
    for hour in (28, 29):
        assert [THREE + hour * HOUR + MINUTE] == fire(draft, THREE + hour * HOUR + MINUTE)


@pytest.mark.parametrize("headers", [{}, {"trace": "af31"}])
async def test_an_entry_that_callers_get_cannot_be_changed(headers):
    queue = DirectQueue(InMemoryStorage())
    entry = await queue.schedule("nightly", "0 3 * * *", "report", headers=headers)
    shown: list[Any] = [entry, *await queue.schedules(), (await queue.read_state()).schedules["nightly"]]
    for each in shown:
        with pytest.raises(TypeError, match="cannot be changed"):
            each.headers["trace"] = 5
    assert {entry} == {*await queue.schedules()}
    assert headers == entry.headers
