"""Runs seeds: builds a world from one number, lets it run, and has it audited."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from jqueue.ports.storage import ObjectStoragePort
from jqueue.testing.simulation.auditor import Auditor, Violation
from jqueue.testing.simulation.history import History
from jqueue.testing.simulation.loop import SimulatedLoop, SimulatedProcess
from jqueue.testing.simulation.network import LONGEST_DELAY, FaultKind, HonestStore, Network
from jqueue.testing.simulation.workload import Client, World, drain

DRAIN_SECONDS = 2000.0


@dataclass(frozen=True)
class Settings:
    """What a seed is run with.

    Attributes:
        rate: the share of requests that a fault happens to.
        calls: how many calls the processes make, about.
        processes: how many there are at the most.
        kinds: which faults may happen.
        disturbances: whether processes crash, are paused, and have their clocks set.
        make_storage: makes the honest store.
    """

    rate: float = 0.1
    calls: int = 75
    processes: int = 4
    kinds: tuple[FaultKind, ...] = tuple(FaultKind)
    disturbances: bool = True
    make_storage: Callable[[], HonestStore | ObjectStoragePort] = HonestStore


@dataclass
class Report:
    """What happened in one seed or in many.

    Attributes:
        calls: calls begun.
        commits: versions landed.
        recognised: commits that were recognised after an answer that was no clean success.
        faults: how often each kind fired.
        events: crashes, pauses and clock jumps.
        outcomes: how calls ended.
    """

    seeds: int = 0
    calls: int = 0
    commits: int = 0
    recognised: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, other: Report) -> None:
        """Add another report to this one."""
        self.seeds += other.seeds
        self.calls += other.calls
        self.commits += other.commits
        self.recognised += other.recognised
        self.faults += other.faults
        self.events += other.events
        self.outcomes += other.outcomes


class Simulation:
    """One seed."""

    def __init__(self, seed: int, settings: Settings) -> None:
        self.seed = seed
        self.settings = settings
        self.dice = random.Random(seed)
        self.report = Report(seeds=1)
        self.history = History()
        self.network = Network(settings.make_storage(), self.dice, settings.rate, settings.kinds)
        self.world = World(self.network, self.history, self.dice, settings.calls, itertools.count(1))
        self.clients: list[Client] = []
        self._names = (f"p{number}" for number in itertools.count(1))

    def run(self) -> Report:
        """Run it, and audit it.

        Raises:
            Violation: a rule is broken.
        """
        with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            runner.get_loop().set_exception_handler(lambda *_: None)
            drained = runner.run(self._main())
            landings, calls = list(self.network.landings), list(self.history.calls)
            runner.run(self._bury())
        for error in self.world.errors:
            raise Violation(0, f"an error left a process: {error!r}") from error
        pauses = {client.process.name: client.process.pauses for client in self.clients}
        Auditor(landings, calls, pauses).check()
        if not drained:
            raise Violation(0, f"jobs were left {DRAIN_SECONDS:.0f} s after the last fault")
        self._count()
        return self.report

    async def _main(self) -> bool:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        lives = [self._start(loop) for _ in range(self.dice.randint(1, self.settings.processes))]
        while any(not client.process.dead and not task.done() for client, task in lives):
            await asyncio.sleep(self.dice.uniform(1, 15))
            if self.world.calls_left > 0 and self.settings.disturbances:
                lives += self._disturb(loop, [client for client, task in lives if not task.done()])
        self.network.rate = 0.0
        await asyncio.sleep(LONGEST_DELAY * 2)  # what is still on its way arrives
        drainer = SimulatedProcess("drain", loop)
        drained: bool = await drainer.start(drain(self.world, drainer, DRAIN_SECONDS))
        return drained

    def _start(self, loop: SimulatedLoop) -> tuple[Client, asyncio.Task[None]]:
        process = SimulatedProcess(next(self._names), loop)
        latency = self.dice.choice([0.01, 0.02, 0.05])
        client = Client(self.world, process, latency=latency, tells_time=self.seed % 2 == 0)
        self.clients.append(client)
        return client, process.start(client.live())

    def _disturb(self, loop: SimulatedLoop, alive: list[Client]) -> list[tuple[Client, asyncio.Task[None]]]:
        """Something happens to a process."""
        choices = [client for client in alive if not client.process.paused]
        event = self.dice.random()
        if not choices or event < 0.6:
            return []
        client = self.dice.choice(choices)
        if event < 0.75:
            self.report.events["crash"] += 1
            client.process.die()
            return [self._start(loop)]
        if event < 0.9:
            self.report.events["clock jump"] += 1
            client.clock.skew += timedelta(seconds=self.dice.choice([-10_000, -1, 1, 10_000]))
            return []
        self.report.events["pause"] += 1
        client.process.pause()
        loop.call_later(self.dice.uniform(5, 200), _resume, client.process)
        return []

    async def _bury(self) -> None:
        """Let the coroutines of the dead unwind, where they can do no harm any more."""
        for client in self.clients:
            client.process.go_on()
        while tasks := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1.0)

    def _count(self) -> None:
        report = self.report
        report.calls = len(self.history.calls)
        report.commits = len(self.network.landings)
        report.recognised = sum(client.queue._engine.recognised for client in self.clients)
        report.faults.update({kind.name: count for kind, count in self.network.fired.items()})
        for call in self.history.calls:
            report.outcomes["ok" if call.succeeded else type(call.error).__name__] += 1


def _resume(process: SimulatedProcess) -> None:
    if not process.dead:
        process.go_on()


def run_seed(seed: int, settings: Settings | None = None) -> Report:
    """Run one seed, and audit it.

    Raises:
        Violation: a rule is broken.
    """
    return Simulation(seed, settings or Settings()).run()
