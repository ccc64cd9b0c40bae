"""A web application with several processes enqueues for workers on the same file, of which one commits for all."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.worker_processes.journal import ENDS
from tests.worker_processes.processes import LONGEST, ROOT, Scene

pytestmark = [pytest.mark.wide, pytest.mark.xdist_group("worker processes")]

APP = "tests.worker_processes.programs.web:app"
PROCESSES, REQUESTS, AT_ONCE, RECYCLED_AFTER = 4, 600, 12, 60
SERVERS = {
    "uvicorn": ["uvicorn", APP, "--workers", str(PROCESSES), "--limit-max-requests", str(RECYCLED_AFTER), "--port"],
    "gunicorn": [
        *("gunicorn", APP, "--preload", "--worker-class", "asgi", "--workers", str(PROCESSES)),
        *("--max-requests", str(RECYCLED_AFTER), "--control-socket", "gunicorn.ctl", "--bind"),
    ],
}


@asynccontextmanager
async def serving(name, folder):
    """A web server, its address, and its log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", *SERVERS[name], address if name == "gunicorn" else str(port)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if name == "gunicorn":
        environment["USE_BEFORE_FORK"] = "1"
    with (folder / "web.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            yield server, f"http://{address}"
        finally:
            server.terminate()
            try:
                await asyncio.to_thread(server.wait, LONGEST)
            finally:
                if server.poll() is None:
                    os.killpg(server.pid, signal.SIGKILL)


class Callers:
    """Callers of the application, each with one request at a time and a connection for each.

    Attributes:
        accepted: the ids of the jobs whose requests were answered, each with the process that answered.
    """

    def __init__(self, url):
        self.url = url
        self.accepted: dict[str, int] = {}

    async def run(self, first, last):
        """Make the requests with these numbers."""
        numbers = iter(range(first, last))
        connector = aiohttp.TCPConnector(force_close=True)

        async def call():
            for number in numbers:
                await self._accepted(session, f"job-{number}")

        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*(call() for _ in range(AT_ONCE)))

    async def _accepted(self, session, job_id):
        """Ask until there is a whole answer: a server that recycles a process may cut one off, or send none."""
        async with asyncio.timeout(LONGEST / 2):
            while True:
                try:
                    async with session.post(f"{self.url}/{job_id}") as response:
                        assert (200, job_id) == (response.status, job_id), await response.text()
                        self.accepted[job_id] = await response.json()
                        return
                except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize("name", SERVERS)
async def test_each_request_is_answered_and_each_job_done_once_while_processes_come_and_go(tmp_path, name):
    pytest.importorskip(name)
    async with Scene(tmp_path).open() as scene:
        first = scene.start("load")
        await scene.until((tmp_path / "queue.json.broker").exists, "a worker serves the others")
        async with serving(name, tmp_path) as (server, url):
            callers = Callers(url)
            await callers.run(0, AT_ONCE)
            second = scene.start("load")
            await scene.until(lambda: second.has_started, "another worker waits to serve")
            actions = [lambda: server.send_signal(signal.SIGHUP), first.stop, lambda: server.send_signal(signal.SIGHUP)]
            for turn, act in enumerate([*actions, lambda: None]):
                begin = len(callers.accepted)
                calling = asyncio.create_task(callers.run(begin, AT_ONCE + (turn + 1) * REQUESTS // 4))
                await scene.until(lambda: len(callers.accepted) > begin or calling.done(), "a request is done")  # noqa: B023
                act()
                await calling
        jobs = {*callers.accepted, *(["before the fork"] if name == "gunicorn" else [])}
        await scene.until(lambda: scene.count(ENDS).keys() >= jobs, "all jobs are done")
        await scene.until_only(lambda left: all(job.entrypoint == "tick" for job in left.values()), "all are acked")
        header = json.loads((tmp_path / "queue.json").read_bytes().partition(b"\n")[0] + b"}}")
        second.stop()
        assert [0, 0] == [first.end(), second.end()]
    done = {job_id: count for job_id, count in scene.count(ENDS).items() if not job_id.startswith("cron:")}
    assert len(callers.accepted) == AT_ONCE + REQUESTS
    assert dict.fromkeys(jobs, 1) == done
    assert len(set(callers.accepted.values())) > PROCESSES, "processes were recycled or reloaded"
    assert len(header["clients"]) > PROCESSES, "a worker has committed for processes of the application"
    assert b"Traceback" not in (tmp_path / "web.log").read_bytes()
