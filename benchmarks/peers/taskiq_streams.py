"""taskiq on Redis: `RedisStreamBroker`, its broker with acks; 100 tasks that enqueue, and then its receiver.

It claims and acks only inside its receiver, which fetches up to 100 jobs at a time (or `fetch`), runs 100 and acks each
by itself. It has no result backend, so it stores no results.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import suppress
from typing import Any
from uuid import uuid4

import uvloop
from redis.asyncio import Redis
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

ASK_AGAIN = 0.002
"""Seconds between two checks that all jobs are acked, once all have been seen."""


async def run(arguments: dict[str, Any]) -> dict[str, float]:
    jobs, in_flight, name = arguments["jobs"], arguments["in_flight"], uuid4().hex
    payloads = [f"{number:0{arguments['payload_bytes']}}" for number in range(jobs)]
    seen: list[str] = []
    all_seen = asyncio.Event()
    broker = RedisStreamBroker(arguments["url"], queue_name=name, xread_count=arguments.get("fetch", in_flight))

    @broker.task
    async def see(payload: str) -> None:
        seen.append(payload)
        if len(seen) == jobs:
            all_seen.set()

    async def enqueue(some: list[str]) -> None:
        for payload in some:
            await see.kiq(payload)

    async def ping() -> None:
        await Redis(connection_pool=broker.connection_pool).ping()

    await broker.startup()
    redis = Redis.from_url(arguments["url"])
    await asyncio.gather(*(ping() for _ in range(in_flight)))  # opens the connections
    started = time.perf_counter()
    await asyncio.gather(*(enqueue(payloads[first::in_flight]) for first in range(in_flight)))
    enqueued = time.perf_counter()
    receiver = asyncio.create_task(run_receiver_task(broker, max_async_tasks=in_flight))
    await all_seen.wait()
    while (pending := (await redis.xpending(name, broker.consumer_group_name))["pending"]) != 0:
        await asyncio.sleep(ASK_AGAIN)
    done = time.perf_counter()
    receiver.cancel()
    with suppress(asyncio.CancelledError):
        await receiver
    [group] = await redis.xinfo_groups(name)
    await redis.delete(name)
    await redis.aclose()
    await broker.shutdown()
    if sorted(seen) != payloads or group["lag"] != 0:
        sys.exit(f"taskiq: {len(set(seen))} of {jobs} jobs seen, in {len(seen)} executions; {pending} not acked")
    return {"enqueue": enqueued - started, "work": done - enqueued, "jobs": done - started}


def main() -> None:
    arguments = json.loads(sys.argv[1])
    if warm := arguments.get("warm_jobs"):
        uvloop.run(run({**arguments, "jobs": warm}))
    seconds = uvloop.run(run(arguments))  # as its own command line does
    print(json.dumps({f"{name}_per_second": arguments["jobs"] / each for name, each in seconds.items()}))


if __name__ == "__main__":
    main()
