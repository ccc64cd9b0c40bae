"""Memory per job of an idle broker on a file.

The growth of the process over that with an empty queue, after everything that can be given back is given back; or what
tracemalloc counts, which slows the process and adds to it, and so has a process of its own.

Arguments: jobs, payload_bytes, traced.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import tracemalloc
from pathlib import Path
from typing import Any

from shared import ENTRYPOINT, arguments, cycle, fill, report, storage_of

from jqueue import BrokerQueue


def resident() -> int:
    """The bytes of this process that are in memory."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def traced() -> int:
    """The bytes that tracemalloc has seen allocated and not freed."""
    return tracemalloc.get_traced_memory()[0]


def give_back() -> None:
    """Free unused memory, and return it to the system where the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


async def measure(given: dict[str, Any]) -> dict[str, float]:
    """Bytes for each job."""
    payload = os.urandom(given["payload_bytes"])
    count = traced if given["traced"] else resident
    async with BrokerQueue(storage_of({**given, "storage": "file"})) as queue:
        await cycle(queue, payload)  # so that all that a queue needs once is there already
        give_back()
        if given["traced"]:
            tracemalloc.start()
        before = count()
        await fill(queue, given["jobs"], payload, priority=0)
        await asyncio.sleep(0.5)
        give_back()
        growth = count() - before
        tracemalloc.stop()
        [job] = await queue.dequeue(ENTRYPOINT)  # it still works
        await queue.ack(job.id)
    return {"bytes_per_job": growth / given["jobs"], "bytes": growth}


if __name__ == "__main__":
    report(asyncio.run(measure(arguments())))
