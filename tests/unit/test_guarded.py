"""A guarded operation is done only if the queue is still as its caller has seen it."""

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain.errors import ChangedMeanwhileError, DuplicateJobError, InvalidJobError, JobNotFoundError
from jqueue.domain.job import JobStatus
from jqueue.domain.operations.codec import Guarded
from jqueue.domain.operations.operator import Cancel, CreateQueue
from jqueue.domain.operations.rules import RunSchedule, SetLimits, Unschedule
from jqueue.domain.rules import EntrypointRules
from jqueue.domain.selection import QUEUED, Selection


@pytest.fixture
def storage():
    return InMemoryStorage()


@pytest.fixture
def queue(storage):
    return DirectQueue(storage)


async def only(queue):
    [job] = (await queue.read_state()).jobs
    return job


async def test_only_a_job_that_still_is_as_it_was_chosen_is_cancelled(queue, storage):
    job = await queue.enqueue("mail")
    waiting = Guarded(Cancel(job.id, running=True), job_id=job.id, selection=Selection(phases=QUEUED))
    await DirectQueue(storage).dequeue()
    gone = Guarded(Cancel("gone"), job_id="gone", selection=Selection())
    fits = Guarded(Cancel(job.id, running=True), job_id=job.id, selection=Selection(entrypoints=frozenset({"mail"})))
    changed, missing, cancelled = await queue.apply_each(waiting, gone, fits)
    assert isinstance(changed, ChangedMeanwhileError)
    assert isinstance(missing, JobNotFoundError)
    assert cancelled.cancel_requested


async def test_a_heartbeat_is_no_change_of_a_job_and_a_claim_is_one(queue):
    await queue.enqueue("mail")
    waiting = await only(queue)
    [claimed] = await queue.dequeue()
    running = await only(queue)
    await queue.heartbeat(claimed)
    [missed, done] = await queue.apply_each(
        Guarded(Cancel(waiting.id, True), job=waiting), Guarded(Cancel(running.id, True), job=running)
    )
    assert isinstance(missed, ChangedMeanwhileError)
    assert JobStatus.IN_PROGRESS == done.status


async def test_rules_are_changed_if_they_are_as_seen_and_left_alone_otherwise(queue):
    with pytest.raises(ChangedMeanwhileError):
        await queue.apply(
            Guarded(SetLimits("mail", running=6), entrypoint="mail", rules=EntrypointRules(max_running=5))
        )
    assert {} == (await queue.read_state()).entrypoints
    await queue.limit("mail", running=5)
    seen = (await queue.read_state()).entrypoints["mail"]
    await queue.apply(Guarded(SetLimits("mail", running=6), entrypoint="mail", rules=seen))
    assert 6 == (await queue.read_state()).entrypoints["mail"].max_running


async def test_a_cron_entry_is_compared_without_its_times(queue):
    seen = await queue.schedule("nightly", "0 2 * * *", "clean")
    later = seen.evolve(next_at=seen.next_at.replace(year=2040))
    other = seen.evolve(cron="0 3 * * *")
    with pytest.raises(ChangedMeanwhileError):
        await queue.apply(Guarded(Unschedule("nightly"), schedule=other))
    assert [True] == await queue.apply(Guarded(Unschedule("nightly"), schedule=later))


async def test_a_job_of_a_cron_entry_is_enqueued_now_and_its_times_stay(queue):
    seen = await queue.schedule("nightly", "0 2 * * *", "clean", b"all", max_attempts=3, unique_key="k")
    [job] = await queue.apply(RunSchedule("nightly"))
    assert ("clean", b"all", 3) == (job.entrypoint, job.payload, job.max_attempts)
    assert job.created_at.isoformat() == job.headers["jqueue-scheduled-for"]
    assert [seen] == await queue.schedules()
    with pytest.raises(DuplicateJobError):
        await queue.apply(RunSchedule("nightly"))


async def test_only_one_of_two_creates_the_queue(storage):
    await DirectQueue(storage).apply(CreateQueue())
    before = await storage.read()
    with pytest.raises(InvalidJobError, match="there is a queue already"):
        await DirectQueue(storage).apply(CreateQueue())
    assert before == await storage.read()
