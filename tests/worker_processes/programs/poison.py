"""A worker with a handler that ends its process."""

from __future__ import annotations

import asyncio
import os

from jqueue.worker import Context, Worker
from tests.worker_processes.journal import journalled

worker = Worker(concurrency=20)


@worker.handler("doze")
async def doze(seconds: float, ctx: Context) -> None:
    with journalled(ctx):
        await asyncio.sleep(seconds)


@worker.handler("poison")
async def poison(seconds: float) -> None:
    await asyncio.sleep(seconds)
    os._exit(3)
