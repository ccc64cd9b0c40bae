"""One job, then `jobs` that do nothing in a group, and then the job that follows the group, by several workers.

`workers` processes with a worker each share a queue in a file. The time runs from the enqueue of the first job until
the result of the last is there.

Arguments: jobs, warm_jobs, workers, in_flight, and those of the storage.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from shared import arguments, report, storage_of

from jqueue import BrokerQueue
from jqueue.worker import Context, Worker


def worker_of(in_flight: int) -> Worker:
    """Return a worker with the three handlers."""
    worker = Worker(concurrency=in_flight)

    @worker.handler("part")
    async def part(number: int) -> None:
        pass

    @worker.handler("summary", keep_result=600)
    async def summary(ctx: Context, group: str) -> int:
        return (await ctx.queue.group(group).status()).done

    @worker.handler("start", keep_result=600)
    async def start(ctx: Context, jobs: int) -> str:
        async with ctx.queue.group(ctx.job.id, then=summary.call(ctx.job.id)) as group:
            await group.enqueue_many(part.call(number) for number in range(jobs))
        return str((await group.status()).then_id)

    return worker


async def measure(queue: BrokerQueue, jobs: int) -> float:
    """Return the seconds that the jobs take."""
    began = time.perf_counter()
    first = await queue.enqueue("start", json.dumps({"jobs": jobs}).encode(), encoding="named")
    last = await queue.result(first)
    await queue.group(first.id).wait()
    done = await queue.result(last)
    seconds = time.perf_counter() - began
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} jobs were done when the last one ran")
    return seconds


async def run(given: dict[str, Any]) -> dict[str, float]:
    """Start the workers, and measure."""
    async with BrokerQueue(storage_of(given)) as queue:
        started = json.dumps({**given, "role": "worker"})
        workers = [subprocess.Popen([sys.executable, __file__, started]) for _ in range(given["workers"])]
        try:
            await measure(queue, given["warm_jobs"])
            seconds = await measure(queue, given["jobs"])
        finally:
            for each in workers:
                each.terminate()
    for each in workers:
        each.wait()
    return {"jobs_per_second": given["jobs"] / seconds}


if __name__ == "__main__":
    given = arguments()
    given["path"] = given.get("path") or str(Path(given["folder"]) / "queue.json")
    if given.get("role") == "worker":
        asyncio.run(worker_of(given["in_flight"]).run(BrokerQueue(storage_of(given))))
    else:
        report(asyncio.run(run(given)))
