"""A worker in a child process: its outcomes are the same as elsewhere, and its failures are reported. Without Spark."""

import asyncio
import os
import re
import sys
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from jqueue.domain.operations import Cancel, Enqueue
from jqueue.spark.batch.child import WorkInstructions
from jqueue.spark.batch.children import WorkFailed, do_jobs
from jqueue.worker import Context, Discard, Retry, Snooze, Worker
from tests.spark.batch.child_scenes import SHORT, Diary, crash, done_by, jobs_of, make_worker, needs_fork

pytestmark = [pytest.mark.wide, needs_fork]


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path / "diary")


def test_jobs_behind_stuck_handlers_are_done_in_another_process():
    worker = Worker(concurrency=2, cancel_grace=0.05)

    @worker.handler("work", timeout=0.05)
    def work(payload: bytes) -> None:
        if payload == b"slow":
            time.sleep(60)

    outcomes = done_by(worker, jobs_of(b"slow", b"slow", *[b""] * 5))
    assert ["retried"] * 2 + ["done"] * 5 == [outcome.kind for outcome in outcomes]


def test_exits_and_errors_in_handlers_are_handled_by_the_worker():
    worker = Worker()

    class Odd(Exception):
        def __init__(self, one, two):
            self.lock = threading.Lock()

        def __reduce__(self):
            raise TypeError("never")

    misdeeds = {
        b"exit": lambda: sys.exit(4),
        b"odd": lambda: (_ for _ in ()).throw(Odd(1, 2)),
        b"retry": lambda: (_ for _ in ()).throw(Retry(after=60, reason="later")),
        b"discard": lambda: (_ for _ in ()).throw(Discard("never")),
        b"snooze": lambda: (_ for _ in ()).throw(Snooze(30)),
    }

    @worker.handler("work", max_attempts=5)
    async def work(payload: bytes) -> None:
        misdeeds[payload]()

    outcomes = done_by(worker, jobs_of(*misdeeds))
    assert [
        ("retried", "SystemExit: 4 (test_batch_child_worker.py)"),
        ("retried", "Odd: (1, 2) (test_batch_child_worker.py)"),
        ("retried", "Retry: later"),
        ("dead", "Discard: never"),
        ("snoozed", "None"),
    ] == [(outcome.kind, re.sub(r"\(\S*/(\S+):\d+\)$", r"(\1)", str(outcome.error))) for outcome in outcomes]
    assert [60, 30] == [outcomes[2].delay, outcomes[4].delay]


def test_an_invalid_result_makes_only_its_own_job_dead_and_large_results_arrive():
    worker = Worker()
    results = {
        b"none": lambda: None,
        b"lock": threading.Lock,
        b"huge": lambda: "x" * 10**6,
        b"large": lambda: "é" * 30_000,
    }

    @worker.handler("work")
    async def work(payload: bytes) -> object:
        return results[payload]()

    outcomes = done_by(worker, jobs_of(*results, b"large", keep_result=60.0))
    assert ["done", "dead", "dead", "done", "done"] == [outcome.kind for outcome in outcomes]
    assert ["é" * 30_000] * 2 == [outcome.result for outcome in outcomes[3:]]
    assert "the limit is 65536" in (outcomes[2].error or "")


def test_a_result_that_is_not_kept_can_be_any_object():
    worker = Worker()

    @worker.handler("work")
    async def work() -> object:
        return threading.Lock()

    assert ["done"] == [outcome.kind for outcome in done_by(worker, jobs_of(b""))]


def test_a_handler_that_stops_at_its_timeout_keeps_its_process(diary):
    worker = Worker(concurrency=5)

    @worker.handler("work", timeout=0.05)
    async def work(payload: bytes) -> None:
        diary.note(os.getpid())
        if payload == b"slow":
            await asyncio.sleep(30)

    outcomes = done_by(worker, jobs_of(b"slow", *[b""] * 9))
    assert ("retried", "timed out after 0.05 s") == (outcomes[0].kind, outcomes[0].error)
    assert Counter(done=9, retried=1) == Counter(outcome.kind for outcome in outcomes)
    assert 1 == len(set(diary.read())), "all of them ran in one process"


def test_a_thread_that_does_not_stop_is_left_behind():
    worker = Worker(concurrency=2, cancel_grace=0.05)

    @worker.handler("work", timeout=0.05)
    def work(payload: bytes) -> None:
        if payload == b"slow":
            time.sleep(30)

    began = time.monotonic()
    outcomes = done_by(worker, jobs_of(b"slow", b"", b"", b""))
    assert ["retried", "done", "done", "done"] == [outcome.kind for outcome in outcomes]
    assert time.monotonic() - began < 20


def test_jobs_left_when_a_handler_stops_the_worker_are_handed_back():
    worker = Worker(concurrency=1)

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        if payload == b"stop":
            worker.stop()
            await asyncio.sleep(0.1)

    outcomes = done_by(worker, jobs_of(b"", b"stop", b"", b""))
    assert ["done", "done", "handed_back", "handed_back"] == [outcome.kind for outcome in outcomes]


def test_jobs_are_given_to_handlers_in_order(diary):
    worker = Worker(concurrency=1)

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        diary.note(payload.decode())

    done_by(worker, jobs_of(*[b"%d" % number for number in range(30)]))
    assert [str(number) for number in range(30)] == diary.read()


def test_jobs_run_at_the_concurrency_of_the_worker(diary):
    worker, running = Worker(concurrency=4), []

    @worker.handler("work")
    async def work() -> None:
        running.append(1)
        await asyncio.sleep(0.001)
        diary.note(len(running))
        running.pop()

    done_by(worker, jobs_of(*[b""] * 12))
    assert "4" == max(diary.read())


def test_a_job_beyond_max_attempts_becomes_dead_without_a_run(diary):
    worker = Worker()

    @worker.handler("work", max_attempts=3)
    async def work() -> None:
        diary.note("run")

    [outcome] = done_by(worker, [job.evolve(failures=4) for job in jobs_of(b"")])
    assert "dead" == outcome.kind
    assert [] == diary.read()


def test_on_ack_accepts_only_enqueues_in_a_batch():
    worker = Worker()

    @worker.handler("work")
    async def work(payload: bytes, ctx: Context) -> None:
        ctx.on_ack(Enqueue("next", payload, delay=5) if payload == b"next" else Cancel("another"))

    outcomes = done_by(worker, jobs_of(b"next", b"cancel"))
    assert ({"entrypoint": "next", "payload": "bmV4dA==", "priority": 0, "delay": 5},) == outcomes[0].added
    assert ("dead", "InvalidJobError: in a batch on Spark, on_ack takes only Enqueue(...), got Cancel") == (
        outcomes[1].kind,
        outcomes[1].error,
    )


def test_middleware_resources_and_typed_payloads_work_in_a_child_process():
    worker = Worker()

    @worker.lifespan
    @asynccontextmanager
    async def lifespan():
        yield {"factor": 3}

    @worker.middleware
    async def twice(ctx, call_next):
        return 2 * await call_next()

    @worker.handler("work")
    async def work(numbers: list[int], ctx: Context) -> object:
        return sum(numbers) * ctx.resources["factor"]

    outcomes = done_by(worker, jobs_of(b"[1, 2]", b"no list", keep_result=60.0))
    assert ["done", "dead"] == [outcome.kind for outcome in outcomes]
    assert 18 == outcomes[0].result


def test_process_handlers_run_in_their_own_process_in_a_batch():
    from tests.worker.process_handlers import worker

    jobs = jobs_of(b'{"left": 2, "right": 3}', entrypoint="add", keep_result=60.0)
    assert [("done", {"left": 5, "right": 7})] == [(each.kind, each.result) for each in done_by(worker, jobs)]


# Failures of the worker itself


def failure_of(worker, jobs, load=None):
    with pytest.raises(WorkFailed) as caught:
        do_jobs(
            WorkInstructions(load or (lambda: worker), lambda: pytest.fail("nobody asked for the queue")), jobs, SHORT
        )
    return caught.value


def test_a_worker_that_cannot_be_made_gives_a_one_line_error():
    def load():
        raise ImportError("no module named numpy here")

    failure = failure_of(None, jobs_of(b"", b""), load)
    assert "the worker cannot be loaded on the executor: ImportError: no module named numpy here" == str(failure)
    assert [] == list(failure.outcomes)


def test_a_program_that_exits_on_import_gives_a_one_line_error():
    assert "the worker cannot be loaded on the executor: SystemExit: 2" == str(
        failure_of(None, jobs_of(b""), lambda: sys.exit(2))
    )


def test_a_program_that_crashes_on_import_charges_no_job():
    failure = failure_of(None, jobs_of(b"", b""), crash)
    assert "the process of the handler was ended by SIGSEGV: it crashed before it began a job" == str(failure)


def test_a_failing_lifespan_gives_a_one_line_error_and_charges_no_job():
    worker = make_worker(lambda: None)

    @worker.lifespan
    @asynccontextmanager
    async def lifespan():
        raise ConnectionError("the database is away")
        yield

    assert "the worker failed: ConnectionError: the database is away" == str(failure_of(worker, jobs_of(b"", b"")))


def test_jobs_done_before_the_worker_failed_are_reported(tmp_path):
    worker, mark = Worker(concurrency=2), tmp_path / "used up"

    @worker.lifespan
    @asynccontextmanager
    async def lifespan():
        if mark.exists():
            raise ConnectionError("too many connections")
        mark.touch()
        yield

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        if payload == b"bad":
            os._exit(1)

    failure = failure_of(worker, jobs_of(b"", b"", b"", b"", b"bad", b"", b""))
    assert 4 <= len(failure.outcomes) <= 5
    assert {"done"} == {outcome.kind for outcome in failure.outcomes}


def test_a_lifespan_that_fails_at_its_end_fails_no_job():
    worker = make_worker(lambda: None)

    @worker.lifespan
    @asynccontextmanager
    async def lifespan():
        yield
        raise ConnectionError("it was gone already")

    assert ["done"] * 2 == [outcome.kind for outcome in done_by(worker, jobs_of(b"", b""))]
