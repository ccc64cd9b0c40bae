"""Times of cron entries: the due times, also when clocks change, and the jobs that they become."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jqueue.core.calls.claim_registry import ClaimRegistry
from jqueue.domain.cron import check_cron, last_until, next_after
from jqueue.domain.draft import Draft
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.limits import Limits
from jqueue.domain.operations import Dequeue, Preparation, SetSchedule, perform

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
MICROSECOND, MINUTE = timedelta(microseconds=1), timedelta(minutes=1)
PREPARATION = Preparation(Limits(), 300.0, lambda: "unused", ClaimRegistry().find)
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
    ("30 2 * * *", "spring in New York"): ["07 07:30", "08 07:00"],
    ("30 2 * * *", "autumn in New York"): ["31 06:30", "01 07:30"],
    ("30 1 * * *", "spring in New York"): ["07 06:30", "08 06:30"],
    ("30 1 * * *", "autumn in New York"): ["31 05:30", "01 05:30"],
    ("0 1-3 * * *", "spring in Berlin"): ["28 00:00", "28 01:00", "28 02:00", "29 00:00", "29 01:00"],
    ("0 1-3 * * *", "autumn in Berlin"): ["23 23:00", "24 00:00", "24 01:00", "24 23:00", "25 00:00", "25 02:00"],
    ("0 1-3 * * *", "spring in New York"): ["07 06:00", "07 07:00", "07 08:00", "08 06:00", "08 07:00"],
    ("0 1-3 * * *", "autumn in New York"): ["31 05:00", "31 06:00", "31 07:00", "01 05:00", "01 07:00", "01 08:00"],
}
"""Due times, as day and time in UTC, of an entry with fixed times.

A time that the change skips is due at the change; a time that comes twice is due once.
"""


def window(change):
    """Return the zone, the start of the local day before the change and the end of the day of the change, in UTC."""
    zone, day = CHANGES[change]
    first = (day - timedelta(days=1)).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    last = (day + timedelta(days=1)).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    return zone, first, last


def due_times(expression, zone, first, last):
    """Return the due times of an entry within [first, last), each computed from the one before."""
    found = []
    moment = first - MICROSECOND
    while (moment := next_after(expression, zone, moment)) < last:
        found.append(moment)
    return found


@pytest.mark.parametrize(("expression", "change"), DUE, ids=lambda value: value)
def test_an_entry_with_fixed_times_is_due_once_a_day_even_when_clocks_change(expression, change):
    zone, first, last = window(change)
    assert DUE[expression, change] == [f"{due:%d %H:%M}" for due in due_times(expression, zone, first, last)]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("expression", "minutes"), [("*/30 * * * *", 30), ("0 * * * *", 60), ("*/20 * * * *", 20)])
def test_an_entry_with_stars_follows_elapsed_time_when_clocks_change(expression, minutes, change):
    zone, first, last = window(change)
    step = timedelta(minutes=minutes)
    assert [first + step * number for number in range((last - first) // step)] == due_times(
        expression, zone, first, last
    )


@pytest.mark.wide
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("expression", ["30 2 * * *", "30 1 * * *", "0 1-3 * * *", "*/30 * * * *", "15 * * * *"])
def test_the_next_time_is_the_first_due_time_after_any_moment(expression, change):
    zone, first, last = window(change)
    expected = due_times(expression, zone, first, last + timedelta(days=2))
    moment = first
    while moment < last:
        assert min(due for due in expected if due > moment) == next_after(expression, zone, moment), moment
        moment += timedelta(minutes=45)


@pytest.mark.wide
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("expression", ["30 2 * * *", "30 1 * * *", "0 1-3 * * *", "*/30 * * * *", "15 * * * *"])
def test_the_last_missed_time_is_the_latest_due_time_up_to_any_moment(expression, change):
    zone, first, last = window(change)
    expected = due_times(expression, zone, first, last)
    moment = expected[0]
    while moment < last:
        last_due = max(due for due in expected if due <= moment)
        assert last_due == last_until(expression, zone, expected[0], moment), moment
        moment += timedelta(minutes=45)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("expression", ["30 2 * * *", "30 1 * * *", "0 1-3 * * *", "*/30 * * * *", "15 * * * *"])
@pytest.mark.parametrize("away", [0, 55])
def test_no_time_fires_twice_and_frequent_dequeues_miss_none(expression, change, away):
    """No time fires twice even if no dequeue runs for `away` minutes after each due time."""
    zone, first, last = window(change)
    draft, moment = Draft(), first - MICROSECOND
    perform(SetSchedule("the-name", expression, "work", timezone=zone), draft, moment)
    expected = due_times(expression, zone, first, last)
    looks = [first + 5 * MINUTE * number for number in range((last - first) // (5 * MINUTE))]
    if away:
        looks = [look for look in looks if not any(timedelta() <= look - due < away * MINUTE for due in expected)]
    for look in looks:
        assert perform(Dequeue(None, batch_size=0).prepared(PREPARATION), draft, look) == []
    fired = [datetime.fromisoformat(job.headers["jqueue-scheduled-for"]) for job in draft.jobs.values()]
    assert len(set(fired)) == len(fired)
    assert set(fired) <= set(expected), "it fired at a time at which it was not due"
    if not away:
        assert fired == expected


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["30 2 * * *", "0 1-3 * * *", "*/30 * * * *", "0 0 1 * *", "15 4 * * MON-FRI", "*/10 9-17 * * *"]),
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


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("@daily", 'is not a cron expression, as names are not understood: write "0 0 * * *"'),
        (
            "0 0 30 2 *",
            "is a cron expression that is never due, as none of its months has such a day: change the day or the month",
        ),
        (
            "0 0 31 2,4,11 *",
            "is a cron expression that is never due, as none of its months has such a day: change the day or the month",
        ),
        ("0 0 32 2 *", "is not a cron expression (bad day-of-month): write one such as"),
        ("61 * * * *", "is not a cron expression (bad minute): write one such as"),
        ("0 0 1", "is not a cron expression (wrong number of fields): write one such as"),
    ],
)
def test_the_error_of_a_cron_expression_says_its_reason(expression, reason):
    with pytest.raises(InvalidJobError) as raised:
        check_cron(expression, "UTC")
    assert str(raised.value).startswith(f"{expression!r} {reason}")


def test_a_time_is_due_strictly_after_the_moment():
    noon = datetime(2026, 5, 6, 12, tzinfo=UTC)
    assert next_after("0 12 * * *", "UTC", noon) == noon + timedelta(days=1)
    assert next_after("0 12 * * *", "UTC", noon - MICROSECOND) == noon
    assert last_until("0 12 * * *", "UTC", noon - timedelta(days=9), noon) == noon
    assert last_until("0 12 * * *", "UTC", noon - timedelta(days=9), noon - MICROSECOND) == noon - timedelta(days=1)


def test_six_fields_begin_with_seconds():
    noon = datetime(2026, 5, 6, 12, tzinfo=UTC)
    assert next_after("*/20 * * * * *", "UTC", noon) == noon + timedelta(seconds=20)
    assert last_until("*/20 * * * * *", "UTC", noon, noon + timedelta(seconds=59.5)) == noon + timedelta(seconds=40)


@pytest.mark.parametrize(
    ("expression", "zone"),
    [
        ("* * * *", "UTC"),
        ("60 * * * *", "UTC"),
        ("0 0 30 2 *", "UTC"),
        ("", "UTC"),
        ("* * * * *", "Europe/Nowhere"),
        ("* * * * *", "../../etc/passwd"),
        ("* * * * *", ""),
        (None, "UTC"),
        ("* * * * *", None),
    ],
)
def test_an_impossible_cron_expression_or_unknown_zone_is_refused(expression, zone):
    with pytest.raises(InvalidJobError, match=r"cron expression|time zone"):
        check_cron(expression, zone)
