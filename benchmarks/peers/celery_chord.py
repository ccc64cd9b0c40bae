"""A chord of Celery on Redis: a task starts a chord of many tasks that do nothing, and its callback ends it.

One worker has `workers` processes, each a task at a time, as is Celery's default. Results are kept in the same Redis,
without which Celery has no chords. The time runs from the first task's call until the result of the callback is there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from celery import Celery, chord

ASK_EVERY = 0.005
"""Seconds between two looks at a result."""

arguments: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) == 2 and sys.argv[1].startswith("{") else {}
app = Celery("celery_chord", set_as_current=True)
app.conf.update(worker_prefetch_multiplier=arguments.get("prefetch", 4), broker_connection_retry_on_startup=True)


@app.task(name="part")
def part(number: int) -> int:
    return number


@app.task(name="summary")
def summary(results: list[int]) -> int:
    return len(results)


@app.task(name="start")
def start(jobs: int) -> str:
    return str(chord([part.s(number) for number in range(jobs)])(summary.s()).id)


def measure(jobs: int) -> float:
    began = time.perf_counter()
    last = start.delay(jobs).get(timeout=170, interval=ASK_EVERY)
    done = app.AsyncResult(last).get(timeout=170, interval=ASK_EVERY)
    if done != jobs:
        sys.exit(f"celery: {done} of {jobs} tasks were done when the callback ran")
    return time.perf_counter() - began


def main() -> None:
    url = arguments["url"]
    app.conf.update(broker_url=url, result_backend=url)
    command = [sys.executable, "-m", "celery", "-A", "celery_chord", "-b", url, "--result-backend", url, "worker"]
    command += [f"--concurrency={arguments['workers']}", "--pool=prefork", "--loglevel=ERROR"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=sys.path[0])
    try:
        measure(arguments["warm_jobs"])
        seconds = measure(arguments["jobs"])
    finally:
        worker.terminate()
        worker.wait()
    print(json.dumps({"jobs_per_second": arguments["jobs"] / seconds}))


if __name__ == "__main__":
    main()
