"""Jobs that do nothing: all are enqueued one by one, and then a worker runs them, up to `in_flight` at a time.

The worker opens the queue anew, as it would in a process of its own; that counts as its time. First, `warm_jobs` jobs
go the same way without being measured.

Arguments: jobs, warm_jobs, in_flight, payload_bytes, and those of the storage.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from shared import ENTRYPOINT, arguments, report, storage_of

from jqueue import BrokerQueue
from jqueue.worker import Worker


async def measure(given: dict[str, Any]) -> dict[str, float]:
    """Jobs per second of each phase, and of both."""
    jobs, in_flight = given["jobs"], given["in_flight"]
    payloads = [f"{number:0{given['payload_bytes']}}" for number in range(jobs)]
    seen: list[str] = []
    worker = Worker(concurrency=in_flight)

    @worker.handler(ENTRYPOINT)
    async def see(payload: str) -> None:
        seen.append(payload)

    async with BrokerQueue(storage_of(given)) as queue:
        await queue.read_state()  # opens the connections

        async def enqueue(some: list[str]) -> None:
            for payload in some:
                await see.using(queue).enqueue(payload)

        start = time.perf_counter()
        await asyncio.gather(*(enqueue(payloads[first::in_flight]) for first in range(in_flight)))
        enqueueing = time.perf_counter() - start
    start = time.perf_counter()
    async with BrokerQueue(storage_of(given)) as queue:
        await worker.run(queue, drain=True)
        working = time.perf_counter() - start
        left = len((await queue.read_state()).jobs)
    if left or sorted(seen) != payloads:
        raise RuntimeError(f"of {jobs} jobs, {len(set(seen))} were seen, in {len(seen)} executions; {left} are left")
    return {
        "enqueue_per_second": jobs / enqueueing,
        "work_per_second": jobs / working,
        "jobs_per_second": jobs / (enqueueing + working),
    }


if __name__ == "__main__":
    given = arguments()
    if given["warm_jobs"]:
        asyncio.run(measure({**given, "jobs": given["warm_jobs"]}))
    report(asyncio.run(measure(given)))
