"""Handlers in processes of their own: their results, their errors, and the end of a process and of its children."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import pytest

from jqueue import InvalidJobError
from jqueue.errors import ResultNotKeptError
from jqueue.worker import RunReport
from jqueue.worker.processes import Processes
from tests.sync.programs import run_program
from tests.worker import process_handlers
from tests.worker.scenes import COMPLETED, QUEUED, NoThreads, broker, only_job, working

SECONDS = 60
"""Most that anything here may take: far more than it needs."""

pytestmark = pytest.mark.xdist_group("handler processes")  # the first of them starts the processes


async def processed(queue):
    async with asyncio.timeout(4 * SECONDS):
        return await process_handlers.worker.run(queue, drain=True)


async def test_handlers_run_in_processes_whose_crashes_cost_only_their_own_jobs():
    asyncio.get_running_loop().set_default_executor(NoThreads())
    async with broker() as queue:
        added = await process_handlers.add.using(queue).enqueue(process_handlers.Numbers(left=2, right=3))
        ends = [await process_handlers.end.using(queue).enqueue(status) for status in (7, 0)]
        where = await queue.enqueue("process_id", b"")  # by its name: its handler keeps the result
        batch = [await process_handlers.batch.using(queue).enqueue(number) for number in (3, 4, 5)]
        batch.append(await queue.enqueue("batch", b"x"))
        assert RunReport(succeeded=4, dead=4) == await processed(queue)
        assert process_handlers.Numbers(left=5, right=1) == await process_handlers.add.using(queue).result(added)
        assert os.getpid() != await queue.result(where)
        state = await queue.read_state()
    error = "ProcessDied: the process of the handler ended with exit code "
    assert all(state.find(job.id).error.startswith(f"{error}{code}") for job, code in zip(ends, (7, 0), strict=True))
    three, four, five, bad = [state.find(job.id) for job in batch]
    assert ([3, 5], 1) == (
        [three.result["left"], five.result["left"]],
        len({three.result["right"], five.result["right"]}),
    )
    assert "ApiError: 404: gone" == four.error
    assert bad.error.startswith("the payload does not fit the handler: Invalid JSON")


async def test_the_progress_of_a_handler_in_a_process_is_kept_with_its_job():
    async with broker() as queue:
        job = await process_handlers.track.using(queue).enqueue()
        assert RunReport(dead=1) == await processed(queue)
        assert (70_000, 100_000, "rows") == (await queue.find(job.id)).progress[:3]


async def test_a_result_of_a_process_that_is_not_kept_is_there_for_the_jobs_that_wait_for_it():
    async with broker() as queue:
        parents = [await process_handlers.double.using(queue).enqueue(number) for number in (1, 2)]
        await queue.enqueue("sum", b"", after=parents)
        assert RunReport(succeeded=3) == await processed(queue)
    assert 6 == process_handlers.sums.pop()


@pytest.mark.wide
async def test_a_result_of_a_process_that_cannot_be_kept_is_missing_and_its_job_is_done(caplog):
    async with broker() as queue:
        unkept = [
            await process_handlers.unkept.using(queue).enqueue(),
            await process_handlers.unkept_batch.using(queue).enqueue(4),
        ]
        kept = await process_handlers.unkept_batch.using(queue).enqueue(5)
        assert RunReport(succeeded=3) == await processed(queue)
        assert 5 == await queue.result(kept)
        for job in unkept:
            with pytest.raises(ResultNotKeptError):
                await queue.result(job)
            assert f"job {job.id} ({job.entrypoint}, attempt 1) is acked without its result: the handler" in caplog.text


@pytest.mark.wide
async def test_dependencies_are_made_and_ended_in_the_process_of_the_handler(tmp_path, monkeypatch):
    files = [tmp_path / name for name in ("good", "bad")]
    async with broker() as queue:
        good, bad = [
            await process_handlers.depends.using(queue, headers={"file": f"{file}"}).enqueue(right, left=6)
            for right, file in zip((3, 0), files, strict=True)
        ]
        assert RunReport(succeeded=1, dead=1) == await processed(queue)
        pid, rest = (await process_handlers.depends.using(queue).result(good)).split(" ", 1)
        assert (True, "True 2.0") == (int(pid) != os.getpid(), rest)
        assert "ZeroDivisionError" in (await queue.read_state()).find(bad.id).error
        monkeypatch.setitem(process_handlers.worker.dependency_overrides, process_handlers.opened, lambda: "fake")
        with pytest.raises(InvalidJobError, match="'depends' runs in a process, where overrides do not reach it"):
            await processed(queue)
    assert ["closed", "closed"] == [file.read_text(encoding="utf-8") for file in files]


@pytest.mark.wide
async def test_an_error_in_a_process_leaves_the_same_job_as_one_in_a_thread(caplog):
    caplog.set_level(logging.DEBUG, "jqueue.worker")

    def fate(job):
        wait = None if job.run_at is None else (job.run_at - queue.options.clock.now()).total_seconds()
        return job.status, job.failures, job.error, wait is not None and 900 < wait <= 1000

    async with broker() as queue:
        for which in process_handlers.ERRORS:
            await process_handlers.raise_in_thread.using(queue).enqueue(which)
            await process_handlers.raise_in_process.using(queue).enqueue(which)
        await process_handlers.hidden.using(queue).enqueue()
        await process_handlers.resources.using(queue).enqueue()
        await process_handlers.steps.using(queue).enqueue()
        await processed(queue)
        jobs = (await queue.read_state()).jobs
        thread = {json.loads(job.payload)["which"]: fate(job) for job in jobs if job.entrypoint == "raise_in_thread"}
        process = {json.loads(job.payload)["which"]: fate(job) for job in jobs if job.entrypoint == "raise_in_process"}
        errors = {job.entrypoint: job.error for job in jobs}
    assert (len(process_handlers.ERRORS), thread) == (len(thread), process)
    place = f"tests/worker/process_handlers.py:{process_handlers.fail.__code__.co_firstlineno + 1}"
    assert (QUEUED, 1, f"ApiError: 404: gone ({place})", False) == process["unreadable"]
    snoozed = ("snooze of its own", "by its base", "group by their bases")
    assert [(QUEUED, 0, None, True)] * 3 == [process[each] for each in snoozed]
    assert "ApiError was raised here" in caplog.text
    assert "raise ERRORS[which]()" in caplog.text
    assert errors["hidden"].startswith("LookupError: awaited")
    assert "a handler with process=True has no resources: the lifespan is opened in" in errors["resources"]
    assert "a handler with process=True has no steps, as it runs in another process" in errors["steps"]


MAIN = """
    import asyncio
    from jqueue import BrokerQueue, InMemoryStorage
    from jqueue.worker import Discard, Worker

    worker = Worker()

    class Refused(Exception): ...

    @worker.handler(process=True, retry={Refused: Discard})
    def work() -> None:
        raise Refused

    async def main():
        async with BrokerQueue(InMemoryStorage()) as queue:
            await work.using(queue).enqueue()
            print(await worker.run(queue, drain=True))

    if __name__ == "__main__":
        asyncio.run(main())
"""


@pytest.mark.wide
def test_retry_knows_the_errors_of_a_program_that_is_one_file(tmp_path):
    done = run_program(tmp_path, MAIN)
    assert done.stdout.strip() == "1 dead", done.stderr


@pytest.mark.wide
async def test_an_idle_process_that_is_killed_fails_no_job_and_does_not_stop_the_worker():
    async with broker() as queue, asyncio.timeout(4 * SECONDS), working(process_handlers.worker, queue):
        for _ in range(3):
            job = await process_handlers.process_id.using(queue).enqueue()
            os.kill(await process_handlers.process_id.using(queue).result(job), signal.SIGKILL)
        assert {(COMPLETED, None)} == {(job.status, job.error) for job in (await queue.read_state()).jobs}


@pytest.mark.wide
@pytest.mark.skipif(os.cpu_count() == 1, reason="needs two processes side by side")
async def test_a_handler_that_writes_to_the_pipe_of_its_process_costs_only_its_own_job(tmp_path):
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    async with broker() as queue:
        culprit = await process_handlers.write_to_pipes.using(queue).enqueue(pipe)
        beside = await process_handlers.beside.using(queue).enqueue(pipe)
        report = await processed(queue)
        state = await queue.read_state()
    assert (1, 1) == (report.succeeded, report.dead)
    assert state.find(culprit.id).error.startswith("ProcessDied: the process of the handler ended with exit code ")
    assert (COMPLETED, None) == (state.find(beside.id).status, state.find(beside.id).error)


# The processes that a handler has started


@pytest.mark.parametrize("in_its_group", [True, False])
async def test_a_process_that_ends_amid_a_report_and_leaves_its_pipe_open_costs_only_its_job(in_its_group):
    async with broker() as queue, asyncio.timeout(15):
        await process_handlers.end_amid_a_report.using(queue).enqueue(in_its_group)
        assert RunReport(dead=1) == await processed(queue)
        assert "ProcessDied: the process of the handler ended with exit code 3" == (await only_job(queue)).error


@pytest.fixture
def ear():
    """A server that reads what the child processes of handlers write: `ear.port`, `ear.lines()`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SECONDS)
        yield Ear(server)


class Ear:
    def __init__(self, server):
        self._server = server
        self.port = server.getsockname()[1]

    @contextmanager
    def lines(self):
        """The lines of a child process. They end when every process that holds the connection has ended."""
        connection, _ = self._server.accept()
        with connection:
            connection.settimeout(SECONDS)
            yield connection.makefile("rw")


@pytest.mark.wide
@pytest.mark.parametrize("handler", [process_handlers.hang_with_another, process_handlers.leave_another])
async def test_child_processes_of_a_handler_end_with_its_process(ear, handler):
    def heard():
        with ear.lines() as lines:
            return set(lines)

    async with broker() as queue, working(process_handlers.worker, queue) as task:
        await handler.using(queue).enqueue(ear.port)
        assert {"here\n"} >= await asyncio.to_thread(heard)  # it may end before it writes
    assert RunReport(dead=1) == task.result()


PROGRAM = """
    import asyncio, os, signal, sys
    from jqueue import BrokerQueue, InMemoryStorage
    from tests.worker import process_handlers

    if __name__ == "__mp_main__":  # amid the imports of a process, which still is in the group of its worker
        os.kill(os.getpid(), signal.SIGINT)

    async def main():
        async with BrokerQueue(InMemoryStorage()) as queue:
            await getattr(process_handlers, sys.argv[1]).using(queue).enqueue(int(sys.argv[2]))
            print(await process_handlers.worker.run(queue))

    if __name__ == "__main__":
        asyncio.run(main())
"""


@pytest.fixture
def start(tmp_path):
    """Start a worker in its own session: `start(handler, port)`."""
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    running = []

    def start(handler, port):
        command = [sys.executable, str(tmp_path / "program.py"), handler, str(port)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": ""}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.wide
def test_the_processes_of_a_handler_end_when_its_worker_is_killed(start, ear):
    process = start("wait_with_another", ear.port)
    with ear.lines() as lines:
        assert "here\n" == lines.readline()
        process.kill()
        assert [] == list(lines)


def ctrl_c(pid):
    os.killpg(pid, signal.SIGINT)


def stop_service(pid):
    """Send SIGTERM to the worker and all of its processes, as systemd does."""
    children = " ".join(file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children"))
    for each in [*children.split(), pid]:
        os.kill(int(each), signal.SIGTERM)


@pytest.mark.wide
@pytest.mark.parametrize("stop", [ctrl_c, stop_service])
def test_a_signal_to_all_processes_stops_only_the_worker_and_its_handler_processes_finish(start, ear, stop):
    process = start("wait_for_another", ear.port)
    with ear.lines() as lines:
        assert "here\n" == lines.readline()
        stop(process.pid)
        print("done", file=lines, flush=True)
        assert ["done\n"] == list(lines)
    assert "1 succeeded\n" == process.communicate(timeout=SECONDS)[0]


@pytest.mark.wide
async def test_a_handler_process_that_takes_too_much_memory_is_not_used_again():
    async with broker() as queue:
        job = await process_handlers.process_id.using(queue).enqueue()
        for max_memory, number in ((None, 1), (1, 2)):
            processes = Processes(1, max_memory)
            handler, ids = process_handlers.process_id, set()
            for _ in range(2):
                ids.add(await processes.call(handler, [job], lambda has_begun: None, lambda progress: None))
            assert number == len(ids)
            await processes.close()


@pytest.mark.wide
@pytest.mark.timeout(SECONDS)
def test_a_handler_process_writes_what_it_prints_after_each_job_and_runs_atexit_in_the_end(start):
    process = start("say", 0)
    assert "said\n" == process.stdout.readline()
    process.terminate()
    assert ["1 succeeded", "left"] == sorted(process.communicate(timeout=SECONDS)[0].splitlines())


@pytest.mark.wide
def test_a_program_that_leaves_its_event_loop_ends_with_its_handler_processes(tmp_path):
    program = """
import asyncio
from jqueue import BrokerQueue
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.worker import Worker

worker = Worker()

@worker.handler("apart", process=True, keep_result=60)
def apart() -> int:
    return 1

async def main() -> asyncio.Task[object]:
    queue = await BrokerQueue(InMemoryStorage()).__aenter__()
    job = await queue.enqueue("apart", b"")
    running = asyncio.create_task(worker.run(queue))
    assert 1 == await queue.result(job)
    return running

if __name__ == "__main__":
    loop = asyncio.new_event_loop()
    running = loop.run_until_complete(main())
    print("left")
"""
    ended = run_program(tmp_path, program)
    assert (0, "left\n") == (ended.returncode, ended.stdout), ended.stderr
