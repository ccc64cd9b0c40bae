"""Contention in virtual time: writers of one object, each with a real `Pacing`, on a modelled store.

A contender makes the requests that the engine makes for a commit. No request waits for real, and a seed always gives
the same figures. Each trial runs a scenario as it is, and again with one constant of the pacing neutralised.

Arguments: seeds, trials (a list of constant, neutral value, scenario, figure).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any
from unittest.mock import patch

from shared import arguments, report

from jqueue.core import pacing as constants
from jqueue.core.pacing import Pacing
from jqueue.domain.header import CommitRecord

Steps = Iterator[float]
"""Requests and pauses of one writer, as seconds to wait."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Writers and a store.

    Attributes:
        latencies: seconds that one request of each writer takes; these writers begin together.
        seconds: length of the run.
        newcomers: latencies of writers that begin later, at random.
        burst: commits in a row before a writer rests; 0 for writers that never rest.
        rest: mean seconds between two bursts.
        every: seconds between two writes that the store takes; 0 if it takes all.
    """

    latencies: tuple[float, ...]
    seconds: float
    newcomers: tuple[float, ...] = ()
    burst: int = 0
    rest: float = 0.0
    every: float = 0.0


FILE, NEAR, FAR = 0.001, 0.03, 0.15
SCENARIOS = {
    "1 writer, 30 ms": Scenario((NEAR,), 12),
    "2 writers, 1 ms": Scenario((FILE,) * 2, 0.4),
    "4 writers, 1 ms": Scenario((FILE,) * 4, 0.4),
    "8 writers, 1 ms": Scenario((FILE,) * 8, 0.4),
    "2 writers, 30 ms": Scenario((NEAR,) * 2, 12),
    "4 writers, 30 ms": Scenario((NEAR,) * 4, 12),
    "8 writers, 30 ms": Scenario((NEAR,) * 8, 12),
    "16 writers, 30 ms": Scenario((NEAR,) * 16, 20),
    "32 writers, 30 ms": Scenario((NEAR,) * 32, 40),
    "4 writers, 150 ms": Scenario((FAR,) * 4, 40),
    "16 writers, 150 ms": Scenario((FAR,) * 16, 100),
    "2 writers of 20 ms, 2 of 100 ms": Scenario((0.02,) * 2 + (0.1,) * 2, 30),
    "3 writers of 30 ms, 1 of 150 ms": Scenario((NEAR,) * 3 + (FAR,), 30),
    "1 writer and a newcomer, 1 ms": Scenario((FILE,), 0.8, (FILE,)),
    "1 writer and a newcomer, 30 ms": Scenario((NEAR,), 24, (NEAR,)),
    "1 writer and a newcomer, 150 ms": Scenario((FAR,), 120, (FAR,)),
    "1 writer of 30 ms, a newcomer of 150 ms": Scenario((NEAR,), 60, (FAR,)),
    "4 writers of 30 ms, 2 newcomers of 150 ms": Scenario((NEAR,) * 4, 60, (FAR,) * 2),
    "4 writers and 4 newcomers, 30 ms": Scenario((NEAR,) * 4, 18, (NEAR,) * 4),
    "2 writers, bursts of 10, 30 ms": Scenario((NEAR,) * 2, 30, burst=10, rest=1.8),
    "8 writers, single commits, 30 ms": Scenario((NEAR,) * 8, 45, burst=1, rest=1.2),
    "1 writer, 1 write a second": Scenario((NEAR,), 90, every=1.0),
    "1 writer, 10 writes a second": Scenario((NEAR,), 90, every=0.1),
    "2 writers, 1 write a second": Scenario((NEAR,) * 2, 90, every=1.0),
    "4 writers, 1 write a second": Scenario((NEAR,) * 4, 90, every=1.0),
    "8 writers, 1 write a second": Scenario((NEAR,) * 8, 90, every=1.0),
    "16 writers, 1 write a second": Scenario((NEAR,) * 16, 120, every=1.0),
}


class World:
    """Virtual time, chance, and the object in the store."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario, self.dice, self.now = scenario, random.Random(seed), 0.0
        self.version, self.last = self.dice.randrange(4096), -scenario.every
        self.commits = dict[str, CommitRecord]()
        self.writes = self.landed = 0
        self._agenda: list[tuple[float, int, Steps]] = []
        self._added = 0

    def add(self, at: float, steps: Steps) -> None:
        """Run the next of these steps at a time."""
        self._added += 1
        heapq.heappush(self._agenda, (at, self._added, steps))

    def run(self) -> None:
        """Let the seconds of the scenario pass."""
        while self._agenda[0][0] < self.scenario.seconds:
            self.now, _, steps = heapq.heappop(self._agenda)
            self.add(self.now + max(next(steps), 1e-6), steps)

    def monotonic(self) -> float:
        """The clock of all writers."""
        return self.now

    def jitter(self, bound: float) -> float:
        """The entropy of all writers."""
        return self.dice.random() * bound

    def way(self, latency: float) -> float:
        """Seconds of half a request: give or take a fifth, and three times as long for 1 in 50."""
        return latency / 2 * (0.8 + self.jitter(0.4)) * (3.0 if self.dice.random() < 0.02 else 1.0)


class Contender:
    """One writer: the requests that the engine makes for its commits."""

    def __init__(self, world: World, name: str, latency: float, begins: float) -> None:
        self.world, self.name, self.latency, self.begins = world, name, latency, begins
        self.pacing = Pacing(world, world)  # type: ignore[arg-type]
        self.version, self.commits, self.sequence = -1, dict[str, CommitRecord](), 0
        self.waits: list[float] = []
        self.called: float | None = begins

    def steps(self) -> Steps:
        """Commit without end, or in bursts."""
        world, scenario = self.world, self.world.scenario
        while True:
            for _ in range(scenario.burst or 1):
                self.called = world.now
                yield from self.commit()
                self.waits.append(world.now - self.called)
            if scenario.burst:
                self.called = None
                yield world.dice.expovariate(1 / scenario.rest)

    def commit(self) -> Steps:
        """One commit, as `Engine.commit` makes it."""
        pacing = self.pacing
        while (pause := pacing.pause()) > 0:
            yield pause
        reads = pacing.begin() or self.version < 0
        while True:
            while reads:
                yield from self.read()
                if (pause_ := pacing.wait_after_read(self.version, self.commits)) is None:
                    break
                yield pause_
            landed, refused = yield from self.write()
            if landed:
                return
            yield pacing.pace.refused() if refused else 0.0
            reads = True

    def read(self) -> Steps:
        """One read."""
        world, started = self.world, self.world.now
        yield world.way(self.latency)
        version, commits = world.version, world.commits
        yield world.way(self.latency)
        moved, self.version, self.commits = version != self.version, version, commits
        self.pacing.cycle.read(world.now - started)
        self.pacing.read(version, moved=moved)

    def write(self) -> Any:
        """One write. Returns whether it landed, and whether the store refused it as too soon."""
        world, pacing = self.world, self.pacing
        self.sequence += 1
        record = CommitRecord(self.sequence, self.version + 1, 0.0, round(pacing.cycle.seconds, 4), "token")
        table, started = {**self.commits, self.name: record}, world.now
        pacing.pace.sent = started
        world.writes += 1
        yield world.way(self.latency)
        refused = world.now < world.last + world.scenario.every
        landed = not refused and self.version == world.version
        if landed:
            world.version, world.commits, world.last = record.version, table, world.now
            world.landed += 1
        yield world.way(self.latency)
        if not refused:
            pacing.cycle.write(world.now - started)
        if landed:
            self.version, self.commits = record.version, table
            pacing.landed(self.name, table)
        return landed, refused


def figures_of(scenario: Scenario, seed: int) -> dict[str, float]:
    """The figures of one run."""
    world, seconds = World(scenario, seed), scenario.seconds
    writers = [Contender(world, f"writer {number}", each, 0.0) for number, each in enumerate(scenario.latencies)]
    late = [
        Contender(world, f"newcomer {number}", each, seconds * (0.1 + world.jitter(0.6)))
        for number, each in enumerate(scenario.newcomers)
    ]
    for writer in (*writers, *late):
        world.add(writer.begins + world.jitter(writer.latency / 1000), writer.steps())
    world.run()
    waits = [wait for writer in (*writers, *late) for wait in writer.waits]
    open_waits = [seconds - writer.called for writer in (*writers, *late) if writer.called is not None]
    found = {
        "commits_per_second": len(waits) / sum(waits) if scenario.burst else world.landed / seconds,
        "failed_per_commit": (world.writes - world.landed) / max(world.landed, 1),
        "worst_wait": max([*waits, *open_waits]),
        "fewest_over_mean": len(min(writers, key=lambda each: len(each.waits)).waits)
        / max(1, fmean(len(each.waits) for each in writers)),
    }
    if late:
        found["newcomer_seconds"] = fmean(each.waits[0] if each.waits else seconds - each.begins for each in late)
    return found


def measure(scenario: Scenario, seeds: int) -> dict[str, float]:
    """The mean of each figure, over some seeds."""
    runs = [figures_of(scenario, seed) for seed in range(seeds)]
    return {name: fmean(run[name] for run in runs) for name in runs[0]}


def worsening(seeds: int, trials: list[tuple[str, float, str, str]]) -> dict[str, float]:
    """How many times as bad a figure becomes without each constant, by the name of the constant."""
    found = {}
    for constant, neutral, name, figure in trials:
        tuned = measure(SCENARIOS[name], seeds)[figure]
        with patch.object(constants, constant, neutral):
            without = measure(SCENARIOS[name], seeds)[figure]
        found[constant] = tuned / without if figure == "commits_per_second" else without / tuned
    return found


if __name__ == "__main__":
    given = arguments()
    report(worsening(given["seeds"], given["trials"]))
