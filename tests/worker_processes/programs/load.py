"""A worker whose handlers write when they begin and end, and stop when they are asked to."""

from __future__ import annotations

import asyncio
import time

from jqueue.worker import Context, Worker
from tests.worker_processes.journal import journalled

worker = Worker(concurrency=4, grace=0.3, cancel_grace=60, claim_timeout=600)

FEW = 2
"""Number of jobs of "few" that may run at once, in all workers together."""


class Stopped(Exception):
    """Raised in a thread that was asked to stop."""


@worker.handler("doze")
async def doze(seconds: float, ctx: Context) -> None:
    with journalled(ctx):
        await asyncio.sleep(seconds)


@worker.handler("few", max_running=FEW)
async def few(seconds: float, ctx: Context) -> None:
    with journalled(ctx):
        await asyncio.sleep(seconds)


@worker.handler("block")
def block(seconds: float, ctx: Context) -> None:
    with journalled(ctx):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if ctx.is_cancelled:
                raise Stopped
            time.sleep(0.01)


@worker.handler("divide")
async def divide(seconds: float, ctx: Context) -> None:
    """Enqueue another job in the commit of the ack."""
    with journalled(ctx):
        ctx.on_ack(doze.using(job_id=f"{ctx.job.id}-child").call(0.0))
        await asyncio.sleep(seconds)


@worker.cron("* * * * * *", name="tick")
async def tick(ctx: Context) -> None:
    with journalled(ctx):
        pass
