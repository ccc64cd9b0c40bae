"""`run_batch` on real Spark: jobs done on executors, checked in the queue."""

import asyncio
import os
import sys
import textwrap

import pytest

from jqueue import DirectQueue, connect
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Enqueue
from jqueue.spark.batch.run import BatchFailedError, run_batch
from jqueue.worker import Context, Worker
from tests.spark.batch.child_scenes import needs_fork

pytestmark = [pytest.mark.wide, needs_fork]


def enqueue(url, operations):
    async def go():
        queue = connect(url, DirectQueue)
        return await queue.enqueue_many(operations)

    return asyncio.run(go())


def state_of(url):
    return asyncio.run(connect(url, DirectQueue).read_state())


def make_worker():
    factor, worker = 2, Worker(concurrency=5)

    @worker.handler("double", keep_result=3600)
    async def double(number: int, ctx: Context) -> int:
        print("doing", number)
        if number == 13:
            os._exit(3)
        if number == 31:
            raise ValueError("on purpose")
        ctx.on_ack(Enqueue("seen", b"%d" % os.getpid()))
        return factor * number

    return worker


def test_jobs_are_done_on_executors_independently(spark, tmp_path):
    url, worker = str(tmp_path / "queue.json"), make_worker()
    enqueue(url, (worker.handlers["double"].operation(number) for number in range(50)))
    told = []
    report = run_batch(spark, url, worker, partitions=4, progress=lambda done, total: told.append((done, total)))
    assert (50, 48, 2, 1) == (report.claimed, report.done, report.retried, report.killed)
    state = state_of(url)
    done = {job.result for job in state.jobs if job.status is JobStatus.COMPLETED}
    assert {2 * number for number in range(50)} - {26, 62} == done
    queued = {job.payload: job for job in state.jobs if job.entrypoint == "double" and job.status is JobStatus.QUEUED}
    assert {b"13", b"31"} == set(queued)
    assert "ProcessDied: the process of the handler ended with exit code 3" == queued[b"13"].error
    assert queued[b"31"].error.startswith("ValueError: on purpose (")
    assert {1} == {job.attempt for job in queued.values()} == {job.failures for job in queued.values()}
    pids = {job.payload for job in state.jobs if job.entrypoint == "seen"}
    assert len(pids) >= 4
    assert b"%d" % os.getpid() not in pids, "elsewhere"
    assert (50, 50) == told[-1]
    assert {"queue.json", "queue.json.lock"} == set(os.listdir(tmp_path)), "nothing is left"


def test_a_worker_in_a_module_is_imported_on_executors_and_its_absence_is_one_line(spark, tmp_path, monkeypatch):
    url, module = str(tmp_path / "queue.json"), "batch_app_of_a_test"
    (tmp_path / f"{module}.py").write_text(
        textwrap.dedent(
            """
            import threading
            from jqueue.worker import Worker

            worker, lock = Worker(), threading.Lock()

            @worker.handler("work")
            async def work() -> None:
                with lock:
                    pass
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    worker = __import__(module).worker
    try:
        enqueue(url, [Enqueue("work", b"")] * 6)
        with pytest.raises(BatchFailedError) as caught:
            run_batch(spark, url, worker, partitions=2)
        told = str(caught.value)
        assert f"the worker cannot be loaded on the executor: ModuleNotFoundError: No module named '{module}'" in told
        assert "\n" not in told
        assert [(JobStatus.QUEUED, 0)] * 6 == [(job.status, job.failures) for job in state_of(url).jobs]
        spark.sparkContext.addPyFile(str(tmp_path / f"{module}.py"))
        assert 6 == run_batch(spark, url, worker, partitions=2).done
    finally:
        del sys.modules[module]
