"""A program for 1.0.0 that makes every call on `queue.json` and prints how each call ended."""

import asyncio
import sys
from datetime import timedelta

from jqueue import BrokerQueue, DirectQueue, LocalFileSystemStorage


async def attempt(name, call):
    try:
        print(name, "returned", await call)
    except Exception as error:
        print(name, "raised", type(error).__name__)


async def main():
    for kind in (DirectQueue, BrokerQueue):
        q = kind(LocalFileSystemStorage("queue.json"))
        if kind is BrokerQueue:
            await q.__aenter__()
        calls = {
            "read_state": q.read_state(),
            "enqueue": q.enqueue("task", b"data"),
            "dequeue": q.dequeue(),
            **{f"{verb} {job_id}": getattr(q, verb)(job_id) for job_id in sys.argv[1:] for verb in VERBS},
        }
        if kind is DirectQueue:
            calls["requeue_stale"] = q.requeue_stale(timedelta(0))
        for name, call in calls.items():
            await attempt(f"{kind.__name__}.{name}", call)
        if kind is BrokerQueue:
            await q.__aexit__(None, None, None)


VERBS = ("ack", "nack", "heartbeat")
asyncio.run(main())
