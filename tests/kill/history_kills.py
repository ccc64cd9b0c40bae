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
from tests.kill.children import warm_up
from tests.kill.ledger import ViolationError
from tests.kill.system_calls import ON_FILES
from tests.kill.tracing import START, Point, Trace, trace_call, why_not

UNAVAILABLE = 2
SECONDS = 60.0
TRIES = 5
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


class HistoryKills:
    """The kills in one move.

    Args:
        folder: an empty folder for the queue.
        hasty: True to use a mover that is broken on purpose.
    """

    def __init__(self, folder: Path, hasty: bool) -> None:
        self._hasty = hasty
        self._folder = folder / "queue"
        self._file = self._folder / "queue.json"

    def run(self) -> tuple[int, int]:
        """Kill at every point, and return the number of kills, and of those after which the object was there.

        Raises:
            ViolationError: the history is wrong after a kill.
        """
        for _ in range(2):  # the second run and all later ones find everything imported
            trace, acknowledged = self._trace(None)
            if trace.code != 0 or not acknowledged:
                raise ViolationError(f"the move ended with {trace.code}, though nobody killed it")
        kills = moved = 0
        for point in trace.points:
            if not point.at_exit or point == trace.points[-1]:
                there = self._kill_at(point)
                kills, moved = kills + (there is not None), moved + bool(there)
        return kills, moved

    def _kill_at(self, point: Point) -> bool | None:
        """Return True if an object was there after the kill; None if chance did not bring the point again."""
        for _ in range(TRIES if point.name in ON_FILES else 1):
            trace, acknowledged = self._trace(point)
            if trace.killed:
                try:
                    return asyncio.run(self._check(acknowledged))
                except ViolationError as error:
                    raise ViolationError(f"killed at {point}: {error}") from error
        return None

    def _trace(self, point: Point | None) -> tuple[Trace, bool]:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        return trace_call(lambda write: asyncio.run(self._run(write)), point, SECONDS, "the move")

    async def _run(self, descriptor: int) -> None:
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

    async def _check(self, acknowledged: bool) -> bool:
        queue = open_queue(self._file)
        there = bool(await queue.storage.list_beside(".history/"))  # type: ignore[attr-defined]
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
    asked = parser.parse_args(arguments)
    warm_up()
    if (reason := why_not()) is not None:
        print(reason, file=sys.stderr)
        return UNAVAILABLE
    with tempfile.TemporaryDirectory() as folder:
        try:
            kills, moved = HistoryKills(Path(folder), asked.hasty).run()
        except ViolationError as error:
            print(f"VIOLATION: {error}", file=sys.stderr)
            return 1
    print(f"{kills} kills, and the object was there after {moved}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
