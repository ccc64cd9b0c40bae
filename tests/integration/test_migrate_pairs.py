"""Jobs moved between every two kinds of queues keep the fields that both have, and lose others only if allowed."""

import pytest

from jqueue import InvalidJobError, JobStatus, Limits, connect_queue, migrate
from jqueue.core.migration import mover
from jqueue.core.migration.mover import ID_TAKEN, Mover
from jqueue.domain.in_transit import MOVE_CLAIM_TIMEOUT, is_moving
from jqueue.domain.operations import HandBack
from jqueue.domain.operations.moving import Arrive, Depart, Take
from tests.moved_jobs import (
    KEPT_BY_ALL,
    KEPT_BY_BLOBS,
    PAIRS,
    audit,
    drained,
    filled,
    jobs_of,
    kept_fields,
    open_at,
    take,
)

pairs = pytest.mark.parametrize(("here", "there"), PAIRS, ids=["-to-".join(pair) for pair in PAIRS])
lacking = pytest.mark.parametrize(
    ("here", "there"), [pair for pair in PAIRS if pair[0] in ("file", "memory") and pair[1] not in ("file", "memory")]
)


@pytest.fixture
def queues(tmp_path, here, there):
    return open_at(tmp_path, here, "source"), open_at(tmp_path, there, "dest")


def is_blob(queue):
    return queue.capabilities.holders


@pairs
async def test_a_move_keeps_all_fields_that_both_queues_have(queues):
    source, dest = queues
    await filled(source)
    before = await jobs_of(source)
    fields = (*KEPT_BY_ALL, *KEPT_BY_BLOBS) if is_blob(source) and is_blob(dest) else KEPT_BY_ALL
    report = await migrate(source, dest, lossy=True)
    assert report.complete, report
    assert len(before) == report.moved
    assert [] == await jobs_of(source)
    delay = source.capabilities.delay and dest.capabilities.delay
    kept = [[kept_fields(job, fields, delay=delay) for job in jobs] for jobs in (before, await jobs_of(dest))]
    assert kept[0] == kept[1]
    assert not any(map(is_moving, await jobs_of(dest)))


@pairs
async def test_jobs_moved_there_and_back_are_unchanged(queues):
    source, dest = queues
    await filled(source, other=dest)
    before = [kept_fields(job) for job in await jobs_of(source)]
    assert len(before) > 5
    for one, other in [(source, dest), (dest, source), (source, dest), (dest, source)]:
        report = await migrate(one, other)
        assert (len(before), True) == (report.moved, report.complete), report
        assert before == [kept_fields(job) for job in await jobs_of(other)]


@pairs
async def test_a_move_keeps_the_order_between_earlier_and_later_jobs(queues):
    source, dest = queues
    for number in range(5):
        await source.enqueue("work", b"%d" % number)
    await dest.enqueue("work", b"first")
    await migrate(source, dest)
    await dest.enqueue("work", b"last")
    assert [b"first", b"0", b"1", b"2", b"3", b"4", b"last"] == await drained(dest)


@pytest.mark.wide
@pairs
async def test_a_dry_run_gives_the_same_report_and_moves_nothing(queues):
    source, dest = queues
    await filled(source)
    before = await jobs_of(source)
    foreseen = await migrate(source, dest, dry_run=True)
    assert (before, []) == (await jobs_of(source), await jobs_of(dest))
    report = await migrate(source, dest)
    assert (foreseen.moved, foreseen.refused, foreseen.lost) == (report.moved, report.refused, report.lost)


@pytest.mark.wide
@pairs
async def test_jobs_in_progress_stay_with_their_workers(queues):
    source, dest = queues
    for number in range(3):
        await source.enqueue("work", b"%d" % number)
    [job] = await source.dequeue()
    report = await migrate(source, dest)
    assert (2, 1, False) == (report.moved, report.in_progress, report.complete)
    await source.heartbeat(job)
    await source.nack(job)
    assert (await migrate(source, dest)).complete
    assert [b"1", b"2", b"0"] == await drained(dest)


@pairs
async def test_attempts_only_grow_and_failures_are_kept(queues):
    source, dest = queues
    await source.enqueue("work", b"")
    for _ in range(3):
        [job] = await source.dequeue()
        await source.nack(job)
    await migrate(source, dest)
    [job] = await dest.dequeue()
    assert (4, True) == (job.failures, job.attempt > 3)


@pytest.mark.wide
@pairs
async def test_repeating_a_finished_move_moves_nothing(queues):
    source, dest = queues
    await filled(source)
    await migrate(source, dest, lossy=True)
    after = await jobs_of(dest)
    again = await migrate(source, dest, lossy=True)
    assert (0, True) == (again.moved, again.complete)
    assert after == await jobs_of(dest)


@pytest.mark.wide
@pairs
async def test_a_move_that_ended_at_any_step_is_finished_by_the_next(tmp_path, here, there):
    steps = ["taken", "arrived", "removed", "let go"]
    for end, number in [(step, count) for step in steps for count in (1, 2)]:
        folder = tmp_path / f"{end}-{number}"
        folder.mkdir()
        source, dest = open_at(folder, here, "source"), open_at(folder, there, "dest")
        for count in range(7):
            await source.enqueue("work", b"%d" % count)
        await source.enqueue("failing", b"dead")
        [job] = await source.dequeue("failing")
        await source.nack(job, error="no", dead=True)
        ids = [job.id for job in await jobs_of(source)]

        class Ended(Exception):
            pass

        class Ending(Mover):
            left = number
            at = end

            def step(self, done):
                self.left -= done == self.at
                if not self.left:
                    raise Ended

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mover, "BATCH_JOBS", 3)
            with pytest.raises(Ended):
                await Ending(source, dest).run()
        await audit(source, dest, ids)
        other_source, other_dest = open_at(folder, here, "source"), open_at(folder, there, "dest")
        assert await is_no_job_ready_twice(other_source, other_dest)
        assert (await migrate(other_source, other_dest)).complete
        await audit(other_source, other_dest, ids)
        assert [] == await jobs_of(other_source)
        assert [b"%d" % count for count in range(7)] == await drained(other_dest, "work")


async def is_no_job_ready_twice(source, dest):
    """Return True if no job can be claimed from both queues. The claims of this check are handed back."""
    found = []
    for queue in (source, dest):
        jobs = await queue.dequeue(batch_size=99)
        assert [] == await queue.nack_many(jobs, charge=False)
        found.append({job.id for job in jobs})
    return not found[0] & found[1]


@pytest.mark.wide
@pairs
async def test_source_workers_get_no_job_that_is_being_moved(queues):
    source, dest = queues
    await filled(source)
    seen = []

    class Looking(Mover):
        def step(self, done):
            seen.append(done)

        async def _add(self, moves, taken):
            assert [] == await source.dequeue(batch_size=99)
            return await super()._add(moves, taken)

        async def _remove(self, moves, taken, arrived):
            assert [] == await source.dequeue(batch_size=99)
            if is_blob(dest):
                assert [] == await dest.dequeue(batch_size=99), "a job is ready there before it has left here"
            return await super()._remove(moves, taken, arrived)

    assert (await Looking(source, dest, lossy=True).run()).complete
    assert ["taken", "arrived", "removed", "let go"] == seen


@pairs
async def test_a_job_taken_from_the_mover_is_not_in_both_queues(queues):
    source, dest = queues
    for number in range(4):
        await source.enqueue("work", b"%d" % number)
    acked = []

    class Robbed(Mover):
        async def _remove(self, moves, taken, arrived):
            assert 4 == await source.requeue_stale(0)
            one, _ = await source.dequeue(batch_size=2)
            await source.ack(one)
            acked.append(one.id)
            return await super()._remove(moves, taken, arrived)

    ids = [job.id for job in await jobs_of(source)]
    report = await Robbed(source, dest).run()
    assert not report.complete
    left = [job.id for job in await jobs_of(source)] + [job.id for job in await jobs_of(dest)]
    assert sorted(ids) == sorted(left + acked)


@pytest.mark.wide
@pairs
async def test_a_revoked_claim_of_a_move_puts_the_job_back_as_it_was(queues):
    source, _ = queues
    await filled(source)
    before = await jobs_of(source)
    queued = [job for job in before if job.status is JobStatus.QUEUED]
    taken = [job for [job] in await source.apply_each(*map(Take, queued))]
    assert {MOVE_CLAIM_TIMEOUT} == {job.claim_timeout for job in taken}
    assert len(queued) == await source.requeue_stale(0)
    assert [kept_fields(job) for job in before] == [kept_fields(job) for job in await jobs_of(source)]
    jobs = [result[0] for result in await source.apply_each(*map(Take, await jobs_of(source))) if result]
    assert len(queued) == len(jobs)
    await source.apply_each(HandBack(tuple(job.claim for job in jobs)))
    assert [kept_fields(job) for job in before] == [kept_fields(job) for job in await jobs_of(source)]


@pairs
async def test_a_job_whose_id_is_taken_in_the_other_queue_is_refused_and_kept(queues):
    source, dest = queues
    await source.enqueue("work", b"one")
    [job] = await jobs_of(source)
    await dest.apply_each(Arrive(job.evolve(payload=b"another")))
    for dry_run in (True, False):
        report = await migrate(source, dest, dry_run=dry_run)
        assert {ID_TAKEN: 1} == {reason: tally.count for reason, tally in report.refused.items()}
    assert ([b"one"], [b"another"]) == (await drained(source), await drained(dest))


@pairs
async def test_a_job_finished_in_the_other_queue_meanwhile_is_not_moved_again(queues):
    source, dest = queues
    for number in range(3):
        await source.enqueue("work", b"%d" % number)
    jobs = await jobs_of(source)
    await take(source, dest, jobs)
    await dest.apply_each(*map(Arrive, jobs[:2]))
    assert [b"0", b"1"] == await drained(dest)
    report = await migrate(source, dest)
    assert (3, 3, True) == (report.moved, report.resumed, report.complete)
    assert [b"2"] == await drained(dest)


@pairs
async def test_a_departed_job_is_not_recorded_as_finished(queues):
    source, _ = queues
    await source.enqueue("work", b"")
    [job] = await jobs_of(source)
    [[taken]] = await source.apply_each(Take(job))
    assert [None] == await source.apply_each(Depart(taken.claim))
    [lost] = await source.apply_each(Depart(taken.claim))
    assert isinstance(lost, Exception)
    assert {} == dict((await source.read_state()).finished)
    [back] = await source.apply_each(Arrive(job))
    assert job.id == back.id


@lacking
async def test_a_job_that_would_lose_a_field_stays_unless_losses_are_allowed(queues):
    source, dest = queues
    await filled(source)
    before = await jobs_of(source)
    report = await migrate(source, dest)
    refused = {reason: tally.count for reason, tally in report.refused.items()}
    assert 1 == refused["the priority would be lost"]
    assert not report.complete
    assert len(before) == report.moved + len(await jobs_of(source))
    assert {kept_fields(job)["id"] for job in before if job.priority} <= {job.id for job in await jobs_of(source)}
    report = await migrate(source, dest, lossy=True)
    assert report.complete
    assert {"the priority": 1} == {name: tally.count for name, tally in report.lost.items() if name == "the priority"}


@pytest.mark.parametrize(("here", "there"), [("vsqs", "file"), ("file", "file"), ("file", "memory")])
async def test_a_job_too_large_for_the_other_queue_stays_and_the_rest_moves(tmp_path, here, there):
    source = open_at(tmp_path, here, "source")
    dest = open_at(tmp_path, there, "dest", limits=Limits(payload_bytes=100))
    for size in (10, 200, 20):
        await source.enqueue("work", b"x" * size)
    for dry_run in (True, False):
        report = await migrate(source, dest, dry_run=dry_run)
        assert (2, 1) == (report.moved, sum(tally.count for tally in report.refused.values()))
    assert [b"x" * 10, b"x" * 20] == await drained(dest)
    assert [b"x" * 200] == await drained(source), "it can be claimed here as before"


@pytest.mark.parametrize("here", ["file", "vsqs"])
async def test_jobs_stay_when_the_other_queue_is_full(tmp_path, here):
    source = open_at(tmp_path, here, "source")
    small = open_at(tmp_path, "file", "dest", limits=Limits(blob_bytes=3000))
    for number in range(20):
        await source.enqueue("work", b"%d" % number)
    report = await migrate(source, small)
    assert 0 < report.moved < 20
    assert not report.complete
    large = open_at(tmp_path, "file", "dest")
    assert (await migrate(source, large)).complete
    assert [b"%d" % number for number in range(20)] == await drained(large)


async def test_a_move_of_a_queue_to_itself_is_refused(tmp_path):
    file, folder = open_at(tmp_path, "file", "one"), open_at(tmp_path, "vsqs", "one")
    await file.enqueue("work", b"")
    await folder.enqueue("work", b"")
    others = [f"{tmp_path}/../{tmp_path.name}/one.json", f"file://{tmp_path}/one.json", f"vsqs://{tmp_path}/./one"]
    for queue, other in [(file, others[0]), (file, others[1]), (folder, others[2])]:
        with pytest.raises(InvalidJobError, match="are the same queue"):
            await migrate(queue, connect_queue(other))
    assert 1 == len(await jobs_of(file)) == len(await jobs_of(folder))
