"""Handlers that run in processes of their own: they are found there by the name of this module."""

import os
import time
from pathlib import Path

from pydantic import BaseModel

from jqueue.worker import Context, Discard, Worker

worker = Worker(concurrency=2)


class Numbers(BaseModel):
    left: int
    right: int


@worker.handler("add", process=True, keep_result=60)
def add(numbers: Numbers, ctx: Context) -> Numbers:
    return Numbers(left=numbers.left + numbers.right, right=ctx.attempt)


@worker.handler("process_id", process=True, keep_result=60)
def process_id() -> int:
    return os.getpid()


@worker.handler("die", process=True, max_attempts=1)
def die() -> None:
    os._exit(7)


@worker.handler("hang", process=True, timeout=0.5, max_attempts=1)
def hang(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


@worker.handler("discard", process=True)
def discard() -> None:
    raise Discard("never")


@worker.handler("odd", process=True, max_attempts=1)
def odd() -> None:
    raise ValueError(lambda: "this cannot be pickled")
