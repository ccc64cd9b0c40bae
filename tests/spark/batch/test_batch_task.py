"""A task does the jobs of its partition. The tests call it directly, without Spark."""

import asyncio
import gc
import os
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from jqueue.core.blob.lines import encode_job
from jqueue.domain.models import Job
from jqueue.spark.batch.outcomes import decode_outcomes
from jqueue.spark.batch.progress import finished, report_progress
from jqueue.spark.batch.spark_job import sizes_of
from jqueue.spark.batch.task import JOBS, BatchTask, BatchTaskError, marker_of
from jqueue.spark.batch.worker_pickle import WorkerPickle
from jqueue.spark.staging import Staging
from jqueue.worker import Worker
from tests.spark.batch.child_scenes import needs_fork

pytestmark = [pytest.mark.wide, needs_fork]

BATCH = "outcomes-of-a-test"


def make_worker(fails=False):
    worker = Worker(concurrency=2)

    @worker.handler("work")
    async def work(payload: bytes) -> str:
        if payload == b"bad":
            os._exit(3)
        return payload.decode()

    if fails:

        @worker.lifespan
        def lifespan():
            raise ConnectionError("the database is away")

    return worker


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "queue.json")


@pytest.fixture
def staging(url):
    staging = Staging(url, 3600, 5)
    asyncio.run(in_store(staging, "write", marker_of(BATCH), b"{}"))
    return staging


async def in_store(staging, verb, *arguments):
    async with staging.opened() as objects:
        return await getattr(objects, verb)(*arguments)


def task_of(worker, url, staging):
    return BatchTask(WorkerPickle.of(worker), url, staging, BATCH)


def jobs_of(*payloads):
    return [
        Job(id=f"job {number}", entrypoint="work", payload=payload, attempt=1, failures=1, keep_result=60.0)
        for number, payload in enumerate(payloads)
    ]


def batch_of(jobs, partition=0):
    return pa.record_batch([[partition] * len(jobs), range(len(jobs)), [encode_job(job) for job in jobs]], schema=JOBS)


def outcomes_in(staging, name):
    [content] = asyncio.run(in_store(staging, "read", [name]))
    return decode_outcomes(content)


def test_outcomes_are_staged_under_the_returned_name(url, staging):
    jobs = jobs_of(b"one", b"bad", b"two", b"three")
    rows = batch_of(jobs, partition=4)
    shuffled = [rows.slice(2, 2), rows.slice(0, 1), rows.slice(1, 1)]
    [answer] = task_of(make_worker(), url, staging)(iter(shuffled))
    [name] = answer.column(0).to_pylist()
    assert {4: [name]} == finished([name, marker_of(BATCH)], BATCH)
    outcomes = outcomes_in(staging, name)
    assert [job.claim for job in jobs] == [outcome.claim for outcome in outcomes], "in the order of the jobs"
    assert ["one", None, "two", "three"] == [outcome.result for outcome in outcomes]
    assert ["done", "killed", "done", "done"] == [outcome.kind for outcome in outcomes]


def test_a_partition_without_jobs_returns_nothing(url, staging):
    assert [] == list(task_of(make_worker(), url, staging)(iter([])))
    assert [] == list(task_of(make_worker(), url, staging)(iter([batch_of([])])))


def test_a_worker_of_spark_freezes_once_what_it_has_imported(url, staging, monkeypatch):
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: len(frozen))
    task = task_of(make_worker(), url, staging)
    list(task(iter([batch_of(jobs_of(b"one"))])))
    assert [] == frozen, "this is a program of a user"
    context = SimpleNamespace(get=lambda: SimpleNamespace(taskAttemptId=lambda: 7))
    monkeypatch.setattr("jqueue.spark.batch.task.TaskContext", context)
    for _ in range(2):
        list(task(iter([batch_of(jobs_of(b"one"))])))
    assert [1] == frozen


def test_attempts_on_a_partition_have_different_names(url, staging):
    task, lines = task_of(make_worker(), url, staging), [encode_job(job) for job in jobs_of(b"one")]
    names = {task.do(lines, 3, attempt) for attempt in (5, 6, 6)}
    assert 3 == len(names)
    assert {3: sorted(names)} == {number: sorted(each) for number, each in finished(names, BATCH).items()}


def test_a_task_of_an_ended_batch_does_nothing(url, staging, tmp_path):
    asyncio.run(in_store(staging, "clean", BATCH))
    with pytest.raises(BatchTaskError, match="the batch has ended, or the queue is in a file"):
        task_of(make_worker(), url, staging).do([b"no line is even looked at"], 0, 0)


def test_outcomes_before_a_failure_are_staged(url, staging, tmp_path):
    worker = make_worker()
    count = tmp_path / "count"

    @worker.lifespan
    def lifespan():
        if count.exists():
            raise ConnectionError("the database is away")
        count.touch()
        from contextlib import nullcontext

        return nullcontext()

    lines = [encode_job(job) for job in jobs_of(b"one", b"two", b"bad", b"three")]
    with pytest.raises(BatchTaskError, match="the worker failed: ConnectionError: the database is away"):
        task_of(worker, url, staging).do(lines, 0, 0)
    [names] = finished(asyncio.run(in_store(staging, "of_write", BATCH)), BATCH).values()
    assert ["job 0", "job 1"] == [outcome.job_id for outcome in outcomes_in(staging, names[0])]


def test_an_unreachable_store_gives_a_one_line_error(url, tmp_path):
    (tmp_path / "file").touch()
    bad = str(tmp_path / "file" / "queue.json")
    with pytest.raises(BatchTaskError, match="an executor cannot reach the store") as caught:
        task_of(make_worker(), bad, Staging(bad, 3600, 1)).do([], 0, 0)
    assert "\n" not in str(caught.value)


def test_an_unreadable_job_gives_a_one_line_error(url, staging):
    with pytest.raises(BatchTaskError, match="another version of jqueue"):
        task_of(make_worker(), url, staging).do([b'"a": {"entrypoint": 5}'], 0, 0)


class Session:
    """The part of a Spark session that is used here."""

    class sparkContext:
        defaultParallelism = 3


@pytest.mark.parametrize(
    ("jobs", "partitions", "sizes"),
    [
        (10, None, [2, 2, 2, 2, 1, 1]),
        (4, None, [1, 1, 1, 1]),
        (10, 3, [4, 3, 3]),
        (2, 500, [1, 1]),
        (1, 1, [1]),
        (6001, None, [858] * 2 + [857] * 5),
    ],
)
def test_jobs_are_spread_evenly(jobs, partitions, sizes):
    session: Any = Session
    assert sizes == sizes_of(session, jobs, partitions)
    assert jobs == sum(sizes)


# Progress


async def test_progress_is_reported_only_when_it_changes(url, monkeypatch):
    monkeypatch.setattr("jqueue.spark.batch.progress.REPORT_INTERVAL", 0.01)
    staging = Staging(url, 3600, 5)
    told: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def progress(done, total):
        loop.call_soon_threadsafe(told.put_nowait, (done, total))

    telling = asyncio.create_task(report_progress(progress, staging, BATCH, [5, 7, 9]))
    async with asyncio.timeout(60):
        assert (0, 21) == await told.get()
        await in_store(staging, "write", staging.name(BATCH, 1, 0), b"")
        await in_store(staging, "write", staging.name(BATCH, 1, 1), b"")
        assert (7, 21) == await told.get()
        await in_store(staging, "write", staging.name(BATCH, 0, 0), b"")
        assert (12, 21) == await told.get(), "unchanged progress is not reported again"
    telling.cancel()


async def test_progress_stops_after_its_callback_raises(url, caplog):
    await report_progress(lambda done, total: 1 / 0, Staging(url, 3600, 5), BATCH, [5])
    assert 1 == caplog.text.count("ZeroDivisionError")


async def test_an_unreachable_store_does_not_end_the_progress(tmp_path, monkeypatch):
    monkeypatch.setattr("jqueue.spark.batch.progress.REPORT_INTERVAL", 0.01)
    (tmp_path / "file").touch()
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    telling = asyncio.create_task(
        report_progress(
            lambda *_: loop.call_soon_threadsafe(told.set), Staging(str(tmp_path / "file" / "q"), 9, 0.01), BATCH, [1]
        )
    )
    await asyncio.sleep(0.1)
    assert not telling.done()
    (tmp_path / "file").unlink()
    await asyncio.wait_for(told.wait(), 60)
    telling.cancel()
