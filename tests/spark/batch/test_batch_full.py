"""Large batches, batches on a real object store, and interrupted batches, checked in the queue. They take long."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jqueue import DirectQueue, connect
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Enqueue
from jqueue.spark.batch.run import BatchFailedError, run_batch
from jqueue.spark.session import java_problem
from jqueue.worker import Worker
from tests.spark.batch.child_scenes import needs_fork
from tests.spark.batch.test_batch_ranges import fill, left_in

pytestmark = [
    pytest.mark.full,
    needs_fork,
]

PROGRAM = Path(__file__).with_name("batch_program.py")


def enqueue(url, operations):
    async def go():
        queue = connect(url, DirectQueue)
        await queue.enqueue_many(operations)
        await queue.aclose()

    asyncio.run(go())


def state_of(url):
    async def go():
        queue = connect(url, DirectQueue)
        try:
            return await queue.read_state()
        finally:
            await queue.aclose()

    return asyncio.run(go())


def make_worker(**options):
    worker = Worker(**options)

    @worker.handler("work", keep_result=3600)
    async def work(number: int) -> int:
        if number % 1000 == 500:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    return worker


def audited(url, count):
    """Assert that each job has left its result, or waits for a retry if it killed its process."""
    jobs = state_of(url).jobs
    killers = set(range(500, count, 1000))
    done = Counter(job.result for job in jobs if job.status is JobStatus.COMPLETED)
    assert dict.fromkeys(set(range(count)) - killers, 1) == done
    left = {int(job.payload): (job.status, job.attempt, job.failures) for job in jobs if job.result is None}
    assert dict.fromkeys(killers, (JobStatus.QUEUED, 1, 1)) == left


def test_ten_thousand_jobs_are_done_in_one_batch(spark, tmp_path):
    url, worker = str(tmp_path / "queue.json"), make_worker()
    enqueue(url, [worker.handlers["work"].operation(number) for number in range(10_000)])
    report = run_batch(spark, url, worker)
    assert (10_000, 9_990, 10, 10) == (report.claimed, report.done, report.retried, report.killed)
    audited(url, 10_000)


def test_a_batch_on_a_real_object_store_is_done(spark, seaweedfs):
    from tests.object_stores import Store

    store = Store("seaweedfs", seaweedfs)
    url = (
        f"s3://{seaweedfs.access_key}:{seaweedfs.secret_key}@{seaweedfs.bucket}/{store.new_key().replace(' ', '-')}"
        f"?endpoint_url={seaweedfs.endpoint_url}&region_name={seaweedfs.region}&addressing_style=path"
    )
    worker, told = make_worker(), []
    enqueue(url, [worker.handlers["work"].operation(number) for number in range(1000)])
    report = run_batch(spark, url, worker, progress=lambda done, total: told.append((done, total)))
    assert (1000, 999, 1) == (report.claimed, report.done, report.killed)
    audited(url, 1000)
    assert (1000, 1000) == told[-1]

    async def left():
        storage = connect(url)
        try:
            return await storage.list_beside(".")
        finally:
            await storage.release()

    assert [] == asyncio.run(left())


def test_a_killed_task_fails_the_batch_and_charges_no_job(spark, tmp_path):
    url, worker = str(tmp_path / "queue.json"), Worker(concurrency=1)

    @worker.handler("work")
    async def work(number: int) -> None:
        if number == 30:
            os.kill(os.getppid(), signal.SIGKILL)

    enqueue(url, [worker.handlers["work"].operation(number) for number in range(40)])
    with pytest.raises(BatchFailedError) as caught:
        run_batch(spark, url, worker, partitions=8)
    assert "\n" not in str(caught.value)
    assert "Python" in str(caught.value)
    report = caught.value.report
    jobs = state_of(url).jobs
    assert (40 - len(jobs), len(jobs)) == (report.done, report.handed_back)
    assert 10 <= report.done <= 35
    assert {(JobStatus.QUEUED, 0)} == {(job.status, job.failures) for job in jobs}
    assert {30, 31, 32, 33, 34} <= {int(job.payload) for job in jobs}


def test_jobs_of_lost_executors_are_done_by_others(tmp_path):
    problem = java_problem()
    if problem is not None:
        pytest.skip(problem)
    url, mark = str(tmp_path / "queue.json"), tmp_path / "an executor was killed"
    program = f"""
import os, signal
from pathlib import Path
from typing import Any
from jqueue.spark.batch.run import run_batch
from jqueue.spark.session import local_session
from jqueue.worker import Worker

worker = Worker(concurrency=1)

def executor():
    pid = os.getppid()
    while True:
        fields = Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()
        if Path(f"/proc/{{pid}}/comm").read_text().strip() == "java":
            return pid
        pid = int(fields[1])

@worker.handler("work")
async def work(number: int) -> None:
    if number == 7 and not os.path.exists({str(mark)!r}):
        Path({str(mark)!r}).touch()
        os.kill(executor(), signal.SIGKILL)

spark = local_session("a batch", "local-cluster[2,1,1024]")
print(run_batch(spark, {url!r}, worker, partitions=4))
"""
    enqueue(url, [Enqueue("work", b"%d" % number) for number in range(20)])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=400, cwd=tmp_path)
    assert "20 jobs in" in done.stdout, done.stderr[-3000:]
    assert "20 done" in done.stdout
    assert mark.exists()
    assert () == state_of(url).jobs


def test_ranges_of_lost_executors_and_of_killed_tasks_are_done_by_others(tmp_path):
    """An executor and, later, the Python process of a task are killed in the middle of ranges."""
    problem = java_problem()
    if problem is not None:
        pytest.skip(problem)
    url, marks, diary = str(tmp_path / "queue.json"), tmp_path / "marks", tmp_path / "diary"
    marks.mkdir()
    program = f"""
import os, signal
from pathlib import Path
from jqueue.spark.batch.run import run_batch
from jqueue.spark.session import local_session
from jqueue.worker import Worker

worker = Worker(concurrency=1)

def executor():
    pid = os.getppid()
    while Path(f"/proc/{{pid}}/comm").read_text().strip() != "java":
        pid = int(Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()[1])
    return pid

def once(name):
    mark = Path({str(marks)!r}) / name
    return not mark.exists() and (mark.touch() or True)

@worker.handler("work")
async def work(number: int) -> None:
    with open({str(diary)!r}, "a") as file:
        file.write(f"{{number}}\\n")
    if number == 100 and once("executor"):
        os.kill(executor(), signal.SIGKILL)
    if number == 500 and once("task"):
        os.kill(os.getppid(), signal.SIGKILL)

spark = local_session("a batch", "local-cluster[2,1,1024]", spark_speculation="true")
print(run_batch(spark, {url!r}, worker, partitions=3))
"""
    fill(url, range(900))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=400, cwd=tmp_path)
    assert "900 jobs in" in done.stdout, done.stderr[-3000:]
    assert "900 done" in done.stdout
    assert ["executor", "task"] == sorted(os.listdir(marks))
    assert {} == left_in(url), "segments included"
    times = Counter(map(int, diary.read_text().split()))
    assert set(range(900)) == set(times)
    assert max(times.values()) >= 2, "the jobs of a killed task ran again"


class Program:
    """A driver in its own process."""

    def __init__(self, url, pids):
        self.pids = pids
        pids.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, url],
            env={**os.environ, "BATCH_PROGRAM_PIDS": str(pids)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def until_running(self, count):
        until = time.monotonic() + 300
        while len(os.listdir(self.pids)) < count and time.monotonic() < until:
            assert self.process.poll() is None
            time.sleep(0.05)

    def until_handlers_are_gone(self):
        until = time.monotonic() + 60
        while self.handlers() and time.monotonic() < until:
            time.sleep(0.1)
        assert set() == self.handlers()

    def handlers(self):
        """The ids of the running processes of handlers."""
        return {pid for pid in (name.rpartition("-")[2] for name in os.listdir(self.pids)) if self._is_there(pid)}

    @staticmethod
    def _is_there(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False


@pytest.fixture
def program(tmp_path):
    problem = java_problem()
    if problem is not None:
        pytest.skip(problem)
    url = str(tmp_path / "queue.json")
    payloads = [b'{"name": "quick%d"}' % number for number in range(6)]
    payloads += [b'{"name": "slow%d", "seconds": 600}' % number for number in range(6)]
    enqueue(url, [Enqueue("work", payload) for payload in payloads])
    program = Program(url, tmp_path / "pids")
    yield program
    program.process.kill()
    program.process.wait()
    if program.process.stdout is not None:
        program.process.stdout.close()


def test_ctrl_c_stops_the_handlers_acks_finished_jobs_and_hands_back_the_others(program, tmp_path):
    program.until_running(10)  # the quick jobs are two of four partitions
    time.sleep(2)
    program.process.send_signal(signal.SIGINT)
    told, _ = program.process.communicate(timeout=120)
    assert "interrupted" in told
    program.until_handlers_are_gone()
    jobs = state_of(str(tmp_path / "queue.json")).jobs
    assert {(JobStatus.QUEUED, 0)} == {(job.status, job.failures) for job in jobs}
    assert 6 == len(jobs)
    assert all(b"slow" in job.payload for job in jobs)
    assert ["pids", "queue.json", "queue.json.lock"] == sorted(os.listdir(tmp_path))


def test_a_killed_driver_leaves_no_handlers_and_its_jobs_are_recovered(program, tmp_path):
    program.until_running(10)
    program.process.kill()
    program.until_handlers_are_gone()
    url = str(tmp_path / "queue.json")
    assert 12 == len(state_of(url).in_progress_jobs())

    async def claimed():
        async with connect(url, DirectQueue) as queue:
            jobs: list[Any] = []
            async with asyncio.timeout(120):
                while len(jobs) < 12:
                    jobs += await queue.dequeue("work", batch_size=12, wait=30)
            return jobs

    assert 12 == len({job.id for job in asyncio.run(claimed())})
