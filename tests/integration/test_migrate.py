"""Jobs moved between queues keep what both queues have, and none is lost or added twice, whatever stops the move."""

import asyncio
import random
from datetime import timedelta

import pytest

from jqueue import (
    ClaimLostError,
    DirectQueue,
    InMemoryStorage,
    UnknownOutcomeError,
    migrate,
)
from jqueue.core import migration
from jqueue.domain.limits import Limits
from jqueue.domain.operations.ends import RecordStep
from jqueue.domain.operations.enqueue import Depart
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.moved_jobs import KEPT_BY_ALL, KEPT_BY_BLOBS, PAIRS, audit, drained, filled, jobs_of, kept_fields, open_at
from tests.virtual_world import in_virtual_time

BLOBS = ("file", "memory")
SOME = [("file", "memory"), ("file", "vsqs"), ("dirq-queue", "file"), ("vsqs", "dirq-simple")]


def virtual(storage, **options):
    return DirectQueue(storage, clock=VirtualClock(), **options)


def two_stores():
    return [FaultyStorage(InMemoryStorage(clock=VirtualClock())) for _ in range(2)]


@pytest.mark.parametrize(
    ("here", "there"), [pair if pair in SOME else pytest.param(*pair, marks=pytest.mark.wide) for pair in PAIRS]
)
async def test_a_move_keeps_all_fields_that_both_queues_have_and_can_be_repeated(tmp_path, here, there):
    source, dest = open_at(tmp_path, here, "source"), open_at(tmp_path, there, "dest")
    await filled(source, other=dest)
    before = await jobs_of(source)
    fields = (*KEPT_BY_ALL, *KEPT_BY_BLOBS) if here in BLOBS and there in BLOBS else KEPT_BY_ALL
    foreseen = await migrate(source, dest, dry_run=True)
    assert (before, []) == (await jobs_of(source), await jobs_of(dest)), "a dry run moves nothing"
    assert (len(before), True) == (foreseen.moved, foreseen.complete), foreseen
    report = await migrate(source, dest)
    assert (len(before), True) == (report.moved, report.complete), report
    assert [] == await jobs_of(source)
    delay = source.capabilities.delay and dest.capabilities.delay
    after = [{job.id: kept_fields(job, fields, delay=delay) for job in jobs} for jobs in (before, await jobs_of(dest))]
    assert after[0] == after[1]
    if there in BLOBS:
        assert all(job.tries == 0 or job.failures for job in await jobs_of(dest)), "the claim of a move is no try"
    assert (0, True) == ((again := await migrate(source, dest)).moved, again.complete)
    if there in BLOBS and source.capabilities.dead_letters:  # what moved away has not finished there, and may come back
        assert len(before) == (await migrate(dest, source)).moved
        assert {job.id for job in before} == {job.id for job in await jobs_of(source)}


@pytest.mark.parametrize(("here", "there"), SOME)
async def test_order_is_kept_attempts_only_grow_and_jobs_in_progress_stay(tmp_path, here, there):
    source, dest = open_at(tmp_path, here, "source"), open_at(tmp_path, there, "dest")
    await source.enqueue("failing", b"")
    for _ in range(3):
        await source.nack((await source.dequeue())[0])
    for number in range(4):
        await source.enqueue("work", b"%d" % number)
    [job] = await source.dequeue("work")
    await dest.enqueue("work", b"first")
    report = await migrate(source, dest)
    assert (4, 1, False) == (report.moved, report.left.in_progress, report.complete)
    await source.nack(job)
    assert (await migrate(source, dest)).complete
    assert [b"first", b"1", b"2", b"3", b"0"] == await drained(dest, "work")
    [job] = await dest.dequeue("failing")
    assert (4, True) == (job.failures, job.attempt > 4)


@in_virtual_time
async def test_a_move_killed_before_its_jobs_leave_the_source_is_finished_by_the_next_without_adding_one_twice():
    stores = two_stores()
    source, dest = (virtual(store.storage) for store in stores)
    for number in range(3):
        await source.enqueue("work", b"%d" % number, job_id=f"{number}")
    await source.enqueue("later", job_id="later", delay=timedelta(days=1))
    stores[0].on_write(Fault.NONE, *[Fault.LOST_REQUEST] * 1000)  # the claim, and nothing after it
    with pytest.raises(UnknownOutcomeError):
        await migrate(virtual(stores[0]), dest)
    assert ["0", "1", "2"] == [job.id for job in await jobs_of(dest)]
    assert ["in_progress"] * 3 + ["queued"] == [job.status for job in await jobs_of(source)]
    [done, failed] = await dest.dequeue("work", batch_size=2)
    await dest.ack(done)
    await dest.nack(failed)
    report = await migrate(source, dest)
    assert (1, 3) == (report.moved, report.left.in_progress), "claims are not revoked before their time"
    await source.requeue_stale(0)
    assert ((report := await migrate(source, dest)).moved, report.complete) == (3, True)
    assert [b"2", b"1"] == await drained(dest), "the job that was done there is not added again"
    assert ["later"] == [job.id for job in await jobs_of(dest)]


@in_virtual_time
async def test_a_move_that_a_failing_store_ends_leaves_every_job_somewhere_and_is_finished_by_the_next():
    for seed in range(40):
        dice = random.Random(seed)
        stores = two_stores()
        source, dest = (virtual(store.storage) for store in stores)
        ids = [(await source.enqueue("work", b"%d" % number)).id for number in range(7)]
        ids.append((await source.enqueue("later", delay=timedelta(days=1))).id)
        for store in stores:
            store.on_write(*dice.choices([Fault.NONE, Fault.LOST_ANSWER, Fault.LANDS_LATER, Fault.HANGS], k=9))
        faulty = [virtual(store, call_timeout=2, deadline=1) for store in stores]
        try:
            await migrate(*faulty)
        except Exception as error:
            print(f"seed {seed}: {error!r}")
        await audit(source, dest, ids)
        for queue in faulty:
            await queue.aclose()
        await source.requeue_stale(0)
        assert (await migrate(source, dest)).complete, f"seed {seed}"
        await audit(source, dest, ids)
        assert [b"%d" % number for number in range(7)] == sorted(await drained(dest))


@in_virtual_time
async def test_claims_of_a_slow_move_are_kept_alive():
    stores = two_stores()
    source, dest = (virtual(store.storage) for store in stores)
    job = await source.enqueue("work")
    stores[1].latency = 14
    moving = asyncio.create_task(migrate(virtual(stores[0].storage, stale_timeout=6), virtual(stores[1])))
    await asyncio.sleep(15)  # it looks at the destination before it claims
    for _ in range(4):
        await asyncio.sleep(3)
        assert [] == await source.dequeue()
    assert (await moving).complete
    assert [job.id] == [each.id for each in await jobs_of(dest)]


@in_virtual_time
async def test_a_move_that_is_cancelled_and_again_while_it_ends_hands_its_jobs_back():
    stores = two_stores()
    source, dest = (virtual(store) for store in stores)
    await source.enqueue("work", b"")
    stores[1].on_write(Fault.HANGS)
    stores[0].latency = 1
    moving = asyncio.create_task(migrate(source, dest))
    await asyncio.sleep(10)
    enqueueing = asyncio.create_task(source.enqueue("later", delay=60))  # the jobs go back after it
    for _ in range(2):
        await asyncio.sleep(0.1)
        moving.cancel()
    await asyncio.wait([moving, enqueueing])
    assert moving.cancelled()
    assert 0 == (await source.stats()).in_progress


async def test_a_job_that_was_changed_after_it_was_seen_does_not_leave():
    queue = DirectQueue(InMemoryStorage())
    for name in ("dead", "claimed", "later"):
        await queue.enqueue(name, job_id=name)
    await queue.nack(*await queue.dequeue("dead"), dead=True)
    [claimed] = await queue.dequeue("claimed")
    seen = [claimed, *(job for job in await jobs_of(queue) if job.id != "claimed")]
    await queue.requeue_stale(0)
    await queue.dequeue("claimed")
    await queue.redrive("dead")
    await queue.reschedule("later", delay=60)
    results = await queue.apply_each(*(Depart(job) for job in seen))
    assert [ClaimLostError] * 3 == [type(result) for result in results]
    assert [None] * 3 == await queue.apply_each(*(Depart(job) for job in await jobs_of(queue)))
    assert ({}, ()) == ((state := await queue.read_state()).finished, state.jobs)


async def test_a_job_stays_if_it_would_lose_an_option(tmp_path):
    source, dest = open_at(tmp_path, "file", "source"), open_at(tmp_path, "vsqs", "dest")
    await source.enqueue("work", b"urgent", priority=-5)
    await source.pause("mail")
    await source.enqueue("mail", b"paused")
    await source.enqueue("work", b"plain")
    foreseen, report = await migrate(source, dest, dry_run=True), await migrate(source, dest)
    assert foreseen.refused == report.refused
    [(reason, ids)] = report.refused.items()
    assert ("no priority" in reason, 1, 1) == (True, len(ids), report.moved)
    assert [b"plain"] == await drained(dest)
    assert (2, False) == (report.left.ready, report.complete), "a paused job stays, too"


async def test_a_job_whose_id_or_key_is_taken_in_the_other_queue_stays(tmp_path):
    source, dest = open_at(tmp_path, "file", "source"), open_at(tmp_path, "file", "dest")
    await source.enqueue("work", b"one", job_id="a")
    await dest.enqueue("work", b"another", job_id="a")
    await source.enqueue("work", b"two", unique_key="key")
    await dest.enqueue("work", b"other", unique_key="key")
    assert (0, 2) == ((report := await migrate(source, dest)).moved, len(report.refused))
    assert [(0, 1)] * 2 == [(job.failures, job.attempt) for job in await jobs_of(source)]
    assert ([b"one", b"two"], [b"another", b"other"]) == (await drained(source), await drained(dest))


async def test_a_full_destination_ends_the_move_and_the_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(migration, "BATCH_JOBS", 5)
    monkeypatch.setattr(migration, "MOST_REFUSED", 10)
    source, storage = open_at(tmp_path, "file", "source"), InMemoryStorage()
    dest = DirectQueue(storage, limits=Limits(blob_bytes=20_000, hot_bytes=None))
    for _ in range(40):
        await source.enqueue("work", bytes(1000))
    report = await migrate(source, dest)
    assert 40 == report.moved + report.left.ready
    assert (True, True) == (5 < report.moved < 20, 10 <= sum(map(len, report.refused.values())) < 15)


async def test_large_payloads_move_into_objects_and_out_of_them(tmp_path):
    source = open_at(tmp_path, "file", "source", limits=Limits(object_bytes=1000))
    dest, small = open_at(tmp_path, "file", "dest"), bytes(2000)
    await source.enqueue("work", small)
    await source.enqueue("work", large := bytes(3_000_000))
    await source.enqueue("work", large, delay=3600)
    assert (await migrate(source, dest)).complete
    assert [small, large] == await drained(dest)
    [later] = await jobs_of(dest)
    assert large == b"".join([piece async for piece in dest.open_payload(later)])
    assert "objects" in (await dest.read_state()).critical  # an older reader would take them for empty payloads


async def test_steps_move_with_their_job_and_one_whose_result_is_in_an_object_keeps_it_here(tmp_path):
    source, dest = open_at(tmp_path, "file", "source"), open_at(tmp_path, "memory", "dest")
    here, there = [await source.enqueue("work", b"") for _ in range(2)]
    jobs = await source.dequeue("work", batch_size=2)
    await source.apply_each(*(RecordStep(job, "one", 1, "x" * size) for job, size in zip(jobs, (9000, 9), strict=True)))
    await source.nack_many(jobs)
    report = await migrate(source, dest)
    [[refused]] = report.refused.values()
    assert (1, here.id) == (report.moved, refused)
    assert "the result of step 'one'" in next(iter(report.refused))
    [job] = await dest.dequeue("work")
    assert (there.id, "x" * 9) == (job.id, job.steps[0].result)
    assert "steps" in (await dest.read_state()).critical
