"""Each step of a message of vsqs, killed at the entry and at the exit of each of its system calls.

    python -m tests.kill.vsqs_steps
    python -m tests.kill.vsqs_steps claim ack

After a kill at any point, there is one message with its payload, and it is served once as soon as claims are over. The
exit code is 0 if that is so, 1 if not, and 2 if system calls cannot be traced here.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from jqueue import Job, JobStatus
from jqueue.formats.port import Change, StoredJob
from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.names import parse, parse_written
from jqueue.formats.vsqs.store import VsqsFolder
from jqueue.testing.fake_clock import FakeClock
from tests.kill.children import warm_up
from tests.kill.ledger import ViolationError
from tests.kill.tracing import START, Point, trace_child, why_not

HELD, VIOLATED, UNAVAILABLE = 0, 1, 2
PAYLOAD = b"payload"
OURS = {".jqueue-dead", ".jqueue-notes", ".jqueue-acked"}

Make = Callable[[VsqsFolder, StoredJob | None], Change]


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        name: name of the step.
        make: function that makes the change.
        ready: True if a message is there before.
        claimed: True if it is claimed before.
        dead: True if it is dead before.
        stays: True if it is there afterwards.
        seconds: seconds since the claim has ended; negative while it is current.
    """

    name: str
    make: Make
    ready: bool = True
    claimed: bool = False
    dead: bool = False
    stays: bool = True
    seconds: float = -5.0


def _add(**values: Any) -> Make:
    return lambda store, kept: Change(None, Job(id="new", entrypoint="work", payload=PAYLOAD, **values), "")


def _to(**values: Any) -> Make:
    def make(store: VsqsFolder, kept: StoredJob | None) -> Change:
        assert kept is not None
        return Change(kept.job, kept.job.evolve(**values), kept.place)

    return make


def _remove(store: VsqsFolder, kept: StoredJob | None) -> Change:
    assert kept is not None
    return Change(kept.job, None, kept.place)


_QUEUED = {"status": JobStatus.QUEUED, "heartbeat_at": None, "claim_timeout": None}
_BACK = {**_QUEUED, "sequence": 2**51, "error": "e" * 2000}

STEPS = [
    Step("add", _add(), ready=False),
    Step("add with a large note", _add(headers={"x": "x" * 2000}), ready=False),
    Step("add for later", _add(run_at=FakeClock().now() + timedelta(seconds=60)), ready=False),
    Step("claim", _to(status=JobStatus.IN_PROGRESS, attempt=1, failures=1, claim_timeout=9.0)),
    Step("prolong", _to(), claimed=True),
    Step("release in place", _to(**_QUEUED), claimed=True),
    Step("release to the back", _to(**_BACK), claimed=True),
    Step("release of what is over", _to(**_QUEUED), claimed=True, seconds=5),
    Step("bury", _to(**{**_QUEUED, "status": JobStatus.DEAD, "dead_at": FakeClock().now()}), claimed=True),
    Step("revive", _to(status=JobStatus.QUEUED, dead_at=None, sequence=2**51), dead=True),
    Step("ack", _remove, claimed=True, stays=False),
    Step("cancel", _remove, stays=False),
]


class Kills:
    """The kills in one step.

    Args:
        folder: an empty folder for the queue.
        step: the step that is killed.
        attributes: True if notes are attributes.
    """

    def __init__(self, folder: Path, step: Step, attributes: bool) -> None:
        self._template, self._folder = folder / "template", folder / "copy"
        self._step = step
        self._attributes = attributes
        self._clock = FakeClock()
        self.count = 0
        self._prepare()

    def _prepare(self) -> None:
        queue, clock = StoreQueue(self._store(self._template), clock=self._clock), self._clock

        async def make() -> None:
            if not self._step.ready:
                return
            job = await queue.enqueue("work", PAYLOAD, headers={"kept": "x" * 1500}, max_attempts=9)
            if self._step.claimed or self._step.dead:
                [job] = await queue.dequeue(claim_timeout=10)
            if self._step.dead:
                await queue.nack(job, dead=True)
            clock.advance(10 + self._step.seconds)

        asyncio.run(make())

    def _store(self, folder: Path) -> VsqsFolder:
        return VsqsFolder(folder, fsync=True, attributes=self._attributes)

    def run(self) -> None:
        """Kill the step at every point.

        Raises:
            ViolationError: the folder is wrong after a kill.
        """
        self._kill_at(None)
        points = self._kill_at(None)
        for point in points:
            self._kill_at(point)
            self.count += 1

    def _kill_at(self, point: Point | None) -> list[Point]:
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._template.exists():
            shutil.copytree(self._template, self._folder, copy_function=shutil.copy2)
        read, write = os.pipe()
        try:
            trace = trace_child(lambda: self._child(write), write, point)
            os.set_blocking(read, False)
            os.write(write, b"?")  # so that the read does not fail
            done = os.read(read, 2)[:1] == b"!"
        finally:
            os.close(read)
            os.close(write)
        if point is None and not done:
            raise ViolationError(f"{self._step.name} ended with {trace.code}, though nobody killed it")
        try:
            self._check(done)
        except ViolationError as error:
            raise ViolationError(f"{self._step.name}, killed at {point}: {error}") from error
        return trace.points

    def _child(self, descriptor: int) -> None:
        store = self._store(self._folder)
        now = self._clock.now()
        kept = next(iter(store.scan(now)), None)
        change = self._step.make(store, kept)
        signal.raise_signal(START)
        [outcome] = store.carry_out([change], now)
        if not isinstance(outcome, Exception):
            os.write(descriptor, b"!")

    def _check(self, done: bool) -> None:
        names = set(os.listdir(self._folder)) if self._folder.exists() else set()
        unknown = {name for name in names - OURS if parse(name) is None and parse_written(name) is None}
        if unknown:
            raise ViolationError(f"something else is left: {unknown}")
        dead = self._folder / ".jqueue-dead"
        messages = [self._folder / name for name in names if parse(name)] + [*(dead.iterdir() if dead.exists() else ())]
        if len(messages) > 1:
            raise ViolationError(f"there are {len(messages)} messages")
        there = bool(messages)
        expected = {self._step.stays} if done else {self._step.stays, self._step.ready}
        if there not in expected:
            raise ViolationError("it is lost" if not there else "it is still there")
        if there and messages[0].read_bytes() != PAYLOAD:
            raise ViolationError("it is not whole")
        asyncio.run(self._serve(there))

    async def _serve(self, there: bool) -> None:
        """Check that the message is served once and unchanged after every claim is over."""
        queue = StoreQueue(self._store(self._folder), clock=FakeClock(self._clock.now() + timedelta(hours=1)))
        for job in (await queue.read_state()).jobs:
            if job.status is JobStatus.DEAD:
                await queue.redrive(job.id)
        jobs = await queue.dequeue(batch_size=9)
        if there != bool(jobs) or len(jobs) > 1:
            raise ViolationError(f"{len(jobs)} jobs are served")
        for job in jobs:
            if job.payload != PAYLOAD or (self._step.ready and len(job.headers["kept"]) != 1500):
                raise ViolationError("it is another job")
            if job.entrypoint != "work" or job.attempt <= (self._step.claimed or self._step.dead):
                raise ViolationError(f"{job.entrypoint} is served with attempt {job.attempt}")
            await queue.ack(job)


def main(names: Sequence[str]) -> int:
    """Kill in these steps, or in all of them with notes of both kinds; return the exit code."""
    warm_up()
    if (reason := why_not()) is not None:
        print(f"System calls cannot be traced: {reason}", file=sys.stderr)
        return UNAVAILABLE
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        for attributes in (True,) if names else (True, False):
            for number, step in enumerate(step for step in STEPS if step.name in names or not names):
                kills = Kills(Path(folder) / f"{attributes}-{number}", step, attributes)
                try:
                    kills.run()
                except ViolationError as error:
                    print(f"VIOLATION: {error} (notes in attributes: {attributes})", file=sys.stderr)
                    return VIOLATED
                print(f"{step.name}: {kills.count} kills")
                count += kills.count
    print(f"No message was lost or doubled by {count} kills.")
    return HELD


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
