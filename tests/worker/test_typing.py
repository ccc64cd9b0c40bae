"""Type checkers know the payload and the result of a handler: mypy reports exactly the wrong lines."""

import re
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
ERROR = re.compile(r"^[^:]+:(\d+): error: .*\[([\w-]+)\]$", re.MULTILINE)

PROGRAM = """
from functools import wraps
from typing import Any, Callable, ParamSpec, TypeVar, assert_type

from jqueue import BrokerQueue, Job
from jqueue.operations import Enqueue
from jqueue.sync import SyncQueue
from jqueue.worker import BatchContext, Context, Handler, Worker

P = ParamSpec("P")
R = TypeVar("R")
worker, other = Worker(), Worker()


class Email: ...


class Newsletter(Email): ...


def traced(function: Callable[P, R]) -> Callable[P, R]:
    return wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))


@worker.handler("send", max_attempts=8)
async def send(email: Email, ctx: Context) -> int: ...
@worker.handler("context_first")
async def context_first(ctx: Context, email: Email) -> list[int]: ...
@worker.handler("plain")
def plain(text: str) -> bytes: ...
@worker.handler("told")
async def told(ctx: Context) -> None: ...
@worker.cron("0 3 * * *")
async def nothing() -> str: ...
@worker.handler("defaulted")
async def defaulted(ctx: Context, n: int = 3) -> None: ...
@worker.handler("by_name")
async def by_name(n: int, *, ctx: Context) -> None: ...
@other.handler("again")
@worker.handler("once")
@traced
async def stacked(pair: tuple[int, int], ctx: Context) -> float: ...
@worker.handler("a", retries=3)  # expect-error: call-overload
async def misspelled() -> None: ...
@worker.handler()  # expect-error: call-overload
async def nameless() -> None: ...
@worker.handler("batch", batch=500, batch_wait=2, max_attempts=8)
async def in_batches(emails: list[Email], ctx: BatchContext) -> list[int | Exception] | None: ...


async def payloads(queue: BrokerQueue) -> None:
    assert_type(await send.enqueue(queue, Email(), priority=3, delay=60, deadline=5), Job)
    await send.enqueue(queue, "x")  # expect-error: arg-type
    await send.enqueue(queue)  # expect-error: call-arg
    await send.enqueue(Email())  # expect-error: call-arg
    await send.enqueue(queue, Email(), dely=3)  # expect-error: call-arg
    await context_first.enqueue(queue, Context)  # expect-error: arg-type
    await told.enqueue(queue, unique_key="a")
    await told.enqueue(queue, 3)  # expect-error: call-arg
    assert_type(await defaulted.enqueue(queue), Job)
    await defaulted.enqueue(queue, "3")  # expect-error: arg-type
    await by_name.enqueue(queue, 3)
    assert_type(await in_batches.enqueue(queue, Newsletter(), priority=3), Job)
    await in_batches.enqueue(queue, [Email()])  # expect-error: arg-type
    await stacked.enqueue(queue, (1, "2"))  # expect-error: arg-type


def blocking(queue: SyncQueue, job: Job) -> None:
    assert_type(send.enqueue(queue, Email(), priority=3, deadline=5), Job)
    send.enqueue(queue, "x")  # expect-error: arg-type
    assert_type(send.result(queue, job), int)


async def forgotten(queue: BrokerQueue) -> None:
    send.enqueue(queue, Email())  # expect-error: unused-coroutine


def operations() -> list[Enqueue]:
    send.operation("x")  # expect-error: arg-type
    return [send.operation(Email(), job_id="a"), nothing.operation(), by_name.operation(3)]


async def results(queue: BrokerQueue, job: Job, some: Handler[..., Any]) -> None:
    assert_type(await send.result(queue, job), int)
    assert_type(await stacked.result(queue, job), float)
    assert_type(await some.result(queue, job), Any)
    await some.enqueue(queue, 3)


async def calls(ctx: Context) -> None:
    assert_type(await send(email=Email(), ctx=ctx), int)
    assert_type(plain("x"), bytes)
    await send("x", ctx)  # expect-error: arg-type
"""


def expected(program):
    """The error code that mypy must report, by line number."""
    lines = enumerate(program.splitlines(), 1)
    return {number: line.split("# expect-error: ")[1] for number, line in lines if "# expect-error: " in line}


@pytest.mark.full
def test_mypy_reports_exactly_the_wrong_payloads_options_and_results(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    options = ["--strict", "--no-pretty", "--show-error-codes", "--disable-error-code=empty-body"]
    own = ["--config-file=", f"--cache-dir={tmp_path / 'cache'}", "--follow-imports=silent"]
    output, problems, _ = api.run([*options, *own, str(path)])
    assert "" == problems
    found: dict[int, set[str]] = {}
    for line, code in ERROR.findall(output):
        found.setdefault(int(line), set()).add(code)
    assert expected(PROGRAM).keys() == found.keys(), output
    assert all(code in found[line] for line, code in expected(PROGRAM).items()), output
