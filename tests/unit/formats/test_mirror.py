"""A queue on a store of jobs keeps a mirror, and never answers from one that is out of date."""

import asyncio

from jqueue.domain.errors import ClaimLostError
from jqueue.formats.queue import StoreQueue
from tests.unit.formats.places import StandingClock, in_each_format, open_queue


async def turn(queue):
    """Claim a job, hand it back, and return its payload."""
    [job] = await queue.dequeue()
    await queue.nack(job)
    return job.payload


@in_each_format
async def test_a_job_of_another_program_is_served_in_its_turn(form, tmp_path):
    async with open_queue(form, tmp_path) as queue, open_queue(form, tmp_path) as other:
        await queue.enqueue("work", b"ours")
        await turn(queue)
        await other.enqueue("work", b"theirs")
        await queue.enqueue("work", b"later")
        turns = set[bytes]()
        async with asyncio.timeout(60):
            while turns != {b"ours", b"theirs", b"later"}:
                turns.add(await turn(queue))


class SlowStore:
    """A store whose scans take five seconds of a clock."""

    def __init__(self, store, clock):
        self._store, self._clock, self.scans = store, clock, 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def scan(self, now):
        self.scans += 1
        self._clock.moved += 5
        return self._store.scan(now)


async def test_a_claim_waits_for_a_read_unless_the_last_one_is_younger_than_ten_times_what_it_took(tmp_path):
    clock = StandingClock()
    store = SlowStore(open_queue("simple", tmp_path).store, clock)
    async with StoreQueue(store, clock=clock) as queue:
        for _ in range(4):
            await queue.enqueue("work", b"payload")
        for seconds, scans in ((0, 1), (49, 1), (1, 2), (49, 2)):
            clock.moved += seconds
            await turn(queue)
            assert scans == store.scans


async def test_a_claim_of_another_queue_object_is_known_once_it_is_needed(tmp_path):
    async with open_queue("simple", tmp_path) as queue, open_queue("simple", tmp_path) as other:
        for number in range(4):
            await queue.enqueue("work", b"%d" % number)
        mine, lost = await queue.dequeue(batch_size=2)
        [theirs, more] = await other.dequeue(batch_size=2)
        assert await queue.ack_many([mine, theirs]) == []
        await other.nack(more)
        [error] = await queue.ack_many([lost, more])
        assert isinstance(error, ClaimLostError)


async def test_a_job_that_another_program_added_is_found_beside_a_call_that_needs_no_read(tmp_path):
    async with open_queue("simple", tmp_path) as queue, open_queue("simple", tmp_path) as other:
        await queue.enqueue("work", b"1")
        theirs = await other.enqueue("work", b"2")
        _, found = await asyncio.gather(queue.enqueue("work", b"3"), queue.find(theirs.id))
        assert theirs.evolve(payload=b"") == found
