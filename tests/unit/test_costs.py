"""The promised bounds of work: requests, writes, timers and turns, counted and never timed."""

import asyncio

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, Limits
from jqueue.domain.errors import ClaimLostError
from jqueue.domain.operations.ends import Ack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.testing.faults import FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.shared_memory import SharedMemory, serving
from tests.virtual_world import now

pytestmark = pytest.mark.virtual_time

LATENCY = 0.02
both = pytest.mark.parametrize("make", [DirectQueue, BrokerQueue])


@pytest.fixture
def storage():
    return FaultyStorage(InMemoryStorage(clock=VirtualClock()), latency=LATENCY)


def queue_on(storage, make=BrokerQueue, **options):
    return make(storage, clock=VirtualClock(), **options)


def forget(storage):
    storage.writes = storage.reads = 0


async def claimed(queue, count):
    """Claim `count` jobs, and leave the state of the queue cached."""
    await queue.enqueue_many([Enqueue("work", b"payload")] * count)
    return await queue.dequeue(batch_size=count)


# Requests to the store

COMMITS = {
    "enqueue": lambda queue, jobs: queue.enqueue("work", b"payload", job_id="the-id"),
    "cancel": lambda queue, jobs: queue.cancel("the-id"),
    "heartbeat_many": lambda queue, jobs: queue.heartbeat_many(jobs),
    "ack": lambda queue, jobs: queue.ack(jobs[0]),
    "nack": lambda queue, jobs: queue.nack(jobs[1], error="later"),
    "dequeue": lambda queue, jobs: queue.dequeue("work"),
    "apply": lambda queue, jobs: queue.apply(Ack(jobs[2]), Enqueue("next", b"payload")),
    "ack_many": lambda queue, jobs: queue.ack_many(jobs[3:5]),
    "nack, dead": lambda queue, jobs: queue.nack(jobs[5], dead=True),
    "redrive": lambda queue, jobs: queue.redrive(),
    "requeue_stale": lambda queue, jobs: queue.requeue_stale(0),
    "enqueue_many": lambda queue, jobs: queue.enqueue_many(Enqueue("work", b"payload") for _ in range(1000)),
}


@both
async def test_the_first_commit_is_a_read_and_a_write_and_each_later_one_a_write(storage, make):
    async with queue_on(storage, make) as queue:
        jobs = await claimed(queue, 500)
        assert (2, 1) == (storage.writes, storage.reads)
        for verb, commit in COMMITS.items():
            forget(storage)
            await commit(queue, jobs)
            assert (1, 0) == (storage.writes, storage.reads), verb


@both
async def test_a_look_a_refusal_and_a_repeated_ack_are_one_read_and_a_lost_race_a_read_and_a_write_more(storage, make):
    async with queue_on(storage, make) as queue, queue_on(storage, make) as other:
        [job] = await claimed(queue, 1)
        await queue.ack(job)
        looks = [queue.read_state, queue.stats, lambda: queue.dequeue("work"), lambda: queue.ack(job)]
        for look in looks:
            forget(storage)
            await look()
            assert (0, 1) == (storage.writes, storage.reads)
        [job] = await claimed(queue, 1)
        await other.requeue_stale(0)
        forget(storage)
        with pytest.raises(ClaimLostError):
            await other.heartbeat(job)
        assert (0, 1) == (storage.writes, storage.reads)
        forget(storage)
        await queue.enqueue("work", b"payload")
        assert (2, 1) == (storage.writes, storage.reads)
        await queue.enqueue("late", b"payload", expires_at=job.created_at, job_id="late")
        forget(storage)
        for _ in range(3):
            await queue.dequeue("nobody")
        assert 1 == storage.writes, "an expired job is removed once"


@both
@pytest.mark.parametrize(("poll_interval", "least", "most"), [(1, 55, 80), (10, 6, 25)])
async def test_waiting_a_minute_for_nothing_writes_nothing_and_reads_once_an_interval(
    storage, make, poll_interval, least, most
):
    async with queue_on(storage, make, poll_interval=poll_interval) as queue:
        await queue.enqueue("other", b"payload")
        forget(storage)
        await asyncio.gather(*(queue.dequeue("work", wait=60) for _ in range(100)))
        assert 0 == storage.writes
        assert least <= storage.reads <= most + (100 if make is DirectQueue else 0)


async def test_an_idle_consumer_that_waits_again_and_again_reads_once_a_second(storage):
    async with queue_on(storage) as queue:
        await queue.enqueue("other")
        forget(storage)
        until = now() + 600
        while now() < until:
            assert [] == await queue.dequeue("work", wait=5)
        assert 550 < storage.reads <= 600 + 15, "a quick start, and then one read a second"
        await queue.enqueue("other")
        forget(storage)
        await queue.dequeue("work", wait=1)
        assert storage.reads > 5, "the polls after a commit are quick"


async def test_a_call_that_waits_until_the_next_commit_needs_no_read(storage):
    """A worker waits for more jobs while it runs some: the commit of their acks tells what a read would have told."""
    async with queue_on(storage) as queue:
        [job] = await claimed(queue, 1)
        await queue.heartbeat(job)  # after the first gap for other writers
        forget(storage)
        waiting = asyncio.create_task(queue.dequeue("work", wait=60))
        await asyncio.sleep(0.001)
        await queue.ack(job)
        assert (1, 0) == (storage.writes, storage.reads)
        await queue.enqueue("work", b"payload")
        assert 1 == len(await waiting)
        assert (2, 0) == (storage.writes, storage.reads)
        assert [] == await queue.dequeue("work", wait=0.001)
        assert (2, 1) == (storage.writes, storage.reads), "an empty answer comes from a read after the call"


async def test_a_call_that_waits_after_a_commit_of_a_broker_soon_sees_what_others_do():
    """Otherwise it looks after its poll interval, as the others call it."""
    storage = SharedMemory(clock=VirtualClock())
    async with serving(storage, poll_interval=600) as broker, queue_on(storage, share=False) as other:
        [job] = await claimed(broker, 1)
        await other.enqueue("other", b"payload")
        await broker.heartbeat(job)
        await other.enqueue("work", b"payload")
        async with asyncio.timeout(1):
            assert 1 == len(await broker.dequeue("work", wait=60))
        await broker.heartbeat(job)
        waiting = [asyncio.create_task(broker.dequeue("work", wait=60))]
        await other.enqueue("work", b"payload")
        for _ in range(100):  # more and more calls wait
            await asyncio.sleep(0.004)
            waiting.append(asyncio.create_task(broker.dequeue("nobody", wait=60)))
        assert waiting[0].done()
        assert [[]] * 100 == (await asyncio.gather(*waiting))[1:]


@both
async def test_waiting_consumers_are_answered_by_the_one_commit_that_makes_their_jobs_ready(storage, make):
    async with queue_on(storage, make) as queue:
        [job] = await claimed(queue, 1)
        waiting = [asyncio.create_task(queue.dequeue("work", wait=60)) for _ in range(50)]
        await asyncio.sleep(10.3)
        for ready in (lambda: queue.nack(job), lambda: queue.enqueue_many([Enqueue("work", b"payload")] * 49)):
            forget(storage)
            await ready()
            assert (1, 0) == (storage.writes, storage.reads)
        assert 50 == len({job.id for [job] in await asyncio.gather(*waiting)})


@both
async def test_revoking_a_stale_claim_and_claiming_its_job_is_one_write(storage, make):
    async with queue_on(storage, make) as queue:
        await queue.enqueue("work", b"payload")
        await queue.dequeue(claim_timeout=30)
        forget(storage)
        [job] = await queue.dequeue(wait=60)
        assert (2, 1) == (job.attempt, storage.writes)


async def test_all_calls_in_flight_of_a_broker_share_a_commit_and_those_of_a_direct_queue_do_not(storage):
    async with queue_on(storage) as queue:
        jobs = await claimed(queue, 60)
        for calls in (
            [
                *(queue.ack(job) for job in jobs[:20]),
                *(queue.nack(job) for job in jobs[20:40]),
                *(queue.heartbeat(job) for job in jobs[40:]),
            ],
            [queue.dequeue("new"), queue.enqueue("new", b"payload")],
        ):
            forget(storage)
            await asyncio.gather(*calls)
            assert (1, 0) == (storage.writes, storage.reads)
        forget(storage)
        first = asyncio.create_task(queue.enqueue("work", b"payload"))
        await asyncio.sleep(LATENCY / 2)
        await asyncio.gather(first, *(queue.enqueue("work", b"payload") for _ in range(100)))
        assert (2, 0) == (storage.writes, storage.reads)
    async with queue_on(storage, DirectQueue) as queue:
        await queue.enqueue("work", b"payload")
        forget(storage)
        await asyncio.gather(*(queue.enqueue("work", b"payload") for _ in range(10)))
        assert (10, 0) == (storage.writes, storage.reads)


# Timers, callbacks and turns of the event loop


@pytest.mark.wide
async def test_reading_ten_thousand_jobs_yields_to_other_tasks():
    storage, everything = InMemoryStorage(clock=VirtualClock()), Limits(hot_bytes=None)  # stays in the object
    await queue_on(storage, DirectQueue, limits=everything).enqueue_many([Enqueue("work", b"payload")] * 10_000)
    reading, turns = asyncio.create_task(queue_on(storage, DirectQueue).read_state()), 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert 10_000 == len((await reading).jobs)
    assert turns >= 10
