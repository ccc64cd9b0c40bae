"""The move of a history beside a queue file, killed at its system calls: `python -m tests.kill.history_kills`.

One process commits, moves the outbox to an object, and drops it from the queue with its next commit. After a kill, the
history has every event of every commit once, and the next process moves on.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.core.blob.history_mover import HistoryMover
from jqueue.domain.errors import HistoryDamagedError
from jqueue.domain.events import HistoryEvent
from jqueue.domain.history import HistoryHeader, Moved
from jqueue.operations import Enqueue
from jqueue.ports.storage import SupportsObjects
from tests.kill.ledger import ViolationError
from tests.kill.traced_kills import EVERY_COMMIT, EVERY_CREATION, SECONDS, TracedKills, run_all
from tests.kill.tracing import START

BEFORE = 30
"""Number of jobs in the queue before the move; the first event says that the history began."""

FEW = 5
"""Number of events in the outbox above which it is moved."""


class Hasty(HistoryMover):
    """A mover that drops the events before their object is there."""

    async def _move(self, objects: SupportsObjects, history: HistoryHeader, queue: str) -> Moved:
        self._moving = asyncio.create_task(self._slowly(objects, history, queue))
        return Moved(history.series, history.batches)

    async def _slowly(self, objects: SupportsObjects, history: HistoryHeader, queue: str) -> None:
        await asyncio.sleep(0.05)
        await super()._move(objects, history, queue)


def open_queue(file: Path, few: int = FEW) -> DirectQueue:
    """Return a queue that moves its outbox when it has more than a few events."""
    queue = DirectQueue(LocalFileSystemStorage(file))
    queue._engine.history.events_per_object = few
    return queue


async def commit_and_move(queue: DirectQueue) -> None:
    """Make a commit that lets the outbox be moved, and the next commit, which drops it."""
    await queue.enqueue("t", b"")
    await queue._engine.finish(SECONDS)
    await queue.enqueue("t", b"")


class HistoryKills(TracedKills):
    """The kills in one move.

    Args:
        folder: an empty folder for the queue.
        hasty: True to use a mover that is broken on purpose.
    """

    must_return = False  # a commit and the mover work at the same time

    def __init__(self, folder: Path, hasty: bool) -> None:
        super().__init__("the move")
        self.expected = EVERY_COMMIT if hasty else EVERY_COMMIT | EVERY_CREATION
        self._hasty = hasty
        self._folder = folder / "queue"
        self._file = self._folder / "queue.json"

    def begin(self) -> None:
        """Remove the queue. The child makes it."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()

    async def work(self, descriptor: int) -> None:
        """Commit, move, and commit again, in the child."""
        before = open_queue(self._file, few=10 * BEFORE)
        await before.configure(history=3600)
        await before.enqueue_many([Enqueue("t", b"", job_id=str(number)) for number in range(BEFORE)])
        queue = open_queue(self._file)
        if self._hasty:
            engine = queue._engine
            engine.history = Hasty(queue.storage, engine.clock, engine.now, engine.observers, call_timeout=SECONDS)
            engine.history.events_per_object = FEW
        signal.raise_signal(START)
        await commit_and_move(queue)
        os.write(descriptor, b"!")

    def check(self, acknowledged: bool) -> bool:
        """Check the history, and that the next process moves on. Return True if the object was there."""
        return asyncio.run(self._check(acknowledged))

    async def _check(self, acknowledged: bool) -> bool:
        queue = open_queue(self._file)
        assert isinstance(queue.storage, SupportsObjects)
        there = bool(await queue.storage.list_beside(".history/"))
        events = await _events(queue)
        jobs = {job.id for job in (await queue.read_state()).jobs}
        if {event.job_id for event in events} != {None, *jobs} or len(events) != len(jobs) + 1:
            raise ViolationError(f"{len(jobs)} jobs were added, and the history has {len(events)} events")
        if acknowledged and len(jobs) != BEFORE + 2:
            raise ViolationError(f"the commits were acknowledged, and {len(jobs)} jobs are there")
        await commit_and_move(queue)
        last = len(events) + 2
        if [event.number for event in await _events(queue)] != list(range(last, 0, -1)):
            raise ViolationError("the next process has broken the history")
        history = (await queue.read_state()).history
        if history is None or history.first <= BEFORE + 1:
            raise ViolationError("the next process has not moved the history")
        return there


async def _events(queue: DirectQueue) -> list[HistoryEvent]:
    try:
        return [event async for event in queue.history()]
    except HistoryDamagedError as error:
        raise ViolationError(str(error)) from error


def main(arguments: list[str] | None = None) -> int:
    """Kill in a move."""
    parser = argparse.ArgumentParser(prog="python -m tests.kill.history_kills", description=__doc__)
    parser.add_argument("--hasty", action="store_true", help="use a mover that is broken on purpose")
    parser.add_argument("--every", type=int, default=1, help="2 kills at every second call, and so on")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        several = [HistoryKills(Path(folder), asked.hasty)]
        return run_all(several, both=False, done="the object was there", every=asked.every)


if __name__ == "__main__":
    sys.exit(main())
