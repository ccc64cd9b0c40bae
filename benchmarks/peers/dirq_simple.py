"""dirq: `QueueSimple`, a folder with a file for each job. It never calls fsync; the producer can."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from dirq.QueueSimple import QueueSimple
from on_disk import sync

THREADS = 1
"""More made it slower."""


def enqueue(folder: str, payloads: list[str], durable: bool) -> None:
    queue = QueueSimple(folder)
    for payload in payloads:
        name = queue.add(payload)
        if durable:
            sync(f"{folder}/{name}", f"{folder}/{name.partition('/')[0]}")


def work(folder: str) -> list[str]:
    """Claim and ack all jobs, and return their payloads."""
    queue = QueueSimple(folder)
    seen = []
    for name in queue:
        if queue.lock(name):
            seen.append(queue.get(name).decode())
            queue.remove(name)
    return seen


def main() -> None:
    arguments = json.loads(sys.argv[1])
    jobs, threads, folder = arguments["jobs"], arguments.get("threads", THREADS), arguments["folder"] + "/queue"
    durable = arguments.get("fsync", False)
    payloads = [f"{number:0{arguments['payload_bytes']}}" for number in range(jobs)]
    QueueSimple(folder)
    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        shares = [payloads[first::threads] for first in range(threads)]
        list(pool.map(enqueue, [folder] * threads, shares, [durable] * threads))
        enqueued = time.perf_counter()
        seen = list(chain.from_iterable(pool.map(work, [folder] * threads)))
        done = time.perf_counter()
    if sorted(seen) != payloads or QueueSimple(folder).count() != 0:
        sys.exit(f"dirq: {len(set(seen))} of {jobs} jobs seen, in {len(seen)} claims")
    rates = {"enqueue": enqueued - started, "work": done - enqueued, "jobs": done - started}
    print(json.dumps({f"{name}_per_second": jobs / seconds for name, seconds in rates.items()}))


if __name__ == "__main__":
    main()
