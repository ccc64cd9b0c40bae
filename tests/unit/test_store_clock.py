"""The store's time is the latest of several estimates. Invalid dates are ignored; a clock set back is believed."""

import threading
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jqueue.adapters.storage._store_clock import ANSWERS_KEPT, StoreClock

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class FakeClock:
    """A clock that is moved by hand. Its wall clock must not matter."""

    def __init__(self, seconds=5000.0):
        self.seconds = seconds

    def now(self):
        raise AssertionError("the machine's wall clock was asked")

    def monotonic(self):
        return self.seconds


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store(clock):
    return StoreClock(clock)


def as_in_http(moment):
    return format_datetime(moment, usegmt=True)


def test_the_store_has_no_time_before_the_first_answer(store):
    assert store.now() is None
    store.note_date(None)
    assert store.now() is None


def test_time_passes_by_the_monotonic_clock_of_this_process(store, clock):
    store.note_date(as_in_http(NOON))
    assert NOON == store.now()
    clock.seconds += 90.25
    assert NOON + timedelta(seconds=90.25) == store.now()


@pytest.mark.parametrize(
    "date",
    [
        "Sun, 01 Mar 2026 12:00:00 GMT",
        "Sunday, 01-Mar-26 12:00:00 GMT",
        "1 Mar 2026 13:00:00 +0100",
        NOON,
        datetime(2026, 3, 1, 7, tzinfo=timezone(timedelta(hours=-5))),
    ],
)
def test_a_date_is_read_in_every_form_that_says_its_zone(store, date):
    store.note_date(date)
    assert NOON == store.now()
    assert UTC == store.now().tzinfo


def test_the_latest_of_the_recent_estimates_is_the_best(store, clock):
    store.note_date(as_in_http(NOON))  # cut to the second: it may be almost a second later
    clock.seconds += 0.4
    store.note_date(as_in_http(NOON + timedelta(seconds=1)))  # this answer was sent just after the second began
    assert NOON + timedelta(seconds=1) == store.now()
    clock.seconds += 0.9
    store.note_date(as_in_http(NOON + timedelta(seconds=1)))  # and this one was long under way
    assert NOON + timedelta(seconds=1.9) == store.now()


def test_the_estimate_of_a_steady_store_is_at_most_a_second_early_and_never_late(store, clock):
    truth = NOON
    for number in range(100):
        step = 0.137 + 0.01 * (number % 7)
        clock.seconds += step
        truth += timedelta(seconds=step)
        store.note_date(as_in_http(truth.replace(microsecond=0)))
        assert timedelta(0) <= truth - store.now() < timedelta(seconds=1)
    assert truth - store.now() < timedelta(seconds=0.3), "many answers do not make the estimate better"


def test_a_clock_that_was_set_back_is_believed_once_the_older_answers_are_forgotten(store, clock):
    for _ in range(3):
        store.note_date(NOON)
    back = NOON - timedelta(hours=1)
    for _ in range(ANSWERS_KEPT - 1):
        clock.seconds += 1
        back += timedelta(seconds=1)
        store.note_date(back)
        assert store.now() > NOON
    store.note_date(back)
    assert back == store.now()


def test_a_clock_that_was_set_forward_is_believed_at_once(store):
    store.note_date(NOON)
    store.note_date(NOON + timedelta(hours=1))
    assert NOON + timedelta(hours=1) == store.now()


@pytest.mark.parametrize(
    "nonsense",
    [
        "", "now", "Sun, 32 Mar 2026 12:00:00 GMT", "Sun, 01 Mar 2026 25:00:00 GMT", "Sun, 01 Mar 2026 12:00:00 -0000",
        "Sun Mar  1 12:00:00 2026", "1772366400", "2026-03-01T12:00:00Z", "Sun, 01 Mar 99999999999 12:00:00 GMT",
        "Sun, 01 Mar 2026 12:00:00 +99999999999999", "31 Dec 9999 23:59:59 -2359",
        "Thu, 01 Jan 1970 00:00:00 GMT", datetime(2026, 3, 1, 12), datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=timezone(timedelta(hours=-23))),
    ],
)  # fmt: skip
def test_an_invalid_date_is_ignored(store, clock, nonsense):
    store.note_date(nonsense)
    assert store.now() is None
    store.note_date(NOON)
    store.note_date(nonsense)
    clock.seconds += 1e9
    assert NOON + timedelta(seconds=1e9) == store.now()


words = st.sampled_from(
    ["Mon,", "Sun,", "Jan", "Feb", "06", "31", "1994", "94", "9999", "1", "08:49:37", "24:60:61", "8:49", "GMT", "EST",
     "+0000", "-0000", "+99999", "99999999999999", "Z", ",", "-", "²"]
)  # fmt: skip
texts = st.text() | st.lists(words, max_size=8).map(" ".join)


@given(st.lists(texts | st.none() | st.datetimes() | st.datetimes(timezones=st.timezones()), max_size=20))
def test_any_date_of_a_store_gives_a_time_or_none(dates):
    clock = FakeClock(3e6)
    store = StoreClock(clock)
    for date in dates:
        store.note_date(date)
        clock.seconds += 1e6
        now = store.now()
        assert now is None or now.tzinfo is UTC


def test_answers_may_be_heard_in_several_threads(store):
    def hear():
        for number in range(500):
            store.note_date(NOON + timedelta(seconds=number))
            assert store.now() >= NOON

    failed = []
    threads = [threading.Thread(target=lambda: failed.extend(outcome_of(hear))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == failed
    assert NOON + timedelta(seconds=499) == store.now()


def outcome_of(work):
    try:
        work()
    except BaseException as error:
        return [error]
    return []


def test_the_real_clock_is_the_default():
    store = StoreClock()
    store.note_date(NOON)
    now = store.now()
    assert now is not None
    assert NOON <= now < NOON + timedelta(minutes=1)
