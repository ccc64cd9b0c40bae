"""Number of requests that jobs cost: `python benchmarks/requests_per_job.py`.

Stores charge by the request. This counts those of 1,000 jobs, enqueued one by one and then claimed and acked one by
one, with so many calls in flight, on a store that takes 50 ms for each request: in virtual time, so that the counts
are the same on every machine. The table is the one in docs/reference/stores.md.
"""

import asyncio

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage
from jqueue.testing.faults import FaultyStorage
from jqueue.testing.virtual_time import VirtualClock, run

JOBS = 1000
LATENCY = 0.05
IN_FLIGHT = (1, 10, 100)
KINDS = (DirectQueue, BrokerQueue)


async def count(kind: type[DirectQueue] | type[BrokerQueue], in_flight: int) -> tuple[int, int]:
    """Return the number of writes and of reads for all jobs together."""
    clock = VirtualClock()
    storage = FaultyStorage(InMemoryStorage(clock=clock), latency=LATENCY)
    async with kind(storage, clock=clock, deadline=3600) as queue:

        async def enqueue(jobs: int) -> None:
            for _ in range(jobs):
                await queue.enqueue("resize", b"")

        async def work(jobs: int) -> None:
            for _ in range(jobs):
                [job] = await queue.dequeue()
                await queue.ack(job)

        for phase in (enqueue, work):
            await asyncio.gather(*(phase(JOBS // in_flight) for _ in range(in_flight)))
    return storage.writes, storage.reads


def table() -> str:
    """Every count, as a table of Markdown."""
    lines = ["| queue | calls in flight | writes | reads | writes for a job |", "| --- | ---: | ---: | ---: | ---: |"]
    for kind in KINDS:
        for in_flight in IN_FLIGHT:
            writes, reads = run(count(kind, in_flight))
            lines.append(f"| `{kind.__name__}` | {in_flight} | {writes:,} | {reads:,} | {writes / JOBS:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
