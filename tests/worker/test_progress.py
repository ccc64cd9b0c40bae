"""Progress of jobs: handlers report it at no cost, and it goes with commits that are made anyway."""

import asyncio
from contextlib import aclosing

import pytest

from jqueue import JobStatus
from jqueue.worker import Context, RunReport, Worker
from tests.virtual_world import now
from tests.worker.scenes import broker, counted, drained, working

pytestmark = pytest.mark.virtual_time


async def rows(number):
    for row in range(number):
        yield row


async def watched(queue, job):
    """Return what a watch sees of a job: how far it is, by the time."""
    async with aclosing(queue.watch(job)) as states:
        return [(round(now()), each.progress and each.progress[:3]) async for each in states]


async def test_the_latest_progress_is_sent_alone_every_two_seconds():
    worker = Worker()

    @worker.handler("work", keep_result=60)
    async def work(ctx: Context) -> None:
        async for row in ctx.track(rows(100), 100, "rows"):
            await asyncio.sleep(0.1 if row else 0.01)

    storage = counted()
    async with broker(storage) as queue:
        job = await work.using(queue).enqueue()
        begin, watching = now(), asyncio.create_task(watched(queue, job))
        async with working(worker, queue):
            seen = await watching
        assert JobStatus.COMPLETED == (await queue.find(job.id)).status
        assert (await queue.find(job.id)).progress[:3] == (100, 100, "rows")
    reports = [(at - round(begin), progress[0]) for at, progress in seen if progress and progress[0] < 100]
    assert [2, 4, 6, 8] == [at for at, _ in reports]
    assert all(abs(done - 10 * at) < 5 for at, done in reports)


async def test_under_load_progress_makes_no_commit_of_its_own():
    async def commits(reports):
        """Return the writes of a worker with a long job that reports, or does not, beside many short ones."""
        worker = Worker(concurrency=4)

        @worker.handler("long")
        async def long(ctx: Context) -> None:
            for number in range(1000):
                if reports:
                    ctx.progress(number, 1000)
                await asyncio.sleep(0.02)

        @worker.handler("short")
        async def short() -> None:
            await asyncio.sleep(0.1)

        storage = counted(0.01)
        async with broker(storage) as queue:
            first = await long.using(queue).enqueue()
            await queue.enqueue_many([short.call() for _ in range(600)])
            async with working(worker, queue):
                await asyncio.sleep(15)
                progress = (await queue.find(first.id)).progress
                writes = storage.writes
        return writes, progress

    (without, none), (with_reports, progress) = await commits(False), await commits(True)
    assert None is none
    assert 700 < progress.done
    assert abs(with_reports - without) <= 2


async def test_a_handler_in_a_thread_tracks_rows():
    worker = Worker()

    @worker.handler("work", keep_result=60)
    def work(ctx: Context) -> int:
        return sum(ctx.track([1, 2, 3]))

    async with broker() as queue:
        job = await work.using(queue).enqueue()
        assert RunReport(succeeded=1) == await drained(worker, queue)
        assert 6 == await queue.result(job)
        assert (3, 3, "") == (await queue.find(job.id)).progress[:3]
