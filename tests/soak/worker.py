"""A worker of the soak. It makes calls on the queue in random order, and reports each before and after.

It works until its socket says that it is over, with one queue object after the other, each left after some seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from jqueue import BrokerQueue, DirectQueue, Job, JQueueError, Limits, QueueClosedError, UnknownOutcomeError
from jqueue.domain.errors import BlobMissingError, InvalidBlobError, SegmentDamagedError, StorageFatalError
from jqueue.domain.range_jobs import RangeClaim, RangeFailure
from jqueue.operations import Ack, Enqueue
from jqueue.ports.observer import LandedCommit, Observer
from jqueue.ports.storage import SupportsRelease
from tests.soak.journal import JobAt, Kind, Line, Verb, encode, payload_of
from tests.soak.places import Place

ENTRYPOINTS = ("one", "two")
MOST_QUEUED = 40
"""Number of jobs above which a worker enqueues no more: a short queue is quick, so that there are many commits."""

CALLS_AT_ONCE = 4
LONGEST_RANGE = 12
LOOK_EVERY = 3.0
SHORT, SHORT_SHARE = (0.2, 2.0), 0.25
"""Range of deadlines in seconds that often pass before the answer, and the share of calls with one."""

RESOLVE_SECONDS = 15.0
AGAIN_SECONDS = 5.0
"""Deadline of a repeated enqueue in seconds: the queue does not remember finished jobs for ever."""

_NEVER = (InvalidBlobError, BlobMissingError, SegmentDamagedError, StorageFatalError)


class Orders(NamedTuple):
    """Settings of a worker.

    Attributes:
        place: place of the queue's object.
        name: name of the worker, and first part of the ids of its jobs.
        seed: seed of its dice.
        repeats: jobs whose enqueue a killed worker got no answer to; they are enqueued again first.
        segments: True to keep jobs in segments, to claim ranges of them, and to cancel jobs.
        call_timeout: call timeout of its queues and storages.
        deadline: deadline of its calls.
        claim_timeout: timeout of its claims.
        session: approximate seconds that it keeps a queue object.
        thought: longest pause between two calls.
    """

    place: Place
    name: str
    seed: int
    repeats: Sequence[str] = ()
    segments: bool = False
    call_timeout: float = 1.5
    deadline: float = 20.0
    claim_timeout: float = 6.0
    session: float = 25.0
    thought: float = 0.1


class Recognised(Observer):
    """Counts the commits that landed although their answer was lost."""

    def __init__(self) -> None:
        self.count = 0

    def committed(self, commit: LandedCommit) -> None:
        self.count += commit.recognised


class Worker:
    """The calls of one process.

    Args:
        orders: the settings.
        say: takes each line.
    """

    def __init__(self, orders: Orders, say: Callable[[Line], None]) -> None:
        self._orders = orders
        self._say = say
        self._dice = random.Random(orders.seed)
        self._numbers = itertools.count(1)
        self._calls = itertools.count(1)
        self._queued = 0
        self._mine: list[str] = []
        self._is_over = False

    async def run(self, stop: asyncio.Event) -> None:
        """Work with one queue object after the other until `stop` is set."""
        repeats = list(self._orders.repeats)
        while not stop.is_set():
            storage = self._orders.place.open(timeout=self._orders.call_timeout)
            await self._session(storage, stop, repeats)
            repeats = []

    async def _session(self, storage: Any, stop: asyncio.Event, repeats: list[str]) -> None:
        """Make several calls at a time with one queue object, and leave it after or during the last calls."""
        hot = self._dice.choice((1, 500, 3000, None)) if self._orders.segments else None
        queue: Any = self._dice.choice((BrokerQueue, DirectQueue))(
            storage,
            stale_timeout=self._orders.claim_timeout,
            deadline=self._orders.deadline,
            call_timeout=self._orders.call_timeout,
            limits=Limits(hot_bytes=hot),
        )
        recognised = Recognised()
        queue.observe(recognised)
        await queue.__aenter__()
        self._is_over = False
        for job_id in repeats:
            await self._enqueue(queue, [job_id])
        loops = [asyncio.create_task(self._loop(queue)) for _ in range(self._dice.randint(1, CALLS_AT_ONCE))]
        watch = asyncio.create_task(self._look(queue))
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), self._dice.uniform(0.2, 1.8) * self._orders.session)
        self._is_over = True
        watch.cancel()
        if self._dice.random() < 0.5:
            await asyncio.gather(*loops)
        await self._leave(queue, recognised)
        await asyncio.gather(*loops)
        if isinstance(storage, SupportsRelease):
            await storage.release()  # a resolve() may have opened a client again

    async def drain(self, storage: Any) -> None:
        """Ack everything that can be claimed, until nothing is left."""
        async with DirectQueue(storage, stale_timeout=self._orders.claim_timeout) as queue:
            await self._enqueue(queue, [self._new_id()])
            await queue.requeue_stale(0)
            while (version := (await queue.stats()).version) and [job async for job in queue.iterate_jobs()]:
                for job in await self._dequeue(queue, None, 100, 1.0):
                    await self._ack(queue, job)
                if version == (await queue.stats()).version:
                    return  # no job can be acked: the auditor judges the remaining ones

    async def _look(self, queue: Any) -> None:
        """Note the number of jobs now and then."""
        while True:
            with suppress(JQueueError):
                self._queued = (await queue.stats()).ready
            await asyncio.sleep(LOOK_EVERY)

    async def _leave(self, queue: Any, recognised: Recognised) -> None:
        call, began = next(self._calls), time.monotonic()
        kind, note = Kind.DONE, ""
        try:
            await queue.__aexit__(None, None, None)
        except JQueueError as error:
            kind, note = Kind.BROKEN, repr(error)
        else:
            note = str(recognised.count)
        self._tell(call, kind, Verb.LEAVE, (), began, self._orders.deadline, note)

    async def _loop(self, queue: Any) -> None:
        with suppress(QueueClosedError):
            while not self._is_over:
                share = 0.45 if self._queued else 0.8
                if self._queued < MOST_QUEUED and self._dice.random() < share:
                    await self._enqueue(queue, [self._new_id() for _ in range(self._dice.choice((1, 1, 1, 3)))])
                elif self._orders.segments and self._dice.random() < 0.3:
                    await self._work_on_a_range(queue)
                elif self._orders.segments and self._mine and self._dice.random() < 0.3:
                    await self._cancel(queue, self._mine.pop(self._dice.randrange(len(self._mine))))
                else:
                    entrypoint = self._dice.choice((None, *ENTRYPOINTS))
                    wait = self._dice.choice((None, 0.2, 1.0))
                    for job in await self._dequeue(queue, entrypoint, self._dice.randint(1, 3), wait):
                        await self._finish(queue, job)
                await asyncio.sleep(self._dice.uniform(0.0, self._orders.thought))

    async def _finish(self, queue: Any, job: Job) -> None:
        """End a claim in one of the possible ways."""
        end = self._dice.choices(("ack", "twice", "heartbeat", "nack", "apply", "abandon"), (45, 5, 15, 12, 20, 3))[0]
        if end == "abandon":
            return
        if end == "heartbeat":
            await self._call(Verb.HEARTBEAT, [job.claim], lambda end: queue.heartbeat(job, deadline=end))
        if end == "nack":
            charge = self._dice.random() < 0.7
            delay = self._dice.choice((None, 0.3)) if charge else None

            def nack(end: float) -> Any:
                return queue.nack(job, charge=charge, delay=delay, deadline=end)

            await self._call(Verb.NACK, [job.claim], nack)
        elif end == "apply":
            new = self._new_id()
            child = Enqueue(self._dice.choice(ENTRYPOINTS), payload_of(new), job_id=new)
            await self._call(Verb.APPLY, [job.claim, (new, 0)], lambda end: queue.apply(Ack(job), child, deadline=end))
        else:
            await self._ack(queue, job)
            if end == "twice":
                await self._ack(queue, job)

    async def _work_on_a_range(self, queue: Any) -> None:
        """Claim a range, and end the claim in one of the possible ways."""
        claims: list[RangeClaim] = []

        async def claim_range(end: float) -> list[Job]:
            entrypoint, rows = self._dice.choice(ENTRYPOINTS), self._dice.randint(1, LONGEST_RANGE)
            claim = await queue.claim_range(entrypoint, rows, deadline=end)
            if claim is None:
                return []
            claims.append(claim)
            return [job async for job in queue.read_range(claim)]

        jobs = await self._call(Verb.CLAIM_RANGE, [], claim_range)
        if not jobs:
            return
        [claim] = claims
        end = self._dice.choices(("all", "some", "nothing", "abandon"), (40, 40, 8, 4))[0]
        if end == "abandon":
            return
        worked_on = {"all": len(jobs), "some": self._dice.randint(0, len(jobs)), "nothing": 0}[end]
        fates = {job: self._dice.choice(("done", "failed")) if end == "some" else "done" for job in jobs[:worked_on]}
        done = [job.claim for job, fate in fates.items() if fate == "done"]
        failed = {job.id: RangeFailure("boom", delay=0.01) for job, fate in fates.items() if fate == "failed"}

        def end_range(limit: float) -> Any:
            return queue.end_range(claim, failed=failed, worked_on=worked_on, deadline=limit)

        await self._call(Verb.END_RANGE, [claim.claim, *done], end_range)

    async def _cancel(self, queue: Any, job_id: str) -> None:
        await self._call(Verb.CANCEL, [(job_id, 0)], lambda end: queue.cancel(job_id, deadline=end))

    async def _enqueue(self, queue: Any, job_ids: Sequence[str]) -> None:
        entrypoint, priority = self._dice.choice(ENTRYPOINTS), self._dice.randint(0, 2)
        jobs = [Enqueue(entrypoint, payload_of(job_id), priority, job_id=job_id) for job_id in job_ids]
        names = [(job_id, 0) for job_id in job_ids]
        self._mine = [*self._mine, *job_ids][-MOST_QUEUED:]

        def call(end: float) -> Any:
            return queue.enqueue_many(jobs, deadline=min(end, AGAIN_SECONDS) if again else end)

        again = False
        answer = await self._call(Verb.ENQUEUE, names, call)
        if answer is not None and not self._orders.segments and self._dice.random() < 0.1:
            again = True
            await self._call(Verb.ENQUEUE, names, call)

    async def _dequeue(self, queue: Any, entrypoint: str | None, batch_size: int, wait: float | None) -> list[Job]:
        def call(end: float) -> Any:
            return queue.dequeue(entrypoint, batch_size=batch_size, wait=wait, deadline=end)

        return list(await self._call(Verb.DEQUEUE, [], call, wait or 0.0) or [])

    async def _ack(self, queue: Any, job: Job) -> None:
        await self._call(Verb.ACK, [job.claim], lambda end: queue.ack(job, deadline=end))

    async def _call(
        self,
        verb: Verb,
        jobs: Sequence[tuple[str, int]],
        function: Callable[[float], Awaitable[Any]],
        wait: float = 0.0,
    ) -> Any:
        """Report the intent, make the call, and report its outcome. Return None if it was not done.

        Raises:
            QueueClosedError: the queue was left.
        """
        call, began = next(self._calls), time.monotonic()
        names = tuple(JobAt(*job) for job in jobs)
        deadline = self._dice.uniform(*SHORT) if self._dice.random() < SHORT_SHARE else self._orders.deadline
        allowed = deadline * (2 if verb is Verb.CLAIM_RANGE else 1) + wait
        self._tell(call, Kind.INTENT, verb, names)
        try:
            answer = await function(deadline)
        except UnknownOutcomeError as error:
            note = type(error.cause or error).__name__
            kind = Kind.BROKEN if isinstance(error.cause, _NEVER) else Kind.UNKNOWN
            self._tell(call, kind, verb, names, began, allowed, note)
            return await self._resolve(call, verb, names, error)
        except JQueueError as error:
            kind = Kind.BROKEN if isinstance(error, _NEVER) else Kind.REFUSED
            self._tell(call, kind, verb, names, began, allowed, type(error).__name__)
            if isinstance(error, QueueClosedError):
                raise
            return None
        if verb in (Verb.DEQUEUE, Verb.CLAIM_RANGE):
            names = tuple(JobAt(*job.claim) for job in answer)
            if any(job.payload != payload_of(job.id) for job in answer):
                self._tell(call, Kind.BROKEN, verb, names, note="a payload is not the one enqueued")
        self._tell(call, Kind.DONE, verb, names, began, allowed)
        return True if answer is None else answer

    async def _resolve(self, call: int, verb: Verb, names: tuple[JobAt, ...], unknown: UnknownOutcomeError) -> Any:
        """Resolve the unknown outcome of a call, and report it."""
        began = time.monotonic()
        try:
            answer = await unknown.resolve(RESOLVE_SECONDS)
        except UnknownOutcomeError as error:
            kind, note, answer = Kind.STILL_UNKNOWN, type(error.cause or error).__name__, None
        except JQueueError as error:
            kind, note, answer = Kind.NOT_DONE, type(error).__name__, None
        else:
            kind, note = Kind.LANDED, ""
            if verb is Verb.DEQUEUE and answer:
                kind, note = Kind.BROKEN, "resolve() handed out claims"
        self._tell(call, kind, verb, names, began, RESOLVE_SECONDS, note)
        return answer if verb in (Verb.ENQUEUE, Verb.ACK) else None

    def _tell(
        self,
        call: int,
        kind: Kind,
        verb: Verb,
        names: tuple[JobAt, ...],
        began: float | None = None,
        allowed: float = 0.0,
        note: str = "",
    ) -> None:
        seconds = 0.0 if began is None else time.monotonic() - began
        self._say(Line(call, kind, verb, names, round(seconds, 4), allowed, note))

    def _new_id(self) -> str:
        return f"{self._orders.name}-{next(self._numbers)}"


def main(orders: Orders, pipe: socket.socket) -> None:
    """Work in this process until the other end of the socket sends no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent, which stops us

    async def work() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe, stop.set)
        await Worker(orders, lambda line: pipe.sendall(encode(line))).run(stop)

    asyncio.run(work())
