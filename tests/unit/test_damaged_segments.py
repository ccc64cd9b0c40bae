"""A segment that cannot be read stops its own jobs, and nothing else."""

import asyncio
from datetime import timedelta

import pytest

from jqueue import BrokerQueue, ClaimLostError, DirectQueue, InMemoryStorage, JQueueError, LocalFileSystemStorage
from jqueue.domain.errors import (
    DeadlineExceededError,
    ObjectMissingError,
    SegmentDamagedError,
    StorageError,
    StorageFatalError,
)
from jqueue.domain.limits import Limits
from jqueue.domain.operations import Enqueue, Operation
from jqueue.domain.segment_rows import RowsMissingError, Wanted
from jqueue.testing.faults import FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from tests.tiny_segments import in_segments, segments_of, spilled, tiny_queue
from tests.virtual_world import in_virtual_time, now


@pytest.mark.asyncio
async def test_a_due_cron_entry_waits_for_a_damaged_segment_and_other_jobs_go_on():
    clock = VirtualClock()
    storage = InMemoryStorage(clock=clock)
    deep = tiny_queue(storage)
    await deep.enqueue("a", b"")
    await spilled(deep)
    [name] = (await deep.read_state()).segments
    segment = storage.beside(f".segments/{name}")
    whole, etag = await segment.read()
    etag = await segment.write(whole[:-1], etag)  # its index is cut off

    queue = DirectQueue(storage)
    await queue.schedule("hourly", "0 * * * *", "cron")
    await queue.enqueue("b", b"")
    clock.skew += timedelta(hours=2)
    assert ["b"] == [job.entrypoint for job in await queue.dequeue(batch_size=9)]
    with pytest.raises(SegmentDamagedError):
        await queue.cancel("unknown")

    await segment.write(whole, etag)
    segments_of(queue).loader.damage_kept = -1.0
    assert ["a", "cron"] == sorted(job.entrypoint for job in await queue.dequeue(batch_size=9))


@pytest.mark.asyncio
async def test_a_segment_is_damaged_only_if_it_was_missing_before_the_manifest_was_read(monkeypatch):
    storage = InMemoryStorage()
    queue = tiny_queue(storage, Limits())
    await queue.enqueue("a", b"")
    await spilled(queue)
    draft, loader = queue._engine.draft, segments_of(queue).loader
    [name] = draft.jobs.rows.segments
    draft.jobs.rows.unload()

    async def missing(*_, **__):
        raise ObjectMissingError(name)

    monkeypatch.setattr(loader._reader, "chunks", missing)
    next_row = draft.jobs.rows.next_wanted("a")
    assert next_row is not None
    wanted = [next_row]
    assert not await loader.load(wanted, draft, fresh=True)  # the process may have slept since it read the manifest
    assert not await loader.load(wanted, draft, fresh=False)
    assert not draft.jobs.rows.is_loaded(wanted[0])
    assert await loader.load(wanted, draft, fresh=True)
    assert draft.jobs.rows.is_loaded(wanted[0])


@pytest.mark.parametrize("batch_size", [1, 40])
@pytest.mark.asyncio
async def test_a_damaged_chunk_keeps_back_its_own_rows_alone(batch_size):
    storage = FaultyObjects(store := InMemoryStorage())
    async with tiny_queue(storage, chunk_rows=2) as queue:
        jobs = await queue.enqueue_many([Enqueue("a", b"%02d" % number, job_id=f"{number}") for number in range(60)])
        await spilled(queue)
        [name] = (await queue.read_state()).segments
        segment = store.beside(f".segments/{name}")
        whole, etag = await segment.read()
        line = next(line for line in whole.split(b"\n") if line.startswith(b'"41\x01'))
        await segment.write(whole.replace(line, line.swapcase()), etag)

        before, found = len(storage.object_calls), []
        while claimed := await queue.dequeue(batch_size=batch_size):
            found += claimed
        assert [job.id for job in jobs if job.id not in ("40", "41")] == [job.id for job in found]
        assert len(storage.object_calls) - before <= 60
        with pytest.raises(SegmentDamagedError, match=name):
            await queue.cancel("41")


@pytest.mark.asyncio
async def test_a_lost_claim_on_a_job_that_cannot_be_read_is_lost_by_the_job_and_by_its_id():
    storage = InMemoryStorage(clock=VirtualClock())
    deep = tiny_queue(storage)
    await deep.enqueue("a", b"")
    [job] = await deep.dequeue("a")
    await deep.requeue_stale(0)
    await spilled(deep)
    [name] = (await deep.read_state()).segments
    segment = storage.beside(f".segments/{name}")
    whole, etag = await segment.read()
    for damaged in (whole.replace(b"queued", b"QUEUED", 1), whole[:-1]):
        etag = await segment.write(damaged, etag)
        queue = DirectQueue(storage)
        for end in (queue.ack, queue.nack, queue.heartbeat):
            for reference in (job, job.id):
                with pytest.raises(ClaimLostError):
                    await end(reference)


class NeverSatisfied(Operation):
    """An operation that asks for a part of a segment, however often it is loaded."""

    def __init__(self, wanted):
        self.wanted = wanted
        self.applied = 0

    def change(self, draft, now):
        """Count, and ask for the part."""
        self.applied += 1
        raise RowsMissingError([self.wanted])


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.asyncio
async def test_an_operation_that_asks_for_the_same_rows_again_is_refused_and_others_go_on(damaged):
    """Otherwise its commit would be tried without pause and without end."""
    storage = InMemoryStorage()
    deep = tiny_queue(storage)
    await deep.enqueue("a", b"")
    await spilled(deep)
    [name] = (await deep.read_state()).segments
    if damaged:
        segment = storage.beside(f".segments/{name}")
        await segment.write(b"damaged", (await segment.read())[1])
    operation = NeverSatisfied(Wanted(name, 0))
    queue = tiny_queue(storage)
    refusal, job = await queue.apply_each(operation, Enqueue("b"))
    assert (SegmentDamagedError if damaged else JQueueError) is type(refusal)
    assert operation.applied <= 4
    assert "b" == job.entrypoint
    assert 2 == (await queue.stats()).depth


FAILURES = {"refused": StorageFatalError("403"), "failing": StorageError("input/output error"), "silent": None}


async def beside_a_segment(store):
    """Return a broker whose jobs of "deep" are in one segment, its storage, and the suffix of the segment."""
    deep = tiny_queue(store)
    await deep.enqueue_many([Enqueue("deep", job_id=f"deep {number}") for number in range(3)])
    await spilled(deep)
    [name] = (await deep.read_state()).segments
    storage = FaultyObjects(store)
    queue = BrokerQueue(storage, clock=VirtualClock())
    return queue, storage, f".segments/{name}"


@pytest.mark.parametrize("store", [InMemoryStorage, LocalFileSystemStorage])
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_segment_that_cannot_be_read_holds_up_only_the_calls_that_need_it(store, failure, tmp_path):
    @in_virtual_time
    async def run():
        made = store(tmp_path / "q.json") if store is LocalFileSystemStorage else store(clock=VirtualClock())
        opened, storage, suffix = await beside_a_segment(made)
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


@pytest.mark.asyncio
async def test_a_folder_in_the_place_of_a_segment_fails_only_the_calls_that_need_it(tmp_path):
    queue, _, suffix = await beside_a_segment(LocalFileSystemStorage(tmp_path / "q.json"))
    path = tmp_path / f"q.json{suffix}"
    path.rename(tmp_path / "moved")
    path.mkdir()
    async with queue:
        cancelled, job = await queue.apply_each(Enqueue("deep", job_id="deep 0"), Enqueue("hot"))
        assert isinstance(cancelled, SegmentDamagedError)
        assert [job.id] == [each.id for each in await queue.dequeue(batch_size=9)]


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@in_virtual_time
async def test_a_segment_that_cannot_be_read_stops_no_merge_of_other_segments(failure):
    storage = FaultyObjects(InMemoryStorage(clock=VirtualClock()))
    deep = tiny_queue(storage)
    for number in range(6):
        await deep.enqueue("deep", job_id=f"{number}")
        await spilled(deep)
    names = [*(await deep.read_state()).segments]
    storage.unreadable[f".segments/{names[0]}"] = failure
    queue = in_segments(DirectQueue(storage, clock=VirtualClock()), merged=3)
    async with queue:
        for _ in range(40):
            await queue.pause("nothing")
            await queue.resume("nothing")
            await asyncio.sleep(2)
        left = [*(await queue.read_state()).segments]
    assert names[0] in left
    assert 3 > len(left), "the five others are one or two by now"
    assert storage.object_calls.count(("read_object", f".segments/{names[0]}")) < 6
