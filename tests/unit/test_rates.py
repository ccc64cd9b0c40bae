"""Rates: no window has more claims than allowed, consumers get nearly the rate, and little usage is kept."""

import asyncio
from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain.rates import SPANS, claims_left, counting, opens_at, with_claim
from jqueue.domain.rules import Usage
from jqueue.testing.virtual_time import EPOCH, VirtualClock
from tests.virtual_world import in_virtual_time

START = EPOCH.timestamp()
RESOLUTION = 1e-6  # of seconds since 1970 in a float
MANY = settings(max_examples=150, deadline=None)
NONE: tuple[Usage, ...] = ()
rates = st.integers(1, 6)
windows = st.sampled_from([0.001, 0.5, 1.0, 60.0, 3600.0, 86400.0])
parts = st.floats(0, 2, allow_nan=False)
"""Time between two attempts, in windows."""


def claimed(tries, rate, per):
    """Return the times at which a consumer with these attempts claims, and the usage kept at the end."""
    usage, times, now = NONE, list[float](), START
    for part in tries:
        now += part * per
        if claims_left(usage, now, rate, per):
            usage = with_claim(usage, now, per)
            times.append(now)
    return times, usage


@MANY
@given(st.lists(parts, max_size=60), rates, windows)
def test_no_window_has_more_claims_than_the_rate(tries, rate, per):
    times, _ = claimed(tries, rate, per)
    for first, after in zip(times, times[rate:], strict=False):
        assert after - first >= per - RESOLUTION


@MANY
@given(st.lists(parts, max_size=60), rates, windows)
def test_a_claim_counts_no_longer_than_its_window_and_a_span(tries, rate, per):
    """A consumer gets nearly the rate, as if the window were longer by one span."""
    usage, times, now = NONE, list[float](), START
    for part in tries:
        now += part * per
        truly = [time for time in times if now - time < per * (1 + 1.001 / SPANS)]
        if len(truly) < rate:
            assert claims_left(usage, now, rate, per) > 0, "a claim was refused although the rate allows it"
        if claims_left(usage, now, rate, per):
            usage = with_claim(usage, now, per)
            times.append(now)


@MANY
@given(st.lists(parts, min_size=1, max_size=60), rates, windows)
@example([0.0, 0.0], 1, 1.0)
def test_a_window_opens_at_the_announced_time_and_not_before(tries, rate, per):
    _, usage = claimed(tries, rate, per)
    now = START + sum(tries) * per
    at = opens_at(usage, now, rate, per)
    if at is None:
        assert claims_left(usage, now, rate, per) > 0
    else:
        assert now < at <= now + per + RESOLUTION
        assert claims_left(usage, at + RESOLUTION, rate, per) > 0, "a consumer that wakes then may not claim"
        assert claims_left(usage, at - max(RESOLUTION, per * 1e-9), rate, per) == 0, "it opened earlier"


@pytest.mark.parametrize(("rate", "per"), [(100_000, 60.0), (1000, 3600.0)])
def test_many_claims_keep_few_usage_spans(rate, per):
    usage = NONE
    for number in range(5000):
        usage = with_claim(usage, START + number * per / 1000, per)
        assert len(usage) <= 2 * SPANS + 3


def test_claims_of_one_moment_are_one_span():
    usage = NONE
    for left in range(5, 0, -1):
        assert claims_left(usage, START, 5, 60.0) == left
        usage = with_claim(usage, START, 60.0)
    assert usage == (Usage(START, START, 5),)
    assert claims_left(usage, START, 5, 60.0) == 0
    assert claims_left(usage, START + 59.999, 5, 60.0) == 0
    assert claims_left(usage, START + 60.0, 5, 60.0) == 5


def test_a_clock_that_was_ahead_holds_claims_back_for_no_longer_than_two_windows():
    ahead = with_claim((), START + 50.0, 60.0)
    assert claims_left(ahead, START, 1, 60.0) == 0, "it counts although it lies ahead"
    assert claims_left(ahead, START + 110.0, 1, 60.0) == 1
    far_ahead = with_claim((), START + 2 * 86400.0, 60.0)
    assert claims_left(far_ahead, START, 1, 60.0) == 1
    assert with_claim(far_ahead, START, 60.0) == (Usage(START, START, 1),), "usage that does not count is dropped"


def test_a_clock_that_goes_back_a_little_allows_no_more_claims():
    usage = with_claim(with_claim((), START, 60.0), START - 0.5, 60.0)
    assert usage == (Usage(START - 0.5, START, 2),)
    assert [span.claims for span in counting(usage, START + 59.9, 60.0)] == [2]


def test_a_rate_that_was_lowered_waits_until_enough_claims_are_out_of_the_window():
    usage = NONE
    for number in range(4):
        usage = with_claim(usage, START + 10 * number, 60.0)
    now = START + 35
    assert claims_left(usage, now, 2, 60.0) == 0
    assert opens_at(usage, now, 2, 60.0) == START + 20 + 60, "two claims may be left, and one is to be added"
    assert opens_at(usage, now, 5, 60.0) is None


@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
@in_virtual_time
async def test_a_waiting_dequeue_wakes_at_the_moment_when_the_window_opens(kind):
    storage = InMemoryStorage(clock=VirtualClock())
    async with kind(storage, clock=VirtualClock(), poll_interval=3600) as queue:
        await queue.limit("work", rate=2, per=600)
        for _ in range(5):
            await queue.enqueue("work", b"")
        claims = []
        for _ in range(5):
            [job] = await queue.dequeue("work", wait=timedelta(hours=1))
            claims.append(round((job.heartbeat_at - EPOCH).total_seconds(), 2))
            await asyncio.sleep(1)
        late = [round(claim % 600, 2) for claim in claims]
        assert [claim // 600 for claim in claims] == [0, 0, 1, 1, 2]
        assert late == sorted(late), claims
        assert max(late) < 12, claims


@pytest.mark.parametrize("per", [1.0, 60.0])
def test_claims_past_the_window_of_one_clock_still_count_for_a_clock_behind_it(per):
    made = (Usage(0.0, 0.0, 20),)
    ahead = with_claim(made, per * 1.01, per)
    assert 0 == claims_left(ahead, per * 0.7, 20, per)
