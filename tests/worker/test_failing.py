"""Handlers that fail: the state of their jobs afterwards, and the delay until the next attempt."""

import asyncio
import json
import logging
from typing import Any

import pytest

from jqueue import InvalidJobError
from jqueue.domain.errors import JQueueError
from jqueue.domain.models import Job
from jqueue.operations import Enqueue
from jqueue.testing.virtual_time import EPOCH
from jqueue.worker import Context, Discard, Exponential, Retry, RunReport, Snooze, Worker
from jqueue.worker.retries import Decision, decide
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import COMPLETED, DEAD, LONG, QUEUED, SECRET, broker, only_job, until_job, working


async def once(queue, worker, **enqueue):
    """Run one job of "work" once. Returns the job as it is then, and the report."""
    await queue.enqueue("work", b"", **enqueue)
    report = await worker.run(queue, drain=True, signals=False)
    return await only_job(queue), report


def raising(error, **options) -> Worker:
    worker = Worker()

    @worker.handler("work", **options)
    async def work() -> None:
        raise error

    return worker


@in_virtual_time
async def test_an_exception_is_stored_with_the_job_and_delays_its_next_attempt():
    async with broker() as queue:
        job, report = await once(queue, raising(ValueError("no such address"), backoff=LONG))
        assert RunReport(failed=1) == report
        line = raising.__code__.co_firstlineno + 5
        assert f"ValueError: no such address (tests/worker/test_failing.py:{line})" == job.error
        assert (QUEUED, 1) == (job.status, job.failures)
        assert job.run_at is not None


def parsed(text, depth=0):
    """Parse JSON below a number of calls."""
    return json.loads(text) if not depth else parsed(text, depth - 1)


def parser(depth) -> Worker:
    """A worker whose first attempt parses a broken document."""
    worker = Worker()

    @worker.handler("work", backoff=Exponential(base=1e-3, cap=1e-3), keep_result=1000)
    async def work(text: str, ctx: Context) -> None:
        if ctx.attempt == 1:
            parsed(text, depth)

    return worker


@pytest.mark.parametrize("depth", [3, 300])
@in_virtual_time
async def test_the_last_frames_of_a_failure_are_kept_without_the_payload_until_the_job_succeeds(depth, caplog):
    line = parsed.__code__.co_firstlineno + 2
    place = f"tests/worker/test_failing.py:{line} in parsed"
    async with broker() as queue:
        await queue.enqueue("work", SECRET.encode())
        assert RunReport(failed=1) == await parser(depth).run(queue, drain=True, signals=False)
        job = await only_job(queue)
        frames = job.traceback.splitlines()
        assert frames[-1].startswith("json/decoder.py:")
        assert frames[0] == place if depth > 50 else place in frames
        assert job.error.endswith(f" (tests/worker/test_failing.py:{line})")
        assert len(job.traceback.encode()) <= 1024
        assert SECRET not in job.error + job.traceback
        assert f"JSONDecodeError at {place}; next try" in caplog.text
        assert SECRET not in caplog.text
        await asyncio.sleep(1)
        assert RunReport(succeeded=1) == await parser(depth).run(queue, drain=True, signals=False)
        assert (COMPLETED, None) == ((await only_job(queue)).status, (await only_job(queue)).traceback)


def test_the_delay_is_drawn_evenly_below_a_bound_that_doubles():
    bounds = []

    def jitter(bound):
        bounds.append(bound)
        return bound / 2

    for failures in (1, 2, 3, 10):
        job = Job(entrypoint="work", payload=b"", failures=failures)
        decision = decide(ValueError(), job, None, Exponential(base=2, cap=60), jitter)
        assert Decision("failed", delay=bounds[-1] / 2, error="ValueError: ") == decision
    assert [2, 4, 8, 60] == bounds


@in_virtual_time
async def test_after_max_attempts_of_the_handler_a_job_is_dead_with_its_last_error():
    worker, times = Worker(), []

    @worker.handler("work", max_attempts=3, backoff=Exponential(base=10, cap=10))
    async def work() -> None:
        times.append(now())
        raise ValueError(f"try {len(times)}")

    async with broker() as queue, working(worker, queue) as task:
        await queue.enqueue("work", b"")
        job = await until_job(queue, status=DEAD)
        assert ("ValueError: try 3", 3) == (job.error.partition(" (")[0], len(times))
        assert times[2] <= 21
        worker.stop()
        assert RunReport(failed=2, dead=1) == await task


def in_a_task_group(*errors) -> Worker:
    """A worker whose handler raises each error in a child task, one of them in a task group of its own."""
    worker = Worker()

    async def fail(error):
        raise error

    async def nest(error):
        async with asyncio.TaskGroup() as inner:
            inner.create_task(fail(error))

    @worker.handler("work")
    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            for error in errors[1:]:
                tasks.create_task(fail(error))
            tasks.create_task(nest(errors[0]))

    return worker


@in_virtual_time
async def test_an_exception_group_is_stored_with_the_texts_of_all_its_errors():
    async with broker() as queue:
        job, report = await once(queue, in_a_task_group(ValueError("no such address"), Discard("gone"), KeyError("to")))
        assert RunReport(failed=1) == report
        for text in ("ExceptionGroup: ", "ValueError: no such address", "Discard: gone", "KeyError: 'to'"):
            assert text in job.error


@in_virtual_time
async def test_a_group_of_errors_that_were_not_raised_is_stored_with_the_place_of_the_group():
    async with broker() as queue:
        job, _ = await once(queue, raising(ExceptionGroup("two addresses", [ValueError("bad"), KeyError("to")])))
        line = raising.__code__.co_firstlineno + 5
        assert job.error.endswith(f"; KeyError: 'to' (tests/worker/test_failing.py:{line})")


@pytest.mark.parametrize(
    ("errors", "kind", "delay"),
    [
        ((Discard("gone"), Retry(after=9), Snooze(10)), "dead", None),
        ((Retry(after=60), Retry(after=9), Snooze(100)), "failed", 60),
        ((Snooze(60), Snooze(9)), "snoozed", 60),
    ],
)
@in_virtual_time
async def test_a_group_of_decisions_alone_acts_as_one_of_them(errors, kind, delay):
    async with broker() as queue:
        began = now()
        job, report = await once(queue, in_a_task_group(*errors))
        assert RunReport(**{kind: 1}) == report
        assert job.error == (None if kind == "snoozed" else f"{type(errors[0]).__name__}: {errors[0]}")
        if delay is not None:
            assert delay == pytest.approx((job.run_at - EPOCH).total_seconds() - began, abs=1)


@in_virtual_time
async def test_max_attempts_of_a_job_override_those_of_its_handler():
    async with broker() as queue:
        job, report = await once(queue, raising(ValueError(), max_attempts=5), max_attempts=1)
        assert (DEAD, RunReport(dead=1)) == (job.status, report)
    async with broker() as queue:
        job, report = await once(queue, raising(ValueError(), max_attempts=1, backoff=LONG), max_attempts=5)
        assert (QUEUED, RunReport(failed=1)) == (job.status, report)


@in_virtual_time
async def test_a_job_that_killed_its_workers_is_dead_without_being_run():
    worker, runs = Worker(), []

    @worker.handler("work", max_attempts=2)
    async def work() -> None:
        runs.append(1)

    async with broker() as queue:
        await queue.enqueue("work", b"")
        for _ in range(2):
            await queue.dequeue("work")
            await queue.requeue_stale(0)
        assert RunReport(dead=1) == await worker.run(queue, drain=True, signals=False)
        job = await only_job(queue)
        assert (DEAD, []) == (job.status, runs)
        assert "claimed 3 times" in job.error


@in_virtual_time
async def test_retry_sets_the_time_of_the_next_attempt_and_is_charged():
    async with broker() as queue:
        job, report = await once(queue, raising(Retry(after=90, reason="the API is down")))
        assert (QUEUED, 1, "Retry: the API is down") == (job.status, job.failures, job.error)
        assert 90 == pytest.approx((job.run_at - job.created_at).total_seconds(), abs=0.1)
        assert RunReport(failed=1) == report


@in_virtual_time
async def test_retry_without_a_time_waits_for_the_backoff_and_ends_with_max_attempts():
    async with broker() as queue:
        job, _ = await once(queue, raising(Retry(), max_attempts=1))
        assert (DEAD, "Retry: the handler asked for another try") == (job.status, job.error)


@in_virtual_time
async def test_discard_makes_a_job_dead_at_once():
    async with broker() as queue:
        job, report = await once(queue, raising(Discard("the user is gone")))
        assert (DEAD, "Discard: the user is gone", RunReport(dead=1)) == (job.status, job.error, report)


@in_virtual_time
async def test_snooze_is_not_charged():
    async with broker() as queue:
        job, report = await once(queue, raising(Snooze(3600), max_attempts=1))
        assert (QUEUED, 0, None, RunReport(snoozed=1)) == (job.status, job.failures, job.error, report)
        assert 3600 == pytest.approx((job.run_at - job.created_at).total_seconds(), abs=0.1)


@in_virtual_time
async def test_a_timeout_is_a_charged_failure():
    worker = Worker()

    @worker.handler("work", timeout=30, backoff=LONG)
    async def work() -> None:
        await asyncio.sleep(1000)

    async with broker() as queue:
        job, report = await once(queue, worker)
        assert (QUEUED, 1, "timed out after 30 s") == (job.status, job.failures, job.error)
        assert (RunReport(failed=1), 30) == (report, round(now()))


@in_virtual_time
async def test_a_return_value_after_the_timeout_does_not_count_as_success():
    worker = Worker()

    @worker.handler("work", timeout=5, backoff=LONG)
    async def work() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(1)

    async with broker() as queue:
        await queue.enqueue("work", b"")
        assert RunReport(failed=1) == await worker.run(queue, drain=True, signals=False)
        assert "timed out after 5 s" == (await only_job(queue)).error


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), BaseException("x")]
)
def test_a_base_exception_costs_its_job_an_attempt_and_not_the_worker(error):
    worker, done = Worker(), []

    @worker.handler("work", max_attempts=1)
    async def work() -> None:
        raise error

    @worker.handler("other")
    async def other() -> None:
        done.append(1)

    async def main():
        async with broker() as queue:
            await queue.enqueue("work", b"")
            await queue.enqueue("other", b"")
            report = await worker.run(queue, drain=True)  # it handles signals, so an interrupt comes from the handler
            assert RunReport(succeeded=1, dead=1) == report
            job = await only_job(queue)
            assert (DEAD, [1]) == (job.status, done)
            assert job.error.startswith(type(error).__name__)

    asyncio.run(main())


@in_virtual_time
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


@in_virtual_time
async def test_a_backoff_that_raises_does_not_stop_the_nack_of_its_job():
    class Broken:
        def bound(self, failures):
            raise ZeroDivisionError

    async with broker() as queue:
        job, report = await once(queue, raising(ValueError("x"), backoff=Broken(), max_attempts=1))
        assert (DEAD, RunReport(dead=1)) == (job.status, report)
    async with broker() as queue:
        await queue.enqueue("work", b"")
        worker = raising(ValueError("x"), backoff=Broken())
        async with working(worker, queue):
            await until_job(queue, failures=2)


@in_virtual_time
async def test_an_exception_without_a_readable_text_only_fails_its_own_job():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    async with broker() as queue:
        job, _ = await once(queue, raising(Mute(), max_attempts=1))
        assert (DEAD, "Mute") == (job.status, job.error.partition(" (")[0])


@in_virtual_time
async def test_one_bad_handler_harms_no_other_job():
    worker, done = Worker(concurrency=4), []

    @worker.handler("bad", max_attempts=1)
    async def bad() -> None:
        raise RuntimeError

    @worker.handler("good")
    async def good(number: int) -> None:
        done.append(number)

    async with broker() as queue:
        await queue.enqueue_many(
            [good.operation(number) if number % 2 else Enqueue("bad", b"") for number in range(40)]
        )
        report = await worker.run(queue, drain=True, signals=False)
    assert RunReport(succeeded=20, dead=20) == report
    assert list(range(1, 40, 2)) == sorted(done)


def test_failures_are_logged_with_the_job_and_the_delay_and_successes_are_not(caplog):
    from jqueue.testing.virtual_time import run

    caplog.set_level(logging.INFO, "jqueue.worker")

    async def main():
        async with broker() as queue:
            worker = raising(ValueError("what the user said"), backoff=LONG)

            @worker.handler("fine")
            async def fine() -> None:
                return

            await fine.enqueue(queue)
            return await once(queue, worker)

    job, _ = run(main())
    levels = [(record.levelname, record.name) for record in caplog.records]
    assert [("INFO", "jqueue.worker"), ("WARNING", "jqueue.worker"), ("INFO", "jqueue.worker")] == levels
    warning = caplog.records[1].getMessage()
    assert warning.startswith(f"job {job.id} (work, attempt 1) failed: ValueError at tests/worker/test_failing.py:")
    assert "what the user said" not in caplog.text


@in_virtual_time
async def test_a_first_failure_after_an_uncharged_hand_back_is_logged_as_the_first(caplog):
    async with broker() as queue:
        worker = raising(ValueError("no"), max_attempts=2, backoff=Exponential(base=1, cap=1))
        await queue.enqueue("work", b"")
        [job] = await queue.dequeue()
        await queue.nack(job, charge=False)
        for _ in range(2):
            await worker.run(queue, drain=True, signals=False)
            await asyncio.sleep(1)
    first, second = [record.getMessage() for record in caplog.records if " failed: " in record.getMessage()]
    assert "attempt 2) failed: ValueError at " in first
    assert first.endswith(" s (failure 1 of 2)")
    assert "attempt 3) failed: ValueError at " in second
    assert second.endswith("; dead (failure 2 of 2)")


@pytest.mark.parametrize("wrong", [{"base": 0}, {"base": 5, "cap": 1}, {"base": -1}])
def test_an_invalid_backoff_is_refused(wrong):
    with pytest.raises(InvalidJobError):
        Exponential(**wrong)


def test_invalid_durations_are_refused():
    wrongs: list[Any] = [-1, "soon", float("nan")]
    for wrong in wrongs:
        with pytest.raises(JQueueError):
            Retry(after=wrong)
        with pytest.raises(JQueueError):
            Snooze(wrong)
