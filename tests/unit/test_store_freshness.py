"""A queue with ready jobs of its own still reads its store of jobs again: after a time, and after some claims."""

from typing import Any

import pytest

from jqueue.formats.dirq.elements import DirqElements
from jqueue.formats.dirq.simple import DirqSimple
from jqueue.formats.freshness import MAX_AGE, MAX_CLAIMS, READ_INTERVAL_FACTOR, Freshness
from jqueue.formats.queue import StoreQueue
from jqueue.formats.textqueue.store import TextQueueFile
from jqueue.testing.fake_clock import FakeClock


class StandingClock(FakeClock):
    """A clock on which no time passes by itself."""

    def monotonic(self) -> float:
        return self._moved


class Counting:
    """A store that counts its scans and the questions if it has moved."""

    scans = questions = 0

    def scan(self: Any, now: Any) -> Any:
        self.scans += 1
        return super().scan(now)  # type: ignore[misc]

    def may_have_changed(self: Any) -> Any:
        self.questions += 1
        return super().may_have_changed()  # type: ignore[misc]


class CountingSimple(Counting, DirqSimple): ...


class CountingElements(Counting, DirqElements): ...


class CountingText(Counting, TextQueueFile): ...


STORES = {
    "simple": lambda path: CountingSimple(path, fsync=False),
    "elements": lambda path: CountingElements(path, fsync=False),
    "text": lambda path: CountingText(path, fsync=False, settle=0.0),
}


@pytest.fixture(params=STORES)
def make(request, tmp_path):
    """Return a function that makes a store on the same folder or file at each call."""
    return lambda: STORES[request.param](tmp_path / "queue")


async def turn(queue):
    """Claim a job, hand it back, and return its payload."""
    [job] = await queue.dequeue()
    await queue.nack(job)
    return job.payload


async def test_a_job_of_another_program_is_served_although_own_ones_are_always_ready(make):
    clock = StandingClock()
    async with StoreQueue(make(), clock=clock) as queue, StoreQueue(make(), clock=clock) as other:
        await queue.enqueue("work", b"ours")
        await queue.enqueue("work", b"ours")
        await turn(queue)
        await other.enqueue("work", b"theirs")
        served = [await turn(queue) for _ in range(MAX_CLAIMS + 3)]
        assert b"theirs" in served


async def test_a_job_of_another_program_is_served_in_its_turn_once_time_has_passed(make):
    clock = StandingClock()
    async with StoreQueue(make(), clock=clock) as queue, StoreQueue(make(), clock=clock) as other:
        await queue.enqueue("work", b"ours")
        await turn(queue)
        await other.enqueue("work", b"theirs")
        await queue.enqueue("work", b"later")
        clock.advance(60)
        assert [b"ours", b"theirs", b"later"] == [await turn(queue) for _ in range(3)]


async def test_a_store_is_read_once_in_a_hundred_claims_while_no_time_passes(make):
    store = make()
    async with StoreQueue(store, clock=StandingClock()) as queue:
        for _ in range(10):
            await queue.enqueue("work", b"payload")
        await turn(queue)
        store.scans = store.questions = 0
        for _ in range(2 * MAX_CLAIMS + 10):
            await turn(queue)
        assert 2 == store.questions
        assert store.scans <= 2


def test_a_long_queue_allows_as_many_claims_as_jobs_between_two_reads():
    clock = StandingClock()
    freshness = Freshness(clock, in_order=False)
    freshness.note_read(clock.monotonic(), jobs=5_000)
    freshness._claims = 4_999
    assert not freshness.must_read()
    freshness._claims = 5_000
    assert freshness.must_read()


def test_reads_take_a_tenth_of_the_time_at_the_most():
    clock = StandingClock()
    freshness = Freshness(clock, in_order=False)
    started = clock.monotonic()
    clock.advance(2)
    freshness.note_read(started, jobs=1)
    clock.advance(2 * READ_INTERVAL_FACTOR - 2.001)
    assert not freshness.must_read()
    clock.advance(0.002)
    assert freshness.must_read()
    freshness.note_read(clock.monotonic(), jobs=1)
    clock.advance(MAX_AGE)
    assert freshness.must_read()


def test_a_store_that_serves_in_order_is_read_before_each_claim():
    assert Freshness(StandingClock(), in_order=True).must_read()
