"""Worker processes as users start them, `python -m jqueue worker`, and the journal that their handlers write."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from jqueue import ClaimLostError, DirectQueue, Job, LocalFileSystemStorage

ROOT = Path(__file__).parents[2]
LONGEST = 120.0
"""Seconds to wait for anything here. A correct program needs much less."""

JOURNAL = "journal"


class Line(NamedTuple):
    """A line that a handler wrote to the journal: when it began, or when it ended."""

    what: str
    entrypoint: str
    job_id: str
    attempt: int
    at: float


class WorkerProcess:
    """A worker process in a folder, which holds the queue and the journal.

    Args:
        folder: the working directory.
        name: name of its log.
        program: the module below `programs` that defines the worker, or the module and name of another one.
        options: further options of the command.
    """

    def __init__(self, folder: Path, name: str, program: str, *options: str) -> None:
        self.log, self.output = folder / f"{name}.log", folder / f"{name}.out"
        self.killed = False
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        worker = program if ":" in program else f"tests.worker_processes.programs.{program}:worker"
        with self.log.open("wb") as log, self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jqueue", "worker", worker, "queue.json", *options],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
            )

    @property
    def has_started(self) -> bool:
        """True if the worker has logged its start; from then on it handles signals."""
        return b" started: " in self.log.read_bytes()

    @property
    def pid(self) -> int:
        """The id of the process, which is in the name of the holder of its claims."""
        return self._process.pid

    def kill(self) -> None:
        """Send SIGKILL."""
        self.killed = True
        self._process.kill()

    def stop(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        return self._process.wait(LONGEST)


class Scene:
    """A folder with a queue, a journal, and worker processes, which are killed at the end of the block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.queue = DirectQueue(LocalFileSystemStorage(folder / "queue.json"))
        self.processes: list[WorkerProcess] = []
        (folder / JOURNAL).touch()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Scene]:
        """Open the queue, and end all processes afterwards."""
        try:
            async with self.queue:
                yield self
        finally:
            for process in self.processes:
                process.kill()
                process.end()

    def start(self, program: str, *options: str) -> WorkerProcess:
        """Start one more worker."""
        self.processes.append(WorkerProcess(self.folder, f"worker-{len(self.processes)}", program, *options))
        return self.processes[-1]

    async def give_back_jobs_of(self, killed: WorkerProcess) -> None:
        """Give back the jobs of a killed worker, as an operator can. To wait for its claims to end needs a clock.

        The broker gives back the jobs of a claim whose answer the worker has not received. It may come first.
        """
        killed.end()
        for job in (await self.queue.read_state()).in_progress_jobs():
            if job.holder is not None and job.holder.endswith(f":{killed.pid}"):
                with suppress(ClaimLostError):
                    await self.queue.nack(job)

    def lines(self) -> list[Line]:
        """Return the journal."""
        lines = (line.split("\t") for line in (self.folder / JOURNAL).read_text().splitlines())
        return [
            Line(what, entrypoint, job_id, int(attempt), float(at)) for what, entrypoint, job_id, attempt, at in lines
        ]

    def count(self, what: str) -> Counter[str]:
        """Return how often handlers wrote this, by the id of their job."""
        return Counter(line.job_id for line in self.lines() if line.what == what)

    async def jobs(self) -> dict[str, Job]:
        """Return the jobs in the queue, by id."""
        return {job.id: job for job in (await self.queue.read_state()).jobs}

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition is true."""
        give_up = time.monotonic() + LONGEST
        while not condition():
            assert time.monotonic() < give_up, f"still not true after {LONGEST:g} s: {what}"
            await asyncio.sleep(0.01)

    async def until_only(self, wanted: Callable[[dict[str, Job]], object], what: str) -> dict[str, Job]:
        """Wait until the jobs in the queue are as wanted, and return them."""
        give_up = time.monotonic() + LONGEST
        while not wanted(jobs := await self.jobs()):
            assert time.monotonic() < give_up, f"still not true after {LONGEST:g} s: {what}"
            await asyncio.sleep(0.02)
        return jobs


def most_at_once(lines: list[Line], entrypoint: str) -> int:
    """Return the largest number of handlers that began and ended by themselves and ran at the same time."""
    spans: dict[tuple[str, int], list[float]] = defaultdict(list)
    for line in lines:
        if line.entrypoint == entrypoint:
            spans[line.job_id, line.attempt].append(line.at)
    moments = sorted(moment for span in spans.values() if len(span) == 2 for moment in ((span[0], 1), (span[1], -1)))
    most = running = 0
    for _, step in moments:
        running += step
        most = max(most, running)
    return most
