"""A broker with many calls in flight, over jobs that stay where they are.

Each worker enqueues a job, dequeues one and acks it, again and again; each call counts as one operation. The standing
jobs have the same entrypoint and a worse priority, so that every dequeue has to choose among all of them, or the
entrypoint `standing`. With
`round_trip`, the commits are also compared with bare writes of the same bytes to the same store, and with `limit`,
the operations with what bare writes to the disk would allow if each carried every call in flight.

Arguments: storage, depth, in_flight, seconds, warm_seconds, payload_bytes; standing, round_trip, limit.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from shared import ENTRYPOINT, arguments, bare_commits, count_writes, cycle, fill, report, storage_of, work_for

from jqueue import BrokerQueue


async def measure(given: dict[str, Any]) -> dict[str, float]:
    """Operations per second, and what was written for them."""
    payload = os.urandom(given["payload_bytes"])
    storage = storage_of(given)
    async with BrokerQueue(storage) as queue:
        await fill(queue, given["depth"], payload, entrypoint=given.get("standing", ENTRYPOINT))
        await work_for(given["warm_seconds"], given["in_flight"], lambda: cycle(queue, payload))
        writes = count_writes(storage)
        rate = await work_for(given["seconds"], given["in_flight"], lambda: cycle(queue, payload))
    if not writes.commits:
        raise RuntimeError("no commit was seen")
    size = writes.bytes // writes.commits
    figures = {
        "operations_per_second": rate.per_second,
        "operations": rate.operations,
        "seconds": rate.seconds,
        "commits_per_second": writes.commits / rate.seconds,
        "bytes_per_commit": size,
        "bytes_per_operation": writes.bytes / rate.operations,
    }
    if given.get("round_trip"):
        from round_trip import seconds_of_a_put

        trip = await seconds_of_a_put(given, size)
        figures["round_trip_seconds"] = trip
        figures["bare_puts_per_second"] = 1 / trip
    if given.get("limit"):
        bare = bare_commits(given["folder"], size, given["seconds"] / 4)
        figures["bare_commits_per_second"] = bare.per_second
        figures["limit_operations_per_second"] = bare.per_second * given["in_flight"]
    return figures


if __name__ == "__main__":
    report(asyncio.run(measure(arguments())))
