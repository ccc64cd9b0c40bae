"""A web application under uvicorn with several processes: requests per second, and their 99th percentile.

Each request enqueues a job, and one more process runs the jobs meanwhile: ours serves the others, too. With the queue
"none", a request does nothing, and there is no worker. wrk, which takes little of the processors, makes the requests.
Afterwards, the worker must have run one job for each request.

The program imports only the queue that it measures, as each runs where only that is installed.

Arguments: queue ("none", "jqueue", "saq" or "pgqueuer"), processes, connections, seconds, and `url` for a server. The
worker and the application are this program again, with `part`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

GIVEN = "JQUEUE_BENCHMARK"
ENTRYPOINT = "work"
IN_FLIGHT = 100
STARTING = 60
DONE_WITHIN = 120
Enqueue = Callable[[bytes], Awaitable[Any]]


@asynccontextmanager
async def producer(given: dict[str, Any]) -> AsyncIterator[Enqueue]:
    """How a process of the application enqueues."""
    if given["queue"] == "none":

        async def nothing(_: bytes) -> None:
            pass

        yield nothing
    elif given["queue"] == "jqueue":
        from jqueue import BrokerQueue, connect

        async with connect(str(Path(given["folder"], "queue.json")), BrokerQueue) as queue:
            yield lambda payload: queue.enqueue(ENTRYPOINT, payload)
    elif given["queue"] == "saq":
        from saq import Queue

        tasks = Queue.from_url(given["url"], name=given["name"])
        await tasks.connect()
        yield lambda payload: tasks.enqueue(ENTRYPOINT, payload=payload.decode(), ttl=-1, timeout=0)
        await tasks.disconnect()
    else:
        import asyncpg
        from pgqueuer.queries import Queries

        async with asyncpg.create_pool(given["url"], database=given["name"], min_size=5, max_size=5) as pool:
            queries = Queries.from_asyncpg_pool(pool)
            yield lambda payload: queries.enqueue(ENTRYPOINT, payload)


async def work(given: dict[str, Any]) -> None:
    """Run jobs until this process is told to stop. Note the number of those that were run, in a file."""
    done, count = 0, os.open(Path(given["folder"], "done"), os.O_WRONLY | os.O_CREAT, 0o600)

    def note() -> None:
        nonlocal done
        done += 1
        os.pwrite(count, b"%012d" % done, 0)

    if given["queue"] == "jqueue":
        from jqueue import BrokerQueue, connect
        from jqueue.worker import Worker

        worker = Worker(concurrency=IN_FLIGHT)

        @worker.handler(ENTRYPOINT)
        async def see(payload: bytes) -> None:
            note()

        async with connect(str(Path(given["folder"], "queue.json")), BrokerQueue) as queue:
            await worker.run(queue)
    elif given["queue"] == "saq":
        from saq import Queue
        from saq import Worker as Runner

        async def task(_: dict[str, Any], *, payload: str) -> None:
            note()

        queue = Queue.from_url(given["url"], name=given["name"])
        await queue.connect()
        await Runner(queue, [(ENTRYPOINT, task)], concurrency=IN_FLIGHT).start()
    else:
        import asyncpg
        from pgqueuer import PgQueuer
        from pgqueuer.models import Job

        async with asyncpg.create_pool(given["url"], database=given["name"], min_size=5, max_size=5) as pool:
            queuer = PgQueuer.from_asyncpg_pool(pool)

            async def entrypoint(_: Job) -> None:
                note()

            queuer.entrypoint(ENTRYPOINT)(entrypoint)
            await queuer.run(batch_size=IN_FLIGHT // 2, max_concurrent_tasks=IN_FLIGHT)


async def install(given: dict[str, Any]) -> None:
    """Make a database, and the tables of the queue."""
    import asyncpg
    from pgqueuer.queries import Queries

    admin = await asyncpg.connect(given["url"])
    await admin.execute(f"CREATE DATABASE {given['name']}")
    await admin.close()
    async with asyncpg.create_pool(given["url"], database=given["name"], min_size=1, max_size=1) as pool:
        await Queries.from_asyncpg_pool(pool).install()


def application(given: dict[str, Any]) -> Any:
    """The web application."""
    from fastapi import FastAPI

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with producer(given) as app.state.enqueue:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/")
    async def accept() -> dict[str, bool]:
        await app.state.enqueue(b"one job")
        return {"accepted": True}

    @app.get("/")
    async def ready() -> int:
        return os.getpid()

    return app


def serve(given: dict[str, Any]) -> None:
    """Run the application in several processes.

    The command line of uvicorn would do the same, but for a socket whose protocol is not named: asyncio then leaves
    Nagle's algorithm on, and each answer takes 40 ms, which would hide all that is measured here.
    """
    from uvicorn import Config
    from uvicorn.supervisors import Multiprocess

    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", given["port"]))
    workers = given["processes"]
    config = Config("web:app", workers=workers, access_log=False, log_level="error")
    Multiprocess(config, [listening]).run()


def measure(given: dict[str, Any]) -> dict[str, float]:
    """Return the requests per second, and the latencies in milliseconds."""
    if shutil.which("wrk") is None:
        raise RuntimeError("wrk is not on the PATH: install the system's package of this name")
    folder = Path(given["folder"])
    given = {**given, "name": f"web_{uuid4().hex}"}
    post = folder / "post.lua"
    post.write_text('wrk.method = "POST"\n')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if given["queue"] == "pgqueuer":
        asyncio.run(install(given))
    environment = {**os.environ, GIVEN: json.dumps(given)}
    with (folder / "log").open("w+") as log:
        children = []
        try:
            for part in (["work"] if given["queue"] != "none" else []) + ["serve"]:
                command = [sys.executable, __file__, json.dumps({**given, "part": part, "port": port})]
                children.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            url = f"http://127.0.0.1:{port}/"
            wait_until_ready(url, given["processes"])
            load(url, post, given["connections"], 1.0)
            found = load(url, post, given["connections"], given["seconds"])
            if given["queue"] != "none":
                wait_until_done(folder / "done", found.pop("all_requests"))
            found.pop("all_requests", None)
        except BaseException:
            log.seek(0)
            print(log.read()[-4000:], file=sys.stderr)
            raise
        finally:
            for child in reversed(children):
                child.send_signal(signal.SIGTERM)
            for child in children:
                child.wait(30)
    return found


requests = 0


def load(url: str, script: Path, connections: int, seconds: float) -> dict[str, float]:
    """Make requests for some seconds."""
    global requests
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "--timeout", "30s", "-s", str(script)]
    told = subprocess.run([*command, url], capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in told or "Socket errors" in told:
        raise RuntimeError(told)
    number, taken = re.search(r"(\d+) requests in ([\d.]+)s", told).groups()  # type: ignore[union-attr]
    requests += int(number)
    latencies = {int(share): milliseconds(time) for share, time in re.findall(r"^ +(\d+)% +(\S+) *$", told, re.M)}
    if 99 not in latencies:
        raise RuntimeError(told)
    return {
        "requests_per_second": int(number) / float(taken),
        "median_ms": latencies[50],
        "p99_ms": latencies[99],
        "all_requests": requests,
    }


def milliseconds(text: str) -> float:
    """Return a time as wrk tells it."""
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[unit]


def wait_until_ready(url: str, processes: int) -> None:
    """Wait until every process of the application has answered. A process that is starting takes processor time."""
    give_up, answered = time.monotonic() + STARTING, set[bytes]()
    while len(answered) < processes:
        if time.monotonic() > give_up:
            raise RuntimeError(f"{len(answered)} of {processes} processes of the application answer")
        try:
            with urlopen(url, timeout=STARTING) as answer:
                answered.add(answer.read())
        except OSError:
            pass
        time.sleep(0.02)


def wait_until_done(count: Path, least: float) -> None:
    """Wait until the worker has run a job for each request, and see that it runs no more.

    A connection may have had a request under way when the time was over: the application has done it, and wrk has not
    counted it.
    """
    give_up, before = time.monotonic() + DONE_WITHIN, -1
    while True:
        done = int(count.read_text() or 0)
        if done >= least and done == before:
            return
        if time.monotonic() > give_up:
            raise RuntimeError(f"{done} jobs were run, and {least:g} requests were made")
        before = done
        time.sleep(0.5)


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    if arguments.get("part") == "work":
        asyncio.run(work(arguments))
    elif arguments.get("part") == "serve":
        serve(arguments)
    else:
        figures = measure(arguments)
        if arguments["queue"] == "jqueue":
            from shared import bare_commits

            figures["bare_commit_ms"] = 1000 / bare_commits(arguments["folder"], 4096, 1.0).per_second
        print(json.dumps(figures))
elif GIVEN in os.environ:  # a process of the application
    app = application(json.loads(os.environ[GIVEN]))
