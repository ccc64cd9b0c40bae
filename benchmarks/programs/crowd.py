"""Many idle clients of one broker: the memory and the processor time of its process.

Each client is a queue object with a connection of its own, and waits for a job. They share a few processes. With
`http`, the broker is `jqueue serve`, and they reach it through a URL.

Arguments: clients, processes, seconds, http, and those of the storage. A process is this program again, with `part` or
`serve`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from shared import ENTRYPOINT, Process, arguments, broker_of, report, serve, storage_of

from jqueue import BrokerQueue, connect

WAIT = 3600
SETTLING = 3.0


async def part(given: dict[str, Any]) -> None:
    """Some of the clients: wait for jobs until this process is killed."""
    waiting = []
    async with AsyncExitStack() as stack:
        for _ in range(given["clients"]):
            url = given.get("broker")
            queue = connect(f"jqueue+{url}/queue") if url else BrokerQueue(storage_of(given))
            await stack.enter_async_context(queue)
            await queue.enqueue("other", b"")
            waiting.append(asyncio.ensure_future(queue.dequeue(ENTRYPOINT, wait=WAIT)))
        print("ready", flush=True)
        await asyncio.gather(*waiting)


def used(pid: int) -> tuple[float, float]:
    """Return the resident mebibytes of a process, and the seconds of processor time that it has used."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), ticks / os.sysconf("SC_CLK_TCK")


def measure(given: dict[str, Any]) -> dict[str, float]:
    """Return the memory of the broker alone and with all clients, and its share of one processor."""
    broker = broker_of(__file__, given)
    parts: list[Process] = []
    try:
        alone, _ = used(broker.pid)
        share = given["clients"] // given["processes"]
        given = {**given, "part": True, "clients": share, "broker": broker.url}
        parts += [Process(__file__, json.dumps(given)) for _ in range(given["processes"])]
        for child in parts:
            child.wait_for("ready")
        time.sleep(SETTLING)
        begin, (_, before) = time.monotonic(), used(broker.pid)
        time.sleep(given["seconds"])
        memory, after = used(broker.pid)
        percent = 100 * (after - before) / (time.monotonic() - begin)
        descriptors = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
    finally:
        for child in (*parts, broker):
            child.end()
    if descriptors < share * given["processes"]:
        raise RuntimeError(f"the broker has {descriptors} files and connections, and fewer clients than were asked for")
    return {"mebibytes": memory, "mebibytes_alone": alone, "processor_percent": percent}


if __name__ == "__main__":
    if arguments().get("part"):
        asyncio.run(part(arguments()))
    elif arguments().get("serve"):
        asyncio.run(serve(arguments()))
    else:
        report(measure(arguments()))
