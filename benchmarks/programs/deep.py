"""A broker with many calls in flight, over waiting jobs that come first: each claim takes one of them.

Another process fills the queue in one bulk enqueue. Then this one opens it, and each worker enqueues a job, claims one
and acks it, again and again. The depth stays the same.

Arguments: storage, depth, in_flight, seconds, payload_bytes; leases; is_filled, if the queue has waiting jobs already.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from typing import Any

from memory import resident
from shared import ENTRYPOINT, SETTING_UP_SECONDS, arguments, report, storage_of

from jqueue import BrokerQueue
from jqueue.domain.operations.enqueue import Enqueue

ROWS_OF_A_LEASE = 10_000


def percentile(seconds: list[float], share: float) -> float:
    """Return the time that a share of the calls did not exceed, in milliseconds."""
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * share))] * 1e3


async def fill(given: dict[str, Any]) -> dict[str, float]:
    """Enqueue the waiting jobs in one call."""
    payload = os.urandom(given["payload_bytes"])
    jobs = (Enqueue(ENTRYPOINT, payload) for _ in range(given["depth"]))
    start = time.perf_counter()
    async with BrokerQueue(storage_of(given)) as queue:
        await queue.enqueue_many(jobs, deadline=SETTING_UP_SECONDS)
    return {"filled_per_second": given["depth"] / (time.perf_counter() - start), "filling_bytes": resident()}


async def measure(given: dict[str, Any]) -> dict[str, float]:
    """Operations per second over the waiting jobs, and what it takes to open the queue."""
    payload = os.urandom(given["payload_bytes"])
    claims: list[float] = []
    enqueues: list[float] = []
    start = time.perf_counter()
    async with BrokerQueue(storage_of(given)) as queue:
        [job] = await queue.dequeue(ENTRYPOINT)
        opened = time.perf_counter() - start
        await queue.ack(job)
        end = time.perf_counter() + given["seconds"]

        async def worker() -> None:
            while (begun := time.perf_counter()) < end:
                await queue.enqueue(ENTRYPOINT, payload)
                added = time.perf_counter()
                [claimed] = await queue.dequeue(ENTRYPOINT)
                await queue.ack(claimed)
                enqueues.append(added - begun)
                claims.append(time.perf_counter() - added)

        start = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(given["in_flight"])))
        seconds = time.perf_counter() - start
        memory = resident()
        leases = await in_leases(queue) if given.get("leases") else {}
    return {
        "operations_per_second": 3 * len(claims) / seconds,
        "open_seconds": opened,
        "claim_ms": percentile(claims, 0.99),
        "enqueue_ms": percentile(enqueues, 0.99),
        "resident_mebibytes": memory / 2**20,
        **leases,
    }


async def in_leases(queue: BrokerQueue) -> dict[str, float]:
    """Claim and end everything that waits in segments."""
    done, start = 0, time.perf_counter()
    while (claim := await queue.claim_lease(ENTRYPOINT, ROWS_OF_A_LEASE)) is not None:
        await queue.end_lease(claim)
        done += claim.rows
    return {"in_leases_per_second": done / (time.perf_counter() - start)}


def filled(given: dict[str, Any]) -> dict[str, float]:
    """Fill the queue in another process, so that its memory does not count here."""
    command = [sys.executable, __file__, json.dumps({**given, "fill": True})]
    last = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    found: dict[str, float] = json.loads(last)
    return found


if __name__ == "__main__":
    told = arguments()
    if told.get("fill"):
        report(asyncio.run(fill(told)))
    else:
        before = {} if told.get("is_filled") else filled(told)
        report({**before, **asyncio.run(measure(told))})
