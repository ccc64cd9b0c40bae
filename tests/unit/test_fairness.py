"""Writers that never pause leave room for the others: in virtual time, and counted, not timed."""

import asyncio

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, JobStatus, JQueueError
from jqueue.core.writer import Writer
from jqueue.testing.faults import FaultyStorage
from jqueue.testing.virtual_time import VirtualClock, run


async def enqueue_without_end(storage, latency, done, clock):
    """One process that enqueues as fast as it can, and how often it came through."""
    queue = DirectQueue(FaultyStorage(storage, latency=latency), clock=clock, deadline=60)
    while True:
        await queue.enqueue("t", b"")
        done.append(clock.monotonic())
        if len(done) % 50 == 0:
            await queue.purge(status=JobStatus.QUEUED)  # or the blob would grow, and with it the work


def committed(latencies, seconds):
    """How often each of several continuous writers came through in so many seconds."""

    async def main():
        clock = VirtualClock()
        counts: list[list[float]] = [[] for _ in latencies]
        storage = InMemoryStorage(clock=clock)
        pairs = zip(latencies, counts, strict=True)
        tasks = [asyncio.create_task(enqueue_without_end(storage, each, done, clock)) for each, done in pairs]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert not isinstance(error, JQueueError), error
        return [len(done) for done in counts]

    return run(main())


def test_a_writer_five_times_slower_keeps_its_twentieth():
    [alone] = committed([0.1], 60)
    fast, slow = committed([0.02, 0.1], 60)
    print(f"alone {alone}; beside a fast one {slow}, that is {slow / alone:.1%}; the fast one {fast}")
    assert slow >= alone / 20
    assert fast > slow


def test_eight_equal_writers_share_evenly():
    counts = committed([0.02] * 8, 120)
    print(f"{sum(counts)} commits; most {max(counts)}, fewest {min(counts)}, ratio {max(counts) / min(counts):.2f}")
    assert sum(counts) >= 1000
    assert max(counts) <= 3 * min(counts)


@pytest.mark.parametrize("names", [1, 1000])
def test_what_is_done_leaves_nothing_behind(names):
    async def main():
        async with BrokerQueue(InMemoryStorage(), max_pending=1) as queue:
            for number in range(1000):
                await queue.enqueue(f"user {number % names}", b"")
                [job] = await queue.dequeue()
                await queue.ack(job)
            draft, writer = queue._engine.draft, queue._writer
            assert isinstance(writer, Writer)
            assert (0, 0) == (len(draft._ready), len(writer._room))
            assert draft._ready_all is not None
            assert len(draft._ready_all.entries) < 200
            assert 0 == len(queue._engine.watch._seen)

    asyncio.run(main())
