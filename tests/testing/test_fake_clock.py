"""The fake clock stands still until it is moved, and a queue on it uses its time."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from jqueue import DirectQueue, InMemoryStorage, InvalidJobError
from jqueue.ports.clock import Clock
from jqueue.testing import FakeClock

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_it_is_a_clock_that_begins_with_2026_or_where_it_is_told():
    assert isinstance(FakeClock(), Clock)
    assert datetime(2026, 1, 1, tzinfo=UTC) == FakeClock().now()
    assert NOON == FakeClock(NOON).now()


def test_it_stands_still_until_it_is_moved():
    clock = FakeClock(NOON)
    assert NOON == clock.now() == clock.now()
    assert NOON + timedelta(minutes=1) == clock.advance(60) == clock.now()
    assert NOON + timedelta(hours=1, minutes=1) == clock.advance(timedelta(hours=1)) == clock.now()


def test_both_readings_move_together():
    clock = FakeClock(NOON)
    began = clock.monotonic()
    clock.advance(100)
    clock.move_to(NOON + timedelta(seconds=150))
    assert 150 <= clock.monotonic() - began < 160


def test_it_moves_to_a_moment_in_any_time_zone():
    clock = FakeClock(NOON)
    clock.move_to(datetime(2026, 3, 1, 15, tzinfo=timezone(timedelta(hours=1))))
    assert (datetime(2026, 3, 1, 14, tzinfo=UTC), "UTC") == (clock.now(), clock.now().tzname())


def test_it_does_not_go_back_and_takes_no_moment_without_a_zone():
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


async def test_a_queue_on_it_has_delays_and_expiries_without_waiting():
    clock = FakeClock()
    queue = DirectQueue(InMemoryStorage(clock=clock), clock=clock)
    await queue.enqueue("later", b"", delay=3600)
    await queue.enqueue("never", b"", expires_at=clock.now() + timedelta(seconds=10))
    assert [] == await queue.dequeue("later")
    clock.advance(3600)
    assert [] == await queue.dequeue("never")
    [job] = await queue.dequeue("later")
    assert clock.now() == job.heartbeat_at


async def test_a_claim_is_stale_when_the_clock_was_moved_so_far():
    clock = FakeClock()
    queue = DirectQueue(InMemoryStorage(clock=clock), clock=clock)
    await queue.enqueue("work", b"")
    [first] = await queue.dequeue("work", claim_timeout=60)
    clock.advance(59)
    assert [] == await queue.dequeue("work")
    clock.advance(2)
    [second] = await queue.dequeue("work")
    assert (first.id, 2) == (second.id, second.attempt)


async def test_whoever_waits_for_jobs_notices_that_it_was_moved():
    clock = FakeClock()
    queue = DirectQueue(InMemoryStorage(clock=clock), clock=clock, poll_interval=0.01)
    await queue.enqueue("work", b"", delay=3600)
    waiting = asyncio.create_task(queue.dequeue("work", wait=30))
    await queue.stats()  # by now the call waits
    for _ in range(60):
        clock.advance(60)
        await queue.stats()
    async with asyncio.timeout(10):
        assert 1 == len(await waiting)
