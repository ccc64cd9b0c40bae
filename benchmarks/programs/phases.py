"""Two thousand jobs: first all are enqueued one by one, then all are claimed and acked one by one.

Arguments: storage, jobs, in_flight, payload_bytes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from shared import ENTRYPOINT, arguments, report, storage_of

from jqueue import BrokerQueue


async def share_out(jobs: int, in_flight: int, step: Callable[[], Awaitable[None]]) -> float:
    """Do a step for each job with `in_flight` workers, and return the seconds that it took."""
    left = iter(range(jobs))

    async def worker() -> None:
        for _ in left:
            await step()

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return time.perf_counter() - start


async def measure(given: dict[str, Any]) -> dict[str, float]:
    """Jobs per second of each phase, and of both."""
    jobs = given["jobs"]
    payload = os.urandom(given["payload_bytes"])
    seen: list[str] = []
    async with BrokerQueue(storage_of(given)) as queue:

        async def enqueue() -> None:
            await queue.enqueue(ENTRYPOINT, payload)

        async def work() -> None:
            [job] = await queue.dequeue(ENTRYPOINT)
            seen.append(job.id)
            await queue.ack(job.id)

        enqueueing = await share_out(jobs, given["in_flight"], enqueue)
        working = await share_out(jobs, given["in_flight"], work)
        left = len((await queue.read_state()).jobs)
    if left or len(seen) != jobs or len(set(seen)) != jobs:
        raise RuntimeError(f"of {jobs} jobs, {len(seen)} were seen, {len(set(seen))} different ones; {left} are left")
    return {
        "enqueue_per_second": jobs / enqueueing,
        "work_per_second": jobs / working,
        "jobs_per_second": jobs / (enqueueing + working),
    }


if __name__ == "__main__":
    report(asyncio.run(measure(arguments())))
