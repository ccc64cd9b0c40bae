"""Writers that never pause leave time for the others: in virtual time, counted and not timed."""

import asyncio
import random
from collections import Counter

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, JobStatus, JQueueError
from jqueue.core.calls.writer import Writer
from jqueue.operations import Enqueue
from jqueue.testing.faults import FaultyObjects, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock, run
from tests.simulation.workload import SeededEntropy
from tests.tiny_segments import in_segments, segments_of, spilled
from tests.virtual_world import in_virtual_time

pytestmark = pytest.mark.wide


async def enqueue_without_end(storage, latency, done, clock):
    """Enqueue as fast as one process can, and append the time of each commit to `done`."""
    queue = DirectQueue(FaultyStorage(storage, latency=latency), clock=clock, deadline=60)
    while True:
        await queue.enqueue("t", b"")
        done.append(clock.monotonic())
        if len(done) % 50 == 0:
            await queue.purge(status=JobStatus.QUEUED)  # or the blob would grow, and with it the work


def committed(latencies, seconds):
    """Return the number of commits of each of several continuous writers within `seconds`."""

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


def test_a_writer_five_times_slower_gets_its_turns():
    [alone] = committed([0.1], 60)
    fast, slow = committed([0.02, 0.1], 60)
    print(f"alone {alone}; beside a fast one {slow}, that is {slow / alone:.1%}; the fast one {fast}")
    assert slow >= alone / 3
    assert slow <= fast + 1 <= 3 * slow


class OpenedLate(FaultyStorage):
    """A store whose first read takes half a second longer, to open the connection, and each read `read_takes`."""

    read_takes = 0.0

    async def read(self):
        await asyncio.sleep(self.read_takes if self.reads else 0.5 + self.read_takes)
        return await super().read()


async def enqueued(storage, seconds):
    """Enqueue as fast as one process can, and return the number of commits within `seconds` after the first."""
    clock = VirtualClock()
    commits = 0
    async with BrokerQueue(storage, clock=clock) as queue:
        await queue.enqueue("t", b"")
        end = clock.monotonic() + seconds
        while clock.monotonic() < end:
            await queue.enqueue("t", b"")
            commits += 1
    return commits


@in_virtual_time
async def test_a_connection_that_opens_slowly_does_not_lengthen_the_gaps_of_a_lone_writer():
    usual = await enqueued(FaultyStorage(InMemoryStorage(), latency=0.02), 10)
    assert usual == await enqueued(OpenedLate(InMemoryStorage(), latency=0.02), 10)


@in_virtual_time
async def test_a_process_that_committed_once_at_once_does_not_lengthen_the_gaps_of_a_lone_writer():
    usual = await enqueued(FaultyStorage(InMemoryStorage(), latency=0.02), 10)
    memory = InMemoryStorage()
    await DirectQueue(OpenedLate(memory, latency=0.2), clock=VirtualClock()).enqueue("t", b"")
    assert abs(usual - await enqueued(FaultyStorage(memory, latency=0.02), 10)) <= 2  # its version is another


@in_virtual_time
async def test_a_writer_shows_its_first_read_once_then_at_most_as_a_write_then_not_at_all():
    clock, memory = VirtualClock(), InMemoryStorage()
    storage = OpenedLate(memory, latency=0.02)
    storage.read_takes = 0.01
    queue, other = DirectQueue(storage, clock=clock), DirectQueue(memory, clock=clock)

    async def shown():
        await queue.enqueue("t", b"")
        commits = (await other.read_state()).commits
        return round(commits[queue._engine.writer_id].cycle, 3)

    assert 0.53 == await shown()
    assert [0.04, 0.04] == [await shown(), await shown()]
    await other.enqueue("t", b"")
    assert 0.05 == await shown()  # it lost the race, and so read again


class FarObjects(FaultyObjects):
    """A store whose objects beside the queue take long to read."""

    async def read_object(self, suffix, start=0, stop=None):
        await asyncio.sleep(0.1)
        return await super().read_object(suffix, start, stop)


async def pause_without_end(queue, name, done):
    """Commit as fast as one process can, and note each commit in `done`."""
    while True:
        await queue.pause(name)
        await queue.resume(name)
        done[name] += 2


@in_virtual_time
async def test_a_writer_whose_commits_need_rows_of_segments_gets_its_turns():
    clock = VirtualClock()
    storage = InMemoryStorage(clock=clock)
    queues = [DirectQueue(FarObjects(storage, latency=0.02), clock=clock, deadline=60) for _ in range(3)]
    reader = in_segments(queues[0], chunk_rows=2, most_rows=1000)
    await reader.enqueue_many([Enqueue("t", job_id=f"job {number}") for number in range(1000)])
    await spilled(reader)
    segments_of(reader).loader.rows_kept = 0
    done = Counter[str]()
    tasks = [
        asyncio.create_task(pause_without_end(queue, name, done)) for queue, name in zip(queues[1:], "ab", strict=True)
    ]
    started = clock.monotonic()
    while clock.monotonic() < started + 20:
        await reader.reprioritise(f"job {7 * done['reader'] % 1000}", 5)
        done["reader"] += 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(done)
    assert done["reader"] >= max(done.values()) / 3


@pytest.mark.parametrize(("seconds", "least"), [(30, 250), pytest.param(120, 1000, marks=pytest.mark.full)])
def test_eight_equal_writers_share_evenly(seconds, least):
    counts = committed([0.02] * 8, seconds)
    print(f"{sum(counts)} commits; most {max(counts)}, fewest {min(counts)}, ratio {max(counts) / min(counts):.2f}")
    assert sum(counts) >= least
    assert max(counts) <= 3 * min(counts)


async def process(storage, latency, seconds, clock, seed, in_flight):
    """Run a broker with callers that never rest; return the calls done, the writes sent and the commits."""
    store, done = FaultyStorage(storage, latency=latency), 0
    entropy = SeededEntropy(random.Random(seed), f"broker {seed}")
    async with BrokerQueue(store, clock=clock, entropy=entropy) as queue:

        async def caller():
            nonlocal done
            while clock.monotonic() < seconds:
                await queue.enqueue("t", b"")
                [job] = await queue.dequeue("t")
                await queue.ack(job)
                done += 3

        await asyncio.gather(*(caller() for _ in range(in_flight)))
        return done, store.writes, queue._engine.commits


def brokers(latencies, seconds, in_flight=25):
    """Run several brokers for `seconds` from the same moment, and return the outcome of `process` for each."""

    async def main():
        clock = VirtualClock()
        storage = InMemoryStorage(clock=clock)
        tasks = [process(storage, each, seconds, clock, seed, in_flight) for seed, each in enumerate(latencies)]
        return await asyncio.gather(*tasks)

    return run(main())


@pytest.mark.wide
@pytest.mark.parametrize(("latency", "seconds"), [(0.005, 2), (0.05, 5), (0.1, 10)])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_brokers_that_begin_together_share_a_far_store_from_the_first_second(count, latency, seconds):
    [(alone, _, commits)] = brokers([latency], seconds)
    found = brokers([latency] * count, seconds)
    done = [calls for calls, _, _ in found]
    writes, landed = sum(each[1] for each in found), sum(each[2] for each in found)
    print(f"alone {alone}, together {sum(done)}; most {max(done)}, fewest {min(done)}; {landed} of {writes} writes")
    assert commits >= 0.9 * seconds / latency, "a lone broker hardly pauses"
    assert max(done) <= 3 * min(done)
    assert sum(done) >= alone / 2
    assert landed >= writes / 2


@pytest.mark.wide
def test_brokers_that_know_each_other_land_most_of_their_writes():
    found = brokers([0.05] * 8, 60)
    writes, landed = sum(each[1] for each in found), sum(each[2] for each in found)
    print(f"{landed} of {writes} writes landed; {[done for done, _, _ in found]}")
    assert landed >= 0.85 * writes


@in_virtual_time
async def test_a_writer_that_rests_between_its_calls_does_not_wait_for_others():
    """Another queue writes meanwhile, but no call of this writer is waiting, so it owes no turn."""
    clock, latency = VirtualClock(), 0.05
    storage = InMemoryStorage(clock=clock)
    other = DirectQueue(storage, clock=clock)
    store = FaultyStorage(storage, latency=latency)
    queue = DirectQueue(store, clock=clock)
    for _ in range(20):
        await other.enqueue("t", b"")
        began = clock.monotonic()
        await queue.enqueue("t", b"")
        assert clock.monotonic() - began <= 3.1 * latency
        await asyncio.sleep(1)


@in_virtual_time
async def test_a_writer_that_found_the_queue_changed_reads_first_next_time():
    clock = VirtualClock()
    storage = InMemoryStorage(clock=clock)
    other = DirectQueue(storage, clock=clock)
    store = FaultyStorage(storage, latency=0.01)
    queue = DirectQueue(store, clock=clock)
    await queue.enqueue("t", b"")
    asked = []
    for changed in (False, True, True, False, False):
        await asyncio.sleep(1)
        if changed:
            await other.enqueue("t", b"")
        store.reads = store.writes = 0
        await queue.enqueue("t", b"")
        asked.append((store.reads, store.writes))
    assert [(0, 1), (1, 2), (1, 1), (1, 1), (0, 1)] == asked


@pytest.mark.wide
@pytest.mark.parametrize("names", [1, 1000])
def test_finished_jobs_leave_nothing_in_memory(names):
    async def main():
        async with BrokerQueue(InMemoryStorage(), max_pending=1) as queue:
            for number in range(1000):
                await queue.enqueue(f"user {number % names}", b"")
                [job] = await queue.dequeue()
                await queue.ack(job)
            order, writer = queue._engine.draft.jobs.order, queue._writer
            assert isinstance(writer, Writer)
            assert (0, 0) == (len(order._ready), len(list(writer.calls)))
            assert order._ready_all is not None
            assert len(order._ready_all.entries) < 200
            assert 0 == len(queue._engine.watch._seen)

    asyncio.run(main())
