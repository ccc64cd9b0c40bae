"""A worker with every kind of limit, and with cron entries."""

from __future__ import annotations

import asyncio

from jqueue.worker import Context, Rate
from tests.worker_processes.journal import journalled
from tests.worker_processes.recording import RecordedWorker

RUNNING = 3
RATE, PER = 20, 1.0
WHILE = 0.02
"""Seconds that a job takes: long enough that several run at once."""

TICK, TOCK = 1, 2
"""Seconds between two occurrences of each cron entry."""

worker = RecordedWorker(concurrency=6, claim_timeout=60)


@worker.handler("few", max_running=RUNNING)
async def few(number: int, ctx: Context) -> None:
    with journalled(ctx):
        await asyncio.sleep(WHILE)


@worker.handler("paced", rate=Rate(RATE, per=PER))
async def paced(number: int, ctx: Context) -> None:
    with journalled(ctx):
        pass


@worker.handler("keyed")
async def keyed(number: int, ctx: Context) -> None:
    with journalled(ctx):
        await asyncio.sleep(WHILE)


@worker.handler("also keyed")
async def also_keyed(number: int, ctx: Context) -> None:
    with journalled(ctx):
        await asyncio.sleep(WHILE)


@worker.handler("paused")
async def paused(number: int, ctx: Context) -> None:
    with journalled(ctx):
        pass


@worker.handler("free")
async def free(number: int, ctx: Context) -> None:
    with journalled(ctx):
        pass


@worker.cron(f"*/{TICK} * * * * *", name="tick")
async def tick(ctx: Context) -> None:
    with journalled(ctx):
        pass


@worker.cron(f"*/{TOCK} * * * * *", name="tock")
async def tock(ctx: Context) -> None:
    with journalled(ctx):
        pass
