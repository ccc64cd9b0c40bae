"""A queue on a store of jobs keeps a mirror, and never answers from one that is out of date."""

import asyncio
from typing import Any

import pytest

from jqueue.domain.errors import ClaimLostError
from jqueue.formats.dirq.elements import DirqElements
from jqueue.formats.dirq.simple import DirqSimple
from jqueue.formats.freshness import MAX_CLAIMS
from jqueue.formats.queue import StoreQueue
from jqueue.formats.textqueue.store import TextQueueFile
from jqueue.testing.fake_clock import FakeClock


class StandingClock(FakeClock):
    """A clock on which no time passes by itself."""

    moved = 0.0

    def monotonic(self) -> float:
        return self.moved


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
        clock.moved += 60
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


async def test_a_claim_made_elsewhere_is_known_beside_claims_that_need_no_read(tmp_path):
    async with (
        StoreQueue(DirqSimple(tmp_path / "queue", fsync=False)) as queue,
        StoreQueue(DirqSimple(tmp_path / "queue", fsync=False)) as other,
    ):
        for number in range(4):
            await queue.enqueue("work", b"%d" % number)
        mine, lost = await queue.dequeue(batch_size=2)
        [theirs, more] = await other.dequeue(batch_size=2)
        assert await queue.ack_many([mine, theirs]) == []
        await other.nack(more)
        [error] = await queue.ack_many([lost, more])
        assert isinstance(error, ClaimLostError)


async def test_a_job_that_another_program_added_is_found_beside_a_call_that_needs_no_read(tmp_path):
    async with (
        StoreQueue(DirqSimple(tmp_path / "queue", fsync=False)) as queue,
        StoreQueue(DirqSimple(tmp_path / "queue", fsync=False)) as other,
    ):
        await queue.enqueue("work", b"1")
        theirs = await other.enqueue("work", b"2")
        _, found = await asyncio.gather(queue.enqueue("work", b"3"), queue.find(theirs.id))
        assert theirs.evolve(payload=b"") == found
