"""Several brokers on one queue, each in its own process: their total throughput, and how evenly they share it.

Every worker enqueues, dequeues and acks. All processes begin at the same moment, and what they complete within the time
counts. An error that reaches a caller is counted, and the worker goes on.

Arguments: processes, in_flight, seconds, payload_bytes, and those of the storage. A process is this program again, with
`part`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable
from typing import Any

from shared import ENTRYPOINT, arguments, report, storage_of

from jqueue import BrokerQueue

HEAD_START = 0.5
PAUSE = 0.01
"""Seconds to pause after an error, so that a queue that refuses everything is not called all the time."""


async def part(given: dict[str, Any]) -> dict[str, Any]:
    """One process: get ready, wait for the moment, and work until the time is over."""
    payload = os.urandom(given["payload_bytes"])
    errors: Counter[str] = Counter()
    done = 0
    async with BrokerQueue(storage_of(given)) as queue:
        await queue.read_state()
        print("ready", flush=True)
        start = float(sys.stdin.readline())
        end = start + given["seconds"]
        await asyncio.sleep(start - time.monotonic())

        async def counted(call: Awaitable[Any]) -> Any:
            nonlocal done
            answer = await call
            done += time.monotonic() <= end
            return answer

        async def worker() -> None:
            while time.monotonic() < end:
                try:
                    await counted(queue.enqueue(ENTRYPOINT, payload))
                    if jobs := await counted(queue.dequeue(ENTRYPOINT)):
                        await counted(queue.ack(jobs[0].id))
                except Exception as error:
                    errors[f"{type(error).__name__}: {error}"[:200]] += 1
                    await asyncio.sleep(PAUSE)

        await asyncio.gather(*(worker() for _ in range(given["in_flight"])))
    return {"done": done, "errors": errors}


def measure(given: dict[str, Any]) -> dict[str, float]:
    """Return the total operations per second, the most and the least of one process, and the number of errors."""
    command = [sys.executable, __file__, json.dumps({**given, "part": True})]
    pipe = subprocess.PIPE
    parts = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(given["processes"])]
    try:
        for child in parts:
            if child.stdout is None or child.stdout.readline() != "ready\n":
                raise RuntimeError("a process did not start")
        start = time.monotonic() + HEAD_START
        for child in parts:
            assert child.stdin is not None
            child.stdin.write(f"{start!r}\n")
            child.stdin.flush()
        found = [json.loads(child.communicate()[0]) for child in parts]
    finally:
        for child in parts:
            child.kill()
            child.wait()
    done = [each["done"] for each in found]
    errors = sum((Counter(each["errors"]) for each in found), Counter[str]())
    for what, times in errors.most_common(5):
        print(f"{times} times: {what}", file=sys.stderr)
    return {
        "operations_per_second": sum(done) / given["seconds"],
        "most": max(done),
        "least": min(done),
        "most_over_least": max(done) / max(min(done), 1),
        "errors": errors.total(),
    }


if __name__ == "__main__":
    if arguments().get("part"):
        report(asyncio.run(part(arguments())))
    else:
        report(measure(arguments()))
