"""PgQueuer on Postgres, where each commit is synced: 100 tasks that enqueue, and then its worker until all is done.

Its worker claims and acks many jobs at a time, however they were enqueued: here up to 50, the most that it allows for
100 in flight, and the fastest. The same queries, called for one job at a time by 100 tasks, did a tenth of the work.

It sleeps for a tenth of a second where a claim finds nothing although jobs are left, unless told otherwise
(`poll_seconds`). It stores no results, but logs what became of each job, which cannot be switched off.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

CONNECTIONS = 5
"""The size of its own pool; more made it no faster."""


async def enqueue(queries: Queries, payloads: list[str]) -> None:
    for payload in payloads:
        await queries.enqueue("see", payload.encode())


async def run(arguments: dict[str, Any]) -> dict[str, float]:
    """In a database of its own."""
    database = f"bench_{uuid4().hex}"
    admin = await asyncpg.connect(arguments["url"])
    await admin.execute(f"CREATE DATABASE {database}")
    try:
        connections = arguments.get("connections", CONNECTIONS)
        sizes = {"min_size": connections, "max_size": connections}
        async with asyncpg.create_pool(arguments["url"], database=database, **sizes) as pool:
            return await measure(pool, arguments)
    finally:
        await admin.execute(f"DROP DATABASE {database} WITH (FORCE)")
        await admin.close()


async def measure(pool: asyncpg.Pool, arguments: dict[str, Any]) -> dict[str, float]:
    jobs, in_flight = arguments["jobs"], arguments["in_flight"]
    payloads = [f"{number:0{arguments['payload_bytes']}}" for number in range(jobs)]
    seen: list[str] = []
    queuer, queries = PgQueuer.from_asyncpg_pool(pool), Queries.from_asyncpg_pool(pool)
    await queries.install()
    if "poll_seconds" in arguments:
        queuer.qm.min_dequeue_poll_interval = timedelta(seconds=arguments["poll_seconds"])

    @queuer.entrypoint("see")
    async def see(job: Job) -> None:
        seen.append((job.payload or b"").decode())

    started = time.perf_counter()
    await asyncio.gather(*(enqueue(queries, payloads[first::in_flight]) for first in range(in_flight)))
    enqueued = time.perf_counter()
    batch_size = arguments.get("batch_size", in_flight // 2)
    await queuer.run(mode=QueueExecutionMode.drain, batch_size=batch_size, max_concurrent_tasks=in_flight)
    done = time.perf_counter()
    left = sum(each.count for each in await queries.queue_size())
    if sorted(seen) != payloads or left != 0:
        sys.exit(f"pgqueuer: {len(set(seen))} of {jobs} jobs seen, in {len(seen)} executions; {left} left")
    return {"enqueue": enqueued - started, "work": done - enqueued, "jobs": done - started}


def main() -> None:
    arguments = json.loads(sys.argv[1])
    if warm := arguments.get("warm_jobs"):
        uvloop.run(run({**arguments, "jobs": warm}))
    seconds = uvloop.run(run(arguments))  # as its own command line does
    print(json.dumps({f"{name}_per_second": arguments["jobs"] / each for name, each in seconds.items()}))


if __name__ == "__main__":
    main()
