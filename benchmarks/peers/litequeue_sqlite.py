"""litequeue: SQLite with a write-ahead log that is not synced at a commit (`synchronous=NORMAL`)."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from litequeue import LiteQueue

THREADS = 1
"""More made it slower: its writers take turns anyway."""


def enqueue(queue: LiteQueue, payloads: list[str]) -> None:
    for payload in payloads:
        queue.put(payload)


def work(queue: LiteQueue) -> list[str]:
    """Claim and ack until the queue is empty, and return the payloads."""
    seen = []
    while (job := queue.pop()) is not None:
        seen.append(job.data)
        if not queue.done(job.message_id, claim_id=job.claim_id):
            sys.exit(f"litequeue: the claim of {job.message_id} was lost")
    return seen


def main() -> None:
    arguments = json.loads(sys.argv[1])
    jobs, threads = arguments["jobs"], arguments.get("threads", THREADS)
    payloads = [f"{number:0{arguments['payload_bytes']}}" for number in range(jobs)]
    queue = LiteQueue(arguments["folder"] + "/queue.sqlite3")
    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        list(pool.map(enqueue, [queue] * threads, [payloads[first::threads] for first in range(threads)]))
        enqueued = time.perf_counter()
        seen = list(chain.from_iterable(pool.map(work, [queue] * threads)))
        done = time.perf_counter()
    if sorted(seen) != payloads or queue.active_count() != 0 or queue.done_count() != jobs:
        sys.exit(f"litequeue: {len(set(seen))} of {jobs} jobs seen, in {len(seen)} claims")
    queue.close()
    rates = {"enqueue": enqueued - started, "work": done - enqueued, "jobs": done - started}
    print(json.dumps({f"{name}_per_second": jobs / seconds for name, seconds in rates.items()}))


if __name__ == "__main__":
    main()
