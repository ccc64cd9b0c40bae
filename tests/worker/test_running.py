"""The loop of a worker: the jobs that it claims, the times of claims, and the number of commits."""

import asyncio
import json

import pytest

from jqueue.operations import Enqueue
from jqueue.worker import RunReport, Worker
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import CountingStorage, broker, direct, until, working

both = pytest.mark.parametrize("make", [direct, broker])


def jobs(count, entrypoint="work"):
    return [Enqueue(entrypoint, b"%d" % number) for number in range(count)]


async def filled(make, count, storage=None):
    queue = make(storage)
    if make is broker:
        await queue.start()
    await queue.enqueue_many(jobs(count))
    return queue


@both
@in_virtual_time
async def test_draining_does_all_ready_jobs_and_returns_a_report(make):
    worker, done = Worker(concurrency=7), []

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        await asyncio.sleep(1)
        done.append(payload)

    queue = await filled(make, 40)
    assert RunReport(succeeded=40) == await worker.run(queue, drain=True, signals=False)
    assert {b"%d" % number for number in range(40)} == set(done)
    assert 40 == len(done)
    assert () == (await queue.read_state()).jobs


@both
@in_virtual_time
async def test_draining_an_empty_queue_returns_at_once(make):
    worker = Worker()
    worker.handler("work")(ignore)
    assert RunReport() == await worker.run(await filled(make, 0), drain=True, signals=False)
    assert now() < 1


async def ignore() -> None:
    return


@in_virtual_time
async def test_draining_does_not_wait_for_jobs_that_are_scheduled_for_later():
    worker = Worker()
    worker.handler("work")(ignore)
    async with broker() as queue:
        await queue.enqueue("work", b"", delay=3600)
        assert RunReport() == await worker.run(queue, drain=True, signals=False)
        assert now() < 1


@in_virtual_time
async def test_draining_includes_jobs_that_running_jobs_enqueue():
    worker = Worker()
    async with broker() as queue:

        @worker.handler("work")
        async def work(left: int) -> None:
            if left:
                await work.enqueue(queue, left - 1)

        await work.enqueue(queue, 5)
        assert RunReport(succeeded=6) == await worker.run(queue, drain=True, signals=False)


@in_virtual_time
async def test_draining_includes_jobs_enqueued_elsewhere_while_a_long_job_runs():
    worker, done = Worker(concurrency=2), []

    @worker.handler("work")
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)
        done.append((seconds, round(now())))

    async with broker() as queue:
        await work.enqueue(queue, 100.0)
        async with working(worker, queue, drain=True) as task:
            await asyncio.sleep(20)
            await work.enqueue(queue, 1.0)
            assert RunReport(succeeded=2) == await task
    assert [(1.0, 21), (100.0, 100)] == done


@in_virtual_time
async def test_jobs_of_unknown_entrypoints_are_never_claimed():
    worker = Worker()
    worker.handler("work")(ignore)
    async with broker() as queue:
        other = await queue.enqueue("other", b"")
        assert RunReport() == await worker.run(queue, drain=True, signals=False)
        assert (other,) == (await queue.read_state()).jobs


class Auditor(CountingStorage):
    """A store that counts the jobs in progress in each version."""

    def __init__(self, latency):
        super().__init__(latency)
        self.in_progress = []

    async def write(self, content, if_match=None):
        found = json.loads(content)["jobs"].values()
        self.in_progress.append(sum(job["status"] == "in_progress" for job in found))
        return await super().write(content, if_match)


@both
@in_virtual_time
async def test_claims_never_exceed_the_free_slots(make):
    worker, storage = Worker(concurrency=5), Auditor(0.03)
    running = most = 0

    @worker.handler("work")
    async def work(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(number % 7 / 50)
        running -= 1

    queue = await filled(make, 60, storage)
    await worker.run(queue, drain=True, signals=False)
    assert 5 == most
    assert 5 == max(storage.in_progress)


@in_virtual_time
async def test_outcomes_and_the_next_claims_share_a_commit():
    worker, storage = Worker(concurrency=50), CountingStorage(0.02)
    worker.handler("work")(ignore)
    queue = await filled(broker, 1000, storage)
    before = storage.writes
    await worker.run(queue, drain=True, signals=False)
    assert 1000 // 50 + 1 + 1 == storage.writes - before  # the last one removes the worker's record


@in_virtual_time
async def test_outcomes_of_jobs_of_different_length_share_commits():
    worker, storage = Worker(concurrency=50), CountingStorage(0.02)

    @worker.handler("work")
    async def work(number: int) -> None:
        await asyncio.sleep(number % 13 / 100)

    queue = await filled(broker, 1000, storage)
    before = storage.writes
    await worker.run(queue, drain=True, signals=False)
    assert storage.writes - before < now() / 0.02 + 1  # a write takes 0.02 s: outcomes that come meanwhile share one
    assert now() < 1000 * 0.06 / 50 * 2.2


@in_virtual_time
async def test_one_job_at_a_time_needs_one_commit_each():
    worker, storage = Worker(concurrency=1), CountingStorage(0.02)
    worker.handler("work")(ignore)
    queue = await filled(broker, 20, storage)
    before = storage.writes
    await worker.run(queue, drain=True, signals=False)
    assert 20 + 1 + 1 == storage.writes - before  # the last one removes the worker's record


@both
@in_virtual_time
async def test_an_idle_worker_writes_once_a_minute_and_reads_rarely(make):
    worker, storage = Worker(), CountingStorage()
    worker.handler("work")(ignore)
    queue = await filled(make, 0, storage)
    async with working(worker, queue):
        await asyncio.sleep(600)
        assert 0 == storage.writes, "a worker creates no queue"
        await queue.configure(aging=60)
        reads = storage.reads
        await asyncio.sleep(600)
        assert 10 == storage.writes
        assert storage.reads - reads < 900  # the queue looks every second at the latest


@both
@in_virtual_time
async def test_a_job_enqueued_while_the_worker_waits_starts_at_once(make):
    worker, begun = Worker(), []

    @worker.handler("work")
    async def work() -> None:
        begun.append(now())

    queue = await filled(make, 0)
    async with working(worker, queue):
        await asyncio.sleep(100)
        await queue.enqueue("work", b"")
        await until(lambda: begun)
    assert begun[0] < 100.1


@in_virtual_time
async def test_slots_freed_during_a_long_poll_are_used():
    worker = Worker(concurrency=4)
    running = most = 0

    @worker.handler("work")
    async def work(seconds: float) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(seconds)
        running -= 1

    storage = CountingStorage()
    async with broker(storage) as queue, working(worker, queue):
        for _ in range(3):
            await work.enqueue(queue, 5.0)
        await asyncio.sleep(6)  # the long poll was for one slot, and three have become free
        before = storage.writes
        await queue.enqueue_many([work.operation(5.0) for _ in range(4)])
        await asyncio.sleep(1)
        assert 1 == storage.writes - before  # enqueued and claimed, all four
        assert 4 == most
        assert all(1 == job.attempt for job in (await queue.read_state()).jobs)


@in_virtual_time
async def test_stopping_while_a_long_poll_waits_leaves_no_job_claimed():
    worker = Worker()
    worker.handler("work")(ignore)
    async with broker() as queue:
        async with working(worker, queue) as task:
            await asyncio.sleep(5)
            worker.stop()
            await queue.enqueue("work", b"")
            report = await task
        state = await queue.read_state()
        assert report.total == 1 - len(state.jobs)
        assert [] == list(state.in_progress_jobs())


@in_virtual_time
async def test_one_heartbeat_per_third_of_the_claim_timeout_keeps_all_claims():
    worker, storage = Worker(concurrency=20, claim_timeout=30), CountingStorage()

    @worker.handler("work")
    async def work() -> None:
        await asyncio.sleep(100)

    queue = await filled(broker, 20, storage)
    beats = []
    many = queue.heartbeat_many

    async def heartbeat_many(jobs, **options):
        beats.append((round(now()), len(jobs)))
        return await many(jobs, **options)

    queue.heartbeat_many = heartbeat_many
    before = storage.writes
    await worker.run(queue, drain=True, signals=False)
    assert [(10 * number, 20) for number in range(1, 10)] == beats[:9]
    assert len(beats) <= 10
    assert 1 + len(beats) + 1 >= storage.writes - before


@in_virtual_time
async def test_an_idle_worker_sends_no_heartbeats():
    worker = Worker(claim_timeout=3)
    worker.handler("work")(ignore)
    async with broker() as queue:

        async def heartbeat_many(jobs, **options):
            raise AssertionError("nothing is held")

        queue.heartbeat_many = heartbeat_many
        async with working(worker, queue):
            await asyncio.sleep(100)


@in_virtual_time
async def test_claims_have_the_timeout_of_the_worker_and_are_kept_beyond_it():
    worker, seen = Worker(claim_timeout=9), []

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        seen.append(payload)
        await asyncio.sleep(60)

    async with broker() as queue, broker(queue.storage) as other:
        await queue.enqueue("work", b"")
        async with working(worker, queue) as task:
            await until(lambda: seen)
            [job] = (await other.read_state()).jobs
            assert 9 == job.claim_timeout
            assert [] == await other.dequeue("work", wait=40)
            await asyncio.sleep(30)
            assert not task.done()
        assert [b""] == seen
        assert () == (await other.read_state()).jobs
