"""Moves of queues with unique keys, limits and cron entries, and moves that were interrupted."""

from dataclasses import replace

import pytest

from jqueue import DirectQueue, DuplicateJobError, InMemoryStorage, migrate
from jqueue.core.migration.mover import Mover
from jqueue.domain.operations.moving import Arrive
from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.store import CAPABILITIES, VsqsFolder
from jqueue.testing.faults import FaultyStorage
from tests.moved_jobs import drained, jobs_of, open_at, take


async def test_a_job_whose_unique_key_is_taken_in_the_other_queue_is_refused(tmp_path):
    source, dest = open_at(tmp_path, "file", "source"), open_at(tmp_path, "file", "dest")
    await source.enqueue("work", b"here", unique_key="one")
    there = await dest.enqueue("work", b"there", unique_key="one")
    report = await migrate(source, dest)
    assert ["their unique key is taken at DEST"] == list(report.refused)
    await dest.cancel(there.id)
    assert (await migrate(source, dest)).complete
    with pytest.raises(DuplicateJobError):
        await dest.enqueue("work", b"", unique_key="one", on_conflict="raise")
    assert (await source.enqueue("work", b"", unique_key="one")).payload == b"", "the key is free here"


async def test_limits_are_copied_and_cron_entries_moved(tmp_path):
    source, dest = open_at(tmp_path, "file", "source"), open_at(tmp_path, "file", "dest")
    await source.pause("mail")
    await source.limit("work", running=3)
    await dest.limit("work", running=4)
    await source.configure(aging=60, dead_retention=900, history=3600, history_payloads=True)
    await dest.configure(aging=30)
    night = await source.schedule("night", "0 3 * * *", "work", b"payload")
    await source.schedule("both", "0 4 * * *", "work")
    await dest.schedule("both", "0 5 * * *", "work")
    await source.enqueue("mail", b"paused")
    taken = ("limits of mail", "retention of dead jobs", "history", "payloads in the history", "cron entry night")
    kept = ("limits of work", "aging", "cron entry both")
    for dry_run in (True, False):
        report = await migrate(source, dest, dry_run=dry_run)
        assert (taken, kept) == (report.rules_taken, report.rules_kept)
    assert [] == await dest.dequeue("mail"), "a paused entrypoint is paused there, too"
    assert {"night": night, "both": "0 5 * * *"} == {
        entry.name: entry if entry.name == "night" else entry.cron for entry in await dest.schedules()
    }
    assert ["both"] == [entry.name for entry in await source.schedules()]
    assert () == (await migrate(source, dest)).rules_taken


async def test_a_queue_without_objects_takes_the_other_settings_and_no_history(tmp_path):
    source, dest = open_at(tmp_path, "file", "source"), DirectQueue(FaultyStorage(InMemoryStorage()))
    await source.configure(aging=60, history=3600, history_bytes=1000)
    report = await migrate(source, dest)
    assert (("aging",), ("history",)) == (report.rules_taken, report.rules_kept)
    assert None is (await dest.read_state()).settings.history


async def test_limits_that_a_format_cannot_have_are_reported(tmp_path):
    source, dest = open_at(tmp_path, "file", "source"), open_at(tmp_path, "vsqs", "dest")
    await source.pause("mail")
    await source.schedule("night", "0 3 * * *", "work")
    await source.enqueue("mail", b"paused")
    await source.enqueue("work", b"free")
    report = await migrate(source, dest)
    assert ("limits of mail", "cron entry night") == report.rules_kept
    assert 1 == len(await source.schedules())
    assert ["the pause or the limits of their entrypoint would be lost"] == list(report.refused)
    assert [b"free"] == await drained(dest), "the paused job would run there"
    report = await migrate(source, dest, lossy=True)
    assert ["the pause or the limits of their entrypoint"] == list(report.lost)
    assert [b"paused"] == await drained(dest)


async def test_a_move_of_jobs_with_a_limited_entrypoint_does_not_use_up_the_limit(tmp_path):
    source, dest = open_at(tmp_path, "file", "source"), open_at(tmp_path, "file", "dest")
    for number in range(3):
        await source.enqueue("work", b"%d" % number, concurrency_key="one")
    await source.limit("work", running=1)
    first, *_ = await jobs_of(source)
    await take(source, dest, [first])
    [claimed] = await source.dequeue()
    assert b"1" == claimed.payload, "a move is no work"
    await source.ack(claimed)
    assert (await migrate(source, dest)).complete
    assert [b"0", b"2"] == await drained(dest)


async def test_an_unfinished_move_to_another_queue_must_be_finished_first(tmp_path):
    source, dest, other = (open_at(tmp_path, "file", name) for name in ("source", "dest", "other"))
    await source.enqueue("work", b"")

    class Ending(Mover):
        def step(self, done):
            if done == "arrived":
                raise KeyError

    with pytest.raises(KeyError):
        await Ending(source, dest).run()
    report = await migrate(source, other)
    assert 0 == report.moved
    assert ["an interrupted move to another queue has claimed them: finish that move first"] == list(report.refused)
    assert (await migrate(source, dest)).complete


async def test_a_move_without_lossy_finishes_one_with_it(tmp_path):
    source, dest = open_at(tmp_path, "file", "source"), open_at(tmp_path, "vsqs", "dest")
    jobs = [await source.enqueue("work", b"%d" % number, priority=1) for number in range(2)]
    await take(source, dest, jobs)
    await dest.apply_each(Arrive(jobs[0].evolve(priority=0)))
    report = await migrate(source, dest)
    assert (1, {"the priority would be lost": 1}) == (
        report.moved,
        {reason: tally.count for reason, tally in report.refused.items()},
    )
    assert ([b"1"], [b"0"]) == (await drained(source), await drained(dest))


async def test_a_job_redriven_between_two_runs_is_ready_in_the_other_queue(tmp_path):
    source, dest = open_at(tmp_path, "file", "source"), open_at(tmp_path, "file", "dest")
    await source.enqueue("work", b"payload")
    [job] = await source.dequeue()
    await source.nack(job, dead=True, error="no")
    await dest.apply_each(Arrive((await jobs_of(source))[0]))
    await source.redrive(job.id)
    report = await migrate(source, dest)
    assert report.complete, report
    assert [b"payload"] == await drained(dest)


async def test_dead_jobs_can_be_moved_to_a_format_without_delays(tmp_path):
    class Undelayed(VsqsFolder):
        capabilities = replace(CAPABILITIES, delay=False)

    source, dest = open_at(tmp_path, "file", "source"), StoreQueue(Undelayed(tmp_path / "dest"))
    await source.enqueue("work", b"dead")
    [job] = await source.dequeue()
    await source.nack(job, dead=True, error="no")
    later = await source.enqueue("work", b"later", delay=60)
    report = await migrate(source, dest)
    assert ["the delay would be lost"] == list(report.refused)
    assert [("dead", "no")] == [(job.status, job.error) for job in await jobs_of(dest)]
    assert [later.id] == [job.id for job in await jobs_of(source)]
    assert 1 == await dest.redrive()
    assert [b"dead"] == await drained(dest)
