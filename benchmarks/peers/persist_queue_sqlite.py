"""persist-queue: `SQLiteAckQueue`, with a write-ahead log that is synced at each commit, as SQLite does by itself."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from persistqueue import SQLiteAckQueue
from persistqueue.exceptions import Empty

THREADS = 1
"""More made it slower: its writers take turns anyway, and need a second connection."""


def enqueue(queue: SQLiteAckQueue, payloads: list[str]) -> None:
    for payload in payloads:
        queue.put(payload)


def work(queue: SQLiteAckQueue) -> list[str]:
    """Claim and ack until the queue is empty, and return the payloads."""
    seen = []
    try:
        while True:
            job = queue.get(block=False, raw=True)
            seen.append(job["data"])
            queue.ack(job)
    except Empty:
        return seen


def main() -> None:
    arguments = json.loads(sys.argv[1])
    jobs, threads = arguments["jobs"], arguments.get("threads", THREADS)
    payloads = [f"{number:0{arguments['payload_bytes']}}" for number in range(jobs)]
    queue = SQLiteAckQueue(arguments["folder"], multithreading=threads > 1)
    with ThreadPoolExecutor(threads) as pool:
        run = pool.map if threads > 1 else map
        started = time.perf_counter()
        list(run(enqueue, [queue] * threads, [payloads[first::threads] for first in range(threads)]))
        enqueued = time.perf_counter()
        seen = list(chain.from_iterable(run(work, [queue] * threads)))
        done = time.perf_counter()
    if sorted(seen) != payloads or queue.qsize() != 0 or queue.unack_count() != 0 or queue.acked_count() != jobs:
        sys.exit(f"persist-queue: {len(set(seen))} of {jobs} jobs seen, in {len(seen)} claims")
    queue.close()
    rates = {"enqueue": enqueued - started, "work": done - enqueued, "jobs": done - started}
    print(json.dumps({f"{name}_per_second": jobs / seconds for name, seconds in rates.items()}))


if __name__ == "__main__":
    main()
