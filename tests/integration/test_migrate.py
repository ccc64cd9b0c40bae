"""Jobs moved between queues keep what both queues have, are in one queue at any time, and stay if they would lose."""

import random

import pytest

from jqueue import DirectQueue, InMemoryStorage, InvalidJobError, connect_queue, migrate
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.moved_jobs import KEPT_BY_ALL, KEPT_BY_BLOBS, PAIRS, audit, drained, filled, jobs_of, kept_fields, open_at
from tests.virtual_world import in_virtual_time

BLOBS = ("file", "memory")
SOME = [("file", "memory"), ("file", "vsqs"), ("dirq-queue", "file"), ("vsqs", "dirq-simple")]


@pytest.mark.parametrize(
    ("here", "there"), [pair if pair in SOME else pytest.param(*pair, marks=pytest.mark.wide) for pair in PAIRS]
)
async def test_a_move_keeps_all_fields_that_both_queues_have_and_can_be_repeated(tmp_path, here, there):
    source, dest = open_at(tmp_path, here, "source"), open_at(tmp_path, there, "dest")
    await filled(source)
    before = await jobs_of(source)
    fields = (*KEPT_BY_ALL, *KEPT_BY_BLOBS) if here in BLOBS and there in BLOBS else KEPT_BY_ALL
    foreseen = await migrate(source, dest, lossy=True, dry_run=True)
    assert (before, []) == (await jobs_of(source), await jobs_of(dest)), "a dry run moves nothing"
    report = await migrate(source, dest, lossy=True)
    assert (len(before), True) == (report.moved, report.complete), report
    assert (foreseen.moved, foreseen.refused, foreseen.lost) == (report.moved, report.refused, report.lost)
    assert [] == await jobs_of(source)
    delay = source.capabilities.delay and dest.capabilities.delay
    after = [[kept_fields(job, fields, delay=delay) for job in jobs] for jobs in (before, await jobs_of(dest))]
    assert after[0] == after[1]
    again = await migrate(source, dest, lossy=True)
    assert (0, True) == (again.moved, again.complete)


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
    assert (4, 1, False) == (report.moved, report.in_progress, report.complete)
    await source.nack(job)
    assert (await migrate(source, dest)).complete
    assert [b"first", b"1", b"2", b"3", b"0"] == await drained(dest, "work")
    [job] = await dest.dequeue("failing")
    assert (4, True) == (job.failures, job.attempt > 3)


@in_virtual_time
async def test_a_move_that_a_failing_store_ends_leaves_every_job_somewhere_and_is_finished_by_the_next():
    for seed in range(40):
        dice = random.Random(seed)
        stores = [FaultyStorage(InMemoryStorage(clock=VirtualClock())) for _ in range(2)]
        source, dest = (DirectQueue(store.storage, clock=VirtualClock()) for store in stores)
        ids = [(await source.enqueue("work", b"%d" % number)).id for number in range(7)]
        for store in stores:
            store.on_write(*dice.choices([Fault.NONE, Fault.LOST_ANSWER, Fault.LANDS_LATER, Fault.HANGS], k=9))
        faulty = [DirectQueue(store, clock=VirtualClock(), call_timeout=2, deadline=1) for store in stores]
        try:
            await migrate(*faulty)
        except Exception as error:
            print(f"seed {seed}: {error!r}")
        await audit(source, dest, ids)
        for queue in faulty:
            await queue.aclose()
        assert (await migrate(source, dest)).complete, f"seed {seed}"
        assert [b"%d" % number for number in range(7)] == await drained(dest)


async def test_a_job_stays_if_it_would_lose_a_field_and_losses_are_not_allowed(tmp_path):
    source, dest = open_at(tmp_path, "file", "source"), open_at(tmp_path, "vsqs", "dest")
    await source.enqueue("work", b"urgent", priority=-5)
    await source.pause("mail")
    await source.enqueue("mail", b"paused")
    await source.enqueue("work", b"plain")
    report = await migrate(source, dest)
    refused = {reason: tally.count for reason, tally in report.refused.items()}
    assert {
        "the priority would be lost": 1,
        "the pause or the limits of their entrypoint would be lost": 1,
    } == refused
    assert [b"plain"] == await drained(dest)
    report = await migrate(source, dest, lossy=True)
    assert (True, 1) == (report.complete, report.lost["the priority"].count)


async def test_a_job_whose_id_is_taken_in_the_other_queue_stays(tmp_path):
    source, dest = open_at(tmp_path, "file", "source"), open_at(tmp_path, "file", "dest")
    await source.enqueue("work", b"one", job_id="a")
    await dest.enqueue("work", b"another", job_id="a")
    assert (0, 1) == ((report := await migrate(source, dest)).moved, len(report.refused))
    assert ([b"one"], [b"another"]) == (await drained(source), await drained(dest))


async def test_pauses_limits_cron_entries_and_settings_move_unless_the_other_queue_has_its_own(tmp_path):
    source, dest = open_at(tmp_path, "file", "source"), open_at(tmp_path, "file", "dest")
    await source.pause("mail")
    await source.limit("work", running=3)
    await dest.limit("work", running=4)
    night = await source.schedule("night", "0 3 * * *", "work", b"payload")
    await source.schedule("both", "0 4 * * *", "work")
    await dest.schedule("both", "0 5 * * *", "work")
    await source.enqueue("mail", b"paused")
    report = await migrate(source, dest)
    assert {"limits of mail", "cron entry night"} == set(report.rules_taken)
    assert {"limits of work", "cron entry both"} == set(report.rules_kept)
    assert [] == await dest.dequeue("mail"), "a paused entrypoint is paused there, too"
    crons = {entry.name: entry for entry in await dest.schedules()}
    assert (night, "0 5 * * *") == (crons["night"], crons["both"].cron)
    assert ["both"] == [entry.name for entry in await source.schedules()]


async def test_a_move_of_a_queue_to_itself_is_refused(tmp_path):
    file = open_at(tmp_path, "file", "one")
    await file.enqueue("work", b"")
    for other in (f"{tmp_path}/../{tmp_path.name}/one.json", f"file://{tmp_path}/one.json"):
        with pytest.raises(InvalidJobError, match="are the same queue"):
            await migrate(file, connect_queue(other))
    assert 1 == len(await jobs_of(file))
