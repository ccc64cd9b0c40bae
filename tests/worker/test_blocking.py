"""Sync handlers, which run in threads or in processes."""

import asyncio
import importlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from jqueue import BrokerQueue, InMemoryStorage
from jqueue.worker import Context, Discard, Retry, RunReport, Snooze, Worker
from jqueue.worker.handler_errors import PortableError
from jqueue.worker.processes import ProcessDied, Processes
from jqueue.worker.retries import decisive
from tests.virtual_world import in_virtual_time
from tests.worker import process_handlers
from tests.worker.scenes import COMPLETED, DEAD, QUEUED, SECRET, broker, only_job, working


@in_virtual_time
async def test_sync_handlers_run_in_at_most_one_thread_per_slot():
    worker, barrier, threads = Worker(concurrency=4), threading.Barrier(4, timeout=120), set()

    @worker.handler("work", keep_result=60)
    def work(number: int, ctx: Context) -> int:
        barrier.wait()  # passes once four threads wait here
        threads.add(threading.current_thread())
        return number * ctx.attempt

    async with broker() as queue:
        queued = await queue.enqueue_many([work.operation(number) for number in range(8)])
        assert RunReport(succeeded=8) == await worker.run(queue, drain=True, signals=False)
        assert 7 == await work.result(queue, queued[7], timeout=60)
    assert 4 >= len(threads)
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("error", [ValueError("x"), StopIteration(), SystemExit(1), KeyboardInterrupt()])
def test_an_exception_of_a_sync_handler_fails_its_job(error):
    async def main():
        worker = Worker()

        @worker.handler("work", max_attempts=1)
        def work() -> None:
            raise error

        async with broker() as queue:
            await work.enqueue(queue)
            assert RunReport(dead=1) == await worker.run(queue, drain=True)
            assert type(error).__name__ in (await only_job(queue)).error

    asyncio.run(main())


def test_a_sync_handler_that_times_out_sees_is_cancelled_and_loses_its_job():
    async def main():
        worker, told = Worker(cancel_grace=120), threading.Event()

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

    asyncio.run(main())


def test_a_worker_stops_while_a_sync_handler_still_blocks():
    over, begun, ended = threading.Event(), threading.Event(), threading.Event()

    async def main():
        worker = Worker(grace=0.05, cancel_grace=0.05)

        @worker.handler("work")
        def work() -> None:
            begun.set()
            over.wait(120)
            ended.set()

        async with BrokerQueue(InMemoryStorage()) as queue:
            await work.enqueue(queue)
            async with working(worker, queue) as task:
                await asyncio.to_thread(begun.wait)
                worker.stop()
                assert RunReport(handed_back=1, stuck=1) == await task
            job = await only_job(queue)
            assert (QUEUED, 0) == (job.status, job.failures)

    asyncio.run(main())
    assert not ended.is_set()
    over.set()


def test_a_program_exits_while_a_sync_handler_still_blocks():
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
                await work.enqueue(queue)
                print(await worker.run(queue))

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=240, check=False
    )
    assert (0, "1 handed back, 1 stuck\n") == (done.returncode, done.stdout)
    assert "Traceback" not in done.stderr


async def processed(queue):
    return await process_handlers.worker.run(queue, drain=True)


async def test_process_handlers_run_in_processes_and_get_payload_and_context():
    async with broker() as queue:
        added = await process_handlers.add.enqueue(queue, process_handlers.Numbers(left=2, right=3))
        where = await process_handlers.process_id.enqueue(queue)
        assert RunReport(succeeded=2) == await processed(queue)
        assert process_handlers.Numbers(left=5, right=1) == await process_handlers.add.result(queue, added, timeout=60)
        assert os.getpid() != await process_handlers.process_id.result(queue, where, timeout=60)


async def test_a_batch_runs_in_one_process_and_its_jobs_fail_alone():
    async with broker() as queue:
        jobs = [await process_handlers.batch.enqueue(queue, number) for number in (3, 4, 5)]
        bad = await queue.enqueue("batch", b"x")
        assert RunReport(succeeded=2, dead=2) == await processed(queue)
        results = [(await queue.read_state()).find(job.id).result for job in (jobs[0], jobs[2])]
        assert [3, 5] == [result["left"] for result in results]
        assert 1 == len({result["right"] for result in results} - {os.getpid()})
        errors = [(await queue.read_state()).find(job.id).error for job in (jobs[1], bad)]
        assert ["ApiError: 404: gone", "the payload does not fit the handler: Invalid JSON"] == [
            error.partition(": expected")[0] for error in errors
        ]


@pytest.mark.wide
async def test_a_process_that_dies_fails_all_jobs_of_its_batch():
    async with broker() as queue:
        for number in (1, 99):
            await process_handlers.batch.enqueue(queue, number)
        assert RunReport(dead=2) == await processed(queue)
        assert ["ProcessDied: the process of the handler ended with exit code 7"] * 2 == [
            job.error for job in (await queue.read_state()).jobs
        ]


@pytest.mark.wide
async def test_the_result_of_a_process_handler_is_kept_for_a_job_enqueued_by_name():
    async with broker() as queue:
        job = await queue.enqueue("process_id", b"")
        assert RunReport(succeeded=1) == await processed(queue)
        assert os.getpid() != await queue.result(job, timeout=60)


async def test_a_process_that_dies_costs_only_its_own_job():
    async with broker() as queue:
        dying = await process_handlers.die.enqueue(queue)
        for _ in range(4):
            await process_handlers.process_id.enqueue(queue)
        assert RunReport(succeeded=4, dead=1) == await processed(queue)
        job = (await queue.read_state()).find(dying.id)
        assert (DEAD, "ProcessDied: the process of the handler ended with exit code 7") == (job.status, job.error)


@pytest.mark.wide
async def test_the_error_of_a_process_handler_that_wants_resources_says_where_to_open_them():
    async with broker() as queue:
        await process_handlers.resources.enqueue(queue)
        await processed(queue)
        error = "RuntimeError: a handler with process=True has no resources: the lifespan is opened in the process of"
        assert (await only_job(queue)).error.startswith(error)


@pytest.mark.wide
async def test_a_process_that_hangs_in_its_imports_fails_its_job(tmp_path, monkeypatch):
    hanging = "import multiprocessing, threading\nif multiprocessing.parent_process(): threading.Event().wait()"
    (tmp_path / "hangs_in_a_process.py").write_text(f"{hanging}\ndef handler() -> None: ...")
    monkeypatch.syspath_prepend(tmp_path)
    handler = Worker().handler("hangs", process=True)(importlib.import_module("hangs_in_a_process").handler)
    processes, begun = Processes(1, import_timeout=0.1), list[bool]()
    async with broker() as queue:
        await handler.enqueue(queue)
        with pytest.raises(ProcessDied, match=r"had not begun with it after 0\.1 s"):
            await processes.call(handler, await queue.dequeue("hangs"), begun.append)
    await processes.close()
    assert [False] == begun


@pytest.mark.wide
async def test_the_process_of_a_handler_that_times_out_is_killed(tmp_path):
    async with broker() as queue:
        pid_file = tmp_path / "pid"
        await process_handlers.hang.enqueue(queue, str(pid_file))
        assert RunReport(dead=1) == await processed(queue)
        assert "timed out after 0.5 s" == (await only_job(queue)).error
    if pid_file.exists():  # the timeout may end before the handler has written it
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid_file.read_text()), 0)


@pytest.mark.wide
async def test_an_exception_of_a_process_handler_has_its_usual_effect():
    async with broker() as queue:
        discarded = await process_handlers.discard.enqueue(queue)
        unpickled = await process_handlers.odd.enqueue(queue)
        bad = await queue.enqueue("add", b'{"left": "%s"}' % SECRET.encode())
        assert RunReport(dead=3) == await processed(queue)
        state = await queue.read_state()
        assert "Discard: never" == state.find(discarded.id).error
        assert state.find(unpickled.id).error
        assert state.find(bad.id).error.startswith("the payload does not fit the handler: left: ")
        assert SECRET not in state.find(bad.id).error


def test_an_async_handler_with_process_is_refused():
    with pytest.raises(TypeError, match="without async"):

        @Worker().handler("work", process=True)
        async def work() -> None:
            pass


@pytest.mark.parametrize("kind", ["coroutine", "Task", "Future"])
def test_returning_an_unawaited_coroutine_fails_the_job_and_never_runs_it(kind):
    async def main():
        worker, begun = Worker(), []

        async def work() -> None:
            begun.append("work")

        @worker.handler("work", max_attempts=1)
        def hidden():
            return work()

        @worker.handler("async", max_attempts=1)
        async def begins():
            loop = asyncio.get_running_loop()
            return loop.create_future() if kind == "Future" else loop.create_task(work())

        async with broker() as queue:
            await queue.enqueue("work" if kind == "coroutine" else "async", b"")
            assert RunReport(dead=1) == await worker.run(queue, drain=True)
            error = (await only_job(queue)).error
            assert error.startswith(f"TypeError: the handler returned a {kind} that was never awaited")
        assert [] == begun

    asyncio.run(main())


@in_virtual_time
async def test_a_handler_may_return_a_finished_task():
    worker = Worker()

    @worker.handler("work")
    async def work():
        task = asyncio.create_task(asyncio.sleep(1))
        await task
        return task

    async with broker() as queue:
        await work.enqueue(queue)
        assert RunReport(succeeded=1) == await worker.run(queue, drain=True, signals=False)


@pytest.mark.wide
async def test_a_process_handler_that_returns_an_unawaited_coroutine_fails():
    async with broker() as queue:
        await process_handlers.hidden.enqueue(queue)
        assert RunReport(dead=1) == await processed(queue)
        assert "TypeError: the handler returned a coroutine that was never awaited" in (await only_job(queue)).error


@pytest.mark.wide
async def test_an_error_in_a_process_leaves_the_same_job_as_one_in_a_thread():
    def told(job):
        wait = None if job.run_at is None else (job.run_at - queue.options.clock.now()).total_seconds()
        return job.status, job.failures, job.error, wait is not None and 900 < wait <= 1000

    async with broker() as queue, asyncio.timeout(60):
        for which in process_handlers.ERRORS:
            await process_handlers.raise_in_thread.enqueue(queue, which)
            await process_handlers.raise_in_process.enqueue(queue, which)
        await processed(queue)
        jobs = (await queue.read_state()).jobs
        thread = {job.payload: told(job) for job in jobs if job.entrypoint == "raise_in_thread"}
        process = {job.payload: told(job) for job in jobs if job.entrypoint == "raise_in_process"}
    assert len(process_handlers.ERRORS) == len(thread)
    assert thread == process
    place = f"tests/worker/process_handlers.py:{process_handlers.fail.__code__.co_firstlineno + 1}"
    assert (QUEUED, 1, f"ApiError: 404: gone ({place})", False) == process[b"unreadable"]
    assert (QUEUED, 0, None, True) == process[b"snooze of its own"]


@pytest.mark.parametrize("which", process_handlers.ERRORS)
def test_an_error_rebuilt_from_a_process_is_caught_like_the_original(which):
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - all of them
        process_handlers.raise_in_thread(which)
    original, again = decisive(raised.value), PortableError.of(raised.value).rebuild()
    assert type(original).__name__ == type(again).__name__
    assert isinstance(again, Exception)
    for kind in (KeyError, UnicodeError, ValueError, Snooze, Retry, Discard):
        assert isinstance(original, kind) == isinstance(again, kind)


@pytest.mark.wide
async def test_the_log_has_the_traceback_of_an_error_in_a_process(caplog):
    caplog.set_level(logging.DEBUG, "jqueue.worker")
    async with broker() as queue:
        await process_handlers.raise_in_process.enqueue(queue, "unreadable")
        assert RunReport(failed=1) == await processed(queue)
    assert "ApiError was raised here" in caplog.text
    assert "raise ERRORS[which]()" in caplog.text


@pytest.mark.wide
@pytest.mark.skipif(os.cpu_count() == 1, reason="needs two processes side by side")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", ["TypeError", "ValueError"])  # pebble handles the first; the second ends its thread
async def test_a_broken_pool_charges_only_the_job_that_breaks_it_each_time(tmp_path, error):
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    async with broker() as queue, asyncio.timeout(60):
        culprit = await process_handlers.break_pool.enqueue(queue, (error, pipe))
        beside = await process_handlers.beside.enqueue(queue, pipe, keep_result=60)
        report = await processed(queue)
        assert (1, 1) == (report.succeeded, report.dead)
        state = await queue.read_state()
        assert "ProcessDied: all handler processes ended, 3 times" in state.find(culprit.id).error
        assert (COMPLETED, None) == (state.find(beside.id).status, state.find(beside.id).error)


async def test_running_is_reported_once_the_process_has_begun_the_job(tmp_path):
    pipe, heard, writers = str(tmp_path / "pipe"), list[bool](), list[asyncio.Task[int]]()
    os.mkfifo(pipe)

    def running(begun):
        heard.append(begun)
        if begun:
            writers.append(asyncio.create_task(asyncio.to_thread(Path(pipe).write_text, "go on")))

    async with broker() as queue, asyncio.timeout(60):
        processes = Processes(1)
        await process_handlers.wait_for.enqueue(queue, pipe)
        [job] = await queue.dequeue("wait_for")
        await processes.call(process_handlers.wait_for, [job], running)
        await asyncio.gather(*writers)
        await processes.close()
    assert [False, True] == heard


@pytest.mark.wide
async def test_killing_an_idle_process_fails_no_job():
    async with broker() as queue, asyncio.timeout(60), working(process_handlers.worker, queue):
        for _ in range(4):
            job = await process_handlers.process_id.enqueue(queue, keep_result=60)
            os.kill(await process_handlers.process_id.result(queue, job), signal.SIGKILL)
        assert {(COMPLETED, None)} == {(job.status, job.error) for job in (await queue.read_state()).jobs}


@pytest.mark.wide
async def test_the_deadline_in_a_process_counts_from_the_start_of_the_handler():
    async with broker() as queue:
        job = await process_handlers.seconds_left.enqueue(queue)
        assert RunReport(succeeded=1) == await processed(queue)
        assert 50 < await process_handlers.seconds_left.result(queue, job) <= 60
