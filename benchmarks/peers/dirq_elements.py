"""dirq: `Queue`, a folder with a folder for each job, here with a header. It never calls fsync; the producer can."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from dirq.queue import Queue
from on_disk import sync

SCHEMA = {"body": "binary", "header": "table?"}


def main() -> None:
    arguments = json.loads(sys.argv[1])
    jobs = arguments["jobs"]
    payloads = [f"{number:0{arguments['payload_bytes']}}".encode() for number in range(jobs)]
    folder, durable = Path(arguments["folder"], "queue"), arguments.get("fsync", False)
    queue = Queue(str(folder), schema=SCHEMA)
    started = time.perf_counter()
    for payload in payloads:
        element = folder / queue.add({"body": payload, "header": {"kind": "test"}})
        if durable:
            sync(element / "body", element / "header", element, element.parent)
    enqueued = time.perf_counter()
    seen = []
    for name in queue:
        if queue.lock(name):
            seen.append(queue.get(name)["body"])
            queue.remove(name)
    done = time.perf_counter()
    if seen != payloads or queue.count() != 0:
        sys.exit(f"dirq: {len(set(seen))} of {jobs} jobs seen, in {len(seen)} claims")
    rates = {"enqueue": enqueued - started, "work": done - enqueued, "jobs": done - started}
    print(json.dumps({f"{name}_per_second": jobs / seconds for name, seconds in rates.items()}))


if __name__ == "__main__":
    main()
