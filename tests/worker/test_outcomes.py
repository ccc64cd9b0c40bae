"""Outcomes of jobs: what handlers raise, return too late or add to the ack, and claims that are lost meanwhile."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from jqueue import InMemoryStorage
from jqueue.operations import Enqueue
from jqueue.testing.fake_clock import LongestWaits
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import EPOCH, VirtualClock
from jqueue.worker import Context, Discard, Exponential, Retry, RetryRule, Router, RunReport, Snooze, Worker
from tests.virtual_world import now
from tests.worker.scenes import DEAD, LONG, QUEUED, SECRET, broker, drained, only_job, stubborn, until, working

pytestmark = pytest.mark.virtual_time


async def once(queue, worker, **enqueue):
    """Run one job of "work" once. Returns the job as it is then, and the report."""
    await queue.enqueue("work", b"", **enqueue)
    report = await drained(worker, queue)
    return await only_job(queue), report


def raising(error, **options) -> Worker:
    worker = Worker()

    @worker.handler("work", **options)
    async def work() -> None:
        raise error

    return worker


async def test_the_delay_is_drawn_below_a_bound_that_doubles_up_to_its_cap():
    waits = []
    async with broker(entropy=LongestWaits()) as queue:  # draws the bound
        await queue.enqueue("work", b"")
        for _ in range(5):
            assert RunReport(failed=1) == await drained(raising(ValueError("x"), backoff=Exponential(2, 20)), queue)
            waits.append(((await only_job(queue)).run_at - EPOCH).total_seconds() - now())
            await asyncio.sleep(20)
    assert [2, 4, 8, 16, 20] == [round(wait) for wait in waits]


def parsed(text, depth):
    """Parse JSON below a number of calls."""
    return json.loads(text) if not depth else parsed(text, depth - 1)


async def test_the_last_frames_of_a_failure_are_stored_without_the_payload(caplog):
    worker = Worker()

    @worker.handler("work", backoff=LONG)
    async def work(text: str) -> None:
        parsed(text, 300)

    line = parsed.__code__.co_firstlineno + 2
    place = f"tests/worker/test_outcomes.py:{line} in parsed"
    async with broker() as queue:
        await queue.enqueue("work", SECRET.encode())
        assert RunReport(failed=1) == await drained(worker, queue)
        job = await only_job(queue)
    frames = job.traceback.splitlines()
    assert (place, True) == (frames[0], frames[-1].startswith("json/decoder.py:"))
    assert job.error.endswith(f" (tests/worker/test_outcomes.py:{line})")
    assert len(job.traceback.encode()) <= 1024
    assert f"JSONDecodeError at {place}; next try" in caplog.text
    assert SECRET not in job.error + job.traceback + caplog.text


def nested(first, *errors):
    """A group of errors, the first of them in a group of its own, as a task group in a task group raises it."""
    return ExceptionGroup("outer", [*errors, ExceptionGroup("inner", [first])])


async def test_an_exception_group_is_stored_with_the_texts_of_all_its_errors():
    async with broker() as queue:
        job, report = await once(queue, raising(nested(ValueError("no such address"), Discard("gone"))))
        assert RunReport(failed=1) == report
        assert all(text in job.error for text in ("ExceptionGroup: ", "ValueError: no such address", "Discard: gone"))


async def test_max_attempts_of_a_job_override_those_of_its_handler():
    async with broker() as queue:
        job, report = await once(queue, raising(ValueError(), max_attempts=5), max_attempts=1)
        assert (DEAD, RunReport(dead=1)) == (job.status, report)
    async with broker() as queue:
        job, report = await once(queue, raising(ValueError(), max_attempts=1, backoff=LONG), max_attempts=5)
        assert (QUEUED, RunReport(failed=1)) == (job.status, report)


RULES: RetryRule = {
    OSError: 60,
    ConnectionError: Discard,
    TimeoutError: Snooze(100),
    KeyError: Retry,
    ArithmeticError: None,
    Exception: timedelta(hours=1),
}
"""The waits of its backoff would be far above all of these: see `LONG`."""


DECISIONS = [
    (FileNotFoundError("x"), "failed", 60),  # the most specific class counts
    (ConnectionResetError("x"), "dead", None),
    (TimeoutError("x"), "snoozed", 100),
    (ValueError("x"), "failed", 3600),
    (KeyError("x"), "failed", None),  # the backoff
    (ZeroDivisionError("x"), "failed", None),
    (BaseException("x"), "failed", None),
    (Discard("gone"), "dead", None),  # what the handler asks for itself comes first
    (Retry(after=9), "failed", 9),
    (ExceptionGroup("two", [OSError("x"), TimeoutError("y")]), "failed", 60),
    (ExceptionGroup("two", [OSError("x"), ConnectionError("y"), TimeoutError("z")]), "dead", None),
    (ExceptionGroup("two", [Snooze(5), TimeoutError("y")]), "snoozed", 100),
    (ExceptionGroup("two", [OSError("x"), ZeroDivisionError("y")]), "failed", None),  # one asks for the backoff
    ((Discard("gone"), Retry(after=9), Snooze(10)), "dead", None),  # a group of decisions alone acts as one of them
    ((Retry(after=60), Retry(after=9), Snooze(100)), "failed", 60),
    ((Snooze(60), Snooze(9)), "snoozed", 60),
]
"""Errors, or the errors of a group in a group, the first of which is stored; and what becomes of their jobs."""


@pytest.mark.parametrize(
    ("place", "error", "kind", "delay"),
    [*(("handler", *each) for each in DECISIONS), ("router", *DECISIONS[0]), ("worker", *DECISIONS[0])],
)
async def test_retry_decides_by_the_class_of_an_error_and_the_backoff_about_all_others(place, error, kind, delay):
    others: RetryRule = {Exception: 7}
    worker = Worker(retry=RULES if place == "worker" else others)
    router: Any = Router(retry=RULES) if place == "router" else Router()

    async def work() -> None:
        raise nested(*error) if isinstance(error, tuple) else error

    router.handler("work", backoff=LONG, **({"retry": RULES} if place == "handler" else {}))(work)
    worker.include(router)
    async with broker(entropy=LongestWaits()) as queue:
        job, report = await once(queue, worker)
    assert 1 == getattr(report, kind) == report.total
    assert (DEAD if kind == "dead" else QUEUED, 0 if kind == "snoozed" else 1) == (job.status, job.failures)
    if kind != "snoozed":
        stored = error[0] if isinstance(error, tuple) else error
        assert job.error.startswith(f"{type(stored).__name__}: ")
    if kind != "dead":
        wait = (job.run_at - EPOCH).total_seconds()
        assert wait > 3700 if delay is None else delay == pytest.approx(wait, abs=1)


async def test_delays_of_retry_count_as_failures_and_a_function_gets_the_error_and_their_number():
    seen = []

    def rule(error, failures):
        seen.append((str(error), failures))
        return 10 * failures

    async with broker() as queue:
        worker = raising(ValueError("x"), retry=rule, max_attempts=3)
        waits = []
        for _ in range(3):
            job, _ = await once(queue, worker, job_id="a")
            waits.append(job.run_at and round((job.run_at - EPOCH).total_seconds() - now()))
            await asyncio.sleep(60)
    assert ([("x", 1), ("x", 2), ("x", 3)], [10, 20], DEAD) == (seen, waits[:2], job.status)


async def test_the_timeout_of_a_handler_is_a_timeout_error_for_retry():
    worker = Worker(cancel_grace=1)

    @worker.handler("work", timeout=5, retry={TimeoutError: Discard})
    async def work() -> None:
        await asyncio.sleep(100)

    async with broker() as queue:
        job, report = await once(queue, worker)
    assert (DEAD, RunReport(dead=1), "timed out after 5 s") == (job.status, report, job.error)


async def test_a_bad_payload_is_dead_whatever_retry_says():
    worker = Worker(retry={Exception: Snooze(60)})

    @worker.handler("work")
    async def work(number: int) -> None: ...

    async with broker() as queue:
        assert (DEAD, RunReport(dead=1)) == ((found := await once(queue, worker))[0].status, found[1])


@pytest.mark.parametrize(
    "answer", [KeyError(SECRET), SystemExit(SECRET), asyncio.CancelledError(), "soon", -1, Snooze], ids=repr
)
async def test_a_retry_function_that_fails_leaves_the_decision_to_the_backoff_and_is_logged(answer, caplog):
    def rule(error, failures):
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async with broker(entropy=LongestWaits()) as queue:
        job, report = await once(queue, raising(ValueError("x"), retry=rule, backoff=LONG))
    assert (QUEUED, RunReport(failed=1)) == (job.status, report)
    assert (job.run_at - EPOCH).total_seconds() > 3700
    kind = type(answer).__name__ if isinstance(answer, BaseException) else "InvalidJobError"
    assert f"(work): its retry=... failed with {kind}, so the backoff decides" in caplog.text
    assert SECRET not in caplog.text


class Mute(Exception):
    def __str__(self):
        raise RuntimeError


class Broken:
    """A backoff with a bug."""

    def bound(self, failures):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), Mute()]
)
async def test_no_exception_costs_more_than_an_attempt_of_its_job(error):
    worker, done = raising(error, max_attempts=2, backoff=Broken()), []

    @worker.handler("other")
    async def other() -> None:
        done.append(1)

    async with broker(entropy=LongestWaits()) as queue:
        await queue.enqueue("work", b"")
        await queue.enqueue("other", b"")
        # With its handling of signals, an interrupt must come from the handler.
        assert RunReport(succeeded=1, failed=1) == await worker.run(queue, drain=True)
        await asyncio.sleep(3600)
        assert RunReport(dead=1) == await worker.run(queue, drain=True)
        job = await only_job(queue)
    assert (DEAD, 2, [1]) == (job.status, job.failures, done)
    assert job.error.startswith(type(error).__name__)


async def test_a_handler_that_ignores_cancellation_keeps_its_claim_and_its_place_in_limits_until_it_ends():
    begun, ended = [], []

    def stubborn(name):
        worker = Worker(cancel_grace=5, claim_timeout=30, name=name)

        @worker.handler("work", timeout=10, max_running=1, backoff=Exponential(base=1, cap=1))
        async def work() -> None:
            begun.append(start := now())
            while now() < start + 100:
                try:
                    await asyncio.sleep(1)
                except asyncio.CancelledError:
                    continue
            ended.append(now())

        return worker

    async with broker() as queue, broker(queue.storage) as other:
        for _ in range(2):
            await queue.enqueue("work", b"")
        async with working(stubborn("one"), queue), working(stubborn("two"), other):
            await asyncio.sleep(90)
            assert ([1], [0, 1]) == ([len(begun)], sorted(job.failures for job in (await queue.read_state()).jobs))
            await asyncio.sleep(60)
            [failed, _] = sorted((await queue.read_state()).jobs, key=lambda job: job.created_at)
            assert "timed out after 10 s, and still ran after it was told to stop" == failed.error
            await asyncio.sleep(60)
    assert all(end <= next_begin for end, next_begin in zip(ended, begun[1:], strict=False))
    assert len(begun) >= 2


async def test_a_handler_that_goes_on_after_its_claim_is_lost_keeps_its_slot_until_it_ends():
    worker, over = stubborn(timeout=None, concurrency=1, claim_timeout=30, cancel_grace=5)
    done = []

    async def following() -> None:
        done.append(now())

    worker.handler("next")(following)
    async with broker() as queue, working(worker, queue):
        await queue.enqueue("work", b"")
        await asyncio.sleep(1)
        await queue.requeue_stale(0)
        assert await queue.dequeue("work"), "another worker has the job"
        await asyncio.sleep(60)
        await queue.enqueue("next", b"")
        await asyncio.sleep(60)
        assert not done
        over.set()
        await until(lambda: done)


# Claims that are lost, and cancelled jobs


# The context, and what goes with the ack


async def test_the_context_holds_the_job_and_the_worker(caplog):
    worker, seen = Worker(), []

    @worker.handler("work", timeout=30)
    async def work(ctx: Context) -> None:
        seen.append(ctx)
        ctx.logger.warning("hello", extra={"order": 17})

    async with broker() as queue:
        job = await queue.enqueue("work", b"", headers={"trace": "af31"})
        await drained(worker, queue)
    [ctx] = seen
    assert ("work", 1, {"trace": "af31"}) == (ctx.entrypoint, ctx.attempt, dict(ctx.headers))
    assert (ctx.job.claim, queue, None) == (ctx.claim, ctx.queue, ctx.resources)
    assert ctx.deadline is not None
    assert 30 == pytest.approx((ctx.deadline - EPOCH).total_seconds(), abs=0.1)
    [record] = [record for record in caplog.records if "hello" in record.getMessage()]
    assert (job.id, "work", 1, 17) == (record.job_id, record.entrypoint, record.attempt, record.order)


async def test_a_refused_on_ack_operation_fails_the_job():
    worker = Worker()

    @worker.handler("work", max_attempts=1)
    async def work(ctx: Context) -> None:
        ctx.on_ack(Enqueue("next", b"", unique_key="taken", on_conflict="raise"), Enqueue("other", b""))

    async with broker() as queue:
        await queue.enqueue("next", b"", unique_key="taken")
        await queue.enqueue("work", b"")
        assert RunReport(dead=1) == await drained(worker, queue)
        jobs = {job.entrypoint: job for job in (await queue.read_state()).jobs}
        assert {"next", "work"} == set(jobs)
        assert "DuplicateJobError" in jobs["work"].error


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.LANDS_LATER, Fault.HANGS_AFTER])
async def test_on_ack_operations_run_once_even_if_answers_are_lost(fault):
    worker = Worker()
    storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()))

    @worker.handler("work")
    async def work(ctx: Context) -> None:
        storage.on_write(fault, fault)
        storage.on_read(*[Fault.LOST_REQUEST] * 60)
        ctx.on_ack(Enqueue("next", b""))

    async with broker(storage, deadline=5, call_timeout=2) as queue:
        await queue.enqueue("work", b"")
        await drained(worker, queue)
        assert ["next"] == [job.entrypoint for job in (await queue.read_state()).jobs]
