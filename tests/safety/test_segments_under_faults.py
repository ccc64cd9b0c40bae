"""Under every fault of a real store's requests, jobs that move to segments are served once, in order, and none is lost.

A proxy between the real client and the real server breaks one request: the creation of a segment, the commit that names
it, the read of its rows, or the commit that takes them.
"""

import asyncio
import copy
from datetime import timedelta
from urllib.parse import urlsplit

import pytest

from jqueue import DirectQueue
from jqueue.operations import Ack, Enqueue
from tests.object_stores import store_of
from tests.safety.test_stores_under_faults import CALL_TIMEOUT, FAULTS, SERVERS, WRITES
from tests.servers.fault_kinds import Latency
from tests.servers.fault_proxy import FaultProxy
from tests.tiny_segments import in_segments, segments_of

pytestmark = pytest.mark.wide
JOBS = [f"job {number}" for number in range(8)]
READS = "GET"


def queue_with_segments(storage):
    """Return a queue that moves every waiting job to a segment, and tries failed requests again soon."""
    queue = DirectQueue(storage, call_timeout=CALL_TIMEOUT)
    return in_segments(queue, chunk_rows=2, merged=2)


async def settled(queue):
    """Wait until no segment is being written, and let the next try come at once."""
    spills = segments_of(queue).writer._spills
    while (task := spills._task) is not None:
        await asyncio.wait([task])
    spills.wait(0)


async def named(queue):
    """Commit until the jobs are in a segment."""
    while not (await queue.read_state()).segments:
        await settled(queue)
        await queue.pause("nothing")
        await settled(queue)
        await queue.resume("nothing")


async def creating(proxy, fault, write, queue):
    """Break the creation of a segment."""
    proxy.next(Latency(), method=write)
    proxy.next(fault, method=write)
    await queue.enqueue("work", job_id=JOBS[-1])
    await settled(queue)
    return []


async def naming(proxy, fault, write, queue):
    """Break the commit that names a segment."""
    await queue.pause("nothing")
    await settled(queue)
    proxy.next(fault, method=write)
    await queue.enqueue("work", job_id=JOBS[-1])
    return []


async def reading(proxy, fault, write, queue):
    """Break the read of a part of a segment."""
    await queue.enqueue("work", job_id=JOBS[-1])
    await named(queue)
    queue._engine.draft.jobs.rows.unload()
    proxy.next(fault, method=READS, path=".segments")
    return await queue.dequeue(batch_size=3)


async def taking(proxy, fault, write, queue):
    """Break the commit that takes rows."""
    await queue.enqueue("work", job_id=JOBS[-1])
    await named(queue)
    await settled(queue)
    proxy.next(fault, method=write)
    return await queue.dequeue(batch_size=3)


@pytest.mark.parametrize("broken", [creating, naming, reading, taking], ids=lambda function: function.__name__)
@pytest.mark.parametrize(
    "server", [name if name == "seaweedfs" else pytest.param(name, marks=pytest.mark.full) for name in SERVERS]
)
async def test_a_fault_while_jobs_move_to_segments_and_back_loses_and_doubles_none(request, server, broken):
    store = store_of(request, server)
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for fault in FAULTS.values():
            group.create_task(try_fault(store, broken, fault))


async def try_fault(honest, broken, fault):
    """Let a fault meet one request about the segments of a queue of its own."""
    address, key = urlsplit(honest.address), honest.new_key()
    async with FaultProxy(address.hostname, address.port) as proxy:
        behind = copy.copy(honest)
        behind.url = proxy.url
        storage = behind.open(key, timeout=CALL_TIMEOUT)
        async with (
            DirectQueue(honest.open(key)) as witness,
            queue_with_segments(storage) as queue,
        ):
            await witness.enqueue_many(Enqueue("work", job_id=job_id) for job_id in JOBS[:-1])
            served = await broken(proxy, fault, WRITES[honest.name], queue)
            assert proxy.fired[type(fault)] == 1, "the fault did not happen"
            await named(queue)
            while jobs := await witness.dequeue(batch_size=3):
                served += jobs
            assert JOBS == [job.id for job in served]
            assert {1} == {job.attempt for job in served}
            await witness.apply(*map(Ack, served))
            await settled(queue)
            await check_nothing_is_left(witness)


async def check_nothing_is_left(witness):
    """Check that no job and no segment is left, and that a collection removes the litter."""
    state = await witness.read_state()
    assert (0, 0) == (len(state.jobs), len(state.segments))
    witness._collector.kept_for = timedelta(seconds=-60)
    await witness.collect()
    left = {each.suffix for each in await witness.storage.list_beside(".segments/")}
    assert left <= {f".segments/{name}" for name in state.retired}
