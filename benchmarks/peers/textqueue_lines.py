"""TextQueue: a file with a line for each job. It has no writer: the producer appends, and can call fsync. No claims."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from on_disk import sync
from textqueue import TextQueue


def main() -> None:
    arguments = json.loads(sys.argv[1])
    jobs, path = arguments["jobs"], Path(arguments["folder"], "queue.tq")
    durable = arguments.get("fsync", False)
    payloads = [f"{number:0{arguments['payload_bytes']}}" for number in range(jobs)]
    started = time.perf_counter()
    for payload in payloads:
        with path.open("a") as file:
            file.write(f"-{payload}\n")
        if durable:
            sync(path)
    enqueued = time.perf_counter()
    queue = TextQueue()
    queue.add_input(str(path))
    seen = []
    while (message := queue.get_next()) is not None:
        seen.append(message.value)
        message.mark_as_cleared()
        if durable:
            sync(path)
    done = time.perf_counter()
    queue.close()
    if seen != payloads or path.read_text().count("\n=") + 1 != jobs:
        sys.exit(f"textqueue: {len(set(seen))} of {jobs} jobs seen, in {len(seen)} claims")
    rates = {"enqueue": enqueued - started, "work": done - enqueued, "jobs": done - started}
    print(json.dumps({f"{name}_per_second": jobs / seconds for name, seconds in rates.items()}))


if __name__ == "__main__":
    main()
