"""What the processes do: produce, consume, crash, come back; and what people and old programs do beside them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from jqueue.core.broker import BrokerQueue
from jqueue.core.codec import decode
from jqueue.core.direct import DirectQueue
from jqueue.core.heartbeat import HeartbeatManager
from jqueue.domain.errors import ClaimLostError, JQueueError, UnknownOutcomeError
from jqueue.domain.models import Claim, Job
from jqueue.domain.operations import Ack, Enqueue
from jqueue.testing.simulation.history import Call, History
from jqueue.testing.simulation.loop import SimulatedProcess
from jqueue.testing.simulation.network import Network
from jqueue.testing.virtual_time import VirtualClock

ENTRYPOINTS = ("a", "b")
DEADLINE, CALL_TIMEOUT, CLAIM_TIMEOUT = 12.0, 3.0, 30.0
SLACK = 0.001


class SeededEntropy:
    """Ids and jitter from the seed."""

    def __init__(self, dice: random.Random, name: str) -> None:
        self._dice = dice
        self._name = name
        self._count = 0

    def new_id(self) -> str:
        """An id that says who made it."""
        self._count += 1
        return f"{self._name}-{self._count}"

    def jitter(self, bound: float) -> float:
        """Seconds spread evenly over [0, bound]."""
        return self._dice.uniform(0.0, bound)


@dataclass
class World:
    """What the processes of one simulation share.

    Attributes:
        network: the way to the store.
        history: what was called.
        dice: the seed's.
        calls_left: how many more calls may begin before the work runs out.
        tags: numbers by which the effects of calls are told apart.
    """

    network: Network
    history: History
    dice: random.Random
    calls_left: int
    tags: Iterator[int]
    errors: list[BaseException] = field(default_factory=list)
    exits: list[tuple[str, float]] = field(default_factory=list)


class Client:
    """One life of one process: a queue object, producers and consumers."""

    def __init__(self, world: World, process: SimulatedProcess, *, latency: float, tells_time: bool) -> None:
        self.world = world
        self.process = process
        self.dice = world.dice
        self.clock = VirtualClock(timedelta(seconds=self.dice.choice([0, 0, 0, 7, -90, 3600, -7200])))
        self.storage = world.network.client(process.name, latency, tells_time)
        options: dict[str, Any] = {
            "clock": self.clock,
            "entropy": SeededEntropy(self.dice, process.name),
            "deadline": DEADLINE,
            "call_timeout": CALL_TIMEOUT,
            "stale_timeout": self.dice.choice([1.0, CLAIM_TIMEOUT, 300.0]),
        }
        direct = self.dice.random() < 0.5
        self.queue = DirectQueue(self.storage, **options) if direct else BrokerQueue(self.storage, **options)
        self.held: list[Job] = []

    async def live(self) -> None:
        """Work until the world's calls are used up, then leave."""
        loop = asyncio.get_running_loop()
        try:
            async with self._entered():
                async with asyncio.TaskGroup() as group:
                    for _ in range(self.dice.choice([1, 1, 2])):
                        group.create_task(self._produce())
                    for _ in range(self.dice.choice([1, 2, 3])):
                        group.create_task(self._consume())
                left = loop.time()
            self.world.exits.append((self.process.name, loop.time() - left))
        except JQueueError as error:
            self.world.errors.append(error)

    @asynccontextmanager
    async def _entered(self) -> Any:
        async with self.queue:
            yield

    async def _produce(self) -> None:
        while self._may_call():
            await asyncio.sleep(self.dice.expovariate(1 / 4))
            number = next(self.world.tags)
            entrypoint = self.dice.choice(ENTRYPOINTS)
            choice = self.dice.random()
            job_id = f"job-{number}"
            if choice < 0.75:
                delay = self.dice.choice([None, None, None, 5.0])
                await self._call(
                    "enqueue",
                    self.queue.enqueue(entrypoint, b"", job_id=job_id, delay=delay, max_attempts=50),
                    job_id=job_id,
                )
            elif choice < 0.85:
                await self._call("read_state", self.queue.read_state())
            else:
                made = [call.job_id for call in self.world.history.calls if call.verb == "enqueue" and call.job_id]
                if made:
                    job_id = self.dice.choice(made)
                    await self._call("cancel", self.queue.cancel(job_id), job_id=job_id)

    async def _consume(self) -> None:
        while self._may_call():
            await asyncio.sleep(self.dice.expovariate(1 / 3))
            entrypoint = self.dice.choice([*ENTRYPOINTS, None])
            wait = self.dice.choice([None, None, 5.0, 20.0])
            tag = CLAIM_TIMEOUT + next(self.world.tags) / 10_000
            jobs = await self._dequeue(entrypoint, wait, tag)
            for job in jobs if isinstance(jobs, list) else ():
                await self._work(job)

    async def _dequeue(self, entrypoint: str | None, wait: float | None, tag: float) -> Any:
        patience = self.dice.choice([None, None, None, None, self.dice.uniform(0, 6)])
        batch = self.dice.choice([1, 1, 3])
        work = self.queue.dequeue(entrypoint, batch_size=batch, wait=wait, claim_timeout=tag)
        call = self._call("dequeue", work, tag=tag, entrypoint=entrypoint, limit=DEADLINE + (wait or 0.0))
        if patience is None:
            return await call
        try:
            async with asyncio.timeout(patience):
                return await call
        except TimeoutError:
            return None

    async def _work(self, job: Job) -> None:
        """Work on a job for a while, and end its claim in one of the ways there are."""
        choice = self.dice.random()
        if choice < 0.08:
            return  # forgotten: it goes stale
        try:
            if choice < 0.5:
                async with HeartbeatManager(self.queue, job):
                    await asyncio.sleep(self.dice.choice([0.1, 2.0, 50.0, 80.0]))
            else:
                await asyncio.sleep(self.dice.choice([0.0, 0.0, 1.0, 40.0, 70.0]))
        except ClaimLostError:
            return
        ending = self.dice.random()
        tag = f"call {next(self.world.tags)}"
        if ending < 0.6:
            await self._until_told("ack", job, lambda: self.queue.ack(job))
        elif ending < 0.75:
            charge = self.dice.random() < 0.7
            await self._call("nack", self.queue.nack(job, error=tag, charge=charge), claim=job.claim, tag=tag)
        elif ending < 0.85:
            await self._call("heartbeat", self.queue.heartbeat(job), claim=job.claim)
            await self._until_told("ack", job, lambda: self.queue.ack(job))
        else:
            child = f"child-{tag}"
            enqueue = Enqueue(self.dice.choice(ENTRYPOINTS), b"", job_id=child, max_attempts=50)
            await self._call("apply", self.queue.apply(Ack(job), enqueue), claim=job.claim, job_id=child)

    async def _until_told(self, verb: str, job: Job, work: Any) -> None:
        """Try until it is done or refused, as a careful program does; some repeat what has succeeded."""
        for _ in range(3):
            error = await self._call(verb, work(), claim=job.claim)
            if not isinstance(error, UnknownOutcomeError) and self.dice.random() < 0.9:
                return

    async def _call(
        self,
        verb: str,
        work: Any,
        *,
        claim: Claim | None = None,
        job_id: str | None = None,
        tag: Any = None,
        entrypoint: str | None = None,
        limit: float = DEADLINE,
    ) -> Any:
        self.world.calls_left -= 1
        call = Call(
            self.process.name,
            verb,
            asyncio.get_running_loop().time(),
            limit,
            claim=claim,
            job_id=job_id,
            tag=tag,
            entrypoint=entrypoint,
        )
        return await self.world.history.record(call, work)

    def _may_call(self) -> bool:
        return self.world.calls_left > 0


async def drain(world: World, process: SimulatedProcess, within: float) -> bool:
    """When faults are over: take and finish every job that is left. Returns whether the queue is empty in time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within
    storage = world.network.client(process.name, 0.01, True)
    entropy = SeededEntropy(world.dice, process.name)
    async with BrokerQueue(storage, clock=VirtualClock(), entropy=entropy) as queue:
        while loop.time() < until:
            for job in await queue.dequeue(batch_size=100, wait=20.0):
                await queue.ack(job)
            left = decode(world.network.landings[-1].content).jobs if world.network.landings else ()
            if all(job.run_at is not None for job in left):
                return True  # what is scheduled by a clock that was hours ahead would take hours
    return False
