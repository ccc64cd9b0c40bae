"""Jobs whose workers were lost: which of them are charged, and which run one at a time."""

import pytest

from jqueue import DirectQueue, InMemoryStorage, Job, JobStatus
from jqueue.core.blob.segment_writer import _last_of
from jqueue.domain.draft import Draft
from jqueue.domain.job import DIED_ERROR, SPARED_ERROR, STALE_ERROR, AttemptError
from jqueue.domain.models import record_of
from jqueue.domain.operations.base import perform
from jqueue.domain.operations.ends import Sweep
from jqueue.domain.operations.leases import ClaimBatch
from jqueue.domain.slices import exhaust
from jqueue.operations import Enqueue
from jqueue.testing.virtual_time import EPOCH

HERE, THERE = "mailer@here:7", "mailer@there:7"
KEY = {"concurrency_key": "taken", "concurrency_limit": 2}


def new_queue():
    return DirectQueue(InMemoryStorage())


async def enqueue(queue, *names, **options):
    await queue.enqueue_many([Enqueue("t", b"", job_id=name, **options) for name in names])


async def lose(queue, *holders, number=100):
    """Claim jobs as the workers of some processes, which die. Return the ids of those that were claimed."""
    jobs = [job for holder in holders for job in await queue.dequeue(batch_size=number, holder=holder)]
    await queue.apply(Sweep((), tuple((job.claim, job.heartbeat_at) for job in jobs)))
    return [job.id for job in jobs]


async def claimed(queue):
    return [job.id for job in await queue.dequeue(batch_size=100)]


async def figures(queue):
    """The status, the failures and the last error of each job, by id."""
    jobs = (await queue.read_state()).jobs
    return {job.id: (str(job.status), job.failures, job.error and job.errors[-1].text) for job in jobs}


async def suspects(*names, **options):
    """A queue whose jobs have lost their last two workers."""
    queue = new_queue()
    await enqueue(queue, *names, **options)
    for _ in range(2):
        assert {*names} == {*await lose(queue, HERE)}
    return queue


async def test_the_death_of_a_process_with_one_job_is_charged_and_the_job_goes_behind():
    queue = new_queue()
    await enqueue(queue, *"abc")
    await lose(queue, HERE, THERE, number=1)
    assert ("queued", 1, DIED_ERROR) == (await figures(queue))["a"] == (await figures(queue))["b"]
    assert [*"cab"] == await claimed(queue)


async def test_of_several_jobs_the_one_that_has_lost_two_workers_is_charged_until_it_is_dead():
    queue = await suspects("poison", max_attempts=4)  # it was alone: these two deaths were charged
    for failures in (3, 4):
        await enqueue(queue, f"fresh {failures}", max_attempts=2)
        assert "poison" in await lose(queue, HERE)
        assert failures == (await figures(queue))["poison"][1]
    assert ("dead", 4, DIED_ERROR) == (await figures(queue)).pop("poison")
    assert ("queued", 0, SPARED_ERROR) == (await figures(queue))["fresh 3"]


async def test_a_job_that_kills_each_worker_is_dead_after_two_more_deaths_than_attempts_and_others_are_spared():
    queue, deaths = new_queue(), 0
    await enqueue(queue, "poison", *(f"{number}" for number in range(9)), max_attempts=2)
    while (await figures(queue))["poison"][0] != "dead":
        jobs = await queue.dequeue(batch_size=100, holder=HERE)
        if any(job.id == "poison" for job in jobs):
            await queue.apply(Sweep((), tuple((job.claim, job.heartbeat_at) for job in jobs)))
            deaths += 1
        else:
            await queue.ack_many(jobs)
    assert 2 + 2 == deaths
    assert all(failures == 0 for _, failures, _ in [(await figures(queue))[name] for name in await claimed(queue)])


@pytest.mark.parametrize("before", [1, 2])
async def test_a_last_attempt_is_not_repeated_although_the_death_may_be_another_jobs(before):
    queue = new_queue()
    await enqueue(queue, *"ab", max_attempts=before)
    for _ in range(before - 1):
        await queue.nack_many(await queue.dequeue(batch_size=2), error="no address")
    await lose(queue, HERE)
    assert {"a": ("dead", before, SPARED_ERROR), "b": ("dead", before, SPARED_ERROR)} == await figures(queue)


def test_a_job_is_charged_if_the_queue_has_no_room_to_note_its_lost_worker():
    job = Job(id="a", entrypoint="t", payload=b"", created_at=EPOCH, sequence=1, attempt=1, failures=1)
    a = record_of(job.evolve(status=JobStatus.IN_PROGRESS, holder=HERE, claimed_at=EPOCH))
    jobs = [a, a.evolve(id="b")]
    draft = Draft()
    draft.load(jobs)
    draft.blob_bytes = 1
    perform([Sweep((), tuple((job.claim, None) for job in jobs))], draft, EPOCH)
    assert [((), 1)] * 2 == [(job.errors, job.failures) for job in draft.jobs.values()]


async def test_a_process_does_one_job_at_a_time_that_may_kill_it_beside_all_others():
    queue = await suspects(*"abc")
    await enqueue(queue, *"de")
    [*first] = await queue.dequeue(batch_size=100)
    assert [*"ade"] == [job.id for job in first]
    assert [] == await claimed(queue)
    await queue.ack(first[0])
    [b] = await queue.dequeue(batch_size=100)
    assert ["c"] == [job.id for job in await queue.dequeue(batch_size=100, holder=THERE)]
    await queue.nack(b, error="it fails in another way")
    assert ["b"] == await claimed(queue)


async def test_a_job_that_waits_for_one_process_is_claimed_by_another():
    queue = await suspects(*"abc")
    held = [job.id for _ in range(2) for job in await queue.dequeue(batch_size=100, holder=HERE)]
    assert [["a"], ["b"]] == [held, [job.id for job in await queue.dequeue(batch_size=100, holder=THERE)]]


@pytest.mark.parametrize("waits", ["b", "c", "d"])
async def test_one_that_a_concurrency_key_holds_back_leaves_the_turn_to_another(waits):
    """In every order of three such jobs, of which two have a key that is taken."""
    queue = new_queue()
    for name in "bcd":
        await enqueue(queue, name, **{} if name == waits else KEY)
    for _ in range(2):
        assert 3 == len(await lose(queue, HERE))
    await enqueue(queue, "holder 1", "holder 2", priority=-1, **KEY)
    holders = await queue.dequeue(batch_size=2)
    assert [waits] == await claimed(queue)
    assert [] == await claimed(queue)
    await queue.ack_many(holders)
    await enqueue(queue, "e", **KEY)
    assert ["e"] == await claimed(queue), "the jobs before it with its key wait for another reason"


async def test_people_see_for_which_job_such_a_job_waits():
    queue = await suspects(*"ab")
    [a] = await queue.dequeue(batch_size=100)
    [b] = [job for job in (await queue.read_state()).jobs if job.id == "b"]
    reasons = await (await queue.view()).why_waits(b, a.heartbeat_at)
    assert ["its last two workers were lost: a process does one such job at a time, and a is running"] == reasons


@pytest.mark.parametrize("errors", [[], [STALE_ERROR], [STALE_ERROR, SPARED_ERROR], ["ValueError", DIED_ERROR]])
async def test_jobs_that_may_kill_their_workers_stay_in_the_blob(errors):
    queue = new_queue()
    job = record_of(await queue.enqueue("t", b""))
    job = job.evolve(errors=tuple(AttemptError(number, EPOCH, text) for number, text in enumerate(errors)))
    _, spilled = exhaust(_last_of([job], 1, EPOCH))
    assert (errors == [STALE_ERROR, SPARED_ERROR]) == (spilled == [])
    assert job.status is JobStatus.QUEUED


async def test_a_batch_claims_all_jobs_that_may_kill_as_it_does_each_in_a_process_of_its_own():
    queue = await suspects(*"abc")
    assert ["a"] == [job.id for job in await queue.dequeue(batch_size=100, holder=HERE)]
    [batch] = await queue.apply(ClaimBatch(None, 100, 100, 0, holder=HERE))
    assert [*"bc"] == [job.id for job in batch]
