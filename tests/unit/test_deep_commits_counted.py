"""The cost of a commit and a read when ten thousand other jobs wait: the lines that changed, counted."""

import pytest

from jqueue.core.blob import codec
from jqueue.core.blob.content import Blob
from jqueue.core.blob.lines import encode_job
from jqueue.core.blob.pages import LINES_IN_PAGE
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain.operations import Ack, Enqueue
from jqueue.domain.slices import JOBS_PER_SLICE, LINES_PER_SLICE
from jqueue.testing.virtual_time import VirtualClock
from tests.deep_queue import DEEP, LineWork, Turns, deep_blob, deep_queue, deep_storage
from tests.virtual_world import in_virtual_time

pytestmark = pytest.mark.wide

both = pytest.mark.parametrize("make", [DirectQueue, BrokerQueue])


@pytest.fixture
def work(monkeypatch):
    return LineWork(monkeypatch)


def commits_of(queue, jobs):
    """Return commits of many kinds, each with the number of jobs that it changes and leaves in the queue."""
    return (
        (lambda: queue.enqueue("work", b"payload", job_id="the id"), 1),
        (lambda: queue.cancel("the id"), 0),
        (lambda: queue.enqueue_many([Enqueue("work", b"payload")] * 7), 7),
        (lambda: queue.dequeue("work"), 1),
        (lambda: queue.dequeue(batch_size=200), 200),
        (lambda: queue.ack(jobs[0]), 0),
        (lambda: queue.nack(jobs[1], error="later"), 1),
        (lambda: queue.heartbeat_many(jobs[2:12]), 10),
        (lambda: queue.apply(Ack(jobs[2]), Enqueue("next", b"payload")), 1),
        (lambda: queue.nack(jobs[3], dead=True), 1),
        (queue.redrive, 1),
    )


# Writing


@both
@in_virtual_time
async def test_a_commit_encodes_only_the_bytes_of_changed_jobs(work, make):
    queue, _ = await deep_queue(make)
    jobs = await queue.dequeue(batch_size=20)
    before = {job.id: job for job in (await queue.read_state()).jobs}
    for commit, changed in commits_of(queue, jobs):
        work.forget()
        await commit()
        encoded = (work.encoded, work.encoded_bytes)
        after = {job.id: job for job in (await queue.read_state()).jobs}
        others = [encode_job(job) for job_id, job in after.items() if job != before.get(job_id)]
        assert (changed, sum(map(len, others))) == encoded
        before = after


@both
@in_virtual_time
async def test_a_commit_of_adjacent_jobs_joins_the_lines_of_at_most_two_pages(make):
    queue, _ = await deep_queue(make)
    jobs = await queue.dequeue(batch_size=20)
    pages = queue._engine.blob.pages
    for commit, _ in commits_of(queue, jobs):
        before = pages.lines_joined
        await commit()
        assert pages.lines_joined - before <= 2 * LINES_IN_PAGE + 20  # jobs claimed before, and their line at the end


@pytest.mark.wide
@in_virtual_time
async def test_commits_that_empty_a_deep_queue_join_each_line_a_few_times():
    queue, _ = await deep_queue(BrokerQueue)
    pages = queue._engine.blob.pages
    before, commits = pages.lines_joined, 0
    while jobs := await queue.dequeue(batch_size=500):
        await queue.ack_many(jobs)
        commits += 2
    assert 40 <= commits
    assert pages.lines_joined - before <= commits * 3 * LINES_IN_PAGE


# Reading


@both
@in_virtual_time
async def test_only_changed_lines_are_parsed_after_a_foreign_commit(work, make):
    queue, other = await deep_queue(make)
    jobs = await other.dequeue(batch_size=20)
    await queue.dequeue("nobody")
    for commit, changed in commits_of(other, jobs):
        await commit()
        work.forget()
        await queue.dequeue("nobody")
        assert changed == work.read
        assert work.cut <= 3 * LINES_IN_PAGE + changed
    assert (await queue.read_state()).jobs == (await other.read_state()).jobs


@in_virtual_time
async def test_only_changed_lines_are_parsed_after_many_foreign_commits(work):
    queue, other = await deep_queue()
    for number in (50, 5_000, 9_990):
        await other.cancel(f"job {number:06d}")
    jobs = await other.dequeue(batch_size=30)
    await other.ack_many(jobs[:10])
    await other.nack_many(jobs[10:20])
    await other.enqueue_many([Enqueue("work", b"payload")] * 40)
    work.forget()
    before = queue._engine.blob.lines_parsed
    await queue.dequeue("nobody")
    assert 20 + 40 == work.read == queue._engine.blob.lines_parsed - before
    assert work.cut <= 5 * LINES_IN_PAGE


@in_virtual_time
async def test_a_write_that_lost_its_race_parses_foreign_changes_and_encodes_its_own_again(work):
    queue, other = await deep_queue()
    await other.enqueue("work", b"payload")
    work.forget()
    await queue.enqueue("work", b"payload")
    assert (1, 2) == (work.read, work.encoded)


@both
@in_virtual_time
async def test_rereading_an_unchanged_blob_parses_nothing(work, make):
    queue, other = await deep_queue(make)
    await queue.dequeue(batch_size=1000)
    work.forget()
    await queue.dequeue("nobody")
    await queue.read_state()
    await queue.stats()
    assert (0, 0) == (work.read, work.encoded)
    await other.requeue_stale(0)
    await queue.dequeue("nobody")
    work.forget()
    await queue.read_state()
    assert (0, 0) == (work.read, work.cut)


def test_adopting_the_same_blob_again_does_not_split_it_into_lines(work):
    blob, data = Blob(), deep_blob()
    blob.adopt(codec.parse_blob(data), len(data))
    assert (DEEP, DEEP) == (work.read, work.cut)
    work.forget()
    for header in (data, data.replace(b'"attempt_floor": 0', b'"attempt_floor": 3')):
        blob.adopt(codec.parse_blob(header), len(header))
        blob.look(codec.parse_blob(header))
    assert (0, 0) == (work.read, work.cut)


# Turns of the event loop


@in_virtual_time
async def test_reading_a_deep_queue_yields_to_other_tasks(work):
    storage = await deep_storage()
    queue = DirectQueue(storage, clock=VirtualClock())
    for first_look in (queue.read_state, queue.stats, lambda: queue.dequeue("nobody")):
        async with Turns(lambda: work.read) as turns:
            await first_look()
        assert turns.count >= DEEP // LINES_PER_SLICE
        assert turns.most <= LINES_PER_SLICE
    for look in (queue.read_state, queue.stats):  # every line is known by now
        async with Turns(lambda: work.read) as turns:
            await look()
        assert turns.count >= DEEP // JOBS_PER_SLICE


@in_virtual_time
async def test_writing_many_new_jobs_yields_to_other_tasks(work):
    queue, _ = await deep_queue()
    async with Turns(lambda: work.encoded) as turns:
        await queue.enqueue_many([Enqueue("work", b"payload")] * 5_000)
    assert work.encoded >= 5_000
    assert turns.count >= 5_000 // LINES_PER_SLICE
    assert turns.most <= LINES_PER_SLICE


@in_virtual_time
async def test_loading_many_foreign_jobs_yields_to_other_tasks(work):
    queue, other = await deep_queue()
    await other.enqueue_many([Enqueue("work", b"payload")] * 5_000)
    loaded = queue._engine.draft.jobs
    work.forget()
    async with Turns(lambda: work.read + len(loaded)) as turns:
        await queue.dequeue("nobody")
    assert work.read == 5_000
    assert turns.count >= 2 * 5_000 // LINES_PER_SLICE  # to read them, and to put them in their places
    assert turns.most <= 2 * LINES_PER_SLICE
