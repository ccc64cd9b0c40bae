"""Handlers that run in their own processes, where they are imported by the name of this module."""

import asyncio
import atexit
import functools
import gc
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from jqueue.worker import BatchContext, Context, Depends, Discard, Exponential, Retry, Snooze, Worker

worker = Worker(concurrency=2)

sums: list[int] = []

LONG = Exponential(base=1e6, cap=1e6)
"""Backoff longer than any test waits."""


class Numbers(BaseModel):
    left: int
    right: int


@worker.handler("add", process=True, keep_result=60)
def add(numbers: Numbers, ctx: Context) -> Numbers:
    return Numbers(left=numbers.left + numbers.right, right=ctx.attempt)


@worker.handler("track", process=True, max_attempts=1)
def track(ctx: Context) -> None:
    for row in ctx.track(range(100_000), text="rows"):
        if row == 70_000:
            raise ValueError(row)


@worker.handler("process_id", process=True, keep_result=60)
def process_id() -> int:
    return os.getpid()


@worker.handler("double", process=True)
def double(number: int) -> int:
    return 2 * number


@worker.handler("sum")
async def add_up(ctx: Context) -> None:
    sums.append(sum(ctx.parents.values()))


@worker.handler("say", process=True)
def say(port: int) -> None:
    atexit.register(print, "left")
    print("said")


@worker.handler("end", process=True, max_attempts=1)
def end(status: int) -> None:
    os._exit(status)


@worker.handler("write_to_pipes", process=True, max_attempts=1)
def write_to_pipes(pipe: str) -> None:
    """Write what nobody can read wherever it can be written, as C code may that prints to a wrong file."""
    Path(pipe).read_text()
    for number in range(3, 100):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode) or stat.S_ISFIFO(os.fstat(number).st_mode):
                os.write(number, b"\0\0\0\4what" * 2)
    time.sleep(600)


@worker.handler("beside", process=True, max_attempts=1, keep_result=60)
def beside(pipe: str) -> int:
    """Run while the handler above does what it does."""
    Path(pipe).write_text("here")
    time.sleep(0.5)
    return os.getpid()


def start_another(port: int, code: str) -> "subprocess.Popen[bytes]":
    """Start a Python process that holds a connection open for as long as it lives."""
    with socket.create_connection(("127.0.0.1", port)) as ear:
        return subprocess.Popen([sys.executable, "-c", code], stdin=ear.fileno(), stdout=ear.fileno())


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); time.sleep(600)"
ASKING = "print('here', flush=True); print(input(), flush=True)"


@worker.handler("hang_with_another", process=True, timeout=3, max_attempts=1)
def hang_with_another(port: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start_another(port, DEAF)
    time.sleep(600)


@worker.handler("leave_another", process=True, max_attempts=1)
def leave_another(port: int) -> None:
    start_another(port, DEAF)
    os._exit(0)


@worker.handler("end_amid_a_report", process=True, max_attempts=1)
def end_amid_a_report(in_its_group: bool) -> None:
    """Leave a process that holds the pipe of this one open, and end when a part of a report is written."""
    if os.fork() == 0:
        if not in_its_group:
            os.setsid()
        time.sleep(20)
        os._exit(0)
    [pipe] = [each for each in gc.get_objects() if isinstance(each, Connection) and each.writable and each.readable]
    os.write(pipe.fileno(), b"\0\0\0\x63part")
    os._exit(3)


@worker.handler("wait_with_another", process=True)
def wait_with_another(port: int) -> None:
    start_another(port, DEAF)
    time.sleep(600)


@worker.handler("wait_for_another", process=True, max_attempts=1)
def wait_for_another(port: int) -> None:
    assert start_another(port, ASKING).wait() == 0


class ApiError(Exception):
    """An error that cannot be unpickled: unpickling would call `__init__` with the text alone."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class NotYet(Snooze):
    def __init__(self) -> None:
        super().__init__(1000)


class Busy(ApiError): ...


BY_CLASS: dict[type[BaseException], Any] = {ApiError: None, Busy: Snooze(1000)}


class VeryBusy(Busy): ...


ERRORS: dict[str, Callable[[], Any]] = {
    "unreadable": lambda: ApiError(404, "gone"),
    "unprintable": Unprintable,
    "its own name": lambda: ValueError("ValueError"),
    "group": lambda: ExceptionGroup("two", [ValueError(), ApiError(1, "x")]),
    "group of decisions": lambda: ExceptionGroup("one", [Discard("never")]),
    "validation": lambda: Numbers.model_validate({"left": "x"}),
    "exit": lambda: SystemExit(3),
    "cancelled": asyncio.CancelledError,
    "iteration": lambda: StopIteration(1),
    "snooze of its own": NotYet,
    "by its base": lambda: VeryBusy(1, "busy"),
    "group by their bases": lambda: ExceptionGroup("two", [VeryBusy(1, "busy"), Busy(2, "busy")]),
    "retry": lambda: Retry(after=1000, reason="later"),
    "discard": lambda: Discard("never"),
}


def fail(which: str) -> None:
    raise ERRORS[which]()


@worker.handler("raise_in_thread", max_attempts=3, backoff=LONG, retry=BY_CLASS)
def raise_in_thread(which: str) -> None:
    fail(which)


@worker.handler("raise_in_process", process=True, max_attempts=3, backoff=LONG, retry=BY_CLASS)
def raise_in_process(which: str) -> None:
    fail(which)


@worker.handler("steps", process=True, max_attempts=1)
def steps(ctx: Context) -> None:
    ctx.step("one", int)


@worker.handler("resources", process=True, max_attempts=1)
def resources(ctx: Context) -> None:
    print(ctx.resources["database"])


async def opened(ctx: Context) -> AsyncGenerator[str, None]:
    try:
        yield f"{os.getpid()} {asyncio.get_running_loop().is_running()}"
    finally:
        await asyncio.sleep(0)
        Path(ctx.headers["file"]).write_text("closed", encoding="utf-8")


@worker.handler("depends", process=True, keep_result=60, max_attempts=1)
def depends(right: int, left: int = 1, *, where: str = Depends(opened)) -> str:
    return f"{where} {left / right}"


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@worker.handler("hidden", process=True, max_attempts=1)
@traced
async def hidden() -> None:
    await asyncio.sleep(0)
    raise LookupError("awaited")


@worker.handler("batch", process=True, batch=10, keep_result=60, max_attempts=1, timeout=60)
def batch(numbers: list[int], ctx: BatchContext) -> list[Numbers | Exception]:
    assert ctx.deadline is not None
    assert [str(number).encode() for number in numbers] == [job.payload for job in ctx.jobs]
    return [ApiError(404, "gone") if number == 4 else Numbers(left=number, right=os.getpid()) for number in numbers]


@worker.handler("unkept", process=True, keep_result=60)
def unkept() -> Any:
    return object()


@worker.handler("unkept_batch", process=True, batch=10, keep_result=60)
def unkept_batch(numbers: list[int]) -> list[Any]:
    return [object() if number == 4 else number for number in numbers]
