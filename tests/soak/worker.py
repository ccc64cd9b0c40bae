"""A worker of the soak that makes calls on the queue in random order, and reports each before and after.

    python -m tests.soak.worker '<orders as JSON>'

It works until its standard input ends, with one queue object after the other, each left after some seconds. Then it
leaves the last one and ends.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from jqueue import BrokerQueue, DirectQueue, Job, JQueueError, QueueClosedError, UnknownOutcomeError
from jqueue.domain.errors import BlobMissingError, InvalidBlobError, StorageFatalError
from jqueue.operations import Ack, Enqueue
from jqueue.ports.storage import SupportsRelease
from tests.kill.journal import JobAt, payload_of
from tests.soak.broken import BROKEN
from tests.soak.journal import Kind, Line, Verb, say
from tests.soak.places import Place

ENTRYPOINTS = ("one", "two")
MOST_QUEUED = 40
"""Number of jobs above which a worker enqueues no more: a short queue is quick, so that there are many commits."""

CALLS_AT_ONCE = 4
LONGEST_THOUGHT = 0.1
LOOK_EVERY = 3.0
SHORT, SHORT_SHARE = (0.2, 2.0), 0.25
"""Range of deadlines in seconds that often pass before the answer, and the share of calls with one."""

RESOLVE_SECONDS = 15.0
AGAIN_SECONDS = 5.0
"""Deadline of a repeated enqueue in seconds: the queue does not remember finished jobs for ever."""

_NEVER = (InvalidBlobError, BlobMissingError, StorageFatalError)


class Orders(NamedTuple):
    """Settings of a worker.

    Attributes:
        place: place of the store.
        key: key of the object.
        name: name of the worker, and first part of the ids of its jobs.
        seed: seed of its dice.
        call_timeout: call timeout of its queues and storages.
        deadline: deadline of its calls.
        claim_timeout: timeout of its claims.
        session: approximate seconds that it keeps a queue object.
        broken: name of a fault planted on purpose, or empty.
    """

    place: Place
    key: str
    name: str
    seed: int
    call_timeout: float = 1.5
    deadline: float = 20.0
    claim_timeout: float = 6.0
    session: float = 25.0
    broken: str = ""


class Worker:
    """The calls of one process.

    Args:
        orders: the settings.
        descriptor: the pipe for the lines.
    """

    def __init__(self, orders: Orders, descriptor: int) -> None:
        self._orders = orders
        self._descriptor = descriptor
        self._dice = random.Random(orders.seed)
        self._numbers = itertools.count(1)
        self._calls = itertools.count(1)
        self._queued = 0
        self._is_over = False

    async def run(self, stop: asyncio.Event) -> None:
        """Work with one queue object after the other until `stop` is set."""
        store = self._orders.place.store()
        while not stop.is_set():
            storage = store.open(self._orders.key, timeout=self._orders.call_timeout)
            await self._session(storage, stop)

    async def _session(self, storage: Any, stop: asyncio.Event) -> None:
        """Make several calls at a time with one queue object, and leave it after or during the last calls."""
        options: dict[str, Any] = {
            "stale_timeout": self._orders.claim_timeout,
            "deadline": self._orders.deadline,
            "call_timeout": self._orders.call_timeout,
        }
        queue = self._dice.choice((BrokerQueue, DirectQueue))(storage, **options)
        await queue.__aenter__()
        self._is_over = False
        count = self._dice.randint(1, CALLS_AT_ONCE)
        loops = [asyncio.create_task(self._loop(queue)) for _ in range(count)]
        watch = asyncio.create_task(self._look(queue))
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), self._dice.uniform(0.2, 1.8) * self._orders.session)
        self._is_over = True
        watch.cancel()
        if self._dice.random() < 0.5:
            await asyncio.gather(*loops)
        await self._leave(queue)
        await asyncio.gather(*loops)
        if isinstance(storage, SupportsRelease):
            await storage.release()  # a resolve() may have opened a client again

    async def drain(self, storage: Any) -> None:
        """Ack everything that can be claimed, until nothing is left."""
        async with DirectQueue(storage, stale_timeout=self._orders.claim_timeout) as queue:
            await queue.requeue_stale(0)
            while (state := await queue.read_state()).jobs:
                for job in await self._dequeue(queue, None, 100, 1.0):
                    await self._ack(queue, job)
                if state.version == (await queue.read_state()).version:
                    return  # no job can be acked: the auditor judges the remaining ones

    async def _look(self, queue: Any) -> None:
        """Note the number of jobs now and then."""
        while True:
            with suppress(JQueueError):
                self._queued = len((await queue.read_state()).jobs)
            await asyncio.sleep(LOOK_EVERY)

    async def _leave(self, queue: Any) -> None:
        call, began = next(self._calls), time.monotonic()
        kind, note = Kind.DONE, ""
        try:
            await queue.__aexit__(None, None, None)
        except JQueueError as error:
            kind, note = Kind.BROKEN, repr(error)
        else:
            note = str(queue._engine.recognised)
        self._say(call, kind, Verb.LEAVE, (), began, self._orders.deadline, note)

    async def _loop(self, queue: Any) -> None:
        with suppress(QueueClosedError):
            while not self._is_over:
                share = 0.45 if self._queued else 0.8
                if self._queued < MOST_QUEUED and self._dice.random() < share:
                    await self._enqueue(queue, [self._new_id() for _ in range(self._dice.choice((1, 1, 1, 3)))])
                else:
                    entrypoint = self._dice.choice((None, *ENTRYPOINTS))
                    for job in await self._dequeue(
                        queue, entrypoint, self._dice.randint(1, 3), self._dice.choice((None, 0.2, 1.0))
                    ):
                        await self._finish(queue, job)
                await asyncio.sleep(self._dice.uniform(0.0, LONGEST_THOUGHT))

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

    async def _enqueue(self, queue: Any, job_ids: Sequence[str]) -> None:
        entrypoint, priority = self._dice.choice(ENTRYPOINTS), self._dice.randint(0, 2)
        jobs = [Enqueue(entrypoint, payload_of(job_id), priority, job_id=job_id) for job_id in job_ids]
        names = [(job_id, 0) for job_id in job_ids]

        def call(end: float) -> Any:
            return queue.enqueue_many(jobs, deadline=min(end, AGAIN_SECONDS) if again else end)

        again = False
        if await self._call(Verb.ENQUEUE, names, call) is not None and self._dice.random() < 0.1:
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
        allowed = deadline + wait
        self._say(call, Kind.INTENT, verb, names)
        try:
            answer = await function(deadline)
        except UnknownOutcomeError as error:
            note = type(error.cause or error).__name__
            kind = Kind.BROKEN if isinstance(error.cause, _NEVER) else Kind.UNKNOWN
            self._say(call, kind, verb, names, began, allowed, note)
            return await self._resolve(call, verb, names, error)
        except JQueueError as error:
            kind = Kind.BROKEN if isinstance(error, _NEVER) else Kind.REFUSED
            self._say(call, kind, verb, names, began, allowed, type(error).__name__)
            if isinstance(error, QueueClosedError):
                raise
            return None
        if verb is Verb.DEQUEUE:
            names = tuple(JobAt(*job.claim) for job in answer)
            if any(job.payload != payload_of(job.id) for job in answer):
                self._say(call, Kind.BROKEN, verb, names, note="a payload is not the one enqueued")
        self._say(call, Kind.DONE, verb, names, began, allowed)
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
        self._say(call, kind, verb, names, began, RESOLVE_SECONDS, note)
        return answer

    def _say(
        self,
        call: int,
        kind: Kind,
        verb: Verb,
        names: tuple[JobAt, ...],
        began: float | None = None,
        allowed: float = 0.0,
        note: str = "",
    ) -> None:
        now = time.monotonic()
        seconds = 0.0 if began is None else now - began
        say(self._descriptor, Line(call, kind, verb, names, round(now, 4), round(seconds, 4), allowed, note))

    def _new_id(self) -> str:
        return f"{self._orders.name}-{next(self._numbers)}"


async def work(orders: Orders) -> None:
    """Work until the standard input ends."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(0, stop.set)
    try:
        await Worker(orders, 1).run(stop)
    finally:
        loop.remove_reader(0)


def main() -> None:
    """Run the process."""
    given = json.loads(sys.argv[1])
    orders = Orders(**given | {"place": Place(*given["place"])})
    if orders.broken:
        BROKEN[orders.broken]()
    asyncio.run(work(orders))


if __name__ == "__main__":
    main()
