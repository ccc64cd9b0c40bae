"""Web applications enqueue for workers on the same file, of which one commits for all."""

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.worker_processes.journal import ENDS
from tests.worker_processes.processes import LONGEST, ROOT, Scene

pytestmark = [pytest.mark.wide, pytest.mark.xdist_group("worker processes")]

APP = "tests.worker_processes.programs.web:app"
PROCESSES, REQUESTS, AT_ONCE, RECYCLED_AFTER = 2, 200, 12, 60
GUNICORN = f"gunicorn {APP} --bind 127.0.0.1:8000 --workers {PROCESSES} --max-requests {RECYCLED_AFTER} "
GUNICORN += "--preload --worker-class asgi"


@asynccontextmanager
async def serving(command, folder, **environment):
    """Run the command of a web server in a folder, on a free port in place of 8000. Yield its process and address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "GUNICORN_CMD_ARGS": "--control-socket gunicorn.ctl",
        **environment,
    }
    words = [sys.executable, "-m", *shlex.split(command.replace("8000", port))]
    with (folder / "web.log").open("wb") as log:
        server = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            yield server, f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                await asyncio.to_thread(server.wait, LONGEST)
            finally:
                if server.poll() is None:
                    os.killpg(server.pid, signal.SIGKILL)


class Callers:
    """Callers of the application, each with one request at a time and a connection for each.

    Args:
        url: the address of all requests, without the id of the job at its end.
        status: the status of each answer.

    Attributes:
        accepted: the ids of the jobs whose requests were answered, each with its answer.
    """

    def __init__(self, url, status=200):
        self.url, self.status = url, status
        self.accepted: dict[str, Any] = {}

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
                    async with session.post(self.url + job_id) as response:
                        assert (self.status, job_id) == (response.status, job_id), await response.text()
                        self.accepted[job_id] = await response.json()
                        return
                except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
                    await asyncio.sleep(0.05)


async def test_each_request_is_answered_and_each_job_done_once_while_processes_come_and_go(tmp_path):
    pytest.importorskip("gunicorn")
    async with Scene(tmp_path).open() as scene:
        first = scene.start("load")
        await scene.until((tmp_path / "queue.json.broker").exists, "a worker serves the others")
        async with serving(GUNICORN, tmp_path, USE_BEFORE_FORK="1") as (server, url):
            callers = Callers(f"{url}/")
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
        jobs = {*callers.accepted, "before the fork"}
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


# The pages on frameworks

PAGES = [page for page in sorted((ROOT / "docs/guide/frameworks").glob("*.md")) if page.stem != "django"]
OF_A_PAGE = 80
FENCE = re.compile(r"^```(?:python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_the_commands_of_a_page_on_a_framework_serve_it_and_run_each_job_once(tmp_path, page):
    text = page.read_text(encoding="utf-8")
    program, session = FENCE.findall(text)
    serve, work, call = [line.removeprefix("$ ") for line in session.splitlines()]
    assert "jqueue worker app:worker queue.json" == work
    (tmp_path / "app.py").write_text(program, encoding="utf-8")
    request = re.fullmatch(r"curl -X POST 'http://127.0.0.1:8000(\S+=)ada@example.org'", call)
    shown = re.search(r"^The worker prints `(.+)`\.$", text, re.MULTILINE)
    assert request is not None
    assert shown is not None
    async with (
        Scene(tmp_path).open() as scene,
        serving(serve.replace("--max-requests 1000", "--max-requests 20"), tmp_path) as (_, url),
    ):
        worker = scene.start("app:worker")
        callers = Callers(url + request[1], status=202)
        await callers.run(0, OF_A_PAGE)
        await scene.until_only(lambda left: not left, "all jobs are acked")
        worker.stop()
        assert 0 == worker.end()
    assert OF_A_PAGE == len(callers.accepted)
    line = re.escape(shown[1]).replace("ada@example\\.org", r"(job-\d+)")
    assert dict.fromkeys(callers.accepted, 1) == Counter(re.findall(line, worker.output.read_text()))
    log = (tmp_path / "web.log").read_text()
    assert "Traceback" not in log
    assert page.stem != "gunicorn" or log.count("Autorestarting worker") >= 3, "processes were recycled"
