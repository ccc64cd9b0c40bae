"""A worker whose claims last for three seconds without a heartbeat."""

from __future__ import annotations

import asyncio

from jqueue.worker import Context, Worker
from tests.worker_processes.journal import journalled

worker = Worker(concurrency=3, claim_timeout=3)


@worker.handler("doze")
async def doze(seconds: float, ctx: Context) -> None:
    with journalled(ctx):
        await asyncio.sleep(seconds)
