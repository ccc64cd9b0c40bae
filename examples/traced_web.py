"""One trace from a web request to the handler in another process, with OpenTelemetry.

    python examples/traced_web.py           both processes, one request, and the trace that they leave

The spans go into files of a temporary folder. Your program would send them to a collector instead: only `export_spans`
would change.
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
from typing import Any
from urllib.request import Request as Call
from urllib.request import urlopen

from fastapi import FastAPI, Request
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from jqueue import Exponential, Worker, connect
from jqueue.telemetry.otel_tracing import OpenTelemetryTracing

QUEUE = os.environ.get("QUEUE", "queue.json")


def export_spans(folder: str | None) -> None:
    """Write the spans of this process into a file of a folder, one a line."""
    if folder is None:
        return
    name = f"process {os.getpid()}"
    provider = TracerProvider(resource=Resource({"service.name": name}))
    lines = (Path(folder) / f"{name}.jsonl").open("w", encoding="utf-8", buffering=1)
    exporter = ConsoleSpanExporter(out=lines, formatter=lambda span: span.to_json(indent=None) + "\n")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


export_spans(os.environ.get("SPANS"))
tracing = OpenTelemetryTracing()

# The worker

worker = Worker(tracing=tracing)


@worker.handler("welcome", backoff=Exponential(base=0.1))
async def welcome(address: str) -> None:
    with trace.get_tracer("mail").start_as_current_span("talk to the mail server"):
        if not Path(QUEUE).with_suffix(".sent").exists():
            Path(QUEUE).with_suffix(".sent").touch()
            raise ConnectionError("451 try again later")


# The web application


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
    async with tracing.instrument(connect(QUEUE)) as queue:
        yield {"queue": queue}


app = FastAPI(lifespan=lifespan)  # it traces each request, if its program has set up OpenTelemetry


@app.post("/signup", status_code=202)
async def signup(address: str, request: Request) -> dict[str, str]:
    job = await welcome.using(request.state.queue).enqueue(address)
    return {"job": job.id}


# The show


def spans_in(folder: str) -> list[dict[str, Any]]:
    """Return the spans in all files of a folder."""
    return [json.loads(line) for file in sorted(Path(folder).glob("*.jsonl")) for line in file.open(encoding="utf-8")]


def show(spans: list[dict[str, Any]], parent: str | None = None, indent: str = "") -> None:
    """Print spans as a tree."""
    for span in sorted(spans, key=lambda span: str(span["start_time"])):
        if span["parent_id"] == parent:
            links = f", {len(span['links'])} links" if span["links"] else ""
            status = ", failed" if span["status"]["status_code"] == "ERROR" else ""
            print(f"{indent}{span['name']}  [{span['resource']['attributes']['service.name']}{links}{status}]")
            show(spans, span["context"]["span_id"], indent + "    ")


def main() -> int:
    for wanted in (signal.SIGINT, signal.SIGTERM):  # exit cleanly, and stop the process started here
        signal.signal(wanted, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="jqueue-") as folder, socket.create_server(("127.0.0.1", 0)) as door:
        root, site = Path(__file__).parents[1], f"http://127.0.0.1:{door.getsockname()[1]}"
        environment = {**os.environ, "QUEUE": os.path.join(folder, "queue.json"), "SPANS": folder}
        serve = ["uvicorn", "examples.traced_web:app", "--fd", str(door.fileno()), "--log-level", "warning"]
        web = subprocess.Popen([sys.executable, "-m", *serve], cwd=root, env=environment, pass_fds=[door.fileno()])
        try:
            with urlopen(Call(f"{site}/signup?address=ada@example.org", b""), timeout=30) as answer:
                print(f"The web application has answered {answer.status}.")
        finally:
            web.terminate()
            web.wait(timeout=30)
        work = ["jqueue", "worker", "examples.traced_web:worker", environment["QUEUE"], "--log-level", "error"]
        code = 0
        while code == 0 and not any(span["name"] == "commit" and _acks(span) for span in spans_in(folder)):
            code = subprocess.run(
                [sys.executable, "-m", *work, "--drain"], cwd=root, env=environment, timeout=60
            ).returncode
        spans = spans_in(folder)
    print(f"{len(spans)} spans in {len({span['context']['trace_id'] for span in spans})} trace:\n")
    show(spans)
    return code


def _acks(span: dict[str, Any]) -> bool:
    return any(link["attributes"]["jqueue.call"] == "ack" for link in span["links"])


if __name__ == "__main__":
    sys.exit(main())
