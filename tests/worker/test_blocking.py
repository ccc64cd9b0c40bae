"""Handlers without async: in threads, and in processes."""

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from jqueue import BrokerQueue, InMemoryStorage
from jqueue.worker import Context, RunReport, Worker
from tests.virtual_world import in_virtual_time
from tests.worker import process_handlers
from tests.worker.scenes import DEAD, QUEUED, SECRET, broker, only_job, working


@in_virtual_time
async def test_sync_handlers_run_in_threads_as_many_as_there_are_slots():
    worker, barrier, threads = Worker(concurrency=4), threading.Barrier(4, timeout=10), set()

    @worker.handler("work", keep_result=60)
    def work(number: int, ctx: Context) -> int:
        barrier.wait()  # only goes on when four are here
        threads.add(threading.current_thread())
        return number * ctx.attempt

    async with broker() as queue:
        queued = await queue.enqueue_many([work.operation(number) for number in range(8)])
        assert RunReport(succeeded=8) == await worker.run(queue, drain=True, signals=False)
        assert 7 == await work.result(queue, queued[7], timeout=1)
    assert 4 >= len(threads)
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("error", [ValueError("x"), StopIteration(), SystemExit(1), KeyboardInterrupt()])
def test_what_a_sync_handler_raises_is_its_failure(error):
    async def main():
        worker = Worker()

        @worker.handler("work", max_attempts=1)
        def work() -> None:
            raise error

        async with broker() as queue:
            await work.enqueue(queue)
            assert RunReport(dead=1) == await worker.run(queue, drain=True)
            assert type(error).__name__ in (await only_job(queue)).error

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_sync_handler_that_is_out_of_time_is_told_and_its_job_given_back():
    async def main():
        worker, told = Worker(cancel_grace=5), threading.Event()

        @worker.handler("work", timeout=0.05, max_attempts=1)
        def work(ctx: Context) -> None:
            while not ctx.is_cancelled:
                time.sleep(0.005)
            told.set()
            raise ValueError

        async with broker() as queue:
            await work.enqueue(queue)
            assert RunReport(dead=1) == await worker.run(queue, drain=True)
            assert "timed out after 0.05 s" == (await only_job(queue)).error
        assert told.is_set()

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_sync_handler_that_blocks_does_not_keep_the_worker_from_ending():
    async def main(over, begun):
        worker = Worker(grace=0.05, cancel_grace=0.05)

        @worker.handler("work")
        def work() -> None:
            begun.set()
            over.wait(30)

        async with BrokerQueue(InMemoryStorage()) as queue:
            await work.enqueue(queue)
            async with working(worker, queue) as task:
                await asyncio.to_thread(begun.wait)
                worker.stop()
                assert RunReport(handed_back=1) == await task
            job = await only_job(queue)
            assert (QUEUED, 0) == (job.status, job.failures)

    over = threading.Event()
    began = time.monotonic()
    asyncio.run(main(over, threading.Event()))
    over.set()
    assert time.monotonic() - began < 10


def test_a_sync_handler_that_blocks_does_not_keep_the_program_from_exiting():
    program = """
        import asyncio, time
        from jqueue import BrokerQueue, InMemoryStorage
        from jqueue.worker import Worker

        worker = Worker(grace=0.05, cancel_grace=0.05)

        @worker.handler("work")
        def work() -> None:
            worker.stop()
            time.sleep(60)

        async def main():
            async with BrokerQueue(InMemoryStorage()) as queue:
                await work.enqueue(queue)
                print(await worker.run(queue))

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (0, "1 handed back\n") == (done.returncode, done.stdout)
    assert "Traceback" not in done.stderr


async def processed(queue):
    return await process_handlers.worker.run(queue, drain=True)


async def test_process_handlers_run_in_processes_and_get_payload_and_context():
    async with broker() as queue:
        added = await process_handlers.add.enqueue(queue, process_handlers.Numbers(left=2, right=3))
        where = await process_handlers.process_id.enqueue(queue)
        assert RunReport(succeeded=2) == await processed(queue)
        assert process_handlers.Numbers(left=5, right=1) == await process_handlers.add.result(queue, added, timeout=1)
        assert os.getpid() != await process_handlers.process_id.result(queue, where, timeout=1)


async def test_a_process_that_dies_costs_only_its_own_job():
    async with broker() as queue:
        dying = await process_handlers.die.enqueue(queue)
        for _ in range(4):
            await process_handlers.process_id.enqueue(queue)
        assert RunReport(succeeded=4, dead=1) == await processed(queue)
        job = (await queue.read_state()).find(dying.id)
        assert (DEAD, "ProcessDied: the process of the handler ended with exit code 7") == (job.status, job.error)


async def test_a_process_that_is_out_of_time_is_killed(tmp_path):
    async with broker() as queue:
        pid_file = tmp_path / "pid"
        await process_handlers.hang.enqueue(queue, str(pid_file))
        assert RunReport(dead=1) == await processed(queue)
        assert "timed out after 0.5 s" == (await only_job(queue)).error
    if pid_file.exists():  # it may have been out of time before it began
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid_file.read_text()), 0)


async def test_what_a_process_handler_raises_decides_as_everywhere():
    async with broker() as queue:
        discarded = await process_handlers.discard.enqueue(queue)
        unpickled = await process_handlers.odd.enqueue(queue)
        bad = await queue.enqueue("add", b'{"left": "%s"}' % SECRET.encode())
        assert RunReport(dead=3) == await processed(queue)
        state = await queue.read_state()
        assert "Discard: never" == state.find(discarded.id).error
        assert state.find(unpickled.id).error
        assert state.find(bad.id).error.startswith("the payload is not what the handler takes: left: ")
        assert SECRET not in state.find(bad.id).error


def test_an_async_handler_with_process_is_refused():
    with pytest.raises(TypeError, match="without async"):

        @Worker().handler("work", process=True)
        async def work() -> None:
            pass
