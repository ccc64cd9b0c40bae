"""Several processes on one file, killed at random moments, and an audit after each kill."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from jqueue import DirectQueue, JQueueError, QueueState
from tests.kill.adapters import Adapter
from tests.kill.children import Child, at_most
from tests.kill.folder import LOCK, NAME, Folder
from tests.kill.journal import Kind, Line, encode
from tests.kill.ledger import Ledger, ViolationError
from tests.kill.tiny_segments import with_segments
from tests.kill.whole_queue import WholeQueue, folder_of, read_whole
from tests.kill.worker import CLAIM_TIMEOUT, Orders, Worker, work

LONGEST_PAUSE = 0.025
LONGEST_PAUSE_WITH_SEGMENTS = 0.2
"""Segments are written and named by a process that lives for some commits."""

AUDIT_SECONDS = 60.0
DRAIN_SECONDS = 120.0
SHARE_OF_MASS_KILLS = 0.02
"""Share of the cycles in which all processes are killed at once."""

SWEEP_EVERY = 10
"""Kills between two sweeps of old claims by an operator: few workers live long enough to watch claims themselves."""

LINES_KEPT = 5000


@dataclass
class Figures:
    """Counts of a run so far."""

    kills: int = 0
    temporaries: int = 0
    revoked: int = 0
    commits: int = 0
    most_jobs: int = 0
    segments: set[str] = field(default_factory=set)
    """Names of the segments that were seen in the manifest."""
    ranges: set[str] = field(default_factory=set)
    """Ids of the ranges that were seen."""
    litter: int = 0
    """Number of objects that nothing named when all processes had ended."""


class RandomKills:
    """One run.

    Args:
        folder: folder of the queue, which is created.
        adapter: function that makes the storage.
        seed: seed of all dice, including those of the workers. The moment of a kill also depends on the machine.
        processes: number of processes alive at a time.
        segments: True to keep waiting jobs in small segments beside the file.
    """

    def __init__(self, folder: Path, adapter: Adapter, seed: int, processes: int, *, segments: bool = False) -> None:
        self.ledger = Ledger()
        self.figures = Figures()
        self._folder = Folder(folder, segments=segments)
        self._segments = segments
        self._longest_pause = LONGEST_PAUSE_WITH_SEGMENTS if segments else LONGEST_PAUSE
        self._adapter = adapter
        self._dice = random.Random(seed)
        self._processes = processes
        self._children: list[Child] = []
        self._numbers = itertools.count(1)
        self._late: list[tuple[str, Line]] = []
        self._seen: set[str] = set()
        self._queued = 0
        self._recent: deque[tuple[str, Line]] = deque(maxlen=LINES_KEPT)

    def run(self, cycles: int, on_progress: Callable[[], None]) -> None:
        """Kill `cycles` times, then drain the queue and account for every job.

        Raises:
            ViolationError: a promise was not kept.
        """
        try:
            while len(self._children) < self._processes:
                self._start([])
            while self.figures.kills < cycles:
                time.sleep(self._dice.uniform(0, self._longest_pause))  # so that the kill comes at any moment
                everybody = self._dice.random() < SHARE_OF_MASS_KILLS
                self._cycle(list(self._children) if everybody else [self._dice.choice(self._children)])
                on_progress()
            self._end()
        finally:
            with at_most(AUDIT_SECONDS, "waiting for killed processes"):
                for child in self._children:
                    child.kill()
                    child.close()

    def journal(self) -> bytes:
        """Return the lines heard last, for the search for a cause."""
        return b"".join(name.encode() + b" " + encode(line) for name, line in self._recent)

    def _cycle(self, victims: list[Child]) -> None:
        for victim in victims:
            self._kill(victim)
        self._audit(victims)
        for victim in victims:
            victim.close()
            repeats = self.ledger.forget_worker(victim.name)
            self._start([] if self._segments else repeats)  # a queue forgets the ids of jobs that ranges have ended
        if self.figures.kills % SWEEP_EVERY == 0 and self._folder.file.exists():
            self.figures.revoked += asyncio.run(self._sweep(CLAIM_TIMEOUT))

    def _start(self, repeats: list[str]) -> None:
        number = next(self._numbers)
        seed, broker = self._dice.randrange(1 << 32), self._dice.random() < 0.5
        orders = Orders(f"worker{number}", seed, broker, self._queued, repeats, self._segments)

        def run(descriptor: int) -> None:
            asyncio.run(work(self._adapter(self._folder.file), orders, descriptor))

        self._children.append(Child(orders.name, run, self._children))

    def _kill(self, child: Child) -> None:
        with at_most(AUDIT_SECONDS, "waiting for a killed process"):
            code = child.kill()
        self._children.remove(child)
        if code is not None:
            raise ViolationError(f"{child.name} ended by itself, with {code}: see its traceback above")
        self.figures.kills += 1

    def _audit(self, dead: Iterable[Child]) -> None:
        lines = [(child.name, line) for child in (*dead, *self._children) for line in child.lines()]
        with at_most(AUDIT_SECONDS, "taking the lock, which a killed process should have given back, and reading"):
            if self._dice.random() < 0.5:
                with self._folder.locked(wait=bool(self._children)):
                    left = self._folder.temporaries(self._processes)
                    state = self._state()
                self.figures.temporaries += len(left - self._seen)
                self._seen = left
            else:
                self._folder.temporaries(self._processes + 1)
                state = self._state()
        self._hear(lines, [(child.name, line) for child in self._children for line in child.lines()])
        if state is not None:
            self.ledger.check(state)
            self._queued = len(state.queued_jobs())
            self.figures.most_jobs = max(self.figures.most_jobs, len(state.jobs))
            self.figures.commits = state.version
        elif sum(self.ledger.acknowledged.values()) > self.ledger.acknowledged["dequeue"]:
            raise ViolationError("there is no file, though calls were acknowledged")

    def _state(self) -> QueueState | WholeQueue | None:
        """Return the queue in the file, with what is beside it."""
        if not self._segments:
            return self._folder.state()
        whole = read_whole(self._folder.file)
        if whole is not None:
            self.figures.segments |= whole.segments
            self.figures.ranges |= whole.ranges
        return whole

    def _hear(self, before: list[tuple[str, Line]], after: list[tuple[str, Line]]) -> None:
        """Hear all intents, and the answers collected before the state was read; see the ledger for why."""
        self._recent += before + after
        for name, line in before + after:
            if line.kind is Kind.INTENT:
                self.ledger.hear(name, line)
        for name, line in self._late + before:
            if line.kind is not Kind.INTENT:
                self.ledger.hear(name, line)
        self._late = [(name, line) for name, line in after if line.kind is not Kind.INTENT]

    async def _sweep(self, timeout: float) -> int:
        try:
            return await DirectQueue(self._adapter(self._folder.file)).requeue_stale(timeout)
        except JQueueError as error:
            raise ViolationError(f"the operator's sweep failed: {error}") from error

    def _end(self) -> None:
        """Kill all processes, and let a last one ack the remaining jobs."""
        victims = list(self._children)
        for victim in victims:
            self._kill(victim)
        self._audit(victims)
        for victim in victims:
            victim.close()
        orders = Orders("last", self._dice.randrange(1 << 32), broker=False, segments=self._segments)

        def run(descriptor: int) -> None:
            asyncio.run(self._drain(orders, descriptor))

        last = Child(orders.name, run, [])
        self._children.append(last)
        with at_most(DRAIN_SECONDS, "draining the queue"):
            lines = last.lines_to_the_end()
            code = last.kill()
        self._children.remove(last)
        last.close()
        if code != 0:
            raise ViolationError(f"the last process ended with {code}: see its traceback above")
        self._hear([(last.name, line) for line in lines], [])
        with self._folder.locked(wait=False):
            self._folder.temporaries(0)
        state = self._state()
        if state is None or not {NAME, LOCK} <= {path.name for path in self._folder.path.iterdir()}:
            raise ViolationError("the file or its sidecar is gone")
        self.ledger.check_drained(state)
        if isinstance(state, WholeQueue):
            self._check_beside(state)
        self.figures.commits = state.version

    def _check_beside(self, whole: WholeQueue) -> None:
        """Check that a collection removes all objects that nothing names."""
        folder = folder_of(self._folder.file)
        if whole.segments or whole.ranges:
            raise ViolationError("a segment is left in a queue that was drained")
        for path in folder.glob(".*"):  # temporary files are removed after a day, by the next creation of an object
            path.unlink()
        self.figures.litter = len({path.name for path in folder.iterdir()} - whole.retired)
        asyncio.run(with_segments(DirectQueue(self._adapter(self._folder.file)), kept=0.0).collect())
        if left := {path.name for path in folder.iterdir()} - whole.retired:
            raise ViolationError(f"a collection has left {', '.join(sorted(left))}")

    async def _drain(self, orders: Orders, descriptor: int) -> None:
        queue = DirectQueue(self._adapter(self._folder.file))
        if self._segments:
            with_segments(queue)
        await queue.requeue_stale(0)
        await Worker(queue, orders, descriptor).drain()
