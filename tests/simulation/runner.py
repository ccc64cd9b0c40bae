"""Runs seeds: builds a world from one number, runs it, and has it audited."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from jqueue.core.broker import BrokerQueue
from jqueue.ports.storage import ObjectStoragePort, SupportsObjects
from jqueue.testing.tuning import tune
from tests.simulation.actors import Consumer, Offerer, Operator, Producer
from tests.simulation.answers_audit import AnswersAudit, check_deaths
from tests.simulation.chain import Version, read_chain
from tests.simulation.contention import contend
from tests.simulation.crowds import Crowd, count_runs
from tests.simulation.damage import Damage, note_damage
from tests.simulation.drain import DRAIN_SECONDS, drain
from tests.simulation.families import Parent
from tests.simulation.groupers import Grouper
from tests.simulation.history import Call, Calls, Evidence, Violation
from tests.simulation.history_audit import HistoryAudit
from tests.simulation.leasers import Leaser
from tests.simulation.loop import Livelock, SimulatedLoop, SimulatedProcess
from tests.simulation.model_audit import ModelAudit
from tests.simulation.network import LONGEST_DELAY, HonestStore, Landing, Network
from tests.simulation.orders import Attendee, Historian, Ruler, Waiter, check_orders_to_stop
from tests.simulation.overseers import Overseer
from tests.simulation.people import OLD_PROGRAM, OldProgram, Person, old_blob
from tests.simulation.plain_values import BLOB_BYTES
from tests.simulation.punctuality import Punctuality
from tests.simulation.schedule import Schedule
from tests.simulation.segments_audit import SegmentsAudit, check_objects
from tests.simulation.staging import Holder, Stager
from tests.simulation.stored_segments import FOLDER
from tests.simulation.workload import Actor, Client, World

RATES = (0.0, 0.05, 0.1, 0.2, 0.4)
LATENCIES = (0.01, 0.01, 0.02, 0.05)
"""Seconds that a request takes to the store, and the same for its answer: some differ fivefold."""

PAUSES = (0.1, 1.0, 3.0)
"""Average seconds between the steps of an actor: with the short ones, calls share commits and processes collide."""

MOST_DISTURBANCES = 8
LONGEST_LIFE = 4 * 3600.0
"""Seconds after which every process must have left: far more than all pauses take."""


@dataclass(frozen=True)
class Settings:
    """Settings of a simulation.

    Attributes:
        rate: share of requests with a fault; None draws one for each seed.
        steps: largest number of steps of each actor.
        processes: largest number of processes at first.
        disturbances: True to crash and pause processes, to set their clocks wrong, and to edit the object by hand.
        old_format: share of seeds that begin with an object of jqueue 1.0.0.
        contention: share of seeds in which a fast writer and a slow writer write without a pause, and nothing else.
        make_storage: makes the working store; give your own adapter here.
        short_table: share of seeds in which a commit table keeps no writer for being recent. Then a clock that is ahead
            makes all writers forget, and what is forgotten must never be guessed.
        modern: share of seeds with limits, cron entries, results and the like.
        staged: share of these seeds in which jobs are also enqueued in transactions, and claimed under a name.
        history: share of the modern seeds in which the history is kept.
        large: share of the modern seeds in which some payloads are kept in objects beside the queue.
        stepped: share of all seeds in which the results of steps are recorded.
        overseen: share of the modern seeds with operators who change, cancel, purge and run what they have seen.
        segments: share of all seeds in which processes move waiting jobs into segments.
        damage: share of these seeds in which segments in the store are damaged for a while.
        leases: share of these seeds in which jobs are also claimed by leases.
        timeless: share of these seeds in which the store does not tell the time.
        crowds: share of all seeds in which many callers of one queue object call at once.
        shared: share of all seeds in which some processes commit the calls of others.
        snapshots: share of all seeds in which copies of processes run on beside them, with the same memory.
        fair: share of the modern seeds with whole segments in which jobs have fair keys.
        corrects: share of all seeds in which dead jobs are redriven with another payload.
        attended: share of all seeds in which workers show themselves in the queue, and some are told to stop.
        mortal: share of all seeds in which processes see each other's deaths, and more of them die.
        groups: share of all seeds with groups of jobs.
        families: share of all seeds in which jobs wait for other jobs.
        left_out: names of events that do not take place, as the search for a short failure finds them.
    """

    rate: float | None = None
    steps: int = 3
    processes: int = 3
    disturbances: bool = True
    old_format: float = 0.1
    contention: float = 0.0005
    make_storage: Callable[[], HonestStore | ObjectStoragePort] = HonestStore
    short_table: float = 0.5
    modern: float = 0.6
    staged: float = 0.3
    history: float = 0.3
    large: float = 0.3
    stepped: float = 0.2
    overseen: float = 0.4
    segments: float = 0.5
    damage: float = 0.3
    leases: float = 0.4
    timeless: float = 0.2
    crowds: float = 0.2
    shared: float = 0.25
    snapshots: float = 0.1
    fair: float = 0.3
    corrects: float = 0.0
    attended: float = 0.15
    mortal: float = 0.2
    groups: float = 0.3
    families: float = 0.3
    left_out: frozenset[str] = frozenset()


@dataclass
class Report:
    """Totals of one seed or of many.

    Attributes:
        work: number of seeds, calls, operations, requests to the store, commits, and commits that were recognised
            after an answer other than a clean success.
        faults: number of times that each kind of fault happened.
        events: number of crashes, pauses, clock jumps, edits by hand and other events, by name.
        outcomes: number of calls that ended in each way.
    """

    work: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, other: Report) -> None:
        """Add another report to this one."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class Simulation:
    """One seed.

    Attributes:
        world: state shared by the processes; set once the simulation has run.
        versions: the chain of versions, once it was audited.
    """

    world: World

    def __init__(self, seed: int, settings: Settings) -> None:
        self.settings = settings
        self.schedule = Schedule(seed, settings.left_out)
        self.dice = self.schedule.dice("the world")
        self.report = Report()
        self.clients: list[Client] = []
        self.versions: list[Version] = []
        self._jumped: set[str] = set()
        self._standstills: list[tuple[float, float]] = []
        self._snapshots = self.schedule.dice("snapshots").random() < settings.snapshots
        self._short_table = self.dice.random() < settings.short_table
        self._names = (f"process {number}" for number in itertools.count(1))

    def run(self) -> Report:
        """Run the seed, and audit it.

        Raises:
            Violation: a rule is broken.
        """
        loop = SimulatedLoop()  # without `asyncio.Runner`, which would search the tasks of all loops
        loop.set_exception_handler(lambda *_: None)
        unreadable: set[str] = set()
        try:
            with _read_log(unreadable):
                try:
                    left = loop.run_until_complete(self._main())
                    landings, calls = list(self.world.network.landings), list(self.world.history.calls)
                finally:
                    if hasattr(self, "world"):  # otherwise the storage could not be made
                        loop.run_until_complete(self._bury())
        except Livelock as stuck:
            raise Violation(0, str(stuck)) from stuck
        finally:
            loop.close()
        for error in self.world.errors:
            raise Violation(0, f"an error left a process: {error!r}") from error
        self._audit(landings, Calls(calls), unreadable)
        if left:
            raise Violation(0, f"{', '.join(left)} could not be had {DRAIN_SECONDS:.0f} s after the last fault")
        self._count(calls)
        return self.report

    def _audit(self, landings: list[Landing], calls: Calls, unreadable: set[str]) -> None:
        """Check every rule."""
        world, events = self.world, self.report.events
        store, objects = world.network.store, world.network.created
        self.versions = read_chain(landings, objects)
        spoilt = world.damage.names if world.damage is not None else set()
        events["segment damaged"] += len(spoilt)
        damaged = frozenset(unreadable | spoilt)
        note_damage(self.versions, damaged | {each.removeprefix(FOLDER) for each in world.network.unread})
        evidence = Evidence(
            self.versions,
            calls,
            world.records,
            objects,
            damaged,
            world.tells_time,
            pauses={client.process.name: client.process.pauses for client in self.clients},
            standstills=self._standstills,
            exits=world.exits,
            calm=world.network.calm and not events["pause"] + events["crash"],
            jumped=frozenset(() if world.tells_time else self._jumped),
            sent=world.sent,
            deaths=world.deaths,
            blob_bytes=BLOB_BYTES,
        )
        if isinstance(store, HonestStore):
            events["object named in a version"] += check_objects(landings, self.versions, store)
            segments = SegmentsAudit(store, evidence)
            segments.check()
            self.report.events += segments.seen
        audit = ModelAudit(evidence)
        audit.check()
        events["worker told to stop"] += check_orders_to_stop(self.versions, world)
        deaths = {client.process.name: client.recorder.dead for client in self.clients}
        events["job dead with its holder"] += check_deaths(self.versions, deaths)
        AnswersAudit(evidence, audit).check()
        history = HistoryAudit()
        history.check(self.versions)
        history.check_end(world.read_events, self.versions)
        Punctuality(evidence, audit.made).check()
        self.report.events += +audit.seen + history.seen + count_runs(evidence, audit.made)

    async def _main(self) -> list[str]:
        """Run the world to its end. Return the ids of the jobs that were left."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        settings, dice = self.settings, self.dice
        rate = dice.choice(RATES) if settings.rate is None else settings.rate
        network = Network(settings.make_storage(), self.schedule, rate)
        self.world = World(network, self.schedule, tells_time=dice.random() < 0.5)
        use = self.schedule.dice("what is made use of")
        self.world.modern, self.world.keyed = use.random() < settings.modern, use.choice([0.2, 0.5, 0.95])
        self.world.staged = self.world.modern and use.random() < settings.staged
        if self.world.modern and use.random() < settings.history and keeps_objects(network.store):
            self.world.keeps_history = self.world.tells_time = True
            self.world.events_per_object = use.choice([1, 3, 8])
        if self.world.modern and use.random() < settings.large and isinstance(network.store, HonestStore):
            self.world.large = self.world.tells_time = True
        overseen = self.schedule.dice("operators who look first")
        self.world.overseen = self.world.modern and overseen.random() < settings.overseen
        segments = self.schedule.dice("segments")
        if segments.random() < settings.segments and isinstance(network.store, HonestStore):
            self.world.segmented = self.world.tells_time = True
            if segments.random() < settings.damage:
                self.world.damage = Damage(self.schedule, network, network.store)
            self.world.leased = segments.random() < settings.leases
            if self.schedule.dice("a store without a clock").random() < settings.timeless:
                self.world.tells_time = False
        self.world.stepped = self.schedule.dice("steps").random() < settings.stepped
        keys = self.schedule.dice("fair keys")
        if self.world.modern and self.world.damage is None and keys.random() < settings.fair:
            self.world.fair = keys.choice([0.3, 0.9])
        self.world.corrects = self.schedule.dice("corrections").random() < settings.corrects
        self.world.attended = self.schedule.dice("workers").random() < settings.attended
        self.world.mortal = self.schedule.dice("deaths").random() < settings.mortal
        self.world.grouped = self.schedule.dice("groups").random() < settings.groups
        self.world.families = self.schedule.dice("families").random() < settings.families
        self.world.crowded = self.schedule.dice("many callers at once").random() < settings.crowds
        if dice.random() < settings.contention:
            network.rate = 0.0
            self.report.events["contention"] += 1
            await contend(self.world, loop)
        else:
            sharing = self.schedule.dice("sharing")
            if self.world.tells_time or not self.world.large:  # a broker's clock may take an object of a client for old
                self.world.shared = sharing.random() < settings.shared
            network.exclusive, network.by_header = sharing.random() < 0.6, sharing.random() < 0.4
            await self._disturbed_life(loop, network)
        network.rate = 0.0
        await asyncio.sleep(LONGEST_DELAY * 2)  # until the last request has arrived
        drainer = SimulatedProcess("drain", loop)
        left: list[str] = await drainer.start(drain(self.world))
        return left

    async def _disturbed_life(self, loop: SimulatedLoop, network: Network) -> None:
        """Run processes until they are done, and disturb them."""
        settings, dice = self.settings, self.dice
        person = Person(self.schedule, network)
        old_program = await self._old_object(network) if dice.random() < settings.old_format else None
        damage = self.world.damage
        spoiling = None if damage is None else asyncio.get_running_loop().create_task(damage.run())
        first = dice.randint(1, settings.processes) + self.world.shared
        lives = [self._start(loop) for _ in range(first)]
        disturbances = 0
        while any(not client.process.dead and not task.done() for client, task in lives):
            await asyncio.sleep(dice.uniform(1, 15))
            if loop.time() > LONGEST_LIFE:
                raise Violation(0, f"{', '.join(c.process.name for c, task in lives if not task.done())} never ended")
            if settings.disturbances and disturbances < MOST_DISTURBANCES:
                disturbances += 1
                alive = [client for client, task in lives if not task.done() and not client.process.paused]
                lives += await self._disturb(loop, alive, person, f"disturbance {disturbances}")
        if old_program is not None:
            await old_program
        if damage is not None and spoiling is not None:
            spoiling.cancel()
            damage.repair()

    async def _old_object(self, network: Network) -> asyncio.Task[None]:
        """Begin with an object of jqueue 1.0.0, and a program that continues to write to it."""
        content = old_blob(self.dice)
        await network.edit(lambda _: content, OLD_PROGRAM)
        self.report.events["began with jqueue 1.0.0"] += 1
        return asyncio.get_running_loop().create_task(OldProgram(self.schedule, network).run())

    def _start(self, loop: SimulatedLoop, original: Client | None = None) -> tuple[Client, asyncio.Task[None]]:
        """Start a process with some actors. It may be a copy of another one: see `Client.live`."""
        process = SimulatedProcess(next(self._names), loop)
        dice = self.schedule.dice(f"actors of {process.name}")
        client = Client(self.world, process, dice.choice(LATENCIES))
        if self._short_table:
            tune(client.queue, versions_kept=0)
        self.clients.append(client)
        roles: list[type[Actor]] = [Producer] * dice.choice([1, 1, 2])
        consumers = dice.choice([1, 2, 3])
        roles += [Consumer] * (1 if self.world.leased else consumers)  # others would take the rows before a range does
        roles += [Operator] * (dice.random() < 0.2)
        pause = dice.choice(PAUSES)
        if self.world.modern:
            rulers, waiters = dice.choice([0, 1, 1]), dice.choice([0, 1, 1])
            roles += [Ruler] * (0 if self.world.crowded else rulers) + [Waiter] * waiters
        if self.world.staged:
            stagers = dice.choice([0, 1, 2]) if client.queue.takes_segments else 0
            roles += [Stager] * stagers + [Holder] * dice.choice([0, 1, 1])
        if self.world.keeps_history:
            roles.append(Historian)
        actors: list[Actor] = []
        for number, role in enumerate(roles, 1):
            steps = dice.randint(1, self.settings.steps) * (2 if role in (Ruler, Waiter) else 1)
            moment = 0.05 if role is Historian else pause  # the history begins before most jobs are there
            actors.append(role(client, f"{role.__name__.lower()} {number} of {process.name}", steps, moment))
        is_crowd = self.world.crowded and isinstance(client.queue, BrokerQueue)
        for takes_part, kind in (
            (self.world.leased, Leaser),
            (is_crowd, Crowd),
            (self.world.overseen, Overseer),
            (client.offers, Offerer),
            (self.world.attended, Attendee),
            (self.world.grouped, Grouper),
            (self.world.families, Parent),
        ):
            if takes_part:
                name = f"{kind.__name__.lower()} of {process.name}"
                actors.append(kind(client, name, self.schedule.dice(name).randint(1, 2 * self.settings.steps), pause))
        return client, process.start(client.live(actors, original))

    async def _disturb(
        self, loop: SimulatedLoop, alive: list[Client], person: Person, name: str
    ) -> list[tuple[Client, asyncio.Task[None]]]:
        """Draw one disturbance, and return the processes that were started after a crash."""
        copies = self.schedule.dice(f"{name}: a copy")
        if self._snapshots and alive and copies.random() < 0.4:
            client = copies.choice(alive)
            if self.schedule.takes_place(f"{name}: copy of {client.process.name}"):
                self.report.events["copy of a process"] += 1
                return [self._start(loop, client)]
        deaths = self.schedule.dice(f"{name}: a death")
        if self.world.mortal and alive and deaths.random() < 0.6:
            client = deaths.choice(alive)
            if self.schedule.takes_place(f"{name}: death of {client.process.name}"):
                self.report.events["death that others see"] += 1
                client.die()
                return [self._start(loop)]
        dice = self.schedule.dice(name)
        event = dice.random()
        if event < 0.4 or not alive:
            return []
        if event < 0.55:
            self.world.edited = True
            if await person.edit():
                self.report.events["edit by hand"] += 1
            return []
        client = dice.choice(alive)
        kind = "crash" if event < 0.75 else "clock jump" if event < 0.85 else "pause"
        if not self.schedule.takes_place(f"{name}: {kind} of {client.process.name}"):
            return []
        self.report.events[kind] += 1
        if kind == "crash":
            client.die()
            return [self._start(loop)]
        if kind == "clock jump":
            jump = dice.choice([-10_000, -1, 1, 10_000, 3600])
            client.clock.skew += jump
            self._jumped.add(client.process.name)
            if jump == 3600:  # a person notices, and sets the clock right
                loop.call_later(dice.uniform(0, 20), client.clock.set_back, jump)
        else:
            seconds = dice.choice([dice.uniform(1, 20), dice.uniform(20, 900)])
            together = self.schedule.dice(f"{name}: all processes")
            if together.random() < 0.5 and self.schedule.takes_place(f"{name}: pause of all others"):
                self.report.events["pause of all"] += 1
                self._standstills.append((loop.time(), loop.time() + seconds))
                for other in self.clients:  # a pause under way becomes longer
                    if other is not client and not other.process.dead:
                        other.process.pause(seconds + together.uniform(0, 2))
            client.process.pause(seconds)
        return []

    async def _bury(self) -> None:
        """Let the coroutines of dead processes unwind, now that they can do no harm."""
        self.world.history.closed = True
        for client in self.clients:
            client.process.go_on()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        while tasks := [task for task in loop.tasks if not task.done() and task is not asyncio.current_task()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1.0)

    def _count(self, calls: list[Call]) -> None:
        report, network = self.report, self.world.network
        report.work = Counter(
            {
                "seeds": 1,
                "calls": len(calls),
                "operations": sum(call.operations for call in calls),
                "requests to the store": network.requests,
                "commits": len(network.landings),
                "commits recognised": sum(client.recorder.recognised for client in self.clients),
            }
        )
        report.events += +Counter(
            {"claim gone on with": self.world.adopted, "transaction repeated": self.world.repeated}
        )
        report.faults = network.fired
        report.outcomes = Counter(call.outcome for call in calls)


@contextmanager
def _read_log(unreadable: set[str]) -> Iterator[None]:
    """Keep the queues' log to ourselves, and note the names of segments that it says cannot be read."""

    class Reader(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if segment := re.match(rf"segment {FOLDER}(\S+) of the queue cannot be read", record.getMessage()):
                unreadable.add(segment[1])

    logger, reader = logging.getLogger("jqueue"), Reader()
    before = logger.level, logger.propagate
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.addHandler(reader)
    try:
        yield
    finally:
        logger.setLevel(before[0])  # a level that is only assigned leaves what loggers have remembered of the other
        logger.propagate = before[1]
        logger.removeHandler(reader)


def keeps_objects(store: HonestStore | ObjectStoragePort) -> bool:
    """Return True if a store can keep objects beside the queue's."""
    return isinstance(store, HonestStore | SupportsObjects)


def run_seed(seed: int, settings: Settings | None = None) -> Report:
    """Run one seed, and audit it.

    Raises:
        Violation: a rule is broken.
    """
    return Simulation(seed, settings or Settings()).run()
