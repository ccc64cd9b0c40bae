"""One commit, killed at the entry and at the exit of each of its system calls, and a check of the folder each time."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from jqueue import DirectQueue, Job, JobStatus, JQueueError
from tests.kill.adapters import Adapter
from tests.kill.children import at_most
from tests.kill.commits import LEFTOVER, Commit, Summary, prepare, summary
from tests.kill.folder import Folder
from tests.kill.journal import payload_of
from tests.kill.ledger import ViolationError
from tests.kill.traced_kills import EVERY_COMMIT, TracedKills
from tests.kill.tracing import START, Point

NEXT_WRITER_SECONDS = 20.0


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


class SystemCallKills(TracedKills):
    """The kills in one commit.

    Args:
        folder: an empty folder for the queue.
        adapter: function that makes the storage.
        commit: the commit that is killed.
        hits: the counts to add to.
        is_real: True if the adapter is the real one, whose system calls are known.
    """

    def __init__(self, folder: Path, adapter: Adapter, commit: Commit, hits: Hits, *, is_real: bool) -> None:
        super().__init__(commit.name)
        if is_real and commit.writes:
            self.expected = EVERY_COMMIT
        self._commit = commit
        self._adapter = adapter
        self._hits = hits
        self._template = Folder(folder / "template")
        self._folder = Folder(folder / "copy")
        self._job: Job | None = None
        self._before: Summary = {}

    def points(self) -> list[Point]:
        """As in the frame. The queue in which each run begins is made first."""
        if self._commit.exists:
            self._template.path.mkdir(parents=True)
            self._job = asyncio.run(prepare(DirectQueue(self._adapter(self._template.file)), self._template))
        self._before = summary(self._template.state())
        if self._commit.warm_up is not None:
            self._before["warm"] = (JobStatus.QUEUED, 0)
        points = super().points()
        self._hits.temporaries = 0
        return points

    def kill_at(self, point: Point) -> bool | None:
        """As in the frame, and count the kill."""
        landed = super().kill_at(point)
        self._hits.points += 1
        if landed is None:
            self._hits.missed += 1
        else:
            self._hits.kills += 1
            self._hits.calls[point.name] += 1
            self._hits.landed += landed
        return landed

    def begin(self) -> None:
        """Make a fresh copy of the queue."""
        shutil.rmtree(self._folder.path, ignore_errors=True)
        if self._commit.exists:
            shutil.copytree(self._template.path, self._folder.path)

    async def work(self, descriptor: int) -> None:
        """Make the call in the child."""
        queue = DirectQueue(self._adapter(self._folder.file))
        if self._commit.warm_up is not None:
            await self._commit.warm_up(queue)
        signal.raise_signal(START)
        await self._commit.call(queue, self._job)
        os.write(descriptor, b"!")

    def check(self, acknowledged: bool) -> bool:
        """Check the folder, and that the next writer goes on. Return True if the commit had landed."""
        with self._folder.locked(wait=False):
            left = self._folder.temporaries(1)
        self._hits.temporaries += bool(left - {LEFTOVER})
        found = self._found()
        after = self._before | self._commit.changes
        if found not in (self._before, after):
            raise ViolationError(f"the queue is neither what it was nor what it was to be, but {found}")
        if acknowledged and found != after:
            raise ViolationError("it was acknowledged, and it is not there", 1)
        with at_most(NEXT_WRITER_SECONDS, "the next writer"):
            asyncio.run(self._write_next())
        self._folder.temporaries(0)
        if self._found() != found | {"next": (JobStatus.QUEUED, 0)}:
            raise ViolationError("the next commit did not do what it was to do")
        return self._commit.writes and found == after

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
