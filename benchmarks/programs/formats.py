"""Jobs through a queue in the format of an older one: all are enqueued, then all are claimed and acked.

Arguments: url, with {folder} for the folder; jobs, in_flight, payload_bytes; headers, true if each job has one.
"""

from __future__ import annotations

import asyncio
from typing import Any

from phases import share_out
from shared import ENTRYPOINT, arguments, report

from jqueue import connect


async def measure(given: dict[str, Any]) -> dict[str, float]:
    """Jobs per second of each phase, and of both."""
    jobs = given["jobs"]
    payloads = [f"{number:0{given['payload_bytes']}}".encode() for number in range(jobs)]
    headers = {"kind": "test"} if given["headers"] else None
    seen: list[bytes] = []
    left = iter(payloads)
    async with connect(given["url"].replace("{folder}", given["folder"])) as queue:

        async def enqueue() -> None:
            await queue.enqueue(ENTRYPOINT, next(left), headers=headers)

        async def work() -> None:
            [job] = await queue.dequeue(ENTRYPOINT)
            seen.append(job.payload)
            await queue.ack(job)

        enqueueing = await share_out(jobs, given["in_flight"], enqueue)
        working = await share_out(jobs, given["in_flight"], work)
        state = await queue.read_state()
    if state.jobs or sorted(seen) != payloads:
        raise RuntimeError(f"of {jobs} jobs, {len(set(seen))} were seen, in {len(seen)} claims; {len(state.jobs)} left")
    return {
        "enqueue_per_second": jobs / enqueueing,
        "work_per_second": jobs / working,
        "jobs_per_second": jobs / (enqueueing + working),
    }


if __name__ == "__main__":
    report(asyncio.run(measure(arguments())))
