"""Writers that never pause leave time for the others: in virtual time, counted and not timed."""

import asyncio
import random

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage
from jqueue.testing.faults import FaultyStorage
from jqueue.testing.virtual_time import VirtualClock, run
from tests.simulation.workload import SeededEntropy

pytestmark = pytest.mark.virtual_time


def brokers(latencies, seconds):
    """Return for each of the brokers, begun together: calls done by its busy callers, writes sent, writes landed."""

    async def process(storage, latency, seed):
        store, done = FaultyStorage(storage, latency=latency), 0
        entropy = SeededEntropy(random.Random(seed), f"broker {seed}")
        async with BrokerQueue(store, clock=VirtualClock(), entropy=entropy) as queue:

            async def caller():
                nonlocal done
                while asyncio.get_running_loop().time() < seconds:
                    await queue.enqueue("t")
                    [job] = await queue.dequeue("t")
                    await queue.ack(job)
                    done += 3

            await asyncio.gather(*(caller() for _ in range(10)))
            return done, store.writes, store.landed

    async def main():
        storage = InMemoryStorage(clock=VirtualClock())
        return await asyncio.gather(*(process(storage, each, seed) for seed, each in enumerate(latencies)))

    return run(main())


@pytest.mark.wide
@pytest.mark.parametrize(("count", "latency", "seconds"), [(2, 0.005, 2), (4, 0.05, 5), (8, 0.1, 10)])
def test_brokers_that_begin_together_share_a_far_store_from_the_first_second(count, latency, seconds):
    [(alone, _, commits)] = brokers([latency], seconds)
    together = brokers([latency] * count, seconds)
    done = [calls for calls, _, _ in together]
    assert commits >= 0.9 * seconds / latency, "a lone broker hardly pauses"
    assert max(done) <= 3 * min(done)
    assert sum(done) >= alone / 2
    assert sum(each[2] for each in together) >= sum(each[1] for each in together) / 2


class OpenedLate(FaultyStorage):
    """A store whose first read takes half a second longer, to open the connection."""

    async def read(self):
        await asyncio.sleep(0 if self.reads else 0.5)
        return await super().read()


@pytest.mark.parametrize("opening", ["its own", "another's"])
async def test_a_connection_that_opens_slowly_does_not_lengthen_the_gaps_of_a_lone_writer(opening):
    async def enqueued(storage):
        """Enqueue as fast as one process can, and return the number of commits within five seconds after the first."""
        commits, clock = 0, VirtualClock()
        async with BrokerQueue(storage, clock=clock) as queue:
            await queue.enqueue("t")
            end = clock.monotonic() + 5
            while clock.monotonic() < end:
                await queue.enqueue("t")
                commits += 1
        return commits

    usual = await enqueued(FaultyStorage(InMemoryStorage(), latency=0.02))
    storage: FaultyStorage = OpenedLate(InMemoryStorage(), latency=0.02)
    if opening == "another's":
        await DirectQueue(OpenedLate(storage.storage, latency=0.2), clock=VirtualClock()).enqueue("t")
        storage = FaultyStorage(storage.storage, latency=0.02)
    assert abs(usual - await enqueued(storage)) <= 2


async def test_a_writer_that_rests_does_not_wait_for_others_and_reads_first_if_the_queue_had_changed():
    storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()), latency=0.05)
    other = DirectQueue(storage.storage, clock=VirtualClock())
    queue = DirectQueue(storage, clock=VirtualClock())
    await queue.enqueue("t")
    asked = []
    for changed in (False, True, True, False, False):
        await asyncio.sleep(1)
        if changed:
            await other.enqueue("t")
        storage.reads = storage.writes = 0
        began = asyncio.get_running_loop().time()
        await queue.enqueue("t")
        asked.append((storage.reads, storage.writes))
        assert asyncio.get_running_loop().time() - began <= 3.1 * storage.latency
    assert [(0, 1), (1, 2), (1, 1), (1, 1), (0, 1)] == asked
