"""A batch that is killed between any two of its steps, and run again.

A process of its own drives `run_batch` on an imitation of Spark, which forks a process for each task. First nothing is
killed, which tells the steps: each request to the store by the driver and by tasks, and some moments within handlers.
Then, each time on a fresh queue, a kill comes before one step after the other: of the
driver with its tasks ("all"), of the driver alone ("driver"), or of the process of a task, which is tried once more
("task") or not ("last-task").

After each kill, a job that has left the queue was done. When the claims of a dead driver have timed out, a second batch
does the rest. In the end, each job was done, the history has one ack for each, and each claim counts as an attempt.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from jqueue import DirectQueue, Job, JobStatus, connect
from jqueue.spark import BatchFailedError, run_batch
from jqueue.testing.fake_clock import FakeClock
from jqueue.worker import Worker
from tests.kill.children import at_most, fork, warm_up
from tests.spark.imitated_session import Session
from tests.spark.spark_calls import call, fill_segments
from tests.spark.step_stores import told

MODES = ("all", "driver", "task", "last-task")
FEW, JOBS = 40, 640
"""Number of jobs that keep a result, so that they are claimed one by one, and of all jobs: the others are in ranges."""

MOMENTS = (3, 400, JOBS - 1)
"""Numbers of the jobs whose handlers are steps, too."""

SLOWEST = 300.0
"""Seconds after which a batch must have ended."""


class Life:
    """One batch in its own processes, which may be killed. Its processes leave notes in its folder.

    Args:
        url: of the queue.
        mode: the kind of the kill.
        at: number of the step to kill before, from 1; 0 to kill nothing.
    """

    def __init__(self, url: str, mode: str, at: int) -> None:
        self.url, self.mode, self.at = url, mode, at
        self.folder = Path(tempfile.mkdtemp(dir=Path(url).parent))
        self.driver = 0
        self.ended = 0

    def run(self) -> Life:
        """Run it until all its processes have ended."""

        def drive() -> None:
            os.setpgid(0, 0)
            self.driver = os.getpid()
            fcntl.flock(os.open(self.folder / "alive", os.O_RDONLY | os.O_CREAT), fcntl.LOCK_SH)
            with told(lambda name, request: self.step(name)):
                self._drive()

        _, status = os.waitpid(fork(drive), 0)
        self.ended = os.waitstatus_to_exitcode(status)
        with (self.folder / "alive").open("a") as file, at_most(SLOWEST, "the end of a batch"):
            fcntl.flock(file, fcntl.LOCK_EX)
        return self

    def _drive(self) -> None:
        worker = Worker(concurrency=4)

        @worker.handler("work")
        async def work(number: int) -> int:
            if number in MOMENTS:
                self.step(str(number), os.getppid())
            self.note("diary", number)
            return number

        tries = 1 if self.mode == "last-task" else 2
        session: Any = Session(forking=True, tries=tries)
        try:
            run_batch(session, f"steps://{self.url}", worker, partitions=2, claim_timeout=60)
        except BatchFailedError as error:
            self.note("failure", str(error))
        self.step("end")

    def step(self, name: str, task: int | None = None) -> None:
        """Take a step, or be killed before it. The process of a task may be another one than this."""
        actor = "driver" if os.getpid() == self.driver else "task"
        if self.note("steps", f"{actor} {name}") == self.at:
            if self.mode == "all":
                os.killpg(self.driver, signal.SIGKILL)
            elif self.mode == "driver":
                os.kill(self.driver, signal.SIGKILL)
            elif actor == "task":
                os.kill(task or os.getpid(), signal.SIGKILL)
            if self.mode == "all" or (actor == "task" and self.mode != "driver"):
                signal.pause()  # until this process has ended, too

    def note(self, name: str, text: object) -> int:
        """Add a line to a file, and return its number."""
        with (self.folder / name).open("a+") as notes:
            fcntl.flock(notes, fcntl.LOCK_EX)
            notes.seek(0)
            number = len(notes.readlines()) + 1
            notes.write(f"{text}\n")
        return number

    def lines(self, name: str) -> list[str]:
        """The lines of a file."""
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []


def left_of(url: str) -> dict[int, Job]:
    """The jobs that are not done, by number."""

    async def read(queue: Any) -> list[Job]:
        return [job async for job in queue.iterate_jobs()]

    jobs = [job for job in call(url, read) if job.status is not JobStatus.COMPLETED]
    return {int(job.payload): job for job in jobs}


def let_claims_time_out(url: str) -> None:
    """Look at the queue, as another process, until claims have timed out that nobody keeps alive."""

    async def look() -> None:
        clock = FakeClock()
        async with connect(url, DirectQueue, clock=clock) as queue:
            for _ in range(8):
                await queue.dequeue("another")
                clock.advance(15)

    asyncio.run(look())


def events_of(url: str) -> Counter[str]:
    """The numbers of jobs in the events of the history, by verb."""

    async def read(queue: Any) -> Counter[str]:
        counts: Counter[str] = Counter()
        async for event in queue.history():
            counts[event.verb] += event.jobs
        return counts

    counts: Counter[str] = call(url, read)
    return counts


def make_queue(folder: Path) -> str:
    """Make a queue with a history. Return its path."""
    url = f"{folder}/queue.json"
    call(url, lambda queue: queue.configure(history=3600))
    fill_segments(url, range(JOBS - FEW))
    fill_segments(url, range(JOBS - FEW, JOBS), keep_result=3600)
    return url


def kill_before(at: int, mode: str, folder: Path) -> tuple[Life, Counter[str]]:
    """Kill a batch before a step, and have a second one do the rest. Return the life of the first, and what it left."""
    url = make_queue(folder)
    life = Life(url, mode, at).run()
    left = left_of(url)
    diary = Counter(map(int, life.lines("diary")))
    assert set(range(JOBS)) - set(left) <= set(diary), "a job has left the queue that was not done"
    is_dead = life.ended != 0
    assert is_dead == (mode in ("all", "driver") and at > 0), f"the driver ended with {life.ended}"
    failures = {(job.status, job.failures, job.attempt) for job in left.values()}
    claimed = {(JobStatus.IN_PROGRESS, 1, 1)} if is_dead else set()
    handed_back = {(JobStatus.QUEUED, 0, attempt) for attempt in (0, 1)}
    assert failures <= claimed | handed_back, failures
    let_claims_time_out(url)
    again = Life(url, "all", 0).run()
    assert {} == left_of(url), "the second batch has left a job"
    assert set(range(JOBS)) == set(diary) | set(map(int, again.lines("diary"))), "a job was not done"
    events = events_of(url)
    claims = JOBS + sum(job.attempt for job in left.values())
    assert (JOBS, claims) == (events["ack"], events["dequeue"]), f"the history has {events}"
    outcome = Counter(kills=at > 0, acked=not left, failed=bool(life.lines("failure")))
    outcome["claimed"] += any(job.status is JobStatus.IN_PROGRESS for job in left.values())
    return life, outcome


def kills(mode: str, folder: Path, *, every: int, first: int = 0) -> Counter[str]:
    """Kill a batch before every nth of its steps, and return the numbers of what was left."""
    warm_up()
    (folder / "whole").mkdir()
    steps = kill_before(0, mode, folder / "whole")[0].lines("steps")
    numbers = [at for at, name in enumerate(steps, 1) if mode in ("all", "driver") or name.startswith("task")]
    tally: Counter[str] = Counter()
    for at in numbers[first::every]:
        (folder / str(at)).mkdir()
        try:
            tally += kill_before(at, mode, folder / str(at))[1]
        except AssertionError as error:
            raise AssertionError(f"{mode}, killed before step {at}, {steps[at - 1]}: {error}") from error
    return tally
