"""Checksums of all files in a folder, by several worker processes that share one queue in a file.

    make run                                             the standard library of the running Python, 4 workers
    make run ARGS="some/folder --workers 8 --limit 1000"

The parent enqueues one job for each file. The workers claim jobs, compute, report to the parent, and ack what it has
confirmed: so a report may come twice, but none is lost. Half-way the parent kills a worker that has reported and not
yet acked. Its claims run out, other workers take its jobs, and in the end every checksum must be there, the same as in
a plain loop over the files.

`work` is what a program of your own would look like; the rest is the show around it.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import signal
import sys
import sysconfig
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from jqueue import BrokerQueue, Claim, ClaimLostError, HeartbeatManager, Job, LocalFileSystemStorage
from jqueue.operations import Enqueue

try:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
except ImportError:
    sys.exit("This example shows its progress with rich: pip install 'jqueue[examples]', or use `make run`")

CLAIM_TIMEOUT = timedelta(seconds=3)  # short, so that the killed worker's jobs come back during the demonstration
PATIENCE = timedelta(seconds=5)
JOBS_PER_ENQUEUE = 500
MOST_QUEUED = 2000  # a commit writes the whole queue: a short queue keeps commits quick, however large the folder
SECONDS_BETWEEN_LOOKS = 0.25
SECONDS_BETWEEN_LINES = 2.0


class Checksum(NamedTuple):
    sha256: str
    size: int


def checksum(path: str) -> Checksum:
    try:
        with open(path, "rb") as file:
            return Checksum(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())
    except OSError as error:  # also a result: a retry would not help
        return Checksum(f"unreadable: {type(error).__name__}", 0)


def find_files(folder: Path, limit: int | None) -> list[str]:
    """The regular files in a folder, without caches and installed packages, which may change at any time."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - {"__pycache__", "site-packages", "dist-packages"})
        paths = (os.path.join(parent, name) for name in sorted(names))
        found += [path for path in paths if os.path.isfile(path) and not os.path.islink(path)]
    return found[:limit]


def cancel_on(*signals: signal.Signals) -> None:
    """Have signals cancel the running task, so that every `async with` cleans up."""
    task = asyncio.current_task()
    assert task is not None
    for number in signals:
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


# A worker


async def work(queue_path: Path, concurrency: int) -> None:
    """Claim jobs, do them side by side, report, ack; until SIGTERM comes or the parent is gone."""
    cancel_on(signal.SIGTERM)
    parent = os.getppid()
    async with BrokerQueue(LocalFileSystemStorage(queue_path), stale_timeout=CLAIM_TIMEOUT) as queue:
        while os.getppid() == parent:
            jobs = await queue.dequeue("checksum", batch_size=concurrency, wait=PATIENCE)
            if not jobs:
                continue
            with suppress(ClaimLostError):  # this process stood still for too long: other workers have these jobs now
                async with HeartbeatManager(queue, jobs):
                    reports = await asyncio.gather(*(asyncio.to_thread(do, job) for job in jobs))
                    await asyncio.to_thread(deliver, reports)
                    await queue.ack_many(jobs)


def do(job: Job) -> dict[str, Any]:
    path = os.fsdecode(job.payload)
    return {"job": job.id, "attempt": job.attempt, "path": path, **checksum(path)._asdict()}


def deliver(reports: list[dict[str, Any]]) -> None:
    """Report to the parent, and wait until it has confirmed."""
    print(json.dumps(reports), flush=True)
    if not sys.stdin.readline():
        raise BrokenPipeError("the parent is gone")


# The parent


class Crew:
    """The workers as the parent sees them: their processes, and what they have reported."""

    def __init__(self, queue: BrokerQueue, total: int, show: Show) -> None:
        self.queue = queue
        self.total = total
        self.show = show
        self.done: dict[str, Checksum] = {}
        self.attempts: dict[str, int] = {}
        self.victim: Process | None = None
        self.held: list[Claim] = []
        self.killed_at = self.recovered_after = self.seconds = 0.0
        self.commits = 0
        self.problems: list[str] = []
        self._listening: dict[Process, asyncio.Task[None]] = {}
        self._stopping = False

    async def start(self, workers: int, queue_path: Path, concurrency: int, group: asyncio.TaskGroup) -> None:
        for _ in range(workers):
            worker = await asyncio.create_subprocess_exec(
                *(sys.executable, __file__, "--work", "--queue", queue_path, "--concurrency", str(concurrency)),
                stdin=PIPE,
                stdout=PIPE,
                limit=1 << 26,  # bytes, for the longest report
                start_new_session=True,  # Ctrl-C is for the parent, which stops the others
            )
            self._listening[worker] = group.create_task(self._listen(worker))

    async def stop(self) -> None:
        self._stopping = True
        for worker in self._listening:
            with suppress(ProcessLookupError):
                worker.terminate()
            assert worker.stdin is not None
            worker.stdin.close()
        await asyncio.gather(*(worker.wait() for worker in self._listening))

    def is_there(self) -> bool:
        return not all(task.done() for task in self._listening.values())

    def lost(self) -> list[Claim]:
        """Claims of the killed worker whose jobs no other worker has done since."""
        return [claim for claim in self.held if self.attempts.get(claim.job_id, 0) <= claim.attempt]

    async def _listen(self, worker: Process) -> None:
        """Record and confirm the reports of a worker, until it ends or is killed."""
        assert worker.stdin is not None
        assert worker.stdout is not None
        async for line in worker.stdout:
            reports = json.loads(line)
            half_way = len(self.done) + len(reports) > self.total / 2
            if half_way and self.victim is None and await self._kill(worker, reports):
                break
            for report in reports:
                self._note(**report)
            worker.stdin.write(b"confirmed\n")
        code = await worker.wait()
        if worker is not self.victim and not self._stopping:
            self.problems.append(f"worker {worker.pid} ended by itself, with exit code {code}")

    async def _kill(self, worker: Process, reports: list[dict[str, Any]]) -> bool:
        """Kill a worker that waits for a confirmation, and so has not acked its jobs. Returns whether that was done."""
        reported = {Claim(report["job"], report["attempt"]) for report in reports}
        held = [job.claim for job in (await self.queue.read_state()).in_progress_jobs() if job.claim in reported]
        if self.victim is not None or not held:  # another one was killed during the read, or these claims were lost
            return False
        worker.kill()
        self.victim, self.held, self.killed_at = worker, held, time.monotonic()
        self.show.say(f"Half-way: killed worker {worker.pid} with SIGKILL, with {len(held)} jobs in progress")
        return True

    def _note(self, job: str, attempt: int, path: str, sha256: str, size: int) -> None:
        self.done[path] = Checksum(sha256, size)
        self.attempts[job] = max(attempt, self.attempts.get(job, 0))
        if self.held and not self.recovered_after and not self.lost():
            self.recovered_after = time.monotonic() - self.killed_at
            self.show.say(f"Other workers have done its {len(self.held)} jobs, {self.recovered_after:.1f} s later")


class Show:
    """Output of the run: a progress bar on a terminal, and plain lines elsewhere."""

    def __init__(self, console: Console, total: int) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("Checksums"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[queued]} queued, {task.fields[in_progress]} in progress"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self.bar.add_task("", total=total, queued=0, in_progress=0)
        self._next_line = 0.0

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def update(self, done: int, queued: int, in_progress: int) -> None:
        self.bar.update(self._task, completed=done, queued=queued, in_progress=in_progress)
        if not self.console.is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            self.say(f"{done} done, {queued} queued, {in_progress} in progress")


async def run(files: list[str], queue_path: Path, options: argparse.Namespace, show: Show) -> Crew:
    """Start the workers, and wait until all files are done."""
    cancel_on(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    async with BrokerQueue(LocalFileSystemStorage(queue_path)) as queue, asyncio.TaskGroup() as group:
        crew = Crew(queue, len(files), show)
        await enqueue(queue, files[:JOBS_PER_ENQUEUE])  # creates the queue
        feeding = group.create_task(feed(queue, files[JOBS_PER_ENQUEUE:]))
        started = time.monotonic()
        try:
            await crew.start(options.workers, queue_path, options.concurrency, group)
            with show.bar:
                await watch(crew)
        finally:
            feeding.cancel()
            await crew.stop()
        crew.seconds = time.monotonic() - started
        crew.commits = (await queue.stats()).version
    return crew


async def feed(queue: BrokerQueue, files: list[str]) -> None:
    """Enqueue a job for each file, a batch at a time and as long as there is room."""
    for first in range(0, len(files), JOBS_PER_ENQUEUE):
        while (await queue.stats()).ready > MOST_QUEUED - JOBS_PER_ENQUEUE:
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        await enqueue(queue, files[first : first + JOBS_PER_ENQUEUE])


async def enqueue(queue: BrokerQueue, files: list[str]) -> None:
    await queue.enqueue_many(Enqueue("checksum", os.fsencode(path)) for path in files)


async def watch(crew: Crew) -> None:
    """Show how far the work is, until all of it is reported and acked."""
    while crew.is_there():
        stats = await crew.queue.stats()
        crew.show.update(len(crew.done), stats.ready, stats.in_progress)
        if len(crew.done) == crew.total and not stats.ready and not stats.in_progress:
            return
        await asyncio.sleep(SECONDS_BETWEEN_LOOKS)


def table(crew: Crew) -> Table:
    figures = {
        "files": f"{len(crew.done):,}",
        "bytes": f"{sum(result.size for result in crew.done.values()):,}",
        "seconds": f"{crew.seconds:.1f}",
        "jobs/s": f"{len(crew.done) / crew.seconds:,.0f}",
        "commits": f"{crew.commits:,}",
        "attempts": f"{sum(crew.attempts.values()):,}",
        "killed worker": f"{crew.victim.pid if crew.victim else 'none'}",
        "jobs it held": f"{len(crew.held):,}",
        "recovered jobs": f"{sum(attempt > 1 for attempt in crew.attempts.values()):,}",
        "recovered after": f"{crew.recovered_after:.1f} s",
    }
    result = Table("figure", show_header=False)
    result.add_column(justify="right")
    for name, figure in figures.items():
        result.add_row(name, figure)
    return result


def find_problems(crew: Crew, expected: dict[str, Checksum]) -> list[str]:
    """Return a description of each problem."""
    problems = list(crew.problems)
    wrong = sorted(path for path in expected | crew.done if expected.get(path) != crew.done.get(path))
    if wrong:
        problems.append(f"{len(wrong)} of {len(expected)} files are missing or differ, for example {wrong[0]!r}")
    if not crew.held or crew.lost():
        problems.append(f"{len(crew.lost())} of the {len(crew.held)} jobs of the killed worker were not recovered")
    return problems


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compute the checksums of a folder's files, with workers that share one queue."
    )
    stdlib = Path(sysconfig.get_path("stdlib"))
    parser.add_argument(
        "folder", type=Path, nargs="?", default=stdlib, help="folder of the files (default: Python's standard library)"
    )
    parser.add_argument(
        "--workers", type=int, default=4, help="number of worker processes, at least 2, as one is killed (default: 4)"
    )
    parser.add_argument(
        "--queue", type=Path, help="path of the new queue, which is kept (default: in a temporary folder)"
    )
    parser.add_argument("--limit", type=int, help="largest number of files to take")
    parser.add_argument(
        "--concurrency", type=int, default=16, help="number of jobs a worker runs at once (default: 16)"
    )
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.workers < 2 or options.concurrency < 1 or (options.limit is not None and options.limit < 1):
        parser.error("--workers must be at least 2, --concurrency and --limit at least 1")
    if not options.folder.is_dir():
        parser.error(f"{str(options.folder)!r} is not a folder")
    if options.queue is not None and options.queue.exists() and not options.work:
        parser.error(f"{str(options.queue)!r} already exists, and may be a queue in use: give a new path")
    return options


def main() -> int:
    options = read_options()
    if options.work:
        with suppress(asyncio.CancelledError, BrokenPipeError):
            asyncio.run(work(options.queue, options.concurrency))
        return 0
    console = Console(markup=False, highlight=False, emoji=False)
    folder = options.folder.absolute()
    try:
        files = find_files(folder, options.limit)
        show = Show(console, len(files))
        show.say(f"{len(files):,} files in {str(folder)!r}, {options.workers} workers")
        if not files:
            return 1
        with tempfile.TemporaryDirectory(prefix="jqueue-") as temporary:
            queue_path = (options.queue or Path(temporary, "queue.json")).absolute()
            crew = asyncio.run(run(files, queue_path, options, show))
        console.print(table(crew))
        expected = {path: checksum(path) for path in find_files(folder, options.limit)}
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("Interrupted; the workers have stopped.")
        return 130
    problems = find_problems(crew, expected)
    for problem in problems or [f"A plain loop gives the same {len(expected):,} checksums: no job was lost."]:
        show.say(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
