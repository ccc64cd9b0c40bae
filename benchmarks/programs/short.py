"""The speed of a short queue with the default limits and with `hot_bytes=None`, in turns in one process.

Neither queue has a segment, as its jobs are few. Each turn is short, so that a change of the machine's speed meets
both.

Arguments: storage, depth, in_flight, seconds, warm_seconds, payload_bytes; turns.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from shared import ENTRYPOINT, Rate, arguments, cycle, fill, report, storage_of, work_for

from jqueue import BrokerQueue, Limits


async def measure(given: dict[str, Any]) -> dict[str, float]:
    """Operations per second of both queues."""
    payload, seconds, in_flight = os.urandom(given["payload_bytes"]), given["seconds"], given["in_flight"]
    limits = {"with": Limits(), "without": Limits(hot_bytes=None)}
    rates: dict[str, list[Rate]] = {name: [] for name in limits}
    async with AsyncExitStack() as stack:
        steps = {}
        for name, each in limits.items():
            queue = BrokerQueue(storage_of({**given, "path": Path(given["folder"]) / f"{name}.json"}), limits=each)
            await stack.enter_async_context(queue)
            await fill(queue, given["depth"], payload, entrypoint=ENTRYPOINT)
            steps[name] = partial(cycle, queue, payload)
            await work_for(given["warm_seconds"], in_flight, steps[name])
        for turn in range(given["turns"]):
            for name in sorted(steps, reverse=turn % 2 == 1):
                rates[name].append(await work_for(seconds, in_flight, steps[name]))
    return {
        "operations_per_second": _mean(rates["with"]),
        "operations_per_second_without_segments": _mean(rates["without"]),
    }


def _mean(rates: list[Rate]) -> float:
    return sum(rate.operations for rate in rates) / sum(rate.seconds for rate in rates)


if __name__ == "__main__":
    report(asyncio.run(measure(arguments())))
