"""A segment that cannot be read is named, stops its own jobs and nothing else, and heals by itself."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from jqueue import (
    BrokerQueue,
    InMemoryStorage,
    JQueueError,
)
from jqueue.core.blob.segment_reader import MISSING
from jqueue.domain.errors import (
    DeadlineExceededError,
    JobsUnreadableError,
    SegmentDamagedError,
    StorageError,
    StorageFatalError,
)
from jqueue.domain.operations.segments import DropRows
from jqueue.operations import Enqueue
from jqueue.testing.faults import Fault, FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from tests.tiny_segments import (
    direct_queue,
    remove_segment,
    restore_segment,
    spilled,
    tiny_queue,
)
from tests.virtual_world import in_virtual_time, now

JOBS = 40
"""Number of jobs in the one segment of `filled`, in chunks of four."""

FAILURES = {"refused": StorageFatalError("403"), "failing": StorageError("input/output error"), "silent": None}


async def filled(storage, **options):
    """Fill a queue with jobs of one segment, and return the name of the segment."""
    queue: Any = tiny_queue(storage, fewest_rows=JOBS)
    jobs = [Enqueue("a", b"%02d" % number, job_id=f"{number:02}", **options) for number in range(JOBS)]
    await queue.enqueue_many(jobs)
    await spilled(queue)
    [name] = (await queue.read_state(hot=True)).segments
    return name


def ids(jobs):
    return [job.id for job in jobs]


READS = {
    "peek": lambda queue: queue.peek("a", batch_size=JOBS),
    "find": lambda queue: queue.find("09"),
    "claim_lease": lambda queue: queue.claim_lease("a", JOBS),
}


@pytest.mark.parametrize("damage", [None, MISSING])
async def test_a_missing_segment_is_known_before_anyone_reads_it(damage):
    store = InMemoryStorage()
    name = await filled(store)
    if damage is not None:
        await remove_segment(store, name)
    view = await direct_queue(store).view()
    await view.list_segments()
    found = view.damage()
    expected = [] if damage is None else [(True, True)]
    assert expected == [(name in each, each.endswith(MISSING)) for each in found]
    assert list((await view.stats(datetime.now(UTC))).warnings) == found


@pytest.mark.parametrize("read", READS)
@in_virtual_time
async def test_stats_name_a_segment_from_its_first_failed_read_to_its_next_good_one(read):
    storage = FaultyObjects(store := InMemoryStorage())
    name = await filled(store)
    queue = direct_queue(storage, clock=VirtualClock())
    whole = await remove_segment(store, name)
    assert () == (await queue.stats()).warnings, "no read has met the damage"
    with suppress(JQueueError):
        await READS[read](queue)
    storage.object_calls.clear()
    [warning] = (await queue.stats()).warnings
    assert [] == storage.object_calls, "the warning costs no request"
    assert warning.startswith(f"segment .segments/{name} (a) cannot be read, and 40 jobs in it wait")
    assert "until it is restored from a backup, or repaired" in warning
    assert warning.endswith("it is missing")
    await restore_segment(store, name, whole)
    await asyncio.sleep(61)
    assert ["00"] == ids(await queue.dequeue("a", wait=5))
    assert () == (await queue.stats()).warnings


@in_virtual_time
async def test_a_damaged_segment_is_named_once_all_others_go_on_and_it_is_served_once_all_of_it_can_be_read(caplog):
    store = InMemoryStorage(clock=VirtualClock())
    name = await filled(store)
    other: Any = tiny_queue(store)
    await other.enqueue_many([Enqueue("a", job_id=f"next {number}") for number in range(8)])
    await spilled(other)
    whole = await remove_segment(store, name)
    await restore_segment(store, name, whole.replace(b'"39', b'"38'))
    queue = direct_queue(storage := FaultyObjects(store), clock=VirtualClock())
    claim = await queue.claim_lease("a", JOBS)
    with pytest.raises(SegmentDamagedError, match=name):
        assert JOBS == len([job async for job in queue.read_lease(claim)])
    await queue.end_lease(claim, worked_on=0)
    assert [f"next {number}" for number in range(8)] == ids(await queue.dequeue("a", batch_size=9, claim_timeout=9999))
    assert now() < 0.1, "all others go on at full speed"
    storage.object_calls.clear()
    for _ in range(300):
        assert (None, []) == (await queue.claim_lease("a", 4), await queue.dequeue("a"))
        await asyncio.sleep(1)
    reads = [each for each in storage.object_calls if each == ("read_object", f".segments/{name}")]
    assert 4 * 2 <= len(reads) <= 5 * 2, "its index and its rows, once a minute"
    [told] = [each.getMessage() for each in caplog.records if name in each.getMessage()]
    assert "repaired with `jqueue repair`; all other jobs go on" in told
    await restore_segment(store, name, whole)
    await asyncio.sleep(61)
    assert ("00", 2) == next((job.id, job.attempt) for job in await queue.dequeue("a", wait=5))


@in_virtual_time
async def test_a_segment_is_served_at_once_when_its_jobs_that_cannot_be_read_were_given_up():
    store = InMemoryStorage(clock=VirtualClock())
    name = await filled(store)
    whole = await remove_segment(store, name)
    await restore_segment(store, name, whole.replace(b'"39', b'"38'))
    queue, shell = direct_queue(store, clock=VirtualClock()), direct_queue(store, clock=VirtualClock())
    claim = await queue.claim_lease("a", JOBS)
    with pytest.raises(SegmentDamagedError, match=name):
        _ = [job async for job in queue.read_lease(claim)]
    await queue.end_lease(claim, worked_on=0)
    await asyncio.sleep(1)
    assert [] == await queue.dequeue("a", wait=5)
    for rows, found in (((12, 16), []), ((36, JOBS), ["00"])):
        assert [4] == await shell.apply(DropRows(name, [rows]))
        begun = now()
        assert found == ids(await queue.dequeue("a", wait=10))
    assert now() - begun < 2


class SlowObjects(FaultyObjects):
    """A store that takes its time to read an object."""

    seconds = 0.0

    async def read_object(self, *place):
        await asyncio.sleep(self.seconds)
        return await super().read_object(*place)


@in_virtual_time
async def test_a_late_answer_of_a_slow_store_sets_no_large_segment_aside():
    storage = SlowObjects(store := InMemoryStorage(clock=VirtualClock()))
    deep: Any = tiny_queue(store, fewest_rows=80, most_rows=80)
    await deep.enqueue_many([Enqueue("a", bytes(40_000)) for _ in range(80)])
    await spilled(deep)
    queue = direct_queue(storage, clock=VirtualClock())
    claim = await queue.claim_lease("a", 80)
    storage.seconds = 3.0
    with pytest.raises(SegmentDamagedError):
        _ = [job async for job in queue.read_lease(claim, deadline=1)]
    await queue.end_lease(claim, worked_on=0)
    assert 1 == len(await queue.dequeue("a"))
    assert () == (await queue.stats()).warnings


@in_virtual_time
async def test_a_listing_forgets_no_segment_that_is_set_aside():
    store = InMemoryStorage(clock=VirtualClock())
    name = await filled(store)
    whole = await remove_segment(store, name)
    await restore_segment(store, name, whole.replace(b'"00', b'"01'))
    queue = direct_queue(store, clock=VirtualClock())
    assert [] == await queue.dequeue("a")
    warnings = (await queue.stats()).warnings
    assert 1 == len(warnings)
    await (await queue.view()).list_segments()
    assert warnings == (await queue.stats()).warnings, "its jobs still wait"
    await restore_segment(store, name, whole)
    await asyncio.sleep(61)
    assert ["00"] == ids(await queue.dequeue("a", wait=5))
    assert () == (await queue.stats()).warnings


@in_virtual_time
async def test_jobs_of_a_stale_range_without_attempts_left_stay_claimed_until_they_can_be_read():
    store = InMemoryStorage()
    name = await filled(store, max_attempts=1)
    assert await direct_queue(store, clock=VirtualClock()).claim_lease("a", JOBS) is not None
    whole = await remove_segment(store, name)
    queue = direct_queue(store, clock=VirtualClock())
    assert (0, JOBS, 0) == (await queue.requeue_stale(0), (await queue.stats()).in_progress, (await queue.stats()).dead)
    await restore_segment(store, name, whole)
    await asyncio.sleep(61)
    await queue.requeue_stale(0)  # begins to read the segment in the background
    await asyncio.sleep(1)
    assert (JOBS, JOBS) == (await queue.requeue_stale(0), (await queue.stats()).dead)


async def test_views_show_all_other_jobs_and_then_an_error_that_names_the_segment():
    store = InMemoryStorage()
    name = await filled(store)
    other = tiny_queue(store)
    job = await other.enqueue("b")
    await spilled(other)
    await remove_segment(store, name)
    queue, found = direct_queue(store), []
    with pytest.raises(JobsUnreadableError, match=name) as caught:
        async for each in queue.iterate_jobs():
            found.append(each.id)
    assert ([job.id], {f".segments/{name}": "it is missing"}) == (found, dict(caught.value.segments))
    view = await queue.view()
    assert job.id == (await view.find(job.id)).id
    with pytest.raises(JobsUnreadableError, match=name):
        await view.find("07")
    stats = await direct_queue(store).stats()
    assert (JOBS + 1, {"a": JOBS, "b": 1}) == (
        stats.depth,
        {entrypoint: each.depth for entrypoint, each in stats.entrypoints.items()},
    )


async def beside_a_segment(store, kind=FaultyObjects):
    """Return a broker whose jobs of "deep" are in one segment, its storage, and the suffix of the segment."""
    deep: Any = tiny_queue(store)
    await deep.enqueue_many([Enqueue("deep", job_id=f"deep {number}") for number in range(3)])
    await spilled(deep)
    [name] = (await deep.read_state(hot=True)).segments
    storage = kind(store)
    return BrokerQueue(storage, clock=VirtualClock()), storage, f".segments/{name}"


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_segment_that_cannot_be_read_holds_up_only_the_calls_that_need_it(failure):
    @in_virtual_time
    async def run():
        opened, storage, suffix = await beside_a_segment(InMemoryStorage(clock=VirtualClock()))
        async with opened as queue:
            await queue.enqueue("hot")
            [held] = await queue.dequeue("hot", claim_timeout=5)
            storage.unreadable[suffix] = failure
            waiting = asyncio.gather(queue.dequeue("deep", wait=200), queue.dequeue())
            looking = asyncio.gather(queue.cancel("unknown", deadline=20), return_exceptions=True)
            begun = now()
            await asyncio.gather(queue.heartbeat(held), queue.enqueue("hot"), queue.enqueue("hot"))
            for _ in range(3):
                await queue.heartbeat(held)
                await queue.ack((await queue.dequeue("hot"))[0])
                await queue.enqueue("hot")
            assert now() - begun < 2
            [error] = await looking
            assert isinstance(error, SegmentDamagedError if failure is FAILURES["refused"] else DeadlineExceededError)
            assert suffix in str(error)
            assert any(suffix in warning for warning in (await queue.stats()).warnings)

            del storage.unreadable[suffix]
            found, of_any = await waiting
            assert "hot" == of_any[0].entrypoint, "the claim goes on with the next rows that can be read"
            assert "deep 0" == found[0].id, "the segment is read again by itself"
            assert not (await queue.stats()).warnings
            assert ["deep 1", "deep 2"] == [job.id for job in await queue.dequeue("deep", batch_size=9)]

    run()


class AwayObjects(FaultyObjects):
    """A store that does not answer at all for a while."""

    away = False

    async def read(self):
        if self.away:
            self.on_read(Fault.LOST_REQUEST)
        return await super().read()


@in_virtual_time
async def test_no_segment_is_passed_over_while_the_store_is_away():
    opened, storage, suffix = await beside_a_segment(InMemoryStorage(clock=VirtualClock()), AwayObjects)
    async with opened as queue:
        await queue.enqueue("hot")
        storage.away, storage.unreadable[suffix] = True, StorageError("the connection was reset")
        waiting = asyncio.gather(queue.dequeue(deadline=200))
        await asyncio.sleep(60)
        storage.away = False
        storage.unreadable.clear()
        [[job]] = await waiting
        assert "deep 0" == job.id
        assert () == (await queue.stats()).warnings


@in_virtual_time
async def test_reads_of_many_silent_segments_hold_up_no_read_of_another():
    store = InMemoryStorage(clock=VirtualClock())
    deep: Any = tiny_queue(store)
    await deep.enqueue_many([Enqueue(f"{kind} {number}") for kind in ("silent", "deep") for number in range(20)])
    await spilled(deep)
    storage = FaultyObjects(store)
    for name, segment in (await deep.read_state(hot=True)).segments.items():
        if segment.entrypoint.startswith("silent"):
            storage.unreadable[f".segments/{name}"] = None
    async with BrokerQueue(storage, clock=VirtualClock()) as queue:
        with suppress(DeadlineExceededError):
            await queue.cancel("unknown", deadline=60)
        for number in range(20):
            begun = now()
            assert 1 == len(await queue.dequeue(f"deep {number}"))
            assert now() - begun < 0.1
            await asyncio.sleep(1)
