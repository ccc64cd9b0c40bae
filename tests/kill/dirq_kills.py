"""Each step on a folder of dirq, killed at every one of its system calls: `python -m tests.kill.dirq_kills`.

After a kill, the job is there once and whole, in its old or in its new state. An acknowledged step has been done. The
next process can finish the job, with nothing left over.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from jqueue.domain.models import JobStatus
from jqueue.formats.dirq.disk import NOTES
from jqueue.formats.dirq.elements import DirqElements
from jqueue.formats.dirq.simple import DirqSimple
from jqueue.formats.port import StoredJob
from tests.kill.dirq_steps import Steps
from tests.kill.ledger import ViolationError
from tests.kill.tracing import START, Point, Trace, trace_call, why_not

UNAVAILABLE = 2
SECONDS = 60.0
PAYLOAD = bytes(range(256)) * 20
NOW = datetime(2026, 11, 22, 5, 0, 7, 250_000, tzinfo=UTC)
LATER = datetime.now(UTC) + timedelta(days=1)

KINDS: dict[str, Callable[..., Any]] = {"simple": DirqSimple, "queue": DirqElements}


def _claimed(steps: Steps) -> StoredJob:
    return steps.claim(_added(steps), NOW)


def _added(steps: Steps) -> StoredJob:
    return steps.add(PAYLOAD, NOW, entrypoint="other", max_attempts=3)


def _dead(steps: Steps) -> StoredJob:
    return steps.bury(_claimed(steps), NOW)


Step = tuple[Callable[[Steps], StoredJob | None], Callable[[Steps, Any], object], JobStatus | None]

STEPS: dict[str, Step] = {
    "add": (lambda steps: None, lambda steps, _: _added(steps), JobStatus.QUEUED),
    "claim": (_added, lambda steps, kept: steps.claim(kept, NOW), JobStatus.IN_PROGRESS),
    "heartbeat": (_claimed, lambda steps, kept: steps.beat(kept, NOW), JobStatus.IN_PROGRESS),
    "ack": (_claimed, lambda steps, kept: steps.remove(kept, NOW), None),
    "nack": (_claimed, lambda steps, kept: steps.to_the_back(kept, NOW), JobStatus.QUEUED),
    "hand-back": (_claimed, lambda steps, kept: steps.release(kept, NOW), JobStatus.QUEUED),
    "bury": (_claimed, lambda steps, kept: steps.bury(kept, NOW), JobStatus.DEAD),
    "revive": (_dead, lambda steps, kept: steps.revive(kept, NOW), JobStatus.QUEUED),
    "cancel": (_added, lambda steps, kept: steps.remove(kept, NOW), None),
}

BETWEEN = {"cancel": JobStatus.IN_PROGRESS, "revive": JobStatus.QUEUED, "bury": JobStatus.QUEUED}
"""Status that a killed step may leave between the old and the new one: locked for a cancel, or being moved."""


class DirqKills:
    """The kills in one step.

    Args:
        folder: an empty folder for the queue.
        kind: kind of the queue.
        name: name of the step.
        attributes: True if notes are attributes. If they are files, notes of removed elements may be left.
    """

    def __init__(self, folder: Path, kind: str, name: str, attributes: bool) -> None:
        self._prepare, self._step, self._after = STEPS[name]
        self._kind, self._name = kind, name
        self._attributes = attributes
        self._folder = folder / "queue"
        self._kept: StoredJob | None = None

    def run(self, both: bool) -> int:
        """Kill at every point, and return the number of points.

        Raises:
            ViolationError: the folder is wrong after a kill.
        """
        trace, acknowledged = self._trace(None)
        if trace.code != 0 or not acknowledged:
            raise ViolationError(f"{self._name} ended with {trace.code}, though nobody killed it")
        self._check(True)
        points = [point for point in trace.points if both or not point.at_exit or point == trace.points[-1]]
        for point in points:
            trace, acknowledged = self._trace(point)
            try:
                self._check(acknowledged)
            except ViolationError as error:
                raise ViolationError(f"{self._kind}: {self._name}, killed at {point}: {error}") from error
        return len(points)

    def _steps(self) -> Steps:
        store = KINDS[self._kind](self._folder, entrypoint="queue", fsync=False, attributes=self._attributes)
        return Steps(store)

    def _trace(self, point: Point | None) -> tuple[Trace, bool]:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._kept = self._prepare(self._steps())
        steps = self._steps()
        steps.store._tidied = NOW.timestamp()

        def run(write: int) -> None:
            signal.raise_signal(START)
            self._step(steps, self._kept)
            os.write(write, b"!")

        return trace_call(run, point, SECONDS, self._name)

    def _check(self, acknowledged: bool) -> None:
        steps = self._steps()
        before = None if self._kept is None else self._kept.job.status
        found = steps.store.scan(LATER)
        if len(found) > 1:
            raise ViolationError("there are two of it")
        status = found[0].job.status if found else None
        if status not in (before, self._after, BETWEEN.get(self._name)):
            raise ViolationError(f"it is neither what it was nor what it was to be, but {status}")
        if acknowledged and status is not self._after:
            raise ViolationError(f"it was acknowledged, and it is {status}")
        steps.store.purge(LATER)
        for _ in range(2):
            for kept in steps.store.scan(LATER):
                self._finish(steps, kept)
        steps.store.purge(LATER)
        if steps.store.scan(LATER):
            raise ViolationError("it does not go")
        left = {path.name for path in self._folder.rglob("*") if path.is_file() or path.name == "locked"} - {"acked"}
        if not self._attributes:
            left = {name for name in left if not name.startswith(NOTES)}
        if left:
            raise ViolationError(f"something is left over: {', '.join(sorted(left))}")

    def _finish(self, steps: Steps, kept: StoredJob) -> None:
        """Finish a job as a later consumer does."""
        attempt = kept.job.attempt
        if kept.job.status is JobStatus.IN_PROGRESS:
            kept = steps.to_the_back(kept, LATER)
        elif kept.job.status is JobStatus.DEAD:
            kept = steps.revive(kept, LATER)
        kept = steps.claim(kept, LATER)
        if kept.job.payload != PAYLOAD:
            raise ViolationError("its payload is another")
        if (kept.job.entrypoint, kept.job.max_attempts) != ("other", 3):
            raise ViolationError("its note is lost")
        if kept.job.attempt <= attempt:
            raise ViolationError("an attempt was used twice")
        steps.remove(kept, LATER)


def main(arguments: list[str] | None = None) -> int:
    """Kill in each of the given steps, or in all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.kill.dirq_kills", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--step", choices=STEPS, action="append")
    parser.add_argument("--both", action="store_true", help="at entry and exit of each call")
    parser.add_argument("--beside", action="store_true", help="notes are files, as where there are no attributes")
    asked = parser.parse_args(arguments)
    if (reason := why_not()) is not None:
        print(reason, file=sys.stderr)
        return UNAVAILABLE
    for kind in asked.kind or KINDS:
        for name in asked.step or STEPS:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    points = DirqKills(Path(folder), kind, name, not asked.beside).run(asked.both)
                except ViolationError as error:
                    print(f"VIOLATION: {error}", file=sys.stderr)
                    return 1
            print(f"{kind:8}{name:12}killed at {points} points")
    return 0


if __name__ == "__main__":
    sys.exit(main())
