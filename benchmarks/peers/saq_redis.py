"""SAQ on Redis: 100 tasks that enqueue, and then 100 that dequeue and finish, as its worker does with each job.

Other work of its worker (mark a job active, look for cancelled ones) is left out, which makes it faster.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from saq import Queue
from saq.job import Status

PATIENCE = 10
"""Seconds to wait for a job that must exist."""


async def enqueue(queue: Queue, payloads: list[str]) -> None:
    for payload in payloads:
        if await queue.enqueue("see", payload=payload) is None:
            sys.exit("saq: a new job was taken for an existing one")


async def work(queue: Queue, tickets: Iterator[int], seen: list[str]) -> None:
    """Claim and ack one job for each ticket, so that no task waits for a job that does not come."""
    for _ in tickets:
        job = await queue.dequeue(timeout=PATIENCE)
        if job is None:
            sys.exit("saq: a job did not arrive")
        seen.append(job.kwargs["payload"])
        await job.finish(Status.COMPLETE)


async def run(arguments: dict[str, Any]) -> dict[str, float]:
    jobs, in_flight = arguments["jobs"], arguments["in_flight"]
    payloads = [f"{number:0{arguments['payload_bytes']}}" for number in range(jobs)]
    tickets = iter(range(jobs))
    seen: list[str] = []
    queue = Queue.from_url(arguments["url"], name=uuid4().hex)
    await queue.connect()
    await asyncio.gather(*(queue.redis.ping() for _ in range(in_flight)))  # opens the connections
    started = time.perf_counter()
    await asyncio.gather(*(enqueue(queue, payloads[first::in_flight]) for first in range(in_flight)))
    enqueued = time.perf_counter()
    await asyncio.gather(*(work(queue, tickets, seen) for _ in range(in_flight)))
    done = time.perf_counter()
    left = await queue.count("incomplete") + await queue.count("queued") + await queue.count("active")
    await queue.disconnect()
    if sorted(seen) != payloads or left != 0:
        sys.exit(f"saq: {len(set(seen))} of {jobs} jobs seen, in {len(seen)} claims; {left} left")
    return {"enqueue": enqueued - started, "work": done - enqueued, "jobs": done - started}


def main() -> None:
    arguments = json.loads(sys.argv[1])
    seconds = asyncio.run(run(arguments))
    print(json.dumps({f"{name}_per_second": arguments["jobs"] / each for name, each in seconds.items()}))


if __name__ == "__main__":
    main()
