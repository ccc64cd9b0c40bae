"""A worker with bad handlers: they hang, raise, recurse, ignore cancellation or end a process of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from jqueue.worker import Context, Exponential, Worker
from tests.worker_processes.journal import journalled

SOON = Exponential(base=0.01, cap=0.01)
RELEASE = Path("release")
"""Handlers that cannot be ended otherwise run until this file exists."""

worker = Worker(concurrency=8, grace=0.2, cancel_grace=0.3, claim_timeout=600)


@worker.handler("good")
async def good(ctx: Context) -> None:
    with journalled(ctx):
        await asyncio.sleep(0.01)


@worker.handler("hangs", timeout=0.3, max_attempts=2, backoff=SOON)
async def hangs(ctx: Context) -> None:
    with journalled(ctx):
        await asyncio.Event().wait()


@worker.handler("raises", max_attempts=3, backoff=SOON)
async def raises(ctx: Context) -> None:
    with journalled(ctx):
        raise ValueError("no such customer")


@worker.handler("recurses", max_attempts=1)
async def recurses() -> None:
    await recurses.function()


@worker.handler("ignores cancellation", timeout=0.3, max_attempts=1)
async def ignores_cancellation(ctx: Context) -> None:
    with journalled(ctx):
        while not RELEASE.exists():
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                continue


@worker.handler("ignores cancellation in a thread", timeout=0.3, max_attempts=1)
def ignores_cancellation_in_a_thread(ctx: Context) -> None:
    with journalled(ctx):
        while not RELEASE.exists():
            time.sleep(0.02)


@worker.handler("segfaults in its process", process=True, max_attempts=1)
def segfaults() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@worker.handler("runs for ever in its process", process=True, timeout=0.5, max_attempts=1)
def runs_for_ever() -> None:
    Path("endless.pid").write_text(str(os.getpid()))
    while True:
        pass


@worker.handler("stays in its process", process=True)
def stays() -> None:
    Path("pid").write_text(str(os.getpid()))
    Path("pid").rename("staying.pid")
    while True:
        pass
