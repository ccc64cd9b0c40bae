"""A job that is enqueued with an id counts its own tries from 1, above any attempts that the queue has forgotten."""

import logging

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.core.blob import codec
from jqueue.core.migration.mover import migrate
from jqueue.worker import Context, Worker


async def queue_with_a_floor(floor=300):
    """Return a queue that has forgotten a job with `floor` attempts."""
    queue = DirectQueue(InMemoryStorage())
    await queue.enqueue("t", b"", job_id="old")
    for _ in range(floor):
        await queue.nack((await queue.dequeue())[0])
    await queue.cancel("old")
    return queue


async def test_a_first_run_is_the_first_try_and_its_token_is_above_forgotten_attempts(caplog):
    queue, worker, seen = await queue_with_a_floor(), Worker(), []

    @worker.handler("t", max_attempts=1)
    async def fail(ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.claim.attempt))
        raise ValueError

    await queue.enqueue("t", b"", job_id="new")
    with caplog.at_level(logging.WARNING, "jqueue"):
        await worker.run(queue, drain=True)
    assert [(1, 301)] == seen
    assert [True] == ["(t, attempt 1) failed" in record.getMessage() for record in caplog.records]
    [dead] = (await queue.read_state()).dead_jobs()
    assert (1, 301, 1) == (dead.tries, dead.attempt, dead.failures)
    await queue.redrive("new")
    [again] = await queue.dequeue()
    assert (2, 302) == (again.tries, again.attempt)


@pytest.mark.parametrize("floor", [0, 50])
async def test_a_job_that_is_moved_keeps_its_own_count(floor):
    source, dest = await queue_with_a_floor(20), await queue_with_a_floor(floor)
    await source.enqueue("t", b"", job_id="new")
    await source.nack((await source.dequeue())[0])
    await migrate(source, dest)
    [job] = await dest.dequeue()
    assert 2 == job.tries
    assert job.attempt > max(21, floor)


async def test_a_blob_without_a_count_of_tries_is_read():
    line = b'{"format": 2, "jobs": {\n"a": {"entrypoint": "t", "payload": "", "attempt": 7}\n}}\n'
    [job] = codec.decode(line).jobs
    assert (7, 7) == (job.tries, job.attempt)
    [wrong] = codec.decode(line.replace(b'"attempt": 7', b'"attempts_before": 7')).jobs
    assert 0 == wrong.tries
