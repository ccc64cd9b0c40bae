"""Changes of a TextQueue, each killed at the entry and the exit of every system call, and a check after each kill.

    python -m tests.kill.textqueue FOLDER [SCENARIO …]

After a kill, the change was made or not, and the next process can go on with the queue. The files are kept in the
folder, for a check by readers of the original program. The exit code is 2 if system calls cannot be traced here.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from jqueue.domain.models import Job, JobStatus
from jqueue.formats.port import Change, StoredJob
from jqueue.formats.textqueue.store import TextQueueFile
from tests.kill.children import at_most, warm_up
from tests.kill.ledger import ViolationError
from tests.kill.tracing import START, Point, Trace, trace_child, why_not

HELD, VIOLATED, UNAVAILABLE = 0, 1, 2
SECONDS = 60.0
CONTENT = b"# by hand\n-first\n two\n-second\n!third\n=fourth\n"
NOW = datetime(2100, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)

Summary = dict[bytes, tuple[JobStatus, int]]


def job(name: str) -> Job:
    """Return a new job."""
    return Job(id=name, entrypoint="work", payload=name.encode(), created_at=NOW)


def add(name: str) -> Callable[[Summary, dict[bytes, StoredJob]], list[Change]]:
    """Return a function that makes the change that enqueues a job."""
    return lambda before, kept: [Change(None, job(name), "")]


def change(text: bytes, **changes: object) -> Callable[[Summary, dict[bytes, StoredJob]], list[Change]]:
    """Return a function that makes a change of the message with this text."""

    def made(before: Summary, kept: dict[bytes, StoredJob]) -> list[Change]:
        found, place = kept[text]
        return [Change(found, found.evolve(**changes) if changes else None, place)]

    return made


CLAIMED = {"status": JobStatus.IN_PROGRESS, "attempt": 1, "failures": 1, "heartbeat_at": NOW, "claim_timeout": 9.0}
FREE = {"heartbeat_at": None, "claim_timeout": None}


@dataclass(frozen=True)
class Scenario:
    """A change that is killed.

    Attributes:
        changes: function that makes the changes.
        claimed: True if the first message was claimed before.
        after: the messages that differ after the change.
        content: content of the file; None if there is no file.
    """

    changes: Callable[[Summary, dict[bytes, StoredJob]], list[Change]]
    after: dict[bytes, tuple[JobStatus, int] | None]
    claimed: bool = False
    content: bytes | None = CONTENT


FIRST = b"first\ntwo"
QUEUED, IN_PROGRESS, DEAD = JobStatus.QUEUED, JobStatus.IN_PROGRESS, JobStatus.DEAD
SCENARIOS = {
    "first enqueue": Scenario(add("new"), {b"new": (QUEUED, 0)}, content=None),
    "enqueue": Scenario(add("new"), {b"new": (QUEUED, 0)}),
    "enqueue behind a line without an end": Scenario(add("new"), {b"new": (QUEUED, 0)}, content=CONTENT + b"-last"),
    "claim": Scenario(change(FIRST, **CLAIMED), {FIRST: (IN_PROGRESS, 1)}),
    "ack": Scenario(change(FIRST), {FIRST: None}, claimed=True),
    "nack": Scenario(change(FIRST, status=QUEUED, sequence=10**9, **FREE), {FIRST: (QUEUED, 1)}, claimed=True),
    "bury": Scenario(change(FIRST, status=DEAD, error="broken", **FREE), {FIRST: (DEAD, 1)}, claimed=True),
    "revive": Scenario(change(b"third", status=QUEUED, dead_at=None, failures=0), {b"third": (QUEUED, 0)}),
    "cancel": Scenario(change(b"second"), {b"second": None}),
}


class Kills:
    """The kills in one scenario."""

    def __init__(self, folder: Path, scenario: Scenario, *, hide: bool) -> None:
        self._scenario = scenario
        self._hide = hide
        self._template = folder / "template"
        self._path = folder / "copy" / "queue.tq"
        shutil.rmtree(self._template, ignore_errors=True)
        self._template.mkdir(parents=True)
        if scenario.content is not None:
            (self._template / "queue.tq").write_bytes(scenario.content)
        if scenario.claimed:
            store = self._store(self._template / "queue.tq")
            kept = {found.job.id: found for found in store.scan(NOW)}
            payloads = {made.payload: kept[made.id] for made in store.payloads(list(kept.values()))}
            store.carry_out(change(FIRST, **CLAIMED)({}, payloads), NOW)
        self._before = _summary(self._template / "queue.tq")
        self._after = {**self._before, **scenario.after}
        self._after = {text: state for text, state in self._after.items() if state is not None}

    def points(self) -> list[Point]:
        """Run the change without a kill, and return the points at which it can be killed."""
        for _ in range(2):  # the second run finds everything imported
            trace, acknowledged = self._trace(None)
            if trace.code != 0 or not acknowledged:
                raise ViolationError(f"it ended with {trace.code}, though nobody killed it")
            self._check(acknowledged)
        return trace.points

    def kill_at(self, point: Point) -> bytes | None:
        """Kill the change at a point, check the queue, and return the content of the file."""
        trace, acknowledged = self._trace(point)
        if not trace.killed:
            return None
        left = self._path.read_bytes() if self._path.exists() else b""
        try:
            self._check(acknowledged)
        except ViolationError as error:
            raise ViolationError(f"killed at {point}: {error}") from error
        return left

    def _store(self, path: Path) -> TextQueueFile:
        return TextQueueFile(path, hide=self._hide)

    def _trace(self, point: Point | None) -> tuple[Trace, bool]:
        shutil.rmtree(self._path.parent, ignore_errors=True)
        shutil.copytree(self._template, self._path.parent)
        read, write = os.pipe()
        try:
            with at_most(SECONDS, "a change under ptrace"):
                trace = trace_child(lambda: self._run(write), write, point)
            os.close(write)
            write = -1
            return trace, os.read(read, 1) != b""
        finally:
            os.close(read)
            if write >= 0:
                os.close(write)

    def _run(self, descriptor: int) -> None:
        """Make the change in the child."""
        store = self._store(self._path)
        kept = store.scan(NOW)
        texts = {found.payload: one for found, one in zip(store.payloads(kept), kept, strict=True)}
        changes = self._scenario.changes({}, texts)
        signal.raise_signal(START)
        [outcome] = store.carry_out(changes, NOW)
        if isinstance(outcome, StoredJob):
            os.write(descriptor, b"!")

    def _check(self, acknowledged: bool) -> None:
        found = _summary(self._path)
        if found not in (self._before, self._after):
            raise ViolationError(f"the queue is neither what it was nor what it was to be, but {found}")
        if acknowledged and found != self._after:
            raise ViolationError("it was acknowledged, and it is not there", 1)
        [outcome] = self._store(self._path).carry_out([Change(None, job("next"), "")], LATER)
        if not isinstance(outcome, StoredJob):
            raise ViolationError(f"the next process could not go on: {outcome!r}")
        if _summary(self._path) != {**found, b"next": (QUEUED, 0)}:
            raise ViolationError("the next change did not do what it was to do")


def _summary(path: Path) -> Summary:
    store = TextQueueFile(path)
    kept = store.scan(LATER)
    states = {found.job.id: found.job for found in kept}
    return {made.payload: (states[made.id].status, states[made.id].attempt) for made in store.payloads(kept)}


def main(folder: Path, *names: str) -> int:
    """Kill the given scenarios, or all of them, at every point; return the exit code."""
    if (reason := why_not()) is not None:
        print(reason, file=sys.stderr)
        return UNAVAILABLE
    warm_up()
    number = 0
    for hide in (False, True):
        for name in names or SCENARIOS:
            scenario = SCENARIOS[name]
            kills = Kills(folder / "work", scenario, hide=hide)
            try:
                points = kills.points()
                left = {content for point in points if (content := kills.kill_at(point)) is not None}
            except ViolationError as error:
                print(f"VIOLATION: {name}{', hiding' if hide else ''}: {error}", file=sys.stderr)
                return VIOLATED
            print(f"{name}: {len(points)} points, {len(left)} contents")
            for content in left:
                number += 1
                (folder / f"{number}.tq").write_bytes(content)
    return HELD


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
