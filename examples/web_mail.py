"""A web application that sends mail in the background: FastAPI enqueues, a worker in a process of its own sends.

    python examples/web_mail.py                          all of it, on a free port, and a look at what happened

Or each part for itself, from the root of the repository, on any queue:

    QUEUE=queue.json uvicorn examples.web_mail:app
    jqueue worker examples.web_mail:worker queue.json
    curl -d '{"address": "ada@example.org"}' -H 'content-type: application/json' localhost:8000/signup

The mail server refuses every mail when it sees it first, so that each is sent by the second try of its job.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.request import Request as Call
from urllib.request import urlopen

from fastapi import FastAPI, HTTPException, Query
from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from jqueue import Context, Discard, Exponential, JobFailedError, JobNotFoundError, ResultTimeoutError, Worker, connect

ADDRESSES = ["ada@example.org", "bob@example.org", "nobody", "cyd@example.org", "dan@example.org"]


class Welcome(BaseModel):
    address: str


class FlakyMailServer(set[str]):
    def send(self, message_id: str, address: str) -> None:
        if message_id not in self:
            self.add(message_id)
            raise ConnectionError("451 try again later")


# The worker

worker = Worker(concurrency=20, grace=10)


@worker.lifespan
@asynccontextmanager
async def mail_server() -> AsyncIterator[FlakyMailServer]:
    yield FlakyMailServer()  # a connection, elsewhere; handlers find it in ctx.resources


@worker.handler(max_attempts=5, backoff=Exponential(base=0.2, cap=60), timeout=30, keep_result=3600)
async def welcome(mail: Welcome, ctx: Context) -> str:
    if "@" not in mail.address:
        raise Discard("not an email address")  # a retry would not help
    ctx.resources.send(ctx.job.id, mail.address)  # the id lets the server tell a repeated mail
    return f"sent by try {ctx.attempt}"


# The web application


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with connect(os.environ.get("QUEUE", "queue.json")) as queue:
        worker.bind(queue)  # no call below needs to name it
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/signup", status_code=202)
async def signup(mail: Welcome) -> dict[str, str]:
    job = await welcome.using(unique_key=f"welcome:{mail.address}", unique_for=3600).enqueue(mail)
    return {"job": job.id}  # it is in the store: nothing is lost from here on


@app.get("/jobs/{job_id}")
async def look(job_id: str, wait: Annotated[float, Query(ge=0, le=30)] = 0) -> dict[str, Any]:
    try:
        return {"state": "done", "result": await welcome.result(job_id, timeout=wait)}
    except ResultTimeoutError:
        return {"state": "not done yet"}
    except JobFailedError as error:
        return {"state": "dead", "error": error.error}
    except JobNotFoundError:
        raise HTTPException(404, "there is no such job, or its result is no longer kept") from None


# The show


def call(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Call(url, data, {"content-type": "application/json"}), timeout=30) as answer:
        return json.load(answer)


def main() -> int:
    for wanted in (signal.SIGINT, signal.SIGTERM):  # exit cleanly, and stop the processes started here
        signal.signal(wanted, lambda number, _: sys.exit(128 + number))
    console = Console(markup=False, highlight=False)
    with tempfile.TemporaryDirectory(prefix="jqueue-") as folder, socket.create_server(("127.0.0.1", 0)) as door:
        queue, root = os.path.join(folder, "queue.json"), Path(__file__).parents[1]
        site, environment = f"http://127.0.0.1:{door.getsockname()[1]}", {**os.environ, "QUEUE": queue}
        serve = ["uvicorn", "examples.web_mail:app", "--fd", str(door.fileno()), "--log-level", "warning"]
        work = ["jqueue", "worker", "examples.web_mail:worker", queue, "--log-level", "error"]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for command in ([sys.executable, "-m", *serve], [sys.executable, "-m", *work]):
                processes.append(subprocess.Popen(command, cwd=root, env=environment, pass_fds=[door.fileno()]))
            signed = [call(f"{site}/signup", {"address": address}) for address in ADDRESSES]
            console.print(f"{len(signed)} people have signed up at {site}, without waiting for their mails.")
            again = call(f"{site}/signup", {"address": ADDRESSES[0]})
            seen = [call(f"{site}/jobs/{answer['job']}?wait=20") for answer in signed]
        finally:
            for process in processes:
                process.terminate()
            codes = [process.wait(timeout=30) for process in processes]
    table = Table("address", "job", "result or error")
    for address, found in zip(ADDRESSES, seen, strict=True):
        table.add_row(address, found["state"], found.get("result") or found.get("error"))
    console.print(table)
    done = sum(found["state"] == "done" for found in seen)
    jobs = "one job" if again == signed[0] else "two jobs"
    console.print(f"{done} mails sent. {ADDRESSES[0]} signed up twice: {jobs}.")
    console.print(f"Stopped by SIGTERM; the worker's exit code is {codes[1]}.")
    return 0 if done == len(ADDRESSES) - 1 and again == signed[0] and codes[1] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
