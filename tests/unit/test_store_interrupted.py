"""A queue on a store of jobs whose calls are interrupted in the middle."""

import asyncio
import threading

import pytest

from jqueue import ClaimLostError, DeadlineExceededError, UnknownOutcomeError
from jqueue.domain.errors import StorageFatalError
from jqueue.domain.operations.moving import Depart, Take
from jqueue.formats.port import Step
from jqueue.formats.queue import StoreQueue
from tests.unit.test_store_queue import Shelf


@pytest.fixture
def shelf():
    return Shelf()


@pytest.fixture
def queue(shelf):
    return StoreQueue(shelf)


async def test_a_read_whose_caller_left_is_repeated_when_the_queue_is_entered_again(shelf, queue):
    other = StoreQueue(Shelf(shelf))
    assert [] == await queue.dequeue("work")
    job = await other.enqueue("work", b"1")
    entered, go_on = threading.Event(), threading.Event()

    def block():
        entered.set()
        assert go_on.wait(20)

    shelf.reading = block
    call = asyncio.create_task(queue.dequeue("work"))
    await asyncio.to_thread(entered.wait)
    await queue._writer.close("closed", 0.05)
    with pytest.raises(DeadlineExceededError):
        await call
    go_on.set()
    async with queue, asyncio.timeout(20):
        assert [job.id] == [claimed.id for claimed in await queue.dequeue("work")]


async def test_a_store_that_was_only_half_read_is_read_again(shelf, queue):
    other = StoreQueue(Shelf(shelf))
    assert [] == await queue.dequeue("work")
    job = await other.enqueue("work", b"1")
    failures = iter([OSError(5, "Input/output error")])

    def finished():
        for failure in failures:
            raise failure
        return {}

    shelf.finished = finished
    assert [job.id] == [claimed.id for claimed in await queue.dequeue("work")]


async def test_claims_won_for_a_batch_are_handed_out_when_the_wait_ends_early(shelf, queue):
    entered, go_on, elsewhere = threading.Event(), threading.Event(), Shelf()
    other = StoreQueue(elsewhere)
    jobs = [await other.enqueue("work", b"1") for _ in range(2)]
    call = asyncio.create_task(queue.dequeue("work", batch_size=2, wait=0.3))
    while not shelf.scans:
        await asyncio.sleep(0)

    def block():
        entered.set()
        assert go_on.wait(20)

    def lose_one(change):
        if change.step is Step.CLAIM and change.job_id == jobs[1].id and not entered.is_set():
            shelf.put(jobs[1].id, None)
            shelf.reading = block

    shelf.before = lose_one
    shelf.kept = elsewhere.kept
    await asyncio.to_thread(entered.wait)
    [request] = queue._writer.engine._batch_so_far
    while request.waits_for_jobs:
        await asyncio.sleep(0.01)
    go_on.set()
    async with asyncio.timeout(20):
        assert [jobs[0].id] == [claimed.id for claimed in await call]


async def test_a_change_that_may_have_been_made_has_an_unknown_outcome(shelf, queue):
    def fail():
        raise OSError(5, "Input/output error")

    assert [] == await queue.dequeue("work")
    carry_out = shelf.carry_out

    def carry_out_and_fail(changes, now):
        carry_out(changes, now)
        shelf.reading = fail
        fail()

    shelf.carry_out = carry_out_and_fail
    with pytest.raises(UnknownOutcomeError):
        await queue.enqueue("work", b"1", deadline=0.3)
    async with asyncio.timeout(20):
        while not shelf.kept:  # on a busy machine, the thread is still at it
            await asyncio.sleep(0.01)


async def test_the_last_queue_made_on_a_store_takes_it_over(shelf, queue):
    job = await queue.enqueue("work", b"1")
    later = StoreQueue(shelf)
    for call in (queue.enqueue("work", b"2"), queue.dequeue("work"), queue.read_state(), queue.ack(job)):
        with pytest.raises(StorageFatalError, match="another queue"):
            await call
    assert [job.id] == [claimed.id for claimed in await later.dequeue("work")]


async def test_a_job_that_was_taken_back_while_it_was_moved_is_a_lost_claim(shelf, queue):
    jobs = [await queue.enqueue("work", b"1") for _ in range(2)]
    [[first], [second]] = await queue.apply_each(*map(Take, jobs))

    def take_back(change):
        if change.step is Step.REMOVE and change.job_id == first.id and first.id in shelf.kept:
            shelf.put(first.id, None)

    shelf.before = take_back
    lost, done = await queue.apply_each(Depart(first.claim), Depart(second.claim))
    assert (ClaimLostError, type(None)) == (type(lost), type(done))
