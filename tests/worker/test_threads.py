"""Handlers without `async` run in threads, which can only be asked to stop."""

import asyncio
import threading
import time

import pytest

from jqueue.worker import Context, RunReport, Worker
from tests.sync.programs import run_program
from tests.virtual_world import in_virtual_time
from tests.worker.scenes import DEAD, QUEUED, broker, drained, only_job, working


@in_virtual_time
async def test_sync_handlers_run_in_at_most_one_thread_per_slot():
    worker, barrier, threads = Worker(concurrency=4), threading.Barrier(4, timeout=120), set()

    @worker.handler("work", keep_result=60)
    def work(number: int, ctx: Context) -> int:
        barrier.wait()  # passes once four threads wait here
        threads.add(threading.current_thread())
        return number * ctx.attempt

    async with broker() as queue:
        queued = await queue.enqueue_many([work.call(number) for number in range(8)])
        assert RunReport(succeeded=8) == await drained(worker, queue)
        assert 7 == await work.using(queue).result(queued[7], timeout=60)
    assert 4 >= len(threads)
    assert threading.main_thread() not in threads


async def test_a_thread_that_times_out_sees_is_cancelled_and_its_value_does_not_count():
    worker, seen = Worker(cancel_grace=120), []

    @worker.handler("work", timeout=0.05, max_attempts=1)
    def work(ctx: Context) -> None:
        while not ctx.is_cancelled:
            time.sleep(0.005)
        seen.append("cancelled")

    async with broker() as queue:
        await work.using(queue).enqueue()
        assert RunReport(dead=1) == await drained(worker, queue)
        job = await only_job(queue)
    assert (DEAD, "timed out after 0.05 s", ["cancelled"]) == (job.status, job.error, seen)


async def test_a_worker_stops_while_a_thread_still_blocks_and_hands_its_job_back():
    worker, over, begun = Worker(grace=0.05, cancel_grace=0.05), threading.Event(), threading.Event()

    @worker.handler("work")
    def work() -> None:
        begun.set()
        over.wait(120)

    async with broker() as queue:
        await work.using(queue).enqueue()
        async with working(worker, queue) as task:
            await asyncio.to_thread(begun.wait)
            worker.stop()
            assert RunReport(handed_back=1, stuck=1) == await task
        over.set()
        job = await only_job(queue)
        assert (QUEUED, 0) == (job.status, job.failures)


@pytest.mark.wide
def test_a_program_exits_while_a_thread_still_blocks(tmp_path):
    program = """
        import asyncio, time
        from jqueue import BrokerQueue, InMemoryStorage
        from jqueue.worker import Worker

        worker = Worker(grace=0.05, cancel_grace=0.05)

        @worker.handler("work")
        def work() -> None:
            worker.stop()
            time.sleep(600)

        async def main():
            async with BrokerQueue(InMemoryStorage()) as queue:
                await work.using(queue).enqueue()
                print(await worker.run(queue))

        asyncio.run(main())
    """
    done = run_program(tmp_path, program)
    assert (0, "1 handed back, 1 stuck\n") == (done.returncode, done.stdout)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["coroutine", "Task"])
@in_virtual_time
async def test_returning_what_was_never_awaited_fails_the_job_and_never_runs_it(kind):
    worker, begun = Worker(), []

    async def work() -> None:
        begun.append("work")

    @worker.handler("coroutine", max_attempts=1)
    async def forgets():
        return work()

    @worker.handler("Task", max_attempts=1)
    async def begins():
        return asyncio.create_task(work())

    async with broker() as queue:
        await queue.enqueue(kind, b"")
        assert RunReport(dead=1) == await drained(worker, queue)
        error = (await only_job(queue)).error
    assert error.startswith(f"TypeError: the handler returned a {kind} that was never awaited")
    assert [] == begun
