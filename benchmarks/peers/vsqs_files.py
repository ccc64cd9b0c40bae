"""vsqs: a folder with a file for each job, each synced before it takes its name (the folder is not)."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from vsqs.queue import QueueManager

THREADS = 2
"""Mostly faster than one; more were slower, as each call lists the folder."""

VISIBILITY_TIMEOUT = 600
"""Seconds for which a claimed job is hidden from other consumers."""


def enqueue(manager: QueueManager, payloads: list[str]) -> None:
    queue = manager.get_queue("jobs")
    for payload in payloads:
        queue.publish(payload.encode())


def work(manager: QueueManager) -> list[str]:
    """Claim and ack until the queue is empty, and return the payloads."""
    queue = manager.get_queue("jobs")
    seen: list[str] = []
    while True:
        name, payload = queue.receive(visibility_timeout=VISIBILITY_TIMEOUT, timeout=0.001)
        if name is None:
            return seen
        seen.append(payload.decode())
        queue.delete(name)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    jobs, threads = arguments["jobs"], arguments.get("threads", THREADS)
    payloads = [f"{number:0{arguments['payload_bytes']}}" for number in range(jobs)]
    manager = QueueManager(arguments["folder"])
    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        list(pool.map(enqueue, [manager] * threads, [payloads[first::threads] for first in range(threads)]))
        enqueued = time.perf_counter()
        seen = list(chain.from_iterable(pool.map(work, [manager] * threads)))
        done = time.perf_counter()
    left = manager.get_queue("jobs").size()
    manager.close()
    if sorted(seen) != payloads or left != 0:
        sys.exit(f"vsqs: {len(set(seen))} of {jobs} jobs seen, in {len(seen)} claims; {left} left")
    rates = {"enqueue": enqueued - started, "work": done - enqueued, "jobs": done - started}
    print(json.dumps({f"{name}_per_second": jobs / seconds for name, seconds in rates.items()}))


if __name__ == "__main__":
    main()
