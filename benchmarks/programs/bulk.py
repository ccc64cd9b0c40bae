"""Rows become jobs of an empty queue in one write, by the codec of jqueue 1.0.0: the least that its commit does.

It has no verb for many jobs, so its models and its codec are called as its queues call them, once for all rows.

Arguments: rows, payload_bytes, and those of the storage.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from shared import ENTRYPOINT, arguments, report, storage_of

from jqueue.core.codec import decode, encode
from jqueue.domain.models import Job, QueueState


async def measure(given: dict[str, Any]) -> dict[str, float]:
    """Rows per second, from payloads to an object that is written."""
    payloads = [os.urandom(given["payload_bytes"]) for _ in range(given["rows"])]
    storage = storage_of(given)
    start = time.perf_counter()
    state = QueueState(jobs=tuple(Job.new(ENTRYPOINT, payload) for payload in payloads), version=1)
    made = time.perf_counter()
    content = encode(state)
    encoded = time.perf_counter()
    await storage.write(content, None)
    end = time.perf_counter()
    read, _ = await storage.read()
    start_of_read = time.perf_counter()
    jobs = decode(read).jobs
    if len(jobs) != given["rows"]:
        raise RuntimeError(f"of {given['rows']} rows, {len(jobs)} are jobs")
    return {
        "rows_per_second": given["rows"] / (end - start),
        "rows_encoded_per_second": given["rows"] / (encoded - made),
        "rows_read_per_second": given["rows"] / (time.perf_counter() - start_of_read),
    }


if __name__ == "__main__":
    report(asyncio.run(measure(arguments())))
