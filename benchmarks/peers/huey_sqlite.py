"""huey: `SqliteHuey`, with a write-ahead log that is synced at each commit, as SQLite does by itself.

It has no claims and no acks: a job is deleted when it is taken. The benchmark times the work of its worker: take a job
and execute it, in this process.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from huey import SqliteHuey

THREADS = 1
"""More made it slower: its one connection is used in turns anyway."""


def work(queue: SqliteHuey) -> None:
    """Take and execute until nothing is left."""
    while (task := queue.dequeue()) is not None:
        queue.execute(task)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    jobs, threads = arguments["jobs"], arguments.get("threads", THREADS)
    payloads = [f"{number:0{arguments['payload_bytes']}}" for number in range(jobs)]
    queue = SqliteHuey(filename=arguments["folder"] + "/queue.db")
    seen: list[str] = []

    @queue.task()
    def see(payload: str) -> None:
        seen.append(payload)

    def enqueue(some: list[str]) -> None:
        for payload in some:
            see(payload)

    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        list(pool.map(enqueue, [payloads[first::threads] for first in range(threads)]))
        enqueued = time.perf_counter()
        if seen or len(queue) != jobs:
            sys.exit(f"huey: {len(queue)} of {jobs} jobs enqueued")
        resumed = time.perf_counter()
        list(pool.map(work, [queue] * threads))
        done = time.perf_counter()
    if sorted(seen) != payloads or len(queue) != 0:
        sys.exit(f"huey: {len(set(seen))} of {jobs} jobs seen, in {len(seen)} executions")
    enqueuing, working = enqueued - started, done - resumed
    rates = {"enqueue": enqueuing, "work": working, "jobs": enqueuing + working}
    print(json.dumps({f"{name}_per_second": jobs / seconds for name, seconds in rates.items()}))


if __name__ == "__main__":
    main()
