"""One commit, killed at the entry and at the exit of each of its system calls, and a check of the folder each time."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from jqueue import DirectQueue, Job, JobStatus, JQueueError
from tests.kill.adapters import Adapter
from tests.kill.children import at_most
from tests.kill.commits import LEFTOVER, Commit, Summary, prepare, summary
from tests.kill.folder import Folder
from tests.kill.journal import payload_of
from tests.kill.ledger import ViolationError
from tests.kill.tracing import START, Point, Trace, trace_call

SECONDS = 60.0
NEXT_WRITER_SECONDS = 20.0
TRIES = 5

EVERY_COMMIT = {"openat", "flock", "write", "fsync", "pwrite64", "rename", "close"}
"""System calls of every commit to a file. If one is not seen, the wrong process is traced."""

ON_FILES = EVERY_COMMIT - {"close"} | {
    "read",
    "pread64",
    "lseek",
    "fstat",
    "newfstatat",
    "getdents64",
    "unlink",
    "mkdir",
    "fchown",
}
"""System calls that every run makes alike. Others occur by chance, as threads wait, start or are reused. So does the
`close` of a replaced file, which its thread makes after the answer: at times before the child acknowledges, at times
after it, and that of a call before this one may come late."""


@dataclass
class Hits:
    """Counts of the kills.

    Attributes:
        calls: number of kills at the entry or exit of each system call.
        points: number of points.
        missed: number of points that chance did not bring again.
        kills: number of killed processes.
        landed: number of kills after which the commit had landed.
        temporaries: number of kills that left a temporary file.
    """

    calls: Counter[str] = field(default_factory=Counter)
    points: int = 0
    missed: int = 0
    kills: int = 0
    landed: int = 0
    temporaries: int = 0


class SystemCallKills:
    """The kills in one commit.

    Args:
        folder: an empty folder for the queue.
        adapter: function that makes the storage.
        commit: the commit that is killed.
        hits: the counts to add to.
    """

    def __init__(self, folder: Path, adapter: Adapter, commit: Commit, hits: Hits) -> None:
        self._commit = commit
        self._adapter = adapter
        self._hits = hits
        self._template = Folder(folder / "template")
        self._folder = Folder(folder / "copy")
        self._job: Job | None = None
        self._before: Summary = {}

    def points(self) -> list[Point]:
        """Run the commit unharmed, and list the points at which it can be killed, in their order.

        Raises:
            ViolationError: the commit fails without a kill.
        """
        if self._commit.exists:
            self._template.path.mkdir(parents=True)
            self._job = asyncio.run(prepare(DirectQueue(self._adapter(self._template.file)), self._template))
        self._before = summary(self._template.state())
        if self._commit.warm_up is not None:
            self._before["warm"] = (JobStatus.QUEUED, 0)
        for _ in range(2):  # the second run and all later ones find everything imported
            trace, acknowledged = self._trace(None)
            if trace.code != 0 or not acknowledged:
                raise ViolationError(f"{self._commit.name} ended with {trace.code}, though nobody killed it")
            self._check(acknowledged)
        return trace.points

    def kill_at(self, point: Point) -> None:
        """Run the commit on a fresh copy, kill it at a point, and check the folder.

        Raises:
            ViolationError: the folder is wrong, or the process does not come to that point again.
        """
        self._hits.points += 1
        must = point.name in ON_FILES or point.name.startswith("rename")
        for _ in range(TRIES if must else 1):
            trace, acknowledged = self._trace(point)
            if trace.killed:
                break
        else:
            if must:
                raise ViolationError(f"{self._commit.name}: {point} was there once, and not again in {TRIES} runs")
            self._hits.missed += 1
            return
        self._hits.kills += 1
        self._hits.calls[point.name] += 1
        try:
            self._check(acknowledged)
        except (ViolationError, TimeoutError) as error:
            raise ViolationError(f"{self._commit.name}, killed at {point}: {error}") from error

    def _trace(self, point: Point | None) -> tuple[Trace, bool]:
        """Run the commit on a fresh copy. Return its trace, and True if it was acknowledged."""
        shutil.rmtree(self._folder.path, ignore_errors=True)
        if self._commit.exists:
            shutil.copytree(self._template.path, self._folder.path)
        return trace_call(lambda write: asyncio.run(self._run(write)), point, SECONDS, self._commit.name)

    async def _run(self, descriptor: int) -> None:
        """Make the call in the child."""
        queue = DirectQueue(self._adapter(self._folder.file))
        if self._commit.warm_up is not None:
            await self._commit.warm_up(queue)
        signal.raise_signal(START)
        await self._commit.call(queue, self._job)
        os.write(descriptor, b"!")

    def _check(self, acknowledged: bool) -> None:
        with self._folder.locked(wait=False):
            left = self._folder.temporaries(1)
        self._hits.temporaries += bool(left - {LEFTOVER})
        found = self._found()
        after = self._before | self._commit.changes
        if found not in (self._before, after):
            raise ViolationError(f"the queue is neither what it was nor what it was to be, but {found}")
        if acknowledged and found != after:
            raise ViolationError("it was acknowledged, and it is not there", 1)
        self._hits.landed += self._commit.writes and found == after
        with at_most(NEXT_WRITER_SECONDS, "the next writer"):
            asyncio.run(self._write_next())
        self._folder.temporaries(0)
        if self._found() != found | {"next": (JobStatus.QUEUED, 0)}:
            raise ViolationError("the next commit did not do what it was to do")

    async def _write_next(self) -> None:
        queue = DirectQueue(self._adapter(self._folder.file), deadline=NEXT_WRITER_SECONDS)
        try:
            await queue.enqueue("t", payload_of("next"), job_id="next")
            await queue.aclose()
        except JQueueError as error:
            raise ViolationError(f"the next writer failed: {error}") from error

    def _found(self) -> Summary:
        state = self._folder.state()
        if state is not None:
            if state.set_aside:
                raise ViolationError(f"a line of the file cannot be read: {state.set_aside[0].reason}")
            if wrong := [job.id for job in state.jobs if job.payload != payload_of(job.id)]:
                raise ViolationError(f"the payload of {wrong[0]} is not the one that was enqueued")
        return summary(state)


def kill_everywhere(
    kills: SystemCallKills, both: bool, is_real: bool, writes: bool, on_progress: Callable[[int, int], None]
) -> None:
    """Kill at every point of one commit, the last point first, as kills after the answer tell most.

    Args:
        kills: the kills in the commit.
        both: True to kill at entry and exit of each call; otherwise at each entry and after the answer.
        is_real: True if the adapter is the real one, whose system calls are known.
        writes: True if the call commits.
        on_progress: called with the number of points done and of all points.
    """
    points = kills.points()
    seen = {point.name.replace("renameat2", "rename").replace("renameat", "rename") for point in points}
    if is_real and writes and not seen >= EVERY_COMMIT:
        raise ViolationError(f"a commit was watched that made no call of {', '.join(sorted(EVERY_COMMIT - seen))}")
    chosen = [point for point in points if both or not point.at_exit or point == points[-1]]
    for done, point in enumerate(reversed(chosen), 1):
        kills.kill_at(point)
        on_progress(done, len(chosen))
