"""A web application that enqueues a job for each request, on the queue in its folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from jqueue import BrokerQueue, LocalFileSystemStorage

queue = BrokerQueue(LocalFileSystemStorage("queue.json"))


async def use_before_fork() -> None:
    """Open a connection to the broker, and leave it open when the server forks."""
    await queue.__aenter__()
    await queue.enqueue("doze", b"0", job_id="before the fork")


if os.environ.get("USE_BEFORE_FORK"):
    asyncio.run(use_before_fork())


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with queue:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/{job_id}")
async def accept(job_id: str) -> int:
    await queue.enqueue("doze", b"0", job_id=job_id)
    return os.getpid()
