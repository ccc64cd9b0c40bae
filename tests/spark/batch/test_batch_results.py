"""Results of a batch as rows: each belongs to an outcome that the queue was told, whatever tasks are repeated."""

import json
import os
import signal
from types import SimpleNamespace

import pytest

from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Enqueue
from jqueue.spark.batch.run import BatchFailedError
from jqueue.worker import Worker
from tests.spark.batch.batch_scenes import Frame, Session, enqueue, run_batch, state_of
from tests.spark.batch.child_scenes import needs_fork
from tests.spark.batch.test_batch_ranges import fill, left_in

pytestmark = [pytest.mark.wide, needs_fork]


class Repeating(Session):
    """An imitation of a session that runs each task twice, and writes the rows of the second time."""

    def __init__(self):
        super().__init__()
        self.rows, self.folder = [], ""
        self.read = SimpleNamespace(schema=lambda ddl: self)

    def createDataFrame(self, table):
        return RepeatedFrame(self, table)

    def parquet(self, folder):
        return self

    def select(self, column):
        return self

    def distinct(self):
        return self

    def collect(self):
        return [SimpleNamespace(staged=name) for name in {row["staged"] for row in self.rows}]


class RepeatedFrame(Frame):
    @property
    def write(self):
        return SimpleNamespace(parquet=self.write_parquet)

    def write_parquet(self, folder):
        self.session.folder = folder
        for number in range(self.count):
            mask = [value == number for value in self.table.column("partition").to_pylist()]
            batches = self.table.filter(mask).to_batches()
            list(self.task(iter(batches)))
            self.session.rows += [row for answer in self.task(iter(batches)) for row in answer.to_pylist()]


def make_worker(folder):
    worker = Worker(concurrency=5)

    @worker.handler("work", max_attempts=5)
    async def work(number: int) -> dict[str, int]:
        mark = folder / f"{number}.begun"
        if number % 100 == 7 and not mark.exists():
            mark.touch()
            raise ValueError("the first time")
        if number == 12:
            raise ValueError("always")
        return {"twice": 2 * number}

    return worker


@pytest.mark.parametrize("deep", [True, False], ids=["ranges", "single jobs"])
def test_outcomes_count_of_the_attempts_whose_results_were_written(tmp_path, deep):
    url, session = str(tmp_path / "queue.json"), Repeating()
    if deep:
        fill(url, range(600))
    else:
        enqueue(url, *[Enqueue("work", b"%d" % number) for number in range(600)])
    report = run_batch(session, url, make_worker(tmp_path), max_jobs=600, partitions=2, results="results/")
    assert (600, 599, 1) == (report.claimed, report.done, report.retried)
    assert session.folder.startswith("results/batch=outcomes-")
    assert sorted(2 * number for number in range(600) if number != 12) == sorted(
        json.loads(row["result"])["twice"] for row in session.rows
    )
    assert {("work", 1)} == {(row["entrypoint"], row["attempt"]) for row in session.rows}
    assert {b"12": JobStatus.QUEUED} == {payload: job.status for payload, job in left_in(url).items()}


def test_executors_write_results_as_parquet_and_the_queue_keeps_those_of_its_own(spark, tmp_path):
    url, results = str(tmp_path / "queue.json"), tmp_path / "results"
    worker = make_worker(tmp_path)
    enqueue(url, Enqueue("work", b"1"), Enqueue("work", b"2", keep_result=600), Enqueue("work", b"12"))
    report = run_batch(spark, url, worker, partitions=2, results=results)
    assert (3, 2, 1) == (report.claimed, report.done, report.retried)
    rows = spark.read.parquet(str(results)).collect()
    assert ['{"twice": 2}', '{"twice": 4}'] == sorted(row.result for row in rows)
    assert {JobStatus.COMPLETED: {"twice": 4}, JobStatus.QUEUED: None} == {
        job.status: job.result for job in state_of(url).jobs
    }


def test_a_batch_whose_results_cannot_be_written_acks_nothing(spark, tmp_path):
    url, results, worker = str(tmp_path / "queue.json"), tmp_path / "results", Worker(concurrency=1)

    @worker.handler("work")
    async def work(number: int) -> int:
        if number == 3:
            os.kill(os.getppid(), signal.SIGKILL)
        return number

    enqueue(url, *[Enqueue("work", b"%d" % number) for number in range(4)])
    with pytest.raises(BatchFailedError) as caught:
        run_batch(spark, url, worker, partitions=4, results=str(results))
    assert (4, 0, 4) == (caught.value.report.claimed, caught.value.report.done, caught.value.report.handed_back)
    assert [(JobStatus.QUEUED, 0)] * 4 == [(job.status, job.failures) for job in state_of(url).jobs]
    assert not list(results.rglob("*.parquet"))
