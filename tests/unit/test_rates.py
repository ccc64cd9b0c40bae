"""Rates: no window has more claims than allowed, consumers get nearly the rate, and little usage is kept."""

import asyncio

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain import rules, turns
from jqueue.domain.rules import SPANS, Usage, claims_left, opens_at, with_claim
from jqueue.testing.virtual_time import EPOCH, VirtualClock

pytestmark = pytest.mark.virtual_time

START = EPOCH.timestamp()
RESOLUTION = 1e-6  # of seconds since 1970 in a float
NONE: tuple[Usage, ...] = ()
tries = st.lists(st.floats(0, 2, allow_nan=False), min_size=1, max_size=60)
"""Times between two attempts, in windows."""


@settings(max_examples=150)
@given(tries, st.integers(1, 6), st.sampled_from([0.001, 0.5, 1.0, 60.0, 3600.0, 86400.0]))
@example([0.0, 0.0], 1, 1.0)
def test_a_rate_is_never_passed_nearly_reached_and_opens_at_the_announced_time(tries, rate, per):
    usage, times, now = NONE, list[float](), START
    for part in tries:
        now += part * per
        left = claims_left(usage, now, rate, per)
        truly = [time for time in times if now - time < per * (1 + 1.001 / SPANS)]
        assert left or len(truly) >= rate, "refused although the rate allows it, the window one span longer"
        at = opens_at(usage, now, rate, per)
        if left:
            assert at is None
            usage = with_claim(usage, now, per)
            times.append(now)
        else:
            assert at is not None
            assert now < at <= now + per + RESOLUTION
            assert claims_left(usage, at + RESOLUTION, rate, per) > 0, "a consumer that wakes then may not claim"
            assert claims_left(usage, at - max(RESOLUTION, per * 1e-9), rate, per) == 0, "it opened earlier"
    assert all(after - first >= per - RESOLUTION for first, after in zip(times, times[rate:], strict=False))


@pytest.mark.parametrize(("rate", "per"), [(100_000, 60.0), (1000, 3600.0)])
def test_many_claims_keep_few_usage_spans(rate, per):
    usage = NONE
    for number in range(5000):
        usage = with_claim(usage, START + number * per / 1000, per)
        assert len(usage) <= 2 * SPANS + 3


async def test_at_the_largest_number_of_keys_another_one_waits_until_one_is_over(monkeypatch):
    monkeypatch.setattr(rules, "KEYS_COUNTED", 2)
    async with DirectQueue(InMemoryStorage(clock=VirtualClock()), clock=VirtualClock()) as queue:
        await queue.limit("work", key_rate=1, key_per=60)
        for key in "ab":
            await queue.enqueue("work", key.encode(), fair_key=key)
        assert 2 == len(await queue.dequeue("work", batch_size=9))
        await queue.enqueue("work", b"c", fair_key="c")
        began = asyncio.get_running_loop().time()
        [job] = await queue.dequeue("work", wait=300)
        assert (b"c", True) == (job.payload, 120 <= asyncio.get_running_loop().time() - began <= 130)
        assert ["c"] == list((await queue.read_state()).recent_keys["work"])


async def test_at_the_largest_number_of_fair_keys_new_ones_take_turns_as_one(monkeypatch):
    monkeypatch.setattr(turns, "FAIR_KEYS_KEPT", 2)
    async with DirectQueue(InMemoryStorage(clock=VirtualClock()), clock=VirtualClock()) as queue:
        for key in "aabbccd":
            await queue.enqueue("work", key.encode(), fair_key=key)
        claimed = await queue.dequeue("work", batch_size=9)
        places = {place: {job.payload for job in claimed if job.sequence == place} for place in (1, 2, 3)}
        assert {1: {b"a", b"b", b"c"}, 2: {b"a", b"b", b"c"}, 3: {b"d"}} == places
        state = await queue.read_state()
        assert ({}, {}) == (state.turns, state.fair)
