"""Plain jobs, which one coroutine of a lane does: their outcomes are those of jobs that a lane does one by one."""

import asyncio
import functools
from contextvars import ContextVar
from typing import Any

import pytest

from jqueue.domain.models import Job
from jqueue.spark.batch.children import in_order
from jqueue.spark.batch.partition_queue import PartitionQueue
from jqueue.spark.batch.partition_rows import PartitionRows
from jqueue.worker import Discard, Retry, Snooze, Worker, loop_lanes
from jqueue.worker.lanes import NEAR
from jqueue.worker.loop_lanes import LoopLanes
from jqueue.worker.signatures import gives_coroutine

variable: ContextVar[bytes] = ContextVar("variable", default=b"unset")


def hidden(function):
    """Hide that a function is async from lanes: each of its jobs is then done by itself."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


def own_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def raising(error):
    async def misdeed(rows):
        raise error

    return misdeed


def returning(make):
    async def misdeed(rows):
        return make()

    return misdeed


async def raises_after_a_wait(rows):
    await asyncio.sleep(0)
    raise ValueError("late")


async def returns_a_coroutine_after_a_wait(rows):
    await asyncio.sleep(0)
    return asyncio.sleep(0)


async def waits_for_ever(rows):
    await asyncio.Event().wait()


async def ignores_its_timeout(rows):
    while len(rows.marks[:].replace(b"\3", b"")) > 1:
        await asyncio.sleep(0)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return


async def cancels_its_task(rows):
    own_task().cancel()


async def cancels_its_task_and_waits(rows):
    own_task().cancel()
    await asyncio.sleep(0)


async def cancels_its_task_and_thinks_better_of_it(rows):
    own_task().cancel()
    try:
        await asyncio.sleep(0)
    finally:
        own_task().uncancel()


async def changes_a_variable(rows):
    assert variable.get() == b"unset"
    variable.set(b"changed")


async def swallows_a_cancellation_of_its_own(rows):
    inner = asyncio.ensure_future(asyncio.sleep(3600))
    asyncio.get_running_loop().call_soon(inner.cancel)
    try:
        await inner
    except asyncio.CancelledError:
        return


async def cancels_jobs_behind_it(rows):
    """Cancel the last job, and others of the same look at the rows."""
    rows.cancelled |= {len(rows) - 1, rows.current + 2}
    await asyncio.sleep(0)


async def takes_a_turn(rows):
    loop = asyncio.get_running_loop()
    until = loop.time() + 0.006  # longer than a turn of a lane
    while loop.time() < until:
        pass


MISDEEDS = {
    "nothing": returning(lambda: None),
    "a value": returning(lambda: "a value"),
    "a coroutine": returning(lambda: asyncio.sleep(0)),
    "a future": returning(lambda: asyncio.get_running_loop().create_future()),
    "ValueError": raising(ValueError("no")),
    "Retry": raising(Retry(after=7, reason="later")),
    "Discard": raising(Discard("never")),
    "Snooze": raising(Snooze(9)),
    "SystemExit": raising(SystemExit(3)),
    "CancelledError": raising(asyncio.CancelledError("mine")),
    "GeneratorExit": raising(GeneratorExit()),
    "StopIteration": raising(StopIteration("value")),
    "StopAsyncIteration": raising(StopAsyncIteration()),
    "BaseException": raising(BaseExceptionGroup("several", [SystemExit(1)])),
    **{
        misdeed.__name__: misdeed
        for misdeed in (
            raises_after_a_wait,
            returns_a_coroutine_after_a_wait,
            waits_for_ever,
            ignores_its_timeout,
            cancels_its_task,
            cancels_its_task_and_waits,
            cancels_its_task_and_thinks_better_of_it,
            changes_a_variable,
            swallows_a_cancellation_of_its_own,
            cancels_jobs_behind_it,
            takes_a_turn,
        )
    },
}


async def done(misdeed, *, is_plain, jobs=8, at=(2, 3, 6), concurrency=3, cancel_grace=0.02):
    """Do jobs, some of which misbehave. Return what is known of each, the order of the calls, and the report."""
    worker, called = Worker(concurrency=concurrency, cancel_grace=cancel_grace), []

    async def work(payload: bytes) -> Any:
        called.append(int(payload))
        return await misdeed(rows) if int(payload) in at else None

    worker.handler("work", max_attempts=2, timeout=0.02)(work if is_plain else hidden(work))
    fields: dict[str, Any] = {"entrypoint": "work", "attempt": 1, "failures": 1}
    rows = PartitionRows.of_jobs([Job(id=f"job {n}", payload=b"%d" % n, **fields) for n in range(jobs)])
    told: list[Any] = []
    queue: Any = PartitionQueue(rows, lambda begun: None, told.extend, make_queue=lambda: pytest.fail("no queue"))
    async with asyncio.timeout(60):
        report = await worker.run(queue, drain=True, signals=False)
    known = [(each.job_id, each.kind, each.error, (each.delay or 0) > 1.5) for each in in_order(rows, told)]
    return known, called, bytes(rows.marks[:]), report


@pytest.fixture
def one_by_one(monkeypatch):
    """The places of the jobs that lanes do one by one."""
    places: list[int] = []
    do = LoopLanes._do

    def noted(self, taken, *rest):
        places.extend(taken)
        return do(self, taken, *rest)

    monkeypatch.setattr(LoopLanes, "_do", noted)
    return places


@pytest.mark.parametrize("misdeed", MISDEEDS.values(), ids=MISDEEDS.keys())
async def test_jobs_end_the_same_way_together_and_one_by_one(misdeed, one_by_one):
    together, calls, marks, report = await done(misdeed, is_plain=True)
    assert ([*range(3, 8)] if misdeed is cancels_jobs_behind_it else []) == one_by_one
    one_by_one.clear()
    alone, calls_alone, marks_alone, report_alone = await done(misdeed, is_plain=False)
    assert one_by_one
    assert (alone, calls_alone, marks_alone) == (together, calls, marks)
    assert report_alone == report
    assert 8 == len(together)


@pytest.mark.parametrize("is_plain", [True, False])
def test_an_interrupt_of_the_terminal_ends_the_worker(is_plain):
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(done(raising(KeyboardInterrupt()), is_plain=is_plain))


async def test_jobs_of_several_looks_are_all_done_in_order(one_by_one):
    jobs = 2 * NEAR + 7
    known, calls, _, _ = await done(raising(Discard("no")), is_plain=True, jobs=jobs, at={NEAR - 1, NEAR, jobs - 1})
    assert list(range(jobs)) == calls
    assert not one_by_one
    assert ["dead" if n in (NEAR - 1, NEAR, jobs - 1) else "done" for n in range(jobs)] == [
        kind for _, kind, *_ in known
    ]


async def test_the_event_loop_has_its_turn_between_jobs(monkeypatch):
    monkeypatch.setattr(loop_lanes, "TURN", 0.0)
    turns: list[int] = []

    async def misdeed(rows):
        asyncio.get_running_loop().call_soon(lambda: turns.append(rows.current))

    await done(misdeed, is_plain=True)
    assert [2, 3, 6] == turns


async def test_jobs_of_which_more_is_known_are_done_one_by_one(one_by_one):
    worker = Worker(concurrency=1)

    @worker.handler("work", max_attempts=2)
    async def work(payload: bytes) -> None:
        """Do nothing."""

    @worker.handler("other")
    async def other() -> None:
        """Do nothing."""

    jobs = [Job(id=f"job {n}", entrypoint="work", payload=b"", attempt=1, failures=1) for n in range(4 * NEAR)]
    jobs[3] = jobs[3].evolve(failures=3)
    jobs[NEAR + 3] = jobs[NEAR + 3].evolve(entrypoint="other")
    jobs[2 * NEAR + 3] = jobs[2 * NEAR + 3].evolve(keep_result=60.0)
    rows, told = PartitionRows.of_jobs(jobs), list[Any]()
    queue: Any = PartitionQueue(rows, lambda begun: None, told.extend, make_queue=lambda: pytest.fail("no queue"))
    async with asyncio.timeout(60):
        report = await worker.run(queue, drain=True, signals=False)
    assert [*range(3 * NEAR)] == one_by_one  # the last look found nothing special
    kinds = [(outcome.job_id, outcome.kind) for outcome in told]
    assert [("job 3", "dead"), (f"job {2 * NEAR + 3}", "done")] == kinds
    assert (len(jobs) - 1, 1) == (report.succeeded, report.dead)


async def test_handlers_of_any_payload_and_of_none_are_plain(one_by_one):
    seen: list[Any] = []

    class Things:
        async def number(self, number: int) -> None:
            seen.append(number)

    async def text(*, payload: str, more: int = 1) -> None:
        seen.append(payload)

    async def nothing() -> None:
        seen.append(None)

    async def raw(payload: bytes) -> None:
        seen.append(payload)

    for function in (Things().number, text, nothing, raw):
        worker = Worker(concurrency=1)
        worker.handler("work", max_attempts=1)(function)
        rows = PartitionRows.of_jobs(
            [Job(id=p.hex(), entrypoint="work", payload=p, attempt=1) for p in (b"7", b"\xff")]
        )
        told: list[Any] = []
        queue: Any = PartitionQueue(rows, lambda begun: None, told.extend, make_queue=lambda: pytest.fail("no queue"))
        await worker.run(queue, drain=True, signals=False)
        assert ["ff"] * (function not in (nothing, raw)) == [each.job_id for each in told if each.kind == "dead"]
    assert [7, "7", None, None, b"7", b"\xff"] == seen
    assert not one_by_one


def test_only_functions_whose_every_call_gives_a_coroutine_are_plain():
    async def work() -> None:
        """Do nothing."""

    class Callable:
        async def __call__(self) -> None:
            """Do nothing."""

    assert gives_coroutine(work)
    assert gives_coroutine(Callable().__call__)
    assert not gives_coroutine(hidden(work))
    assert not gives_coroutine(Callable())
    assert not gives_coroutine(functools.partial(work))
    assert not gives_coroutine(lambda: None)
