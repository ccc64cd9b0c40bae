"""Several brokers on one queue, each in its own process: their total throughput, and how evenly they share it.

Every worker enqueues, dequeues and acks. All processes begin at the same moment, and what they complete within the time
counts. An error that reaches a caller is counted, and the worker goes on.

With `served`, one more process commits for all. With `kills`, two are there, of which one serves; it is killed so many
times, and a new one then waits to follow the other. With `lone`, one more process makes one call each 100 ms. With
`apart`, each process commits for itself.

Arguments: processes, in_flight, seconds, payload_bytes, served, kills, lone, apart, and those of the storage. A process
is this program again, with `part` or `serve`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable
from typing import Any

from shared import ENTRYPOINT, Process, arguments, broker_of, report, serve, storage_of

from jqueue import BrokerQueue

HEAD_START = 0.5
PAUSE = 0.01
"""Seconds to pause after an error, so that a queue that refuses everything is not called all the time."""

SELDOM = 0.1
"""Seconds between two calls of the process that makes few."""


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of all values lies."""
    return sorted(values)[int(share * (len(values) - 1))]


async def part(given: dict[str, Any]) -> dict[str, Any]:
    """One process: get ready, wait for the moment, and work until the time is over."""
    payload = os.urandom(given["payload_bytes"])
    errors: Counter[str] = Counter()
    done, waits = 0, list[float]()
    async with BrokerQueue(storage_of(given), share=not given.get("apart")) as queue:
        await queue.read_state()
        print("ready", flush=True)
        start = float(sys.stdin.readline())
        end = start + given["seconds"]
        await asyncio.sleep(start - time.monotonic())

        async def counted(call: Awaitable[Any]) -> Any:
            nonlocal done
            called = time.monotonic()
            answer = await call
            now = time.monotonic()
            done += now <= end
            waits.append(now - called)
            return answer

        async def lone() -> None:
            while time.monotonic() < end:
                await counted(queue.enqueue("other", payload))
                await asyncio.sleep(SELDOM)

        async def worker() -> None:
            while time.monotonic() < end:
                try:
                    await counted(queue.enqueue(ENTRYPOINT, payload))
                    if jobs := await counted(queue.dequeue(ENTRYPOINT)):
                        await counted(queue.ack(jobs[0].id))
                except Exception as error:
                    errors[f"{type(error).__name__}: {error}"[:200]] += 1
                    await asyncio.sleep(PAUSE)

        await (lone() if given.get("lone") else asyncio.gather(*(worker() for _ in range(given["in_flight"]))))
    shares = {"median": percentile(waits, 0.5), "slow": percentile(waits, 0.99), "longest": max(waits)}
    return {"done": done, "errors": errors, **shares}


def kill_brokers(given: dict[str, Any], brokers: list[Process], start: float) -> None:
    """Kill the process that serves, again and again, and start another that waits to follow."""
    for turn in range(given["kills"]):
        time.sleep(max(0.0, start + given["seconds"] * (turn + 1) / (given["kills"] + 1) - time.monotonic()))
        brokers.pop(0).end()
        brokers.append(Process(__file__, json.dumps({**given, "serve": True})))


def measure(given: dict[str, Any]) -> dict[str, float]:
    """Return the total operations per second, the most and the least of one process, the longest call, the errors."""
    brokers: list[Process] = []
    parts: list[Process] = []
    try:
        for _ in range(bool(given.get("served")) + bool(given.get("kills"))):
            brokers.append(broker_of(__file__, given))
        each = {**given, "part": True, "lone": False}
        parts += [Process(__file__, json.dumps(each)) for _ in range(given["processes"])]
        if given.get("lone"):
            parts.append(Process(__file__, json.dumps({**each, "lone": True})))
        for child in parts:
            child.wait_for("ready")
        start = time.monotonic() + HEAD_START
        for child in parts:
            child.say(f"{start!r}")
        kill_brokers({"kills": 0, **given}, brokers, start)
        found = [json.loads(child.communicate()) for child in parts]
    finally:
        for child in (*parts, *brokers):
            child.end()
    busy = found[: given["processes"]]
    done = [each["done"] for each in busy]
    errors = sum((Counter(each["errors"]) for each in found), Counter[str]())
    for what, times in errors.most_common(5):
        print(f"{times} times: {what}", file=sys.stderr)
    return {
        "operations_per_second": sum(done) / given["seconds"],
        "most": max(done),
        "least": min(done),
        "most_over_least": max(done) / max(min(done), 1),
        "longest_seconds": max(each["longest"] for each in found),
        "slow_milliseconds": 1000 * max(each["slow"] for each in busy),
        "lone_median_milliseconds": 1000 * found[-1]["median"],
        "lone_slow_milliseconds": 1000 * found[-1]["slow"],
        "errors": errors.total(),
    }


if __name__ == "__main__":
    if arguments().get("part"):
        report(asyncio.run(part(arguments())))
    elif arguments().get("serve"):
        asyncio.run(serve(arguments()))
    else:
        report(measure(arguments()))
