"""Delays of the event loop while a broker works on a large queue in a file.

A task sleeps a millisecond, again and again, and notes how late it wakes: while calls are in flight, while the queue is
opened, while it is read again after another process wrote, during `read_state()` and during `stats()`. As a control, it
does so while nothing runs but a thread that writes and flushes the same bytes.

Arguments: depth, in_flight, seconds, payload_bytes, repeats. Another's commit is this program again, with `stranger`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from shared import ENTRYPOINT, arguments, bare_commits, count_writes, cycle, fill, report, storage_of, work_for

from jqueue import BrokerQueue, DirectQueue

NAP = 0.001


@asynccontextmanager
async def sampled(late: list[float]) -> AsyncIterator[None]:
    """Note how late the event loop is, in milliseconds, while the block lasts."""
    going = True

    async def sample() -> None:
        while going:
            start = time.perf_counter()
            await asyncio.sleep(NAP)
            late.append(1000 * (time.perf_counter() - start - NAP))

    task = asyncio.create_task(sample())
    await asyncio.sleep(5 * NAP)
    try:
        yield
    finally:
        await asyncio.sleep(5 * NAP)
        going = False
        await task


def summary(phase: str, late: list[float]) -> dict[str, float]:
    """Return the longest delay and the 99th percentile."""
    ordered = sorted(late)
    place = max(0, -(-len(ordered) * 99 // 100) - 1)
    return {f"{phase}_p99": ordered[place], f"{phase}_longest": ordered[-1], f"{phase}_samples": len(ordered)}


async def repeated(times: int, act: Callable[[], Awaitable[Any]]) -> list[float]:
    """Return the delays during `times` calls."""
    late: list[float] = []
    for _ in range(times):
        async with sampled(late):
            await act()
    return late


async def stranger(given: dict[str, Any]) -> None:
    """Commit as another process."""
    async with BrokerQueue(storage_of(given)) as queue:
        await queue.enqueue("other", b"x")


async def have_a_stranger_commit(given: dict[str, Any]) -> None:
    """Run `stranger` in another process."""
    child = await asyncio.create_subprocess_exec(sys.executable, __file__, json.dumps({**given, "stranger": True}))
    if await child.wait() != 0:
        raise RuntimeError("the other process failed")


async def measure(given: dict[str, Any]) -> dict[str, float]:
    """The delays of every phase, in milliseconds."""
    given = {**given, "storage": "file"}
    payload = os.urandom(given["payload_bytes"])
    storage = storage_of(given)
    figures: dict[str, float] = {}
    late: list[float] = []
    async with BrokerQueue(storage) as queue:
        await fill(queue, given["depth"], payload)
        await work_for(given["seconds"] / 10, given["in_flight"], lambda: cycle(queue, payload))
        writes = count_writes(storage)
        async with sampled(late):
            rate = await work_for(given["seconds"], given["in_flight"], lambda: cycle(queue, payload))
        figures |= {**summary("work", late), "operations_per_second": rate.per_second}
        late = []
        for _ in range(given["repeats"]):
            await have_a_stranger_commit(given)
            async with sampled(late):
                await queue.enqueue(ENTRYPOINT, payload)
        figures |= summary("reload", late)
        figures |= summary("read_state", await repeated(given["repeats"], queue.read_state))
        figures |= summary("stats", await repeated(given["repeats"], queue.stats))

    async def open_it() -> None:
        await DirectQueue(storage_of(given)).dequeue("nobody's")

    figures |= summary("open", await repeated(given["repeats"], open_it))
    size = writes.bytes // writes.commits
    late = []
    async with sampled(late):
        await asyncio.to_thread(bare_commits, given["folder"], size, given["seconds"] / 2)
    return {**figures, **summary("control", late), "bytes_per_commit": size}


if __name__ == "__main__":
    if arguments().get("stranger"):
        asyncio.run(stranger(arguments()))
    else:
        report(asyncio.run(measure(arguments())))
