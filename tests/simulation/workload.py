"""The work of the processes. Each has some actors, and each actor takes a number of steps, drawn from the seed."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Awaitable, Collection, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from jqueue.core.blob.segment_staging import StagedTask
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import JQueueError
from jqueue.domain.events import HistoryEvent
from jqueue.domain.header import WorkerRecord
from jqueue.domain.limits import Limits
from jqueue.domain.operations.base import Operation
from jqueue.domain.segments import Lease, Retention
from jqueue.testing.tuning import Numbers, tune
from jqueue.testing.virtual_time import EPOCH
from tests.copied_memory import begin_as
from tests.simulation.damage import Damage
from tests.simulation.history import NEVER, Call, History, Record, Recorder, SentCalls
from tests.simulation.loop import SimulatedProcess
from tests.simulation.network import HonestStore, Network
from tests.simulation.plain_values import BLOB_BYTES
from tests.simulation.schedule import Schedule

ENTRYPOINTS = ("a", "b")
DEADLINE, CALL_TIMEOUT = 12.0, 3.0
OVERSIZED = 12
"""About every twelfth result is larger than the queue may become."""

CRONS = {
    "*/2 * * * * *": (2, 0),
    "*/5 * * * * *": (5, 0),
    "*/20 * * * * *": (20, 0),
    "15 * * * * *": (60, 15),
    "*/2 * * * *": (120, 0),
}
"""Cron expressions, each with its period and its offset from a whole multiple of it, in seconds."""

SHARES, OFFERS = 0.85, 0.6
"""Shares of the processes that use a broker if there is one, and that offer to be one."""

LEAVE_EARLY = 0.15
"""Share of processes that leave while calls are under way."""

SKEWS = (0, 0, 0, 7, -90, 3600, -7200)
"""Seconds by which the clock of a process may be ahead."""


CHOSEN_ID: ContextVar[list[str] | None] = ContextVar("chosen id", default=None)
"""A list with the next id that a queue object draws in this context, which is taken out of it."""


class SeededEntropy:
    """Ids and jitter from the seed."""

    def __init__(self, dice: random.Random, name: str, deaths: Collection[str] = ()) -> None:
        self._dice = dice
        self._deaths = deaths
        self._maker = sha256(name.encode()).hexdigest()
        self._count = 0

    def new_id(self) -> str:
        """Return a UUID of its maker's name and a number, or the id that the caller has chosen."""
        if chosen := CHOSEN_ID.get():
            return chosen.pop()
        self._count += 1
        number, maker = f"{self._count:07x}", self._maker
        return f"{maker[:8]}-{number[3:]}-4{number[:3]}-8{maker[8:11]}-{maker[11:23]}"

    def jitter(self, bound: float) -> float:
        """Return seconds spread evenly over [0, bound]."""
        return self._dice.random() * bound

    def is_gone(self, pid: int, mark: str) -> bool:
        """Return True if a process has died. Its mark is the holder of its claims."""
        return mark in self._deaths


class SimulatedClock:
    """The clock of one process: the loop's time plus a skew. It can be set wrong.

    Attributes:
        skew: seconds by which it is ahead.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, skew: float) -> None:
        self.monotonic = loop.time
        self.skew = skew

    def set_back(self, seconds: float) -> None:
        """Set the clock back, to undo a jump."""
        self.skew -= seconds

    def now(self) -> datetime:
        """Return the time of the wall clock, in UTC."""
        return EPOCH + timedelta(seconds=self.monotonic() + self.skew)


OBJECT_BYTES = 400
"""Bytes above which a payload gets an object of its own. Results stay below."""

KEPT_FOR, STAGED_KEPT = timedelta(seconds=20), timedelta(seconds=90)
"""The times for which objects, and staged segments, are kept."""

STAGED_NAMED_WITHIN = timedelta(seconds=80)
"""The time within which staged segments are named."""

SOON = Numbers(
    named_within=timedelta(seconds=15),
    kept_for=KEPT_FOR,
    interval=5.0,
    staged_named_within=STAGED_NAMED_WITHIN,
    staged_kept=STAGED_KEPT,
    segment_named_within=timedelta(seconds=10),
    retention=Retention(seconds=10.0, young=2.0),
    damage_kept=4.0,
)
"""The times of objects and segments, short enough to matter in a simulation."""

READ_FOR = 8.0
"""Seconds for which a segment is kept after its last naming: `kept_for`, less its age at that time."""

WITH_OBJECTS = 0.85
"""Share of the processes whose store keeps objects beside the queue, where the history is kept."""


APPS = ("app 1", "app 2")
STAGED = "staged:"
"""Prefix of the ids of staged jobs. No other actor makes such ids."""

DRAWN = "process "
"""Prefix of the ids that queue objects draw. The only jobs with such ids are staged jobs with a key."""

KEYED = b"keyed "
"""Prefix of the payloads of staged jobs with a unique key, whose ids are unknown until they are added."""


@dataclass
class Content:
    """Jobs staged for one version of an application.

    Attributes:
        tasks: the reports of the tasks. Their segments exist.
        ids: ids of the jobs without a key.
        keyed: a mark that identifies each job with a key.
        staged_at: the time at which their staging began, on the clock of the event loop.
    """

    tasks: tuple[StagedTask, ...]
    ids: tuple[str, ...]
    keyed: tuple[str, ...]
    staged_at: float


@dataclass
class World:
    """State shared by the processes of one simulation.

    Attributes:
        network: the way to the store.
        schedule: the schedule of the seed.
        tells_time: True if the store tells its time.
        history: every call.
        tags: numbers that tell the effects of calls apart.
        made: ids of jobs that an actor tried to enqueue.
        modern: True if actors use limits, cron entries, results and the like.
        keyed: share of jobs with a concurrency key, if `modern`.
        fair: share of jobs with a fair key.
        staged: True if jobs are enqueued in transactions, and claimed under a name.
        corrects: True if dead jobs are redriven with another payload.
        large: True if some payloads are kept in objects beside the queue.
        stepped: True if the results of steps are recorded.
        overseen: True if operators act on what they have seen.
        segmented: True if some processes move waiting jobs into segments.
        damage: damages segments; None if they stay whole.
        leased: True if some actors claim leases.
        shared: True if some processes commit the calls of others.
        attended: True if workers show themselves in the queue, and some are told to stop.
        mortal: True if processes show themselves in the queue, and see each other's deaths.
        deaths: the time at which each process died that did so, by the holder of its claims.
        attendees: the process of each of these workers, by the id of its run.
        told: the time at which each of them was told to stop, by the id of its run.
        crowded: True if many callers of one queue object call at once, and nobody sets limits or cron entries, which
            would end their runs of like operations.
        left_leases: claims of leases that nobody ended, each with its jobs.
        grouped: True if some actors open groups.
        groups: ids of the groups.
        edited: True once a person has changed the queue.
        families: True if some jobs wait for others.
        parents: ids of jobs that others may wait for.
        keeps_history: True if actors switch the history on.
        events_per_object: number of events in the outbox above which it is moved.
        read_events: the events that were read at the end; None if there was no history.
        kept: ids of jobs whose results are to be kept.
        claimed: ids of jobs that an actor has claimed.
        app_versions: current version of each application that adds jobs in transactions.
        staged_contents: jobs staged for each version of each application. They outlive the processes.
        adopted: number of claims that a later holder of the same name continued.
        repeated: number of writes that were known to be done before.
        records: what each process has applied, in order.
        sent: the calls that went to brokers, by the name under which whoever commits them knows them.
        exits: times at which each process that left in peace began to leave, and had left.
        errors: errors that should not have left a process.
    """

    network: Network
    schedule: Schedule
    tells_time: bool
    history: History = field(default_factory=History)
    tags: Iterable[int] = field(default_factory=lambda: itertools.count(1))
    made: list[str] = field(default_factory=list)
    modern: bool = False
    keyed: float = 0.0
    fair: float = 0.0
    staged: bool = False
    corrects: bool = False
    large: bool = False
    stepped: bool = False
    overseen: bool = False
    segmented: bool = False
    damage: Damage | None = None
    leased: bool = False
    crowded: bool = False
    shared: bool = False
    attended: bool = False
    mortal: bool = False
    deaths: dict[str, float] = field(default_factory=dict)
    attendees: dict[str, str] = field(default_factory=dict)
    told: dict[str, float] = field(default_factory=dict)
    left_leases: list[tuple[Lease, list[Any]]] = field(default_factory=list)
    grouped: bool = False
    groups: list[str] = field(default_factory=list)
    edited: bool = False
    families: bool = False
    parents: list[str] = field(default_factory=list)
    keeps_history: bool = False
    events_per_object: int = 1000
    read_events: list[HistoryEvent] | None = None
    kept: list[str] = field(default_factory=list)
    claimed: list[str] = field(default_factory=list)
    app_versions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(APPS, 1))
    staged_contents: dict[tuple[str, int], list[Content]] = field(default_factory=lambda: defaultdict(list))
    adopted: int = 0
    repeated: int = 0
    records: list[Record] = field(default_factory=list)
    sent: SentCalls = field(default_factory=dict)
    exits: dict[str, tuple[float, float]] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)

    @property
    def with_objects(self) -> int:
        """The number that stands for a store with objects beside the queue: see `Network.client`."""
        return 3 if self.tells_time else 4

    def tag(self) -> int:
        """Return a number that no other call has."""
        return next(iter(self.tags))


class Client:
    """One life of one process: a queue object, and the actors that share it.

    Attributes:
        clock: the process's own clock; it can be set wrong.
        queue: a direct or a broker queue.
        offers: True if it serves other processes.
        shares: True if its calls go to a broker if there is one.
    """

    def __init__(self, world: World, process: SimulatedProcess, latency: float) -> None:
        self.world = world
        self.process = process
        self.dice = dice = world.schedule.dice(process.name)
        self.clock = SimulatedClock(world.network.loop, dice.choice(SKEWS))
        self.holder = f"{process.name}@here:{process.name.rpartition(' ')[2]}" if world.mortal else process.name
        abilities = dice.choice([1, 2]) if world.tells_time else 0
        if world.keeps_history and world.schedule.dice(f"objects of {process.name}").random() < WITH_OBJECTS:
            abilities = world.with_objects
        if world.large or world.segmented:
            abilities = world.with_objects
        storage = world.network.client(process.name, latency, abilities=abilities, shares=world.shared)
        sharing = world.schedule.dice(f"sharing of {process.name}")
        self.offers, self.shares = world.shared and sharing.random() < OFFERS, sharing.random() < SHARES
        options: dict[str, Any] = {
            "clock": self.clock,
            "entropy": SeededEntropy(world.schedule.dice(f"jitter of {process.name}"), process.name, world.deaths),
            "deadline": DEADLINE,
            "call_timeout": CALL_TIMEOUT,
            "poll_interval": dice.choice([1.0, 5.0]),
            "stale_timeout": dice.choice([1.0, 30.0, 300.0]),
            "holder": self.holder,
            "share": self.shares,
            "limits": Limits(
                blob_bytes=BLOB_BYTES, result_bytes=2 * BLOB_BYTES, object_bytes=OBJECT_BYTES if world.large else None
            ),
        }
        kind = DirectQueue if dice.random() < 0.4 else BrokerQueue
        self.queue: DirectQueue | BrokerQueue = kind(storage, **options)
        self.recorder = Recorder(process.name, world.records, world.sent)
        self.queue.observe(self.recorder)
        tune(self.queue, **SOON)
        tune(self.queue, events_per_object=world.events_per_object)
        if world.segmented:
            tune(self.queue, **small_segments(world.schedule.dice(f"segments of {process.name}")))

    async def live(self, actors: Sequence[Actor], original: Client | None = None) -> None:
        """Let the actors take their steps, then leave.

        Args:
            actors: of this process.
            original: the process whose memory this one begins with: see `begin_as`.
        """
        loop = asyncio.get_running_loop()
        left = loop.time()
        if original is not None:
            engine = original.queue._engine  # noqa: SLF001 - a snapshot has all of it
            known = isinstance(self.world.network.store, HonestStore) and engine.etag is not None
            content = self.world.network.landings[int(engine.etag or 0) - 1].content if known else b""
            await begin_as(self.queue, original.queue, content)
        try:
            async with asyncio.TaskGroup() as group:
                async with self.queue:
                    if self.world.mortal:
                        self.queue.attend(f"life of {self.process.name}", self._record, lambda: None)
                    tasks = [group.create_task(actor.act()) for actor in actors]
                    await asyncio.wait(tasks, timeout=self._patience())
                    left = loop.time()
                    self.world.exits[self.process.name] = (left, NEVER)
                    self.queue.leave(f"life of {self.process.name}")
                if server := self.world.network.servers.get(self.process.name):
                    await server.leave()
                self.world.exits[self.process.name] = (left, loop.time())
        except* JQueueError as errors:
            self.world.errors.extend(errors.exceptions)

    def _record(self, at: float) -> WorkerRecord:
        name, pid = self.process.name, int(self.holder.rpartition(":")[2])
        return WorkerRecord(name=name, host="here", pid=pid, mark=self.holder, at=at)

    def die(self) -> None:
        """Die at this instruction. Other processes of the machine can see it."""
        self.process.die()
        self.world.deaths[self.holder] = asyncio.get_running_loop().time()

    def _patience(self) -> float | None:
        """Return the seconds after which the process leaves with calls under way; None to wait for its actors."""
        dice, name = self.world.schedule.dice(f"leaving of {self.process.name}"), self.process.name
        early = dice.random() < LEAVE_EARLY and self.world.schedule.takes_place(
            f"{name} leaves in the middle of things"
        )
        return dice.uniform(0.0, 12.0) if early else None


def small_segments(dice: random.Random) -> Numbers:
    """Return the sizes of small segments for one process. Some processes write none."""
    return Numbers(
        hot_bytes=dice.choice([None, 1, 1, 1, 600]),
        fewest_rows=dice.choice([1, 1, 2, 4]),
        most_rows=dice.choice([2, 5, 50]),
        chunk_rows=dice.choice([1, 2, 3]),
        merged=dice.choice([2, 3]),
        holes=dice.choice([0, 1, 3]),
        rows_kept=dice.choice([0, 3, 100]),
        rows_ahead=dice.choice([0, 2, 20]),
        bulk_jobs=dice.choice([None, 0, 2]),
    )


class Actor:
    """One task of a process: a number of steps, each after a pause.

    Args:
        client: the process.
        name: a name that no other actor has.
        steps: number of steps.
        pause: average seconds between steps.
    """

    def __init__(self, client: Client, name: str, steps: int, pause: float) -> None:
        self.client = client
        self.world = client.world
        self.queue = client.queue
        self.name = name
        self.steps = steps
        self.pause = pause
        self.dice = self.world.schedule.dice(name)
        self.moment = name

    async def act(self) -> None:
        """Take the steps."""
        schedule = self.world.schedule
        for number in range(1, self.steps + 1):
            self.moment = f"{self.name}.{number}"
            schedule.reset(self.dice, self.moment)
            await asyncio.sleep(self.dice.expovariate(1 / self.pause))
            if schedule.takes_place(f"step {self.moment}"):
                await self.step()

    async def step(self) -> None:
        """Take one step."""
        raise NotImplementedError

    async def call(self, verb: str, work: Awaitable[Any], **details: Any) -> Any:
        """Await a call, and record it. Return its result, or its error."""
        details.setdefault("limit", DEADLINE)
        call = Call(self.client.process.name, verb, **details)
        return await self.world.history.record(call, work)

    async def one(self, operation: Operation) -> Any:
        """Apply one operation, and return its result."""
        [result] = await self.queue.apply(operation)
        return result

    def pick(self, *chances: tuple[int, Any]) -> Any:
        """Return one of several things, drawn by weight."""
        at = self.dice.random() * sum(weight for weight, _ in chances)
        for weight, thing in chances:
            at -= weight
            if at < 0:
                return thing
        return chances[-1][1]

    def entrypoint(self) -> str:
        """Return one of the entrypoints."""
        return self.dice.choice(ENTRYPOINTS)
