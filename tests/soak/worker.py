"""A worker of the soak. It makes calls on the queue in random order, and reports each before and after.

It works until its socket says that it is over, with one queue object after the other, each left after some seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from jqueue import BrokerQueue, Claim, DirectQueue, Job, JQueueError, Limits, UnknownOutcomeError
from jqueue.domain.errors import BlobMissingError, InvalidBlobError, SegmentDamagedError, StorageFatalError
from jqueue.domain.segments import JobFailure, Lease
from jqueue.errors import QueueClosedError
from jqueue.operations import Ack, Enqueue
from jqueue.ports.storage import SupportsRelease
from tests.journal import Journal, payload_of
from tests.server.served import serving
from tests.servers.fault_kinds import (
    BlackHole,
    DropAnswer,
    Fault,
    HangAnswer,
    Late,
    Refuse,
    ReplaceAnswer,
    ResetRequest,
    TruncateAnswer,
)
from tests.servers.fault_proxy import FaultProxy
from tests.simulation.history import NEVER, Call
from tests.soak.places import FILE, Place

CUT = (
    DropAnswer(),
    DropAnswer(reset=True),
    TruncateAnswer(head=20),
    HangAnswer(),
    ReplaceAnswer(500),
    ReplaceAnswer(503),
)
"""Faults after which the server has done the request, and the client does not learn of it."""

LOST = (Refuse(), ResetRequest(body=0.5), BlackHole(), Late(2.0))
"""Faults by which the server gets no request, half of one, or a late one."""

KINDS: tuple[Fault, ...] = CUT * 3 + LOST
ENTRYPOINTS = ("one", "two")
MOST_QUEUED = 40
"""Number of jobs above which a worker enqueues no more: a short queue is quick, so that there are many commits."""

CALLS_AT_ONCE = 4
LONGEST_RANGE = 12
LOOK_EVERY = 3.0
SHORT, SHORT_SHARE = (0.2, 2.0), 0.25
"""Range of deadlines in seconds that often pass before the answer, and the share of calls with one."""

SHARES, OFFERS, SERVES = 0.85, 0.5, 0.3
"""Shares of the queue objects that use a broker, that offer to be one, and that are one in a remote store."""

RESOLVE_SECONDS = 15.0
AGAIN_SECONDS = 5.0
"""Deadline of a repeated enqueue in seconds: the queue does not remember finished jobs for ever."""

HANDS_OUT = ("dequeue", "claim_lease")
_NEVER = (InvalidBlobError, BlobMissingError, SegmentDamagedError, StorageFatalError)


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Attributes:
        seconds: seconds that the workers work, if none is killed.
        kills: number of workers to kill at random moments, each of which is replaced; then the work ends.
        processes: number of processes at a time.
        rate: share of broken requests.
        seed: seed of all dice; what happens is the machine's choice as well.
        segments: True to keep waiting jobs in segments beside the queue.
        session: approximate seconds that a worker keeps a queue object.
        shared: True if workers may commit for others. Then some of those to be killed are stopped first, and work on
            for a while after another has taken their place.
    """

    seconds: float = 60.0
    kills: int = 0
    processes: int = 4
    rate: float = 0.05
    seed: int = 0
    segments: bool = False
    session: float = 25.0
    shared: bool = False


class Orders(NamedTuple):
    """Settings of a worker.

    Attributes:
        place: place of the queue's object.
        name: name of the worker, and first part of the ids of its jobs.
        seed: seed of its dice.
        settings: settings of the run.
        repeats: jobs whose enqueue a killed worker got no answer to; they are enqueued again first.
        call_timeout: call timeout of its queues and storages.
        deadline: deadline of its calls.
        claim_timeout: timeout of its claims.
        thought: longest pause between two calls.
    """

    place: Place
    name: str
    seed: int
    settings: Settings
    repeats: Sequence[str] = ()
    call_timeout: float = 1.5
    deadline: float = 20.0
    claim_timeout: float = 6.0
    thought: float = 0.1


class Worker:
    """The calls of one process.

    Args:
        orders: the settings.
        journal: has its calls, and what it writes.
    """

    def __init__(self, orders: Orders, journal: Journal) -> None:
        self._orders, self._settings = orders, orders.settings
        self._journal = journal
        self._dice = random.Random(orders.seed)
        self._short_share = SHORT_SHARE
        self._numbers = itertools.count(1)
        self._queued = 0
        self._mine: list[str] = []
        self._is_over = False

    async def run(self, stop: asyncio.Event) -> None:
        """Work with one queue object after the other until `stop` is set."""
        repeats = list(self._orders.repeats)
        while not stop.is_set():
            storage = self._journal.of(self._orders.place.open(timeout=self._orders.call_timeout))
            await self._session(storage, stop, repeats)
            repeats = []

    async def _session(self, storage: Any, stop: asyncio.Event, repeats: list[str]) -> None:
        """Make several calls at a time with one queue object, and leave it after or during the last calls."""
        hot = self._dice.choice((1, 500, 3000, None)) if self._settings.segments else None
        is_remote = self._orders.place.name != FILE
        offers = self._settings.shared and self._dice.random() < (SERVES if is_remote else OFFERS)
        is_server = offers and is_remote
        kind: Any = BrokerQueue if is_server else self._dice.choice((BrokerQueue, DirectQueue))
        queue = kind(
            storage,
            stale_timeout=self._orders.claim_timeout,
            deadline=self._orders.deadline,
            call_timeout=self._orders.call_timeout,
            limits=Limits(hot_bytes=hot),
            share=is_server or (self._settings.shared and self._dice.random() < SHARES),
        )
        queue.observe(self._journal.recorder)
        await queue.__aenter__()
        async with AsyncExitStack() as stack:
            if is_server:
                await self._serve(queue, stack)
            elif offers:
                queue.offer()
            await self._work(queue, stop, repeats)
        if isinstance(storage, SupportsRelease):
            await storage.release()  # a resolve() may have opened a client again

    async def _serve(self, queue: Any, stack: AsyncExitStack) -> None:
        """Commit for others by HTTP. On the way to this process, answers get lost as on the way to the store."""
        served = await stack.enter_async_context(serving(queue))
        port = urlsplit(served.url).port
        assert port is not None
        proxy = await stack.enter_async_context(FaultProxy("127.0.0.1", port, seed=self._dice.randrange(1 << 32)))
        proxy.kinds, proxy.rate = KINDS, self._settings.rate
        queue.offer(proxy.url)

    async def _work(self, queue: Any, stop: asyncio.Event, repeats: list[str]) -> None:
        self._is_over = False
        for job_id in repeats:
            await self._enqueue(queue, [job_id])
        loops = [asyncio.create_task(self._loop(queue)) for _ in range(self._dice.randint(1, CALLS_AT_ONCE))]
        watch = asyncio.create_task(self._look(queue))
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), self._dice.uniform(0.2, 1.8) * self._settings.session)
        self._is_over = True
        watch.cancel()
        if self._dice.random() < 0.5:
            await asyncio.gather(*loops)
        try:
            await queue.__aexit__(None, None, None)
        except JQueueError as error:
            self._journal.note("broken", f"left with {error!r}")
        await asyncio.gather(*loops)

    async def drain(self, storage: Any) -> None:
        """Ack everything that can be claimed, until nothing is left. No deadline is short, as no ack is tried again."""
        self._short_share = 0.0
        async with DirectQueue(self._journal.of(storage), stale_timeout=self._orders.claim_timeout) as queue:
            queue.observe(self._journal.recorder)
            await self._enqueue(queue, [self._new_id()])
            await self._call(queue, "requeue_stale", 0)
            while (version := (await queue.stats()).version) and [job async for job in queue.iterate_jobs()]:
                for job in await self._dequeue(queue, None, 100, 1.0):
                    await self._call(queue, "ack", job, claims=[job.claim])
                if version == (await queue.stats()).version:
                    return  # no job can be acked: the caller looks at the remaining ones

    async def _look(self, queue: Any) -> None:
        """Note the number of jobs now and then."""
        while True:
            with suppress(JQueueError):
                self._queued = (await queue.stats()).ready
            await asyncio.sleep(LOOK_EVERY)

    async def _loop(self, queue: Any) -> None:
        with suppress(QueueClosedError):
            while not self._is_over:
                share = 0.45 if self._queued else 0.8
                if self._queued < MOST_QUEUED and self._dice.random() < share:
                    await self._enqueue(queue, [self._new_id() for _ in range(self._dice.choice((1, 1, 1, 3)))])
                elif self._settings.segments and self._dice.random() < 0.3:
                    await self._work_on_a_range(queue)
                elif self._settings.segments and self._mine and self._dice.random() < 0.3:
                    job_id = self._mine.pop(self._dice.randrange(len(self._mine)))
                    await self._call(queue, "cancel", job_id, job_ids=[job_id])
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
            await self._call(queue, "heartbeat", job, claims=[job.claim])
        if end == "nack":
            charge = self._dice.random() < 0.7
            delay = self._dice.choice((None, 0.3)) if charge else None
            await self._call(queue, "nack", job, claims=[job.claim], charge=charge, delay=delay)
        elif end == "apply":
            new = self._new_id()
            child = Enqueue(self._dice.choice(ENTRYPOINTS), payload_of(new), job_id=new)
            await self._call(queue, "apply", Ack(job), child, claims=[job.claim], job_ids=[new])
        else:
            for _ in range(2 if end == "twice" else 1):
                await self._call(queue, "ack", job, claims=[job.claim])

    async def _work_on_a_range(self, queue: Any) -> None:
        """Claim a range, and end the claim in one of the possible ways."""
        claims: list[Lease] = []

        async def claim_lease(entrypoint: str, rows: int, *, deadline: float) -> list[Job]:
            claim = await queue.claim_lease(entrypoint, rows, deadline=deadline)
            claims.extend([] if claim is None else [claim])
            return [] if claim is None else [job async for job in queue.read_lease(claim)]

        entrypoint, rows = self._dice.choice(ENTRYPOINTS), self._dice.randint(1, LONGEST_RANGE)
        jobs = await self._call(queue, "claim_lease", entrypoint, rows, work=claim_lease)
        if not jobs:
            return
        [claim] = claims
        end = self._dice.choices(("all", "some", "nothing", "abandon"), (40, 40, 8, 4))[0]
        if end == "abandon":
            return
        worked_on = {"all": len(jobs), "some": self._dice.randint(0, len(jobs)), "nothing": 0}[end]
        fates = {job: self._dice.choice(("done", "failed")) if end == "some" else "done" for job in jobs[:worked_on]}
        failed = {job.id: JobFailure("boom", delay=0.01) for job, fate in fates.items() if fate == "failed"}

        await self._call(queue, "end_lease", claim, claims=[claim.claim], failed=failed, worked_on=worked_on)

    async def _enqueue(self, queue: Any, job_ids: Sequence[str]) -> None:
        entrypoint, priority = self._dice.choice(ENTRYPOINTS), self._dice.randint(0, 2)
        jobs = [Enqueue(entrypoint, payload_of(job_id), priority, job_id=job_id) for job_id in job_ids]
        self._mine = [*self._mine, *job_ids][-MOST_QUEUED:]
        answer = await self._call(queue, "enqueue_many", jobs, job_ids=job_ids)
        if answer is not None and not self._settings.segments and self._dice.random() < 0.1:
            await self._call(queue, "enqueue_many", jobs, job_ids=job_ids, longest=AGAIN_SECONDS)

    async def _dequeue(self, queue: Any, entrypoint: str | None, batch_size: int, wait: float | None) -> list[Job]:
        return list(await self._call(queue, "dequeue", entrypoint, batch_size=batch_size, wait=wait) or [])

    async def _call(
        self,
        queue: Any,
        verb: str,
        *arguments: Any,
        claims: Sequence[Claim] = (),
        job_ids: Sequence[str] = (),
        longest: float = NEVER,
        work: Any = None,
        **options: Any,
    ) -> Any:
        """Make a call, and resolve its outcome if it is unknown. Return None if it was not done.

        Raises:
            QueueClosedError: the queue was left.
        """
        deadline = self._dice.uniform(*SHORT) if self._dice.random() < self._short_share else self._orders.deadline
        call = Call(self._orders.name, verb, tuple(claims), tuple(job_ids), expected=(JQueueError,))
        begin = work or getattr(queue, verb)
        answer = await self._journal.record(call, begin(*arguments, deadline=min(deadline, longest), **options))
        cause = answer.cause if isinstance(answer, UnknownOutcomeError) else answer
        if isinstance(cause, _NEVER):
            self._journal.note("broken", f"{call} failed with {cause!r}")
        if isinstance(answer, QueueClosedError):
            raise answer
        if isinstance(answer, UnknownOutcomeError):
            return await self._resolve(call, answer)
        if isinstance(answer, JQueueError):
            return None
        if verb in HANDS_OUT and any(job.payload != payload_of(job.id) for job in answer):
            self._journal.note("broken", f"{call} returned a payload that is not the one enqueued")
        return True if answer is None else answer

    async def _resolve(self, call: Call, unknown: UnknownOutcomeError) -> Any:
        """Resolve the unknown outcome of a call, which becomes its answer."""
        loop = asyncio.get_running_loop()
        try:
            answer = await unknown.resolve(RESOLVE_SECONDS)
        except UnknownOutcomeError:
            return None
        except JQueueError as error:
            call.error, call.ended = error, loop.time()
            self._journal.answer(call)
            return None
        if call.verb in HANDS_OUT:
            if answer:
                self._journal.note("broken", f"{call}: resolve() handed out claims")
            return None
        call.error, call.result, call.ended = None, answer, loop.time()
        self._journal.answer(call)
        return answer if call.verb in ("enqueue_many", "ack") else None

    def _new_id(self) -> str:
        return f"{self._orders.name}-{next(self._numbers)}"


def main(orders: Orders, journal: Path, pipe: socket.socket) -> None:
    """Work in this process until the other end of the socket sends no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent, which stops us
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def work() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe, stop.set)
        await Worker(orders, Journal(orders.name, partial(os.write, file))).run(stop)

    asyncio.run(work())
