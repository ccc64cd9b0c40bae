"""The fake clock stands still until it is moved, and a queue with this clock uses its time."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from jqueue import DirectQueue, InMemoryStorage, InvalidJobError
from jqueue.testing import FakeClock

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_fake_clock_stands_still_until_it_is_moved():
    clock = FakeClock(NOON)
    assert NOON == clock.now() == clock.now()
    assert NOON + timedelta(minutes=1) == clock.advance(60) == clock.now()
    assert NOON + timedelta(hours=1, minutes=1) == clock.advance(timedelta(hours=1)) == clock.now()


def test_a_fake_clock_refuses_to_go_back_and_moments_without_a_zone():
    clock = FakeClock(NOON)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.move_to(NOON - timedelta(seconds=1))
    with pytest.raises(InvalidJobError):
        clock.advance(-1)
    with pytest.raises(ValueError, match="no time zone"):
        clock.move_to(datetime(2027, 1, 1))
    with pytest.raises(ValueError, match="no time zone"):
        FakeClock(datetime(2027, 1, 1))
    assert NOON == clock.now()


async def test_a_waiting_dequeue_notices_that_the_clock_has_moved():
    clock = FakeClock()
    queue = DirectQueue(InMemoryStorage(clock=clock), clock=clock, poll_interval=0.01)
    await queue.enqueue("work", b"", delay=3600)
    waiting = asyncio.create_task(queue.dequeue("work", wait=60))
    await queue.stats()  # lets the dequeue begin to wait
    for _ in range(60):
        clock.advance(60)
        await queue.stats()
    async with asyncio.timeout(60):
        assert 1 == len(await waiting)
