"""A worker that makes calls on the queue in random order, reports each before and after, and works until killed."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from jqueue import BrokerQueue, DirectQueue, Job, JQueueError, UnknownOutcomeError
from jqueue.domain.errors import BlobMissingError, InvalidBlobError, SegmentDamagedError, StorageFatalError
from jqueue.domain.range_jobs import RangeClaim, RangeFailure
from jqueue.operations import Ack, Enqueue
from jqueue.ports.storage import ObjectStoragePort
from tests.kill.journal import JobAt, Kind, Line, Verb, payload_of, say
from tests.kill.tiny_segments import Queue, drawn, with_segments

ENTRYPOINTS = ("one", "two")
CLAIM_TIMEOUT = 0.5
"""Timeout of claims in seconds: short, so that claims of killed workers go back while others watch."""

MOST_QUEUED = 40
"""Number of jobs above which a worker enqueues no more: a short queue is quick, so that many commits are killed."""

CALLS_AT_ONCE = 3
LONGEST_RANGE = 12
SHARE_OF_RANGES, SHARE_OF_CANCELLATIONS = 0.3, 0.1
LONGEST_DELAY = 0.01
LAST_WAIT = 0.2
"""Seconds to wait at the end for jobs that were nacked with a delay."""

_NEVER = (InvalidBlobError, BlobMissingError, SegmentDamagedError, StorageFatalError)


class Orders(NamedTuple):
    """Settings of a worker.

    Attributes:
        name: name of the worker, and first part of the ids of its jobs.
        seed: seed of its dice.
        broker: True for a broker queue, False for a direct one.
        queued: number of jobs that are queued already.
        repeats: jobs whose enqueue a killed worker got no answer to; they are enqueued again first.
        segments: True to keep jobs in small segments, to claim ranges of them, and to cancel jobs.
    """

    name: str
    seed: int
    broker: bool
    queued: int = 0
    repeats: Sequence[str] = ()
    segments: bool = False


async def work(storage: ObjectStoragePort, orders: Orders, descriptor: int) -> None:
    """Work for ever."""
    if orders.broker:
        async with _opened(BrokerQueue(storage, stale_timeout=CLAIM_TIMEOUT), orders) as queue:
            await Worker(queue, orders, descriptor).run()
    else:
        await Worker(_opened(DirectQueue(storage, stale_timeout=CLAIM_TIMEOUT), orders), orders, descriptor).run()


def _opened(queue: Queue, orders: Orders) -> Queue:
    return with_segments(queue, drawn(random.Random(orders.seed))) if orders.segments else queue


class Worker:
    """The calls of one process.

    Args:
        queue: the queue to call.
        orders: the settings.
        descriptor: the pipe for the lines.
    """

    def __init__(self, queue: DirectQueue | BrokerQueue, orders: Orders, descriptor: int) -> None:
        self._queue = queue
        self._orders = orders
        self._descriptor = descriptor
        self._dice = random.Random(orders.seed)
        self._numbers = itertools.count(1)
        self._calls = itertools.count(1)
        self._queued = orders.queued
        self._mine: list[str] = []

    async def run(self) -> None:
        """Make several calls at a time, for ever."""
        for job_id in self._orders.repeats:
            await self._enqueue([job_id])
        await asyncio.gather(*(self._loop() for _ in range(self._dice.randint(1, CALLS_AT_ONCE))))

    async def drain(self) -> None:
        """Enqueue one more job, then claim and ack all jobs until no more come."""
        await self._enqueue([self._new_id()])
        while jobs := await self._dequeue(None, 100, LAST_WAIT):
            for job in jobs:
                await self._ack(job)

    async def _loop(self) -> None:
        while True:
            share = 0.4 if self._queued else 0.8
            if self._queued < MOST_QUEUED and self._dice.random() < share:
                await self._enqueue([self._new_id() for _ in range(self._dice.choice((1, 1, 1, 3)))])
            elif self._orders.segments and self._dice.random() < SHARE_OF_RANGES:
                await self._work_on_a_range()
            elif self._mine and self._dice.random() < SHARE_OF_CANCELLATIONS:
                await self._cancel(self._mine.pop(self._dice.randrange(len(self._mine))))
            else:
                entrypoint = self._dice.choice((None, *ENTRYPOINTS))
                wait = self._dice.choice((None, 0.01, 0.05))
                for job in await self._dequeue(entrypoint, self._dice.randint(1, 3), wait):
                    await self._finish(job)

    async def _finish(self, job: Job) -> None:
        """End a claim in one of the possible ways."""
        end = self._dice.choices(("ack", "twice", "heartbeat", "nack", "apply", "abandon"), (50, 5, 15, 12, 15, 3))[0]
        if end == "abandon":
            return
        if end == "heartbeat":
            await self._call(Verb.HEARTBEAT, [job.claim], lambda: self._queue.heartbeat(job))
        if end == "nack":
            charge = self._dice.random() < 0.7
            delay = self._dice.choice((None, LONGEST_DELAY)) if charge else None
            await self._call(Verb.NACK, [job.claim], lambda: self._queue.nack(job, charge=charge, delay=delay))
        elif end == "apply":
            new = self._new_id()
            following = Enqueue(self._dice.choice(ENTRYPOINTS), payload_of(new), job_id=new)
            await self._call(Verb.APPLY, [job.claim, (new, 0)], lambda: self._queue.apply(Ack(job), following))
        else:
            await self._ack(job)
            if end == "twice":
                await self._ack(job)

    async def _work_on_a_range(self) -> None:
        """Claim a range, and end the claim in one of the possible ways."""
        held: list[RangeClaim] = []
        jobs = await self._call(Verb.CLAIM_RANGE, [], lambda: self._claim_range(held))
        if not jobs:
            return
        [claim] = held
        end = self._dice.choices(("all", "some", "nothing", "heartbeat", "abandon"), (40, 40, 8, 8, 4))[0]
        if end == "abandon":
            return
        if end == "heartbeat":
            await self._call(Verb.HEARTBEAT, [claim.claim], lambda: self._queue.heartbeat(claim.claim))
        fates = {job: self._dice.choice(("done", "failed", "returned")) if end == "some" else "done" for job in jobs}
        done = [job.claim for job, fate in fates.items() if fate == "done" and end != "nothing"]
        failed = {job.id: RangeFailure("boom", delay=LONGEST_DELAY) for job, fate in fates.items() if fate == "failed"}
        returned = [job.id for job, fate in fates.items() if fate == "returned"]
        await self._call(
            Verb.END_RANGE,
            [claim.claim, *done],
            lambda: self._queue.end_range(claim, failed=failed, returned=returned, nothing_done=end == "nothing"),
        )

    async def _claim_range(self, held: list[RangeClaim]) -> list[Job]:
        """Claim a range and read it. Return its jobs, and add its claim to a list."""
        claim = await self._queue.claim_range(self._dice.choice(ENTRYPOINTS), self._dice.randint(1, LONGEST_RANGE))
        if claim is None:
            return []
        held.append(claim)
        return [job async for job in self._queue.read_range(claim)]

    async def _cancel(self, job_id: str) -> None:
        await self._call(Verb.CANCEL, [(job_id, 0)], lambda: self._queue.cancel(job_id))

    async def _enqueue(self, job_ids: Sequence[str]) -> None:
        entrypoint, priority = self._dice.choice(ENTRYPOINTS), self._dice.randint(0, 2)
        jobs = [Enqueue(entrypoint, payload_of(job_id), priority, job_id=job_id) for job_id in job_ids]
        await self._call(Verb.ENQUEUE, [(job_id, 0) for job_id in job_ids], lambda: self._queue.enqueue_many(jobs))
        self._queued += len(jobs)
        if self._orders.segments:
            self._mine = [*self._mine, *job_ids][-MOST_QUEUED:]

    async def _dequeue(self, entrypoint: str | None, batch_size: int, wait: float | None) -> list[Job]:
        jobs = await self._call(
            Verb.DEQUEUE, [], lambda: self._queue.dequeue(entrypoint, batch_size=batch_size, wait=wait)
        )
        if not jobs:
            self._queued = 0
            return []
        self._queued = max(0, self._queued - len(jobs))
        return list(jobs)

    async def _ack(self, job: Job) -> None:
        await self._call(Verb.ACK, [job.claim], lambda: self._queue.ack(job))

    async def _call(self, verb: Verb, jobs: Sequence[tuple[str, int]], call: Callable[[], Awaitable[Any]]) -> Any:
        """Report the intent, make the call, and report its outcome. Return None if it was refused."""
        number = next(self._calls)
        names = tuple(JobAt(*job) for job in jobs)
        say(self._descriptor, Line(number, Kind.INTENT, verb, names))
        try:
            answer = await call()
        except UnknownOutcomeError as error:
            kind = Kind.BROKEN if isinstance(error.cause, _NEVER) else Kind.UNKNOWN
            say(self._descriptor, Line(number, kind, verb, names, type(error.cause or error).__name__))
            return None
        except JQueueError as error:
            kind = Kind.BROKEN if isinstance(error, _NEVER) else Kind.REFUSED
            say(self._descriptor, Line(number, kind, verb, names, type(error).__name__))
            return None
        if verb in (Verb.DEQUEUE, Verb.CLAIM_RANGE):
            names = tuple(JobAt(*job.claim) for job in answer)
            if any(job.payload != payload_of(job.id) for job in answer):
                say(self._descriptor, Line(number, Kind.BROKEN, verb, names, "a payload is not the one enqueued"))
        say(self._descriptor, Line(number, Kind.DONE, verb, names))
        return answer

    def _new_id(self) -> str:
        return f"{self._orders.name}-{next(self._numbers)}"
