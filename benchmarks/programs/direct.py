"""A queue without a broker, in memory: enqueue, dequeue and ack, one call after the other, over standing jobs.

Arguments: depth, seconds, warm_seconds, payload_bytes.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from shared import arguments, cycle, fill, report, work_for

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage


async def measure(given: dict[str, Any]) -> dict[str, float]:
    """Operations per second."""
    payload = os.urandom(given["payload_bytes"])
    storage = InMemoryStorage()
    async with BrokerQueue(storage) as broker:
        await fill(broker, given["depth"], payload)
    queue = DirectQueue(storage)
    await work_for(given["warm_seconds"], 1, lambda: cycle(queue, payload))
    rate = await work_for(given["seconds"], 1, lambda: cycle(queue, payload))
    return {"operations_per_second": rate.per_second, "operations": rate.operations, "seconds": rate.seconds}


if __name__ == "__main__":
    report(asyncio.run(measure(arguments())))
