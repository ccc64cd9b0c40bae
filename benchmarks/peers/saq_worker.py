"""SAQ's worker on Redis: 100 tasks that enqueue, and then its worker, which runs up to 100 jobs at a time.

Unlike `saq_redis.py`, this program includes all the work of SAQ's worker on a job. No results are stored (`ttl=-1`),
and no timer is put on a job (`timeout=0`); neither costs enough to be seen. It waits for jobs in Redis and
polls for nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any
from uuid import uuid4

from saq import Queue, Worker

ASK_AGAIN = 0.002
"""Seconds between two checks that all jobs are finished, once all have been seen."""


async def enqueue(queue: Queue, payloads: list[str]) -> None:
    for payload in payloads:
        if await queue.enqueue("see", payload=payload, ttl=-1, timeout=0) is None:
            sys.exit("saq: a new job was taken for an existing one")


async def run(arguments: dict[str, Any]) -> dict[str, float]:
    jobs, in_flight = arguments["jobs"], arguments["in_flight"]
    payloads = [f"{number:0{arguments['payload_bytes']}}" for number in range(jobs)]
    seen: list[str] = []
    all_seen = asyncio.Event()

    async def see(_context: dict[str, Any], *, payload: str) -> None:
        seen.append(payload)
        if len(seen) == jobs:
            all_seen.set()

    queue = Queue.from_url(arguments["url"], name=uuid4().hex)
    await queue.connect()
    await asyncio.gather(*(queue.redis.ping() for _ in range(2 * in_flight)))  # opens the connections
    started = time.perf_counter()
    await asyncio.gather(*(enqueue(queue, payloads[first::in_flight]) for first in range(in_flight)))
    enqueued = time.perf_counter()
    worker = Worker(queue, [("see", see)], concurrency=in_flight)
    working = asyncio.create_task(worker.start())
    await all_seen.wait()
    while (left := await queue.count("incomplete") + await queue.count("active")) != 0:
        await asyncio.sleep(ASK_AGAIN)
    done = time.perf_counter()
    worker.event.set()
    await working
    await queue.disconnect()
    if sorted(seen) != payloads or left != 0:
        sys.exit(f"saq: {len(set(seen))} of {jobs} jobs seen, in {len(seen)} executions; {left} left")
    return {"enqueue": enqueued - started, "work": done - enqueued, "jobs": done - started}


def main() -> None:
    arguments = json.loads(sys.argv[1])
    if warm := arguments.get("warm_jobs"):
        asyncio.run(run({**arguments, "jobs": warm}))
    seconds = asyncio.run(run(arguments))
    print(json.dumps({f"{name}_per_second": arguments["jobs"] / each for name, each in seconds.items()}))


if __name__ == "__main__":
    main()
