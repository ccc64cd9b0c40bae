"""The end of a handler's process, and of the processes that the handler has started."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import pytest

from jqueue.worker import RunReport
from jqueue.worker.process_group import EXIT_STATUS_0, GroupContext
from tests.worker import process_handlers
from tests.worker.scenes import DEAD, broker, only_job

pytestmark = [
    pytest.mark.wide,
    pytest.mark.skipif(not hasattr(os, "killpg"), reason="there are no process groups here"),
]

SECONDS = 60


async def processed(queue):
    async with asyncio.timeout(SECONDS):
        return await process_handlers.worker.run(queue, drain=True)


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


async def test_a_process_that_exits_with_status_0_fails_only_its_own_job():
    async with broker() as queue:
        leaving = await process_handlers.leave.enqueue(queue)
        for _ in range(4):
            await process_handlers.process_id.enqueue(queue)
        assert RunReport(succeeded=4, dead=1) == await processed(queue)
        job = (await queue.read_state()).find(leaving.id)
        error = "ProcessDied: the process of the handler ended with exit code 0 before the handler returned"
        assert (DEAD, error) == (job.status, job.error)


@pytest.mark.parametrize("handler", [process_handlers.hang_with_another, process_handlers.leave_another])
async def test_child_processes_of_a_handler_end_with_its_process(ear, handler):
    async with broker() as queue:
        await handler.enqueue(queue, ear.port)
        assert RunReport(dead=1) == await processed(queue)
        with ear.lines() as lines:
            assert {"here\n"} >= set(lines), (await only_job(queue)).error  # it may end before it writes


PROGRAM = """
    import asyncio, sys
    from jqueue import BrokerQueue, InMemoryStorage
    from tests.worker import process_handlers

    async def main():
        async with BrokerQueue(InMemoryStorage()) as queue:
            await getattr(process_handlers, sys.argv[1]).enqueue(queue, int(sys.argv[2]))
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
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_child_processes_of_a_handler_end_when_its_worker_is_killed(start, ear):
    process = start("wait_with_another", ear.port)
    with ear.lines() as lines:
        assert "here\n" == lines.readline()
        process.kill()
        assert [] == list(lines)


def test_ctrl_c_reaches_only_the_worker_and_child_processes_finish(start, ear):
    process = start("wait_for_another", ear.port)
    with ear.lines() as lines:
        assert "here\n" == lines.readline()
        os.killpg(process.pid, signal.SIGINT)
        print("done", file=lines, flush=True)
        assert ["done\n"] == list(lines)
    assert "1 succeeded\n" == process.communicate(timeout=SECONDS)[0]


def test_a_process_that_died_is_reported_alive_once_more():
    """pebble's manager may see the death before its messenger reads the last message: the job would hang."""
    process = GroupContext().Process(target=os._exit, args=[0])
    process.start()
    process.join()
    assert [True, False, False] == [process.is_alive() for _ in range(3)]
    assert EXIT_STATUS_0 == process.exitcode


def test_a_process_that_was_terminated_is_reported_dead_at_once():
    process = GroupContext().Process(target=signal.pause)
    process.start()
    process.terminate()
    process.join()
    assert not process.is_alive()


INTERRUPTED = """
    import asyncio, os, signal
    from jqueue import BrokerQueue, InMemoryStorage
    from tests.worker import process_handlers

    if __name__ == "__mp_main__":  # amid the imports of the process
        os.kill(os.getpid(), signal.SIGINT)

    async def main():
        async with BrokerQueue(InMemoryStorage()) as queue:
            await process_handlers.process_id.enqueue(queue)
            print(await process_handlers.worker.run(queue, drain=True))

    if __name__ == "__main__":
        asyncio.run(main())
"""


def test_ctrl_c_does_not_disturb_a_process_that_is_starting(tmp_path):
    """It still is in the group of its worker, so that Ctrl-C in a terminal reaches it too."""
    (tmp_path / "program.py").write_text(textwrap.dedent(INTERRUPTED))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert (0, "1 succeeded\n", "") == (done.returncode, done.stdout, done.stderr)


def has_sigint_blocked():
    sys.exit(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))


def test_sigint_is_blocked_only_while_a_process_starts():
    process = GroupContext().Process(target=has_sigint_blocked)
    process.start()
    process.join()
    assert EXIT_STATUS_0 == process.exitcode
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
