"""Jobs moved while programs use both queues, while stores fail, and until the move is stopped."""

import asyncio
import random
from collections import Counter

import pytest

from jqueue import DirectQueue, InMemoryStorage, JQueueError, StorageError, migrate
from jqueue.core.migration import mover
from jqueue.core.migration.mover import Mover, SourceDamagedError
from jqueue.operations import Enqueue
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.moved_jobs import PAIRS, audit, drained, jobs_of, open_at
from tests.tiny_segments import remove_segment, restore_segment, spilled, tiny_queue
from tests.virtual_world import in_virtual_time

pytestmark = pytest.mark.wide

JOBS = 60
BUSY_JOBS = 30


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(mover, "BATCH_JOBS", 7)


async def works(queue, done, dice, stop):
    """Work until no more jobs come after `stop`: ack most jobs, and hand some back."""
    while True:
        jobs = await queue.dequeue(batch_size=3)
        for job in jobs:
            await asyncio.sleep(0)
            if dice.random() < 0.2:
                await queue.nack(job)
            else:
                await queue.ack(job)
                done[job.payload] += 1
        if not jobs and stop.is_set():
            return
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("pair", PAIRS, ids="-to-".join)
async def test_jobs_are_moved_while_producers_and_workers_use_both_queues(tmp_path, pair):
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    here, there = pair
    patient = {"deadline": 200}  # five loops of this process take the lock of one file in turns
    source, dest = open_at(tmp_path, here, "source", **patient), open_at(tmp_path, there, "dest", **patient)
    done: Counter[bytes] = Counter()
    over, begun, produced = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def produce():
        queue = open_at(tmp_path, here, "source", **patient)
        for number in range(BUSY_JOBS):
            await queue.enqueue("work", b"old %d" % number)
            begun.set()
            if number % 3 == 0:
                await dest.enqueue("work", b"new %d" % number)
        produced.set()

    async def move():
        await begun.wait()
        while not produced.is_set():
            await migrate(source, dest)
        while not (await migrate(source, dest)).complete:
            await asyncio.sleep(0.001)
        over.set()

    async with asyncio.timeout(240), asyncio.TaskGroup() as group:
        group.create_task(produce())
        group.create_task(move())
        group.create_task(works(open_at(tmp_path, here, "source", **patient), done, dice, over))
        group.create_task(works(open_at(tmp_path, there, "dest", **patient), done, dice, over))
    for payload in await drained(dest):
        done[payload] += 1
    assert [] == await jobs_of(source)
    expected = [b"old %d" % number for number in range(BUSY_JOBS)] + [
        b"new %d" % number for number in range(0, BUSY_JOBS, 3)
    ]
    assert dict.fromkeys(expected, 1) == dict(done)


async def test_concurrent_moves_between_two_objects_move_each_job_once(tmp_path):
    source, dest = open_at(tmp_path, "file", "source"), open_at(tmp_path, "file", "dest")
    for number in range(JOBS):
        await source.enqueue("work", b"%d" % number)
    pairs = [(open_at(tmp_path, "file", "source"), open_at(tmp_path, "file", "dest")) for _ in range(3)]
    await asyncio.gather(*(migrate(*pair) for pair in pairs))
    assert (await migrate(source, dest)).complete
    assert sorted(b"%d" % number for number in range(JOBS)) == sorted(await drained(dest))


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.RESENT, Fault.LANDS_LATER])
@pytest.mark.parametrize("ill", ["source", "dest", "both"])
@in_virtual_time
async def test_a_move_completes_although_stores_fail_now_and_then(fault, ill):
    dice = random.Random(7)
    stores = [FaultyStorage(InMemoryStorage(clock=VirtualClock())) for _ in range(2)]
    source, dest = (DirectQueue(storage, clock=VirtualClock()) for storage in stores)
    for number in range(30):
        await source.enqueue("work", b"%d" % number)
    for name, storage in zip(("source", "dest"), stores, strict=True):
        if ill in (name, "both"):
            storage.on_write(*[dice.choice([fault, Fault.NONE]) for _ in range(40)])
            storage.on_read(*[dice.choice([Fault.LOST_REQUEST, Fault.NONE]) for _ in range(20)])
    assert (await migrate(source, dest)).complete
    assert [b"%d" % number for number in range(30)] == await drained(dest)


@pytest.mark.parametrize("ill", [0, 1])
@pytest.mark.parametrize("good", range(5))
@in_virtual_time
async def test_the_next_move_finishes_one_that_a_store_failure_ended(ill, good):
    stores = [FaultyStorage(InMemoryStorage(clock=VirtualClock())) for _ in range(2)]
    source, dest = (DirectQueue(storage, clock=VirtualClock(), deadline=5) for storage in stores)
    for number in range(20):
        await source.enqueue("work", b"%d" % number)
    ids = [job.id for job in await jobs_of(source)]
    away = [Fault.NONE] * good + [Fault.LOST_ANSWER, *[Fault.LOST_REQUEST] * 500]
    stores[ill].on_write(*away)
    with pytest.raises(StorageError):
        await migrate(source, dest)
    await asyncio.sleep(1)
    source, dest = (DirectQueue(storage.storage, clock=VirtualClock()) for storage in stores)
    await audit(source, dest, ids)
    assert (await migrate(source, dest)).complete
    assert [b"%d" % number for number in range(20)] == await drained(dest)


@in_virtual_time
async def test_a_move_stops_between_two_batches_when_asked_to():
    source, dest = (DirectQueue(InMemoryStorage(clock=VirtualClock()), clock=VirtualClock()) for _ in range(2))
    for number in range(20):
        await source.enqueue("work", b"%d" % number)
    stop, progress = asyncio.Event(), []

    def note(done, of):
        progress.append((done, of))
        if done == 7:
            stop.set()

    report = await migrate(source, dest, stop=stop, on_progress=note)
    assert (True, False, 14) == (report.stopped, report.complete, report.moved)
    assert [(0, 20), (7, 20), (14, 20)] == progress
    assert 6 == len((await source.read_state()).queued_jobs()), "the remaining jobs can be claimed"
    assert (await migrate(source, dest)).complete


@in_virtual_time
async def test_a_move_is_a_few_commits_for_many_jobs():
    stores = [FaultyStorage(InMemoryStorage(clock=VirtualClock())) for _ in range(2)]
    source, dest = (DirectQueue(storage, clock=VirtualClock()) for storage in stores)
    for number in range(7):
        await source.enqueue("work", b"%d" % number)
    for storage in stores:
        storage.writes = 0
    await migrate(source, dest)
    assert [2, 2] == [storage.writes for storage in stores], (
        "the source commits take and remove, the destination add and release"
    )
    assert (await migrate(source, dest)).complete
    assert [2, 2] == [storage.writes for storage in stores], "an empty look writes nothing"


@in_virtual_time
async def test_a_failure_in_the_middle_leaves_every_job_somewhere():
    for steps in range(12):
        source, dest = (DirectQueue(InMemoryStorage(clock=VirtualClock()), clock=VirtualClock()) for _ in range(2))
        for number in range(20):
            await source.enqueue("work", b"%d" % number)
        ids = [job.id for job in await jobs_of(source)]

        class Failing(Mover):
            left = steps

            async def _each(self, queue, operations):
                self.left -= 1
                if self.left < 0:
                    raise JQueueError("somebody pulled the plug")
                return await super()._each(queue, operations)

        with pytest.raises(JQueueError, match="plug"):
            await Failing(source, dest).run()
        await audit(source, dest, ids)
        assert (await migrate(source, dest)).complete
        assert [b"%d" % number for number in range(20)] == await drained(dest)


@in_virtual_time
async def test_more_jobs_than_fit_into_a_window_move_in_their_order(monkeypatch):
    monkeypatch.setattr(mover, "WINDOW_JOBS", 5)
    source, dest = (DirectQueue(InMemoryStorage(clock=VirtualClock()), clock=VirtualClock()) for _ in range(2))
    for number in range(17):
        await source.enqueue("work", b"%d" % number, job_id=f"{number}", priority=-number)
    await dest.enqueue("work", b"", job_id="16")  # the first to move, and it cannot
    predicted = await migrate(source, dest, dry_run=True)
    progress = []
    report = await migrate(source, dest, on_progress=lambda done, of: progress.append((done, of)))
    assert (16, 16, predicted.refused) == (predicted.moved, report.moved, report.refused)
    assert [["16"]] == [tally.ids for tally in report.refused.values()]
    assert (0, 17) == progress[0]
    moved = [job.id for job in (await dest.read_state()).queued_jobs() if job.payload]
    assert [f"{number}" for number in reversed(range(16))] == moved


async def test_jobs_in_segments_move_in_their_order_and_those_of_a_damaged_one_stay(monkeypatch):
    monkeypatch.setattr(mover, "WINDOW_JOBS", 5)
    storage, dest = InMemoryStorage(), DirectQueue(InMemoryStorage())
    source = tiny_queue(storage, most_rows=8)
    for number in range(20):
        await source.enqueue("work", b"", job_id=f"{number:02}", priority=-number)
    await source.enqueue_many([Enqueue("late", b"", job_id=f"late-{each}", delay=3600) for each in range(3)])
    await source.enqueue_many([Enqueue("broken", b"", job_id=f"broken-{each}") for each in range(4)])
    await source.enqueue_many([Enqueue("gone", b"", job_id=f"gone-{each}", delay=3600) for each in range(4)])
    await spilled(source)
    manifest = (await source.read_state()).segments
    lost = {f".segments/{name}" for name, segment in manifest.items() if segment.entrypoint in ("broken", "gone")}
    for suffix in lost:
        await storage.remove_object(suffix)
    with pytest.raises(SourceDamagedError) as caught:
        await migrate(source, dest)
    assert 2 == len(lost)
    assert lost == {*caught.value.segments}
    assert (23, False) == (caught.value.report.moved, caught.value.report.complete)
    assert [*(f"{number:02}" for number in reversed(range(20)))] == [
        job.id for job in (await dest.read_state()).queued_jobs() if job.entrypoint == "work"
    ]
    assert (20, 3) == ((await dest.stats()).depth, (await dest.stats()).scheduled)
    waiting = (await source.stats()).entrypoints or {}
    assert {"broken": 4} == {name: each.depth for name, each in waiting.items() if each.depth}


async def test_jobs_in_progress_in_a_range_stay_with_their_worker_and_are_counted():
    source, dest = tiny_queue(InMemoryStorage()), DirectQueue(InMemoryStorage())
    await source.enqueue_many([Enqueue("work", b"") for _ in range(12)])
    await spilled(source)
    claim = await source.claim_range("work", 5)
    assert claim is not None
    report = await migrate(source, dest)
    assert (12 - claim.rows, claim.rows, False) == (report.moved, report.in_progress, report.complete)
    await source.end_range(claim)
    assert (await migrate(source, dest)).complete


async def test_a_move_that_was_interrupted_goes_on_beside_a_damaged_segment_and_is_finished_after_its_repair():
    class Interrupted(Mover):
        def step(self, done):
            if done == "removed":
                raise ConnectionError("interrupted")

    storage, dest = InMemoryStorage(), DirectQueue(InMemoryStorage())
    source = tiny_queue(storage)
    await source.enqueue("first", b"")
    with pytest.raises(ConnectionError):
        await Interrupted(source, dest).run()
    await source.enqueue_many([Enqueue("broken", b"") for _ in range(4)])
    await spilled(source)
    [name] = (await source.read_state()).segments
    whole = await remove_segment(storage, name)
    await source.enqueue("second", b"")
    with pytest.raises(SourceDamagedError) as caught:
        await migrate(DirectQueue(storage), dest)
    assert 1 == caught.value.report.moved
    assert ["second"] == [job.entrypoint for job in await dest.dequeue(batch_size=9)]
    await restore_segment(storage, name, whole)
    assert 4 == (await migrate(DirectQueue(storage), dest)).moved
    assert {"first", "broken"} == {job.entrypoint for job in await dest.dequeue(batch_size=9)}
