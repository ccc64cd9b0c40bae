"""A batch on ranges, killed between any two of its steps, and run again: `python -m tests.spark.batch.batch_kills`.

A process of its own drives `run_batch`. On an imitation of Spark it forks one for each task; with `--spark`, it is on
Spark itself. First nothing is killed, which tells the steps: each call of the store by the driver and by tasks, some
moments within handlers, and the end. Then, each time on a fresh queue, a kill comes before one step after the other:

- `all`: the driver with its tasks;
- `driver`: the driver alone, so that a task goes on without it;
- `task`: the process of the task, which is then tried once more;
- `last-task`: the process of the task, which is not tried again, as on a single machine;
- `executor`: with Spark only, the executor with its tasks, which are then tried on another;
- `refused`: with results and the imitation only, nothing: the commit of the results fails at a step of Spark.

With `--results`, handlers return results, which Spark writes as Parquet files. Then jobs leave the queue only once the
rows of all are committed. Each has a row in the end, of the attempt that acked it, with the result that the queue has
kept. A batch that fails before Spark commits leaves no row, and all of its jobs are handed back.

After each kill, a job that has left the queue was done, and no job is damaged or there twice. When the claims of a dead
driver have timed out, nothing is in progress. A second batch does the rest. In the end, each job was done, the history
has one ack for each, and each claim was counted as an attempt. The exit code is 0 if all this holds, and 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from jqueue import BrokerQueue, DirectQueue, Job, JobStatus, Limits, connect
from jqueue.operations import Enqueue
from jqueue.testing.fake_clock import FakeClock
from tests.kill.children import fork, warm_up
from tests.kill.ledger import ViolationError
from tests.kill.whole_queue import PlacedJob, read_whole
from tests.servers.seaweedfs import SeaweedFS
from tests.spark.batch import stepped_stores
from tests.spark.batch.killed_life import FEW, JOBS, MOMENTS, PLAN, ROOT, SLOWEST, TIMEOUT, Plan, Step, imitate
from tests.spark.batch.parquet_job import MOVE
from tests.spark.batch.result_audit import ResultAudit, check, left_of

BY_DRIVER = ("all", "driver")
MODES = (*BY_DRIVER, "task", "last-task")
ON_SPARK = (*MODES, "executor")
WITH_RESULTS = (*MODES, "refused")


class Place(NamedTuple):
    """The URLs of a queue.

    Attributes:
        stepped: for the batch.
        audited: for all others.
    """

    stepped: str
    audited: str


@dataclass
class Tally:
    """The kills so far.

    Attributes:
        kills: number of them.
        acked: number of those after which no job was left.
        claimed: number of those after which jobs were in progress.
        repeated: number of jobs that were done more than once.
        failed: number of batches that failed with an error.
        committed: number of those after which results were committed whose jobs had not all left the queue.
    """

    kills: int = 0
    acked: int = 0
    claimed: int = 0
    repeated: int = 0
    failed: int = 0
    committed: int = 0


@dataclass
class BatchKills:
    """The kills of one batch.

    Attributes:
        folder: a folder for the notes of processes.
        mode: the kind of the kills.
        new_place: makes a queue with all jobs.
        on_spark: True for Spark itself.
        with_results: True to have results written.
        tally: the kills so far.
    """

    folder: Path
    mode: str
    new_place: Callable[[], Place]
    on_spark: bool = False
    with_results: bool = False
    tally: Tally = field(default_factory=Tally)

    def run(self, every: int = 1, first: int = 1) -> None:
        """Kill before each step of those whose number is `first` or later by a multiple of `every`.

        Raises:
            ViolationError: a promise was broken.
        """
        steps = self._steps()
        actors = {"all": ("driver", "spark", "task", "job"), "refused": ("spark",)}.get(self.mode, ("task", "job"))
        numbers = [at for at, step in enumerate(steps, 1) if step.actor in actors]
        for at in numbers[first - 1 :: every]:
            try:
                self._kill_at(at)
            except ViolationError as error:
                step = steps[at - 1]
                told = f"{self.mode}, killed at {at} of {len(steps)} ({step.actor} {step.name}): {error}"
                raise ViolationError(told) from None

    def _steps(self) -> list[Step]:
        """Return the steps of a batch that nobody kills."""
        place = self.new_place()
        audit = self._audit(place)
        plan = self._live(place, 0, audit)
        jobs = _jobs(place.audited)
        check(not left_of(jobs), "a batch that was not killed has left jobs")
        check(plan.diary == Counter(range(JOBS)), "a batch that was not killed has not done each job once")
        actors = Counter(step.actor for step in plan.steps)
        check(actors["job"] == len(MOMENTS) and actors["task"] > 9 and actors["driver"] > 9, f"the steps are {actors}")
        if audit is not None:
            audit.check_done(jobs, dict.fromkeys(range(JOBS), 1))
        return plan.steps

    def _audit(self, place: Place) -> ResultAudit | None:
        """Return the audit of the results of batches on a fresh queue; None without results."""
        if not self.with_results:
            return None
        return ResultAudit(Path(tempfile.mkdtemp(dir=self.folder)) / "results", _jobs(place.audited))

    def _kill_at(self, at: int) -> None:
        """Kill a batch on a fresh queue, and check what is left, and what a second batch makes of it."""
        place = self.new_place()
        audit = self._audit(place)
        plan = self._live(place, at, audit)
        check(len(plan.steps) >= at, f"it ended after {len(plan.steps)} steps")
        jobs = _jobs(place.audited)
        left = left_of(jobs)
        self._check_left(left, plan)
        if audit is not None:
            has_moved = any(MOVE in step.name for step in plan.steps[: at - 1] + plan.steps[at:])
            has_moved = has_moved or (self.on_spark and plan.failure is None)  # Spark does not tell its steps
            self.tally.committed += audit.check_killed(jobs, plan.failure is not None, has_moved) and bool(left)
        _let_claims_time_out(place.audited)
        then = {
            number: (job.status, job.attempt, job.failures) for number, job in left_of(_jobs(place.audited)).items()
        }
        expected = {number: (JobStatus.QUEUED, job.attempt, job.failures) for number, job in left.items()}
        check(then == expected, "not every job that was left is queued, with its attempts, after claims have timed out")
        diary = plan.diary + self._live(place, 0, audit).diary
        jobs = _jobs(place.audited)
        check(not left_of(jobs), "the second batch has left a job")
        check(set(diary) == set(range(JOBS)), "a job was not done")
        if audit is not None:
            attempts = {number: left[number].attempt + 1 if number in left else 1 for number in range(JOBS)}
            audit.check_done(jobs, attempts)
        self.tally.kills += 1
        self.tally.acked += not left
        self.tally.claimed += any(job.status is JobStatus.IN_PROGRESS for job in left.values())
        self.tally.repeated += sum(count > 1 for count in diary.values())
        self.tally.failed += plan.failure is not None
        counts, again = asyncio.run(_event_counts(place.audited)), sum(job.attempt for job in left.values())
        expected_counts = {"ack": JOBS, "first claims": JOBS, "second claims": again}
        check({name: counts[name] for name in expected_counts} == expected_counts, f"the history has {counts}")

    def _check_left(self, left: dict[int, Job], plan: Plan) -> None:
        """Check the queue after a kill."""
        check(set(range(JOBS)) - set(left) <= set(plan.diary), "a job has left the queue that was not done")
        is_alone = self.mode not in BY_DRIVER
        for job in left.values():
            is_held = job.status is JobStatus.IN_PROGRESS
            check(is_held or job.status is JobStatus.QUEUED, f"a job is {job.status}")
            check(not (is_held and is_alone), "a job is claimed by a batch that has ended")
            check(job.failures == is_held, f"a job is {job.status} with {job.failures} failures")
            check(job.attempt <= 1, f"a job was claimed once, and has {job.attempt} attempts")
        if self.with_results and self.mode in ("last-task", "refused"):
            check(plan.failure is not None and len(left) == JOBS, "a batch without all results has ended jobs")
        elif self.mode not in ("last-task", *BY_DRIVER):
            check(plan.failure is None and not left, f"the batch failed: {plan.failure}")

    def _live(self, place: Place, at: int, audit: ResultAudit | None) -> Plan:
        """Run a batch, which may be killed, until all its processes have ended."""
        given = tempfile.mkdtemp(dir=self.folder), self.mode, at, None if audit is None else str(audit.folder)
        plan = Plan(*given)
        if self.on_spark:
            command = [sys.executable, "-m", "tests.spark.batch.killed_life", place.stepped]
            variables = {**os.environ, PLAN: json.dumps(given), "PYTHONPATH": str(ROOT)}
            driver = subprocess.Popen(
                command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
            )
            code = driver.wait(SLOWEST)
        else:

            def run() -> None:
                os.setpgid(0, 0)
                plan.begin("driver")
                plan.run(imitate(self.mode), place.stepped)

            _, status = os.waitpid(fork(run), 0)
            code = os.waitstatus_to_exitcode(status)
        plan.wait()
        check(code == (-signal.SIGKILL if at and self.mode in BY_DRIVER else 0), f"the driver ended with {code}")
        return plan


def _jobs(url: str) -> dict[int, Job]:
    """Return the jobs of the queue, by number. Those in files are compared with the bytes of the files."""

    async def read() -> list[Job]:
        async with connect(url, DirectQueue) as queue:
            return [job async for job in queue.iterate_jobs()]

    jobs = asyncio.run(read())
    found = {_number_of(job): job for job in jobs}
    check(len(found) == len(jobs), "a job is there twice")
    if "://" not in url and (whole := read_whole(Path(url))) is not None:
        stored = {_number_of(job): (job.status, job.attempt) for job in whole.jobs}
        check(stored == {number: (job.status, job.attempt) for number, job in found.items()}, "the files have others")
    return found


def _number_of(job: Job | PlacedJob) -> int:
    """Return the number of a job. A job that is kept for its result has lost its payload, and has the number as id."""
    return int(job.payload or job.id)


def _let_claims_time_out(url: str) -> None:
    """Look at the queue, as another process, until claims have timed out that nobody keeps alive."""

    async def look() -> None:
        clock = FakeClock()
        async with connect(url, DirectQueue, clock=clock) as queue:
            for _ in range(8):
                await queue.dequeue("another")
                clock.advance(TIMEOUT / 4)

    asyncio.run(look())


async def _event_counts(url: str) -> Counter[str]:
    """Return the numbers of jobs in the events of the history, by verb, and by the attempt of claims."""
    counts: Counter[str] = Counter()
    async with connect(url, DirectQueue) as queue:
        async for event in queue.history():
            counts[event.verb] += event.jobs
            if event.verb == "dequeue":
                counts["first claims" if event.attempt == 1 else "second claims"] += event.jobs
    return counts


async def _fill(url: str, with_results: bool) -> None:
    """Make a queue with a history, whose jobs are in segments. Perhaps the queue keeps the results of a few."""
    async with connect(url, BrokerQueue, limits=Limits(batch_size=100, hot_bytes=1)) as queue:
        await queue.configure(history=3600)
        await queue.enqueue_many(_enqueue_of(number, with_results) for number in range(JOBS))


def _enqueue_of(number: int, with_results: bool) -> Enqueue:
    payload = b"%d" % number
    if number < JOBS - FEW:
        return Enqueue("work", payload)
    return Enqueue("few", payload, job_id=str(number), keep_result=3600) if with_results else Enqueue("few", payload)


def in_files(folder: Path, with_results: bool) -> Callable[[], Place]:
    """Return a function that makes queues in files, each a copy of the first."""
    template, copy = folder / "template", folder / "copy"
    template.mkdir()
    asyncio.run(_fill(str(template / "queue.json"), with_results))

    def new_place() -> Place:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(template, copy)
        return Place(f"{stepped_stores.FILE}://{copy}/queue.json", f"{copy}/queue.json")

    return new_place


def on_s3(server: Any, with_results: bool) -> Callable[[], Place]:
    """Return a function that makes queues in the bucket of a server."""
    numbers = itertools.count(1)

    def new_place() -> Place:
        rest = (
            f"://{server.access_key}:{quote(server.secret_key)}@{server.bucket}/batch-kills/{next(numbers)}/queue.json"
            f"?endpoint_url={server.endpoint_url}&region_name={server.region}&addressing_style=path"
        )
        asyncio.run(_fill(f"s3{rest}", with_results))
        return Place(f"{stepped_stores.S3}{rest}", f"s3{rest}")

    return new_place


def main(arguments: list[str] | None = None) -> int:
    """Kill, and print what happened."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.batch.batch_kills", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--mode", choices=(*ON_SPARK, "refused"), action="append", help="kind of the kills (default: every kind)"
    )
    parser.add_argument("--every", type=int, default=1, help="kill before every nth step (default: 1)")
    parser.add_argument("--first", type=int, default=1, help="the first of these steps (default: 1)")
    parser.add_argument("--seaweedfs", action="store_true", help="on SeaweedFS in place of a file")
    parser.add_argument("--spark", action="store_true", help="on Spark in place of an imitation")
    parser.add_argument("--results", action="store_true", help="have results written, too")
    chosen = parser.parse_args(arguments)
    all_modes = ON_SPARK if chosen.spark else WITH_RESULTS if chosen.results else MODES
    if not set(chosen.mode or ()) <= set(all_modes):
        parser.error(f"the modes are {', '.join(all_modes)} here")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as closing:
        if chosen.seaweedfs:
            server = SeaweedFS()
            server.start()
            closing.callback(server.stop)
            new_place = on_s3(server, chosen.results)
        else:
            new_place = in_files(Path(folder), chosen.results)
        warm_up()
        for mode in chosen.mode or all_modes:
            kills = BatchKills(Path(folder), mode, new_place, chosen.spark, chosen.results)
            try:
                kills.run(chosen.every, chosen.first)
            except ViolationError as error:
                print(f"NOT KEPT: {error}", file=sys.stderr)
                return 1
            print(f"{mode}: {kills.tally}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
