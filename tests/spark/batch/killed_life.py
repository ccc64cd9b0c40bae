"""The processes of a batch that may be killed: its driver, its tasks and its handlers, by a plan that they share.

python -m tests.spark.batch.killed_life URL      # the driver on Spark, with the plan in BATCH_KILLS_PLAN
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from jqueue.spark import local_session
from jqueue.spark.batch.run import BatchFailedError, run_batch
from jqueue.worker import Worker
from tests.kill.children import at_most
from tests.spark.batch import stepped_stores
from tests.spark.batch.batch_scenes import Frame, Session
from tests.spark.batch.parquet_job import ParquetJob, files_of, rows_of

PLAN = "BATCH_KILLS_PLAN"
"""Name of the variable that has the plan for the processes of Spark."""

ROOT = Path(__file__).parents[3]

FEW, JOBS = 40, 640
"""Number of jobs of an entrypoint that has too few for a range, and of all jobs. The others are two ranges."""

MOMENTS = (3, 150, 400, JOBS - 1)
"""Numbers of the jobs whose handlers are steps, too."""

TIMEOUT = 60.0
"""Seconds that a claim lasts."""

SLOWEST = 300.0
"""Seconds after the end of the driver by which all its processes have ended."""

_FORK = multiprocessing.get_context("fork")


class Step(NamedTuple):
    """A step of a batch.

    Attributes:
        actor: "driver", "task" or "job"; "spark" for the steps of an imitation of Spark in the driver.
        name: the call of the store, the step of the write of results, or the number of the job.
    """

    actor: str
    name: str


class Plan:
    """The kill of one life of a batch.

    Args:
        folder: of this life. Its processes leave notes there.
        mode: "all", "driver", "task", "last-task", "executor" or "refused": see `batch_kills`.
        at: number of the step before which to kill; 0 to kill nothing.
        results: path of the folder for results; None for no results.
    """

    def __init__(self, folder: str, mode: str, at: int, results: str | None = None) -> None:
        self.folder, self.mode, self.at, self.results = Path(folder), mode, at, results
        self.actor = "driver"
        self._alive = -1

    @classmethod
    def given(cls) -> Plan:
        """Return the plan that the environment has."""
        return cls(*json.loads(os.environ[PLAN]))

    def begin(self, actor: str) -> None:
        """Follow the plan in this process and in those that it forks."""
        global plan
        plan, self.actor = self, actor
        self._alive = os.open(self.folder / "alive", os.O_RDONLY | os.O_CREAT)
        fcntl.flock(self._alive, fcntl.LOCK_SH)
        if actor == "driver":
            self._file("driver").write_text(str(os.getpid()))
        stepped_stores.tell(self.take)

    def take(self, name: str, actor: str | None = None) -> None:
        """Take a step, or be killed before it.

        Raises:
            OSError: the step fails, by the plan.
        """
        with self._file("steps").open("a+") as notes:
            fcntl.flock(notes, fcntl.LOCK_EX)
            notes.seek(0)
            number = len(notes.readlines()) + 1
            notes.write(json.dumps([actor or self.actor, name]) + "\n")
        if number == self.at:
            self._kill(os.getppid() if actor == "job" else os.getpid())

    def _kill(self, task: int) -> None:
        if self.mode == "refused":
            raise OSError("there is no space left")
        driver = int(self._file("driver").read_text())
        if self.mode == "all":
            os.killpg(driver, signal.SIGKILL)
        elif self.mode == "executor":
            os.kill(_executor_of(task), signal.SIGKILL)
        else:
            os.kill(driver if self.mode == "driver" else task, signal.SIGKILL)
        if self.mode != "driver":
            signal.pause()  # until this process has ended, too

    def do(self, number: int) -> dict[str, int] | None:
        """Do a job. Return its result, if results are wanted: each process has another."""
        if number in MOMENTS:
            self.take(str(number), "job")
        with self._file("diary").open("a") as diary:
            diary.write(f"{number}\n")
        return None if self.results is None else {"number": number, "process": os.getpid()}

    def run(self, session: Any, url: str) -> None:
        """Run the batch."""
        try:
            run_batch(session, url, worker, max_jobs=JOBS, partitions=2, claim_timeout=TIMEOUT, results=self.results)
        except BatchFailedError as error:
            self._file("failure").write_text(str(error))
        self.take("end")

    def wait(self) -> None:
        """Wait, in another process, until all processes of Python that follow the plan have ended."""
        with self._file("alive").open("a") as file, at_most(SLOWEST, "the end of a batch"):
            fcntl.flock(file, fcntl.LOCK_EX)

    @property
    def steps(self) -> list[Step]:
        """The steps that were taken."""
        return [Step(*json.loads(line)) for line in self._lines("steps")]

    @property
    def diary(self) -> Counter[int]:
        """The number of times that each job was done."""
        return Counter(map(int, self._lines("diary")))

    @property
    def failure(self) -> str | None:
        """The error of the batch; None if it had none."""
        return "\n".join(self._lines("failure")) or None

    def _lines(self, name: str) -> list[str]:
        return self._file(name).read_text().splitlines() if self._file(name).exists() else []

    def _file(self, name: str) -> Path:
        return self.folder / name


def _executor_of(process: int) -> int:
    """Return the process of Java above a process."""
    while Path(f"/proc/{process}/comm").read_text().strip() != "java":
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process


plan: Plan
worker = Worker(concurrency=4)


@worker.handler("few")
@worker.handler("work")
async def work(number: int) -> dict[str, int] | None:
    """Do a job."""
    return plan.do(number)


class ForkingSession(Session):
    """An imitation of a Spark session that runs each partition in a process of its own.

    Args:
        tries: number of times that a task is tried.
    """

    def __init__(self, tries: int) -> None:
        super().__init__()
        self.tries = tries

    def createDataFrame(self, table):
        return ForkingFrame(self, table)

    @property
    def read(self):
        return SimpleNamespace(schema=lambda ddl: SimpleNamespace(parquet=Committed))


class Committed:
    """The rows of a folder of results."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def select(self, column):
        return self

    def distinct(self):
        return self

    def collect(self):
        plan.take("read", "spark")
        rows = [row for file in files_of(self.folder) for row in rows_of(file)]
        return [SimpleNamespace(staged=name) for name in {row["staged"] for row in rows}]


class ForkingFrame(Frame):
    """An imitation of a DataFrame: see `ForkingSession`."""

    @property
    def write(self):
        return SimpleNamespace(parquet=self.write_parquet)

    def collect(self):
        return [SimpleNamespace(staged=name) for names in self.run(_names) for name in names]

    def write_parquet(self, folder):
        """Write the answers of tasks to a folder, as Spark does."""

        def step(name):
            plan.take(f"spark {name}", "spark" if plan.actor == "driver" else None)

        job = ParquetJob(Path(folder), step)
        try:
            job.begin()
            self.run(job.write)
            job.commit()
        except Exception:
            job.abort()
            raise

    def run(self, use):
        """Run each task in a process of its own, as often as it is tried.

        Args:
            use: called there with the number of the partition, that of the attempt, and the answers of the task.

        Returns:
            The values that it has returned, one for each partition.
        """
        found = []
        for number in range(self.count):
            mask = [value == number for value in self.table.column("partition").to_pylist()]
            batches = self.table.filter(mask).to_batches()
            for attempt in range(self.session.tries):
                received = _in_a_process(self.task, batches, number, attempt, use)
                if received:
                    break
            else:
                raise RuntimeError("Job aborted due to stage failure: a task was lost")
            found += received
        return found


def _names(partition: int, attempt: int, answers: Iterable) -> list[str]:
    return [name for rows in answers for name in rows.column(0).to_pylist()]


def _in_a_process(task: Callable, batches: list, number: int, attempt: int, use: Callable) -> list[Any]:
    """Return a list with what was made of the answers of a task; an empty list if its process ended early."""
    ours, theirs = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_run_task, args=(theirs, task, batches, number, attempt, use))
    process.start()
    theirs.close()
    try:
        return [ours.recv()]
    except EOFError:
        return []
    finally:
        ours.close()
        process.join()


def _run_task(answer: Any, task: Callable, batches: list, number: int, attempt: int, use: Callable) -> None:
    plan.actor = "task"
    answer.send(use(number, attempt, task(iter(batches))))


def imitate(mode: str) -> ForkingSession:
    """Return an imitation of a session for a mode."""
    return ForkingSession(1 if mode == "last-task" else 2)


MASTERS = {"task": "local[1,2]", "executor": "local-cluster[1,1,1024]"}
"""Masters of Spark by modes; `local[1]` for the others. One task runs at a time, so that steps have an order."""


def main(url: str) -> None:
    """Run the batch on Spark."""
    given = Plan.given()
    given.begin("driver")
    variables = {f"spark.executorEnv.{name}": os.environ[name] for name in (PLAN, "PYTHONPATH")}
    spark = local_session(
        "killed",
        MASTERS.get(given.mode, "local[1]"),
        spark_python_daemon_module="tests.spark.batch.killed_daemon",
        **variables,
    )
    spark.sparkContext.setLogLevel("OFF")
    given.run(spark, url)
    spark.stop()


if __name__ == "__main__":
    from tests.spark.batch import killed_life  # under its own name, by which tasks import the worker

    killed_life.main(*sys.argv[1:])
