"""Type checkers know the payload and the result of a handler: mypy and pyright report exactly the wrong lines."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
ERROR = re.compile(r"^[^:]+:(\d+): error: .*\[([\w-]+)\]$", re.MULTILINE)

PROGRAM = """
from datetime import timedelta
from functools import wraps
from typing import Any, Awaitable, Callable, ParamSpec, TypeVar, assert_type

from jqueue import BrokerQueue, Job
from jqueue.operations import Enqueue
from jqueue.sync import SyncQueue
from jqueue.worker import BatchContext, Call, Context, Depends, Discard, Router, Snooze, Worker

P = ParamSpec("P")
R = TypeVar("R")
worker, router = Worker(concurrency=5, grace=timedelta(seconds=3)), Router(prefix="mail.", max_attempts=3)
Worker(concurency=5)  # expect-error: call-arg
Worker(grace="soon")  # expect-error: arg-type
Router(retries=3)  # expect-error: call-arg


async def around(ctx: Context, call_next: Callable[[], Awaitable[object]]) -> object: ...


class Email: ...


class Resources:
    database: str


async def opened() -> Resources: ...


def traced(function: Callable[P, R]) -> Callable[P, R]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    return call


@worker.handler("send", max_attempts=8)
@traced
async def send(email: Email, ctx: Context) -> int: ...
@worker.handler("context_first")
def context_first(ctx: Context, email: Email) -> list[int]: ...
@worker.cron("0 3 * * *")
async def nothing(ctx: Context) -> str: ...
@worker.handler("defaulted")
async def defaulted(ctx: Context, n: int = 3) -> None: ...
@worker.handler("a", retries=3)  # expect-error: call-overload
async def misspelled() -> None: ...
@worker.handler
async def nameless(email: Email) -> int: ...
@router.handler(middleware=[around], timeout=timedelta(seconds=3))
async def routed(email: Email) -> int: ...
worker.handler(5)  # expect-error: call-overload
worker.handler(retry={ValueError: 60, OSError: Discard, KeyError: Snooze(3), TimeoutError: None})
worker.handler(retry=60)  # expect-error: call-overload
worker.include(worker.handlers)  # expect-error: arg-type
@worker.handler
async def with_resources(email: Email, ctx: Context[Resources]) -> None:
    assert_type(ctx.resources, Resources)
    ctx.resources.databse  # expect-error: attr-defined
@worker.handler(batch=3)
async def batch_with_resources(emails: list[Email], ctx: BatchContext[Resources]) -> None:
    assert_type(ctx[0].resources.database, str)
@worker.handler
async def anything(payload: Any, second: Any) -> None: ...
@worker.handler
async def needs_with_default(ctx: Context, to: str, width: int = 3, db: Resources = Depends(opened)) -> None: ...
@worker.handler("resize")
async def resize(path: str, width: int = 640, *, height: int = 480) -> None: ...
@worker.handler("move")
async def move(source: str, target: str, ctx: Context) -> None: ...
@worker.handler("between")
async def between(path: str, ctx: Context, width: int = 640) -> None: ...
@worker.handler("batch", batch=500, batch_wait=2, max_attempts=8)
async def in_batches(emails: list[Email], ctx: BatchContext) -> list[int | Exception] | None: ...



async def payloads(queue: BrokerQueue, ctx: Context) -> None:
    assert_type(await send.using(queue, priority=3, delay=60, deadline=5).enqueue(Email()), Job)
    (await send.using(queue).enqueue(Email())).ident  # expect-error: attr-defined
    await send.using(queue).enqueue("x")  # expect-error: arg-type
    await send.using(queue).enqueue()  # expect-error: call-arg
    send.using(queue).enqueue(Email())  # expect-error: unused-coroutine
    send.using(queue, dely=3)  # expect-error: call-arg
    send.call("x")  # expect-error: arg-type
    await context_first.using(queue).enqueue(Context)  # expect-error: arg-type
    await context_first.using(queue).enqueue(email=Email())
    await nothing.using(queue).enqueue(3)  # expect-error: call-arg
    assert_type(await defaulted.using(queue).enqueue(), Job)
    await defaulted.using(queue).enqueue("3")  # expect-error: arg-type
    assert_type(await in_batches.using(queue, priority=3).enqueue(Email()), Job)
    assert_type(await nameless.using(queue).enqueue(Email()), Job)
    await routed.using(queue).enqueue("x")  # expect-error: arg-type
    await in_batches.using(queue).enqueue([Email()])  # expect-error: arg-type
    await queue.enqueue_many([send.using(job_id="a").call(Email()), nothing.call(), Enqueue("a")])
    await queue.enqueue_many([send])  # expect-error: list-item
    ctx.on_ack(defaulted.call(3), Enqueue("a"))
    assert_type(context_first.call(Email()), Call[list[int]])
    assert_type(defaulted.call(3).operation(), Enqueue)


async def arguments(queue: BrokerQueue) -> None:
    assert_type(await resize.using(queue).enqueue("p", 3, height=5), Job)
    await resize.using(queue).using(delay=3).enqueue(path="p", width=3)
    await resize.using(queue).enqueue("p", width="3")  # expect-error: arg-type
    await resize.using(queue).enqueue("p", m=2)  # expect-error: call-arg
    assert_type(await move.using(queue).enqueue("a", "b"), Job)
    await move.using(queue).enqueue("a", 3)  # expect-error: arg-type
    assert_type(await between.using(queue).enqueue("p", width=3), Job)
    await between.using(queue).enqueue(3)  # expect-error: arg-type
    assert_type(await with_resources.using(queue).enqueue(Email()), Job)
    await with_resources.using(queue).enqueue(3)  # expect-error: arg-type
    await batch_with_resources.using(queue).enqueue(Email())
    await batch_with_resources.using(queue).enqueue(3)  # expect-error: arg-type
    await needs_with_default.using(queue).enqueue("p", width=3)
    await needs_with_default.using(queue).enqueue("p", width="3")  # expect-error: arg-type
    await anything.using(queue).enqueue(second="a", payload=3)


async def bound(queue: BrokerQueue) -> None:
    worker.bind(queue)
    worker.bind(SyncQueue("memory://"))
    worker.bind("memory://")  # expect-error: arg-type
    await send.enqueue(Email())
    await send.enqueue("x")  # expect-error: arg-type
    send.enqueue(Email())  # expect-error: unused-coroutine
    await nothing.enqueue("x")  # expect-error: call-arg
    await resize.using(delay=3).enqueue("p", width=3)
    assert_type(await send.result("a", timeout=3), int)
    await worker.run(drain=True)


async def calls(job: Job, ctx: Context) -> None:
    assert_type(await send(email=Email(), ctx=ctx), int)
    assert_type(context_first(ctx, Email()), list[int])
    await send("x", ctx)  # expect-error: arg-type


def blocking(queue: SyncQueue, job: Job) -> None:
    assert_type(send.using(queue, priority=3, deadline=5).enqueue_sync(Email()), Job)
    send.using(queue).enqueue_sync("x")  # expect-error: arg-type
    assert_type(send.using(queue).result_sync(job), int)
"""


def expected(program):
    """The error code that mypy must report, by line number."""
    lines = enumerate(program.splitlines(), 1)
    return {number: line.split("# expect-error: ")[1] for number, line in lines if "# expect-error: " in line}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


@pytest.mark.full
def test_mypy_reports_exactly_the_wrong_payloads_options_and_results(path):
    options = ["--strict", "--no-pretty", "--show-error-codes", "--disable-error-code=empty-body"]
    own = ["--config-file=", f"--cache-dir={path.parent / 'cache'}", "--follow-imports=silent"]
    output, problems, _ = api.run([*options, *own, str(path)])
    assert "" == problems
    found: dict[int, set[str]] = {}
    for line, code in ERROR.findall(output):
        found.setdefault(int(line), set()).add(code)
    assert expected(PROGRAM).keys() == found.keys(), output
    assert all(code in found[line] for line, code in expected(PROGRAM).items()), output


@pytest.mark.wide
def test_pyright_reports_them_too(path):
    """It is the checker of many editors."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, path.name]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    ended = subprocess.run(command, cwd=path.parent, env=env, capture_output=True, text=True, check=False)
    errors = [each for each in json.loads(ended.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    assert expected(PROGRAM).keys() == {each["range"]["start"]["line"] + 1 for each in errors}, ended.stdout
