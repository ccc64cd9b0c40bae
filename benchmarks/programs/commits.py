"""Commits per second of the queue, beside bare writes of the same bytes to the same disk.

A few workers claim a job and hand it back, again and again, so that commits follow each other and the queue stays as
large as it is. The bare writes run in the same folder, one half before and one half after.

Arguments: depth, in_flight, seconds, payload_bytes.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from shared import ENTRYPOINT, Rate, arguments, bare_commits, count_writes, fill, report, storage_of, work_for

from jqueue import BrokerQueue


async def measure(given: dict[str, Any]) -> dict[str, float]:
    """Commits per second of the queue, and of the bare loop."""
    storage = storage_of({**given, "storage": "file"})
    payload = os.urandom(given["payload_bytes"])
    async with BrokerQueue(storage) as queue:

        async def step() -> int:
            [job] = await queue.dequeue(ENTRYPOINT)
            await queue.nack(job.id, charge=False)
            return 2

        await fill(queue, given["depth"], payload)
        await fill(queue, given["in_flight"], payload, priority=0)
        warm_up = count_writes(storage)
        await work_for(given["seconds"] / 5, given["in_flight"], step)
        size = warm_up.bytes // warm_up.commits
        before = bare_commits(given["folder"], size, given["seconds"] / 2)
        writes = count_writes(storage)
        rate = await work_for(given["seconds"], given["in_flight"], step)
        after = bare_commits(given["folder"], size, given["seconds"] / 2)
    bare = Rate(before.operations + after.operations, before.seconds + after.seconds)
    return {
        "commits_per_second": writes.commits / rate.seconds,
        "bare_commits_per_second": bare.per_second,
        "bytes_per_commit": writes.bytes / writes.commits,
        "operations_per_second": rate.per_second,
    }


if __name__ == "__main__":
    report(asyncio.run(measure(arguments())))
