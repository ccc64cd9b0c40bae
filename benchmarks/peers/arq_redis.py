"""arq on Redis: 100 tasks that enqueue, and then its worker, which runs up to 100 jobs at a time.

It claims and acks only inside its worker. That asks for new jobs twice a second, unless told otherwise; here, as often
as is best for it. It keeps no results.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any
from uuid import uuid4

from arq.connections import ArqRedis, RedisSettings, create_pool
from arq.worker import Worker, func

POLL_DELAY = 0.05
"""Seconds; less and more were slower."""


async def enqueue(redis: ArqRedis, payloads: list[str]) -> None:
    for payload in payloads:
        if await redis.enqueue_job("see", payload) is None:
            sys.exit("arq: a new job was taken for an existing one")


async def run(arguments: dict[str, Any]) -> dict[str, float]:
    jobs, in_flight = arguments["jobs"], arguments["in_flight"]
    payloads = [f"{number:0{arguments['payload_bytes']}}" for number in range(jobs)]
    seen: list[str] = []

    async def see(_context: dict[str, Any], payload: str) -> None:
        seen.append(payload)

    name = uuid4().hex
    redis = await create_pool(RedisSettings.from_dsn(arguments["url"]), default_queue_name=name)
    worker = Worker(
        [func(see, name="see")],
        queue_name=name,
        redis_pool=redis,
        burst=True,
        max_jobs=in_flight,
        keep_result=0,
        poll_delay=arguments.get("poll_delay", POLL_DELAY),
        handle_signals=False,
    )
    await asyncio.gather(*(redis.ping() for _ in range(in_flight)))  # opens the connections
    started = time.perf_counter()
    await asyncio.gather(*(enqueue(redis, payloads[first::in_flight]) for first in range(in_flight)))
    enqueued = time.perf_counter()
    await worker.async_run()
    done = time.perf_counter()
    left = await redis.zcard(name)
    await worker.close()
    if sorted(seen) != payloads or left != 0:
        sys.exit(f"arq: {len(set(seen))} of {jobs} jobs seen, in {len(seen)} executions; {left} left")
    return {"enqueue": enqueued - started, "work": done - enqueued, "jobs": done - started}


def main() -> None:
    arguments = json.loads(sys.argv[1])
    if warm := arguments.get("warm_jobs"):
        asyncio.run(run({**arguments, "jobs": warm}))
    seconds = asyncio.run(run(arguments))
    print(json.dumps({f"{name}_per_second": arguments["jobs"] / each for name, each in seconds.items()}))


if __name__ == "__main__":
    main()
