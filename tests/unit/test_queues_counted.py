"""The work of the queues, counted exactly: requests to the store, and lines encoded and parsed."""

import asyncio
from datetime import timedelta

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import ClaimLostError
from jqueue.domain.operations import Ack, Enqueue
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time

LATENCY = 0.02


class CountingStorage:
    """A slow store in memory that counts its requests."""

    def __init__(self):
        self.memory = InMemoryStorage(clock=VirtualClock())
        self.forget()

    def forget(self):
        self.writes = self.reads = 0

    @property
    def asked(self):
        return {"writes": self.writes, "reads": self.reads}

    async def read(self):
        self.reads += 1
        await asyncio.sleep(LATENCY)
        return await self.memory.read()

    async def write(self, content, if_match=None):
        self.writes += 1
        await asyncio.sleep(LATENCY)
        return await self.memory.write(content, if_match)


@pytest.fixture
def storage():
    return CountingStorage()


def direct(storage, **options):
    return DirectQueue(storage, clock=VirtualClock(), **options)


def broker(storage, **options):
    return BrokerQueue(storage, clock=VirtualClock(), **options)


both = pytest.mark.parametrize("make", [direct, broker])


async def claimed(queue, count):
    """Claim `count` jobs, and leave the state of the queue cached."""
    await queue.enqueue_many([Enqueue("work", b"payload")] * count)
    return await queue.dequeue(batch_size=count)


# Looking


@both
@in_virtual_time
async def test_an_empty_poll_is_one_read_and_no_write(storage, make):
    async with make(storage) as queue:
        for _ in range(10):
            assert [] == await queue.dequeue("work")
    assert {"writes": 0, "reads": 10} == storage.asked
    assert (b"", None) == await storage.memory.read()


@both
@in_virtual_time
async def test_polls_that_wait_together_read_together(storage, make):
    async with make(storage) as queue:
        await queue.dequeue()
        storage.forget()
        assert [[]] * 50 == await asyncio.gather(*(queue.dequeue("work") for _ in range(50)))
    assert storage.writes == 0
    assert storage.reads <= (50 if make is direct else 2)


@both
@in_virtual_time
async def test_waiting_a_minute_for_nothing_writes_nothing_and_reads_about_once_a_second(storage, make):
    async with make(storage) as queue:
        await queue.enqueue("other", b"payload")
        storage.forget()
        assert [] == await queue.dequeue("work", wait=timedelta(minutes=1))
    assert storage.writes == 0
    assert 55 <= storage.reads <= 80


@both
@in_virtual_time
async def test_a_hundred_waiting_consumers_read_no_more_than_one(storage, make):
    async with make(storage) as queue:
        await queue.enqueue("other", b"payload")
        storage.forget()
        await asyncio.gather(*(queue.dequeue("work", wait=60) for _ in range(100)))
    assert storage.writes == 0
    assert storage.reads <= 80 + (100 if make is direct else 0)


@both
@in_virtual_time
async def test_a_longer_poll_interval_reads_less(storage, make):
    async with make(storage, poll_interval=10) as queue:
        assert [] == await queue.dequeue("work", wait=timedelta(minutes=1))
    assert storage.writes == 0
    assert storage.reads <= 25


@both
@in_virtual_time
async def test_reading_the_state_and_the_figures_is_one_read_each(storage, make):
    async with make(storage) as queue:
        await queue.enqueue("work", b"payload")
        storage.forget()
        await queue.read_state()
        assert {"writes": 0, "reads": 1} == storage.asked
        await queue.stats()
        assert {"writes": 0, "reads": 2} == storage.asked
        await queue.dequeue("work")  # and costs the next commit nothing
        assert {"writes": 1, "reads": 2} == storage.asked


# Steady state


@both
@in_virtual_time
async def test_a_steady_commit_is_one_write_and_no_read(storage, make):
    async with make(storage) as queue:
        jobs = await claimed(queue, 6)
        for commit in (
            lambda: queue.enqueue("work", b"payload", job_id="the-id"),
            lambda: queue.cancel("the-id"),
            lambda: queue.heartbeat(jobs[0]),
            lambda: queue.ack(jobs[0]),
            lambda: queue.nack(jobs[1], error="later"),
            lambda: queue.dequeue("work"),
            lambda: queue.apply(Ack(jobs[2]), Enqueue("next", b"payload")),
            lambda: queue.ack_many([jobs[3], jobs[4]]),
            lambda: queue.nack(jobs[5], dead=True),
            queue.redrive,
            lambda: queue.requeue_stale(0),
        ):
            storage.forget()
            await commit()
            assert {"writes": 1, "reads": 0} == storage.asked


@both
@in_virtual_time
async def test_the_first_commit_is_one_read_and_one_write(storage, make):
    async with make(storage) as queue:
        await queue.enqueue("work", b"payload")
        assert {"writes": 1, "reads": 1} == storage.asked


@both
@in_virtual_time
async def test_a_lost_race_costs_one_write_and_one_read_more(storage, make):
    async with make(storage) as queue, make(storage) as other:
        await queue.enqueue("work", b"payload")
        await other.enqueue("work", b"payload")
        storage.forget()
        await queue.enqueue("work", b"payload")
        assert {"writes": 2, "reads": 1} == storage.asked


@both
@in_virtual_time
async def test_a_refused_operation_is_one_read_and_no_write(storage, make):
    async with make(storage) as queue, make(storage) as other:
        [job] = await claimed(queue, 1)
        await other.requeue_stale(0)
        storage.forget()
        with pytest.raises(ClaimLostError):
            await other.heartbeat(job)
        assert {"writes": 0, "reads": 1} == storage.asked


@both
@in_virtual_time
async def test_an_ack_repeated_writes_nothing(storage, make):
    async with make(storage) as queue:
        [job] = await claimed(queue, 1)
        await queue.ack(job)
        storage.forget()
        await queue.ack(job)
        assert {"writes": 0, "reads": 1} == storage.asked


@both
@in_virtual_time
async def test_an_expired_job_is_removed_once(storage, make):
    async with make(storage) as queue:
        job = await queue.enqueue("work", b"payload")
        await queue.cancel(job.id)
        await queue.enqueue("work", b"payload", expires_at=job.created_at)
        storage.forget()
        for _ in range(3):
            assert [] == await queue.dequeue()
        assert storage.writes == 1


@both
@in_virtual_time
async def test_enqueue_many_is_one_write(storage, make):
    async with make(storage) as queue:
        await queue.enqueue("work", b"payload")
        storage.forget()
        assert 1000 == len(await queue.enqueue_many(Enqueue("work", b"payload") for _ in range(1000)))
        assert {"writes": 1, "reads": 0} == storage.asked


@both
@in_virtual_time
async def test_heartbeats_of_many_jobs_are_one_write(storage, make):
    async with make(storage) as queue:
        jobs = await claimed(queue, 500)
        storage.forget()
        assert [] == await queue.heartbeat_many(jobs)
        assert {"writes": 1, "reads": 0} == storage.asked


@both
@in_virtual_time
async def test_a_waiting_consumer_is_answered_by_the_commit_that_makes_its_job_ready(storage, make):
    async with make(storage) as queue:
        await queue.enqueue("other", b"payload")
        waiting = asyncio.create_task(queue.dequeue("work", wait=60))
        await asyncio.sleep(10.3)
        storage.forget()
        enqueued = await queue.enqueue("work", b"payload")
        [job] = await waiting
        assert enqueued.id == job.id
        assert {"writes": 1, "reads": 0} == storage.asked


@both
@in_virtual_time
async def test_many_waiting_consumers_are_answered_by_the_one_commit_that_makes_their_jobs_ready(storage, make):
    async with make(storage) as queue:
        await queue.enqueue("other", b"payload")
        waiting = [asyncio.create_task(queue.dequeue("work", wait=60)) for _ in range(50)]
        await asyncio.sleep(10.3)
        storage.forget()
        enqueued = await queue.enqueue_many([Enqueue("work", b"payload")] * 50)
        found = [job.id for [job] in await asyncio.gather(*waiting)]
        assert [job.id for job in enqueued] == found
        assert {"writes": 1, "reads": 0} == storage.asked


@both
@in_virtual_time
async def test_a_job_handed_back_is_claimed_by_a_waiting_dequeue_in_the_same_commit(storage, make):
    async with make(storage) as queue:
        [job] = await claimed(queue, 1)
        waiting = asyncio.create_task(queue.dequeue("work", wait=60))
        await asyncio.sleep(10.3)
        storage.forget()
        await queue.nack(job)
        assert [2] == [again.attempt for again in await waiting]
        assert {"writes": 1, "reads": 0} == storage.asked


@both
@in_virtual_time
async def test_revoking_a_stale_claim_and_claiming_its_job_is_one_write(storage, make):
    async with make(storage) as queue:
        await queue.enqueue("work", b"payload")
        await queue.dequeue(claim_timeout=30)
        storage.forget()
        [job] = await queue.dequeue(wait=60)
        assert (2, 1) == (job.attempt, storage.writes)


# Many in one commit


@in_virtual_time
async def test_every_call_in_flight_goes_into_one_commit(storage):
    async with broker(storage) as queue:
        await queue.enqueue("work", b"payload")
        storage.forget()
        await asyncio.gather(*(queue.enqueue("work", b"payload") for _ in range(100)))
        assert {"writes": 1, "reads": 0} == storage.asked
        storage.forget()
        jobs = await queue.dequeue(batch_size=60)
        storage.forget()
        await asyncio.gather(
            *(queue.ack(job) for job in jobs[:20]),
            *(queue.nack(job) for job in jobs[20:40]),
            *(queue.heartbeat(job) for job in jobs[40:]),
            *(queue.enqueue("work", b"payload") for _ in range(20)),
            *(queue.dequeue("work") for _ in range(20)),
        )
        assert {"writes": 1, "reads": 0} == storage.asked


@in_virtual_time
async def test_calls_made_while_a_commit_is_on_its_way_share_the_next(storage):
    async with broker(storage) as queue:
        await queue.enqueue("work", b"payload")
        storage.forget()
        first = asyncio.create_task(queue.enqueue("work", b"payload"))
        await asyncio.sleep(LATENCY / 2)
        await asyncio.gather(first, *(queue.enqueue("work", b"payload") for _ in range(100)))
        assert {"writes": 2, "reads": 0} == storage.asked


@in_virtual_time
async def test_an_enqueue_and_a_dequeue_of_the_same_moment_are_one_commit(storage):
    async with broker(storage) as queue:
        await queue.enqueue("other", b"payload")
        storage.forget()
        [job], enqueued = await asyncio.gather(queue.dequeue("work"), queue.enqueue("work", b"payload"))
        assert enqueued.id == job.id
        assert {"writes": 1, "reads": 0} == storage.asked


@in_virtual_time
async def test_a_direct_queue_commits_each_call_by_itself(storage):
    async with direct(storage) as queue:
        await queue.enqueue("work", b"payload")
        storage.forget()
        await asyncio.gather(*(queue.enqueue("work", b"payload") for _ in range(10)))
        assert {"writes": 10, "reads": 0} == storage.asked


# Lines


@both
@in_virtual_time
async def test_a_commit_encodes_only_the_changed_lines(storage, make):
    async with make(storage) as queue:
        blob = queue._engine.blob
        jobs = await claimed(queue, 50)
        for commit, lines in (
            (lambda: queue.enqueue("work", b"payload"), 1),
            (lambda: queue.enqueue_many([Enqueue("work", b"payload")] * 7), 7),
            (lambda: queue.ack(jobs[0]), 0),
            (lambda: queue.nack(jobs[1]), 1),
            (lambda: queue.heartbeat_many(jobs[2:12]), 10),
            (lambda: queue.dequeue("work", batch_size=3), 3),
            (lambda: queue.apply(Ack(jobs[2]), Enqueue("next", b"payload")), 1),
            (lambda: queue.dequeue("nobody"), 0),
            (lambda: queue.ack(jobs[0]), 0),
        ):
            before = blob.lines_encoded
            await commit()
            assert lines == blob.lines_encoded - before


@both
@in_virtual_time
async def test_only_changed_lines_are_parsed_after_a_foreign_write(storage, make):
    async with make(storage) as queue, make(storage) as other:
        jobs = await claimed(other, 50)
        await queue.dequeue("nobody")
        blob = queue._engine.blob
        assert 50 == blob.lines_parsed
        for foreign, lines in (
            (lambda: other.enqueue("work", b"payload"), 1),
            (lambda: other.ack(jobs[0]), 0),
            (lambda: other.nack(jobs[1]), 1),
            (lambda: other.heartbeat_many(jobs[2:12]), 10),
            (lambda: other.dequeue("nobody"), 0),
        ):
            before = blob.lines_parsed
            await foreign()
            await queue.dequeue("nobody")
            assert lines == blob.lines_parsed - before


@both
@in_virtual_time
async def test_a_queue_parses_nothing_after_its_own_commits(storage, make):
    async with make(storage) as queue:
        jobs = await claimed(queue, 50)
        await queue.ack_many(jobs[:25])
        await queue.nack_many(jobs[25:])
        await queue.dequeue("nobody")
        assert 0 == queue._engine.blob.lines_parsed


@pytest.mark.parametrize("wait", [5, 20])
@in_virtual_time
async def test_an_idle_consumer_that_waits_again_and_again_reads_once_a_second(storage, wait):
    async with BrokerQueue(storage, clock=VirtualClock()) as queue:
        await queue.enqueue("other")
        loop = asyncio.get_running_loop()
        storage.forget()
        until = loop.time() + 600
        while loop.time() < until:
            assert [] == await queue.dequeue("work", wait=wait)
        assert 550 < storage.reads <= 600 + 15, "a quick start, and then one read a second"
        await queue.enqueue("other")
        storage.forget()
        await queue.dequeue("work", wait=1)
        assert storage.reads > 5, "the polls after a commit are quick"
