"""Assertions on waiting jobs, and a queue whose jobs run at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from jqueue import DirectQueue, Exponential, InMemoryStorage, InvalidJobError, SyncQueue
from jqueue.testing import (
    FakeClock,
    LongestWaits,
    WorkerTester,
    assert_enqueued,
    assert_not_enqueued,
    enqueued,
)
from jqueue.worker import Context, Worker


class Email(BaseModel):
    to: str


app = Worker()
ran: list[object] = []


@app.handler("mail")
async def mail(email: Email) -> None: ...


@app.handler("resize", priority=3)
async def resize(path: str, width: int = 640) -> None: ...


@app.handler("flaky", backoff=Exponential(base=3600, cap=36000))
async def flaky(ctx: Context) -> int:
    if ctx.attempt < 3:
        raise ValueError("not yet")
    return ctx.attempt


@app.handler("outer")
async def outer(n: int) -> None:
    await inner.enqueue(n + 1)
    ran.append("outer")


@app.handler("inner", max_attempts=1)
async def inner(n: int) -> None:
    ran.append(n)
    if n < 0:
        raise ValueError("negative")


@app.handler("in_a_thread")
def in_a_thread(n: int) -> None:
    inner.enqueue_sync(n)


@pytest.fixture
def tester():
    clock = FakeClock()
    ran.clear()
    return WorkerTester(
        DirectQueue(InMemoryStorage(clock=clock), clock=clock, entropy=LongestWaits(), poll_interval=0.02), clock
    )


async def test_waiting_jobs_are_asserted_by_their_arguments_and_options(tester):
    queue = tester.queue
    await assert_not_enqueued(queue, mail)
    assert [] == await enqueued(queue)
    job = await mail.using(queue, delay=60, headers={"a": "b"}).enqueue(Email(to="ada"))
    await resize.using(queue).enqueue("cat.png", width=3)
    await queue.enqueue("other", b"x", 5)
    assert job == await assert_enqueued(
        queue, mail.using(delay=timedelta(minutes=1), headers={"a": "b"}), Email(to="ada")
    )
    assert job == await assert_enqueued(queue, mail) == await assert_enqueued(queue, "mail", delay=60)
    await assert_enqueued(queue, resize, width=3, path="cat.png")
    await assert_enqueued(queue, resize.using(priority=3), "cat.png", 3)
    await assert_enqueued(queue, "other", b"x", priority=5)
    assert ["cat.png"] == [resize.signature.parse(each)["path"] for each in await enqueued(queue, resize)]
    absent: list[tuple[Any, dict[str, Any]]] = [
        ((mail, Email(to="eve")), {}),
        ((mail.using(delay=61), Email(to="ada")), {}),
        ((mail.using(headers={}),), {}),
        ((resize, "cat.png"), {}),
        ((resize.using(priority=4),), {}),
        (("other", b"y"), {}),
        ((flaky,), {}),
    ]
    for arguments, options in absent:
        await assert_not_enqueued(queue, *arguments, **options)
        with pytest.raises(AssertionError, match="no waiting job of"):
            await assert_enqueued(queue, *arguments, **options)
    with pytest.raises(AssertionError, match="a waiting job of 'mail' has"):
        await assert_not_enqueued(queue, mail, Email(to="ada"))
    with pytest.raises(InvalidJobError):
        await assert_enqueued(queue, mail, 3)
    with pytest.raises(InvalidJobError, match="wdth"):
        await assert_enqueued(queue, resize, "cat.png", wdth=3)


async def test_the_error_shows_the_arguments_of_the_handlers_jobs_and_counts_the_others(tester):
    await mail.using(tester.queue).enqueue(Email(to="ada"))
    await tester.queue.enqueue("mail", b"unreadable")
    await resize.using(tester.queue).enqueue("secret.png")
    with pytest.raises(AssertionError) as caught:
        await assert_enqueued(tester.queue, mail.using(delay=60), Email(to="eve"))
    first, *jobs, others = str(caught.value).splitlines()
    assert "{'email': Email(to='eve'), 'delay': datetime.timedelta(seconds=60)}; its waiting jobs:" in first
    assert "  {'email': Email(to='ada'), 'delay': None}" == jobs[0]
    assert (2, "other waiting jobs: 1 of 'resize'") == (len(jobs), others)
    assert "unreadable" not in jobs[1]


def test_a_blocking_queue_needs_no_await():
    queue = SyncQueue(DirectQueue(InMemoryStorage()))
    assert_not_enqueued(queue, mail)
    job = mail.using(queue).enqueue_sync(Email(to="ada"))
    assert ([job], job) == (enqueued(queue), assert_enqueued(queue, mail, Email(to="ada")))


async def test_inline_jobs_end_with_the_call_that_adds_them_however_often_they_fail(tester):
    with tester.inline(app) as queue:
        job = await flaky.using(delay=3600, keep_result=60).enqueue()
        assert ["failed", "failed", "succeeded"] == tester.report.outcomes
        assert 3 == await flaky.result(job)
        await outer.enqueue(1)
        assert {"outer", 2} == set(ran)
        await asyncio.gather(inner.enqueue(3), inner.enqueue(4), queue.enqueue_many([inner.call(5)]))
        assert {3, 4, 5} == set(ran[2:])
    assert () == app.queues()


async def test_an_inline_call_raises_the_error_of_a_dead_job_unless_told_not_to(tester):
    with tester.inline(app), pytest.raises(ValueError, match="negative") as caught:
        await outer.enqueue(-3)
    assert "(inner, attempt 1) is dead" in caught.value.__notes__[0]
    with tester.inline(app, raise_errors=False):
        await inner.enqueue(-1)
        assert ["dead"] == tester.report.outcomes
        await inner.enqueue(1)
        await tester.run_until_idle(app)


def test_inline_jobs_of_a_blocking_queue_run_at_once_also_those_that_a_thread_adds(tester):
    with tester.inline(app) as queue:
        blocking = SyncQueue(queue)
        app.bind(blocking)
        in_a_thread.enqueue_sync(7)
        assert [7] == ran
        blocking.close()


async def test_an_inline_job_that_is_added_when_the_worker_ends_runs_in_the_same_call(tester):
    ending = Worker()

    @ending.handler
    async def work(n: int) -> None:
        ran.append(n)

    @ending.lifespan
    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        yield
        if 2 not in ran:
            await work.enqueue(2)

    with tester.inline(ending):
        await work.enqueue(1)
        assert [1, 2] == ran
