"""A deep queue keeps waiting jobs in segments beside its object, and `read_state` has the jobs of the object only

Why: no commit must write a million jobs, and no program must hold them. `iterate_jobs` yields all, `stats` counts all

1.0.0: the state has all jobs
2.0.0: the state has some of the jobs
"""

import asyncio
from typing import Any

from jqueue import DirectQueue, InMemoryStorage

try:
    from jqueue import Limits

    settings: dict[str, Any] = {"limits": Limits(hot_bytes=64 << 10)}
except ImportError:
    settings = {}

JOBS = 300


async def main():
    q = DirectQueue(InMemoryStorage(), **settings)
    for _ in range(JOBS):
        await q.enqueue("task", bytes(1000))
    shown = len((await q.read_state()).jobs)
    print("the state has all jobs" if shown == JOBS else "the state has some of the jobs")


asyncio.run(main())
