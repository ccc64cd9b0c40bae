"""One soak: a server, a proxy that breaks requests, worker processes, and an auditor."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jqueue import DirectQueue, JQueueError
from tests.object_stores import Store
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
from tests.soak.journal import decode
from tests.soak.ledger import Ledger
from tests.soak.places import place_of
from tests.soak.worker import Orders, Worker

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
ROOT = Path(__file__).parents[2]
KILL_AFTER = (1.0, 5.0)
LEAST_SAID = 20
"""Number of lines below which a worker has hardly begun and is not killed."""

SEE_EVERY = 0.5
REQUESTS_KEPT = 100
LEAVING_SECONDS = 90.0
"""Seconds that a worker may take to leave: more than two consecutive calls, their resolve() and the exit need."""

STARTING_SECONDS = 120.0
DRAIN_SECONDS = 120.0


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Attributes:
        store: name of the store.
        seconds: seconds that the workers work.
        processes: number of processes at a time.
        rate: share of broken requests.
        seed: seed of all dice.
        kill: True if workers are killed now and then.
        broken: name of a fault planted on purpose, or empty.
        session: approximate seconds that a worker keeps a queue object.
    """

    store: str
    seconds: float = 60.0
    processes: int = 4
    rate: float = 0.05
    seed: int = 0
    kill: bool = False
    broken: str = ""
    session: float = 25.0


class Member:
    """A worker process, for the parent."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, errors: Path) -> None:
        self.name = name
        self.process = process
        self.errors = errors
        self.is_killed = False
        self.said = 0
        self.reading: asyncio.Task[None] | None = None


class Soak:
    """One run.

    Args:
        settings: settings of the run.
        store: the store without the proxy.
        folder: folder for the journal, and for the error output of workers.

    Attributes:
        ledger: the record of all lines and states.
        fired: number of faults of each kind.
        requests: number of requests through the proxy.
        kills: number of killed workers.
    """

    def __init__(self, settings: Settings, store: Store, folder: Path) -> None:
        self.settings = settings
        self.ledger = Ledger()
        self.fired: Counter[str] = Counter()
        self.requests = 0
        self.kills = 0
        self._store = store
        self._folder = folder
        self._key = store.new_key()
        self._dice = random.Random(settings.seed)
        self._numbers = itertools.count(1)
        self._members: list[Member] = []
        self._is_over = False
        self._journal = (folder / "journal").open("wb")
        address = urlsplit(store.address)
        assert address.hostname is not None
        assert address.port is not None
        self._proxy = FaultProxy(address.hostname, address.port, seed=settings.seed)

    async def run(self, on_progress: Callable[[float], Any] = lambda _: None) -> None:
        """Work, stop, drain and audit; the ledger then has the violations."""
        settings, began = self.settings, time.monotonic()
        async with self._proxy:
            self._proxy.kinds, self._proxy.rate = KINDS, settings.rate
            background: list[Coroutine[Any, Any, Any]] = [self._watch()]
            if settings.kill:
                background.append(self._kill_now_and_then())
            tasks: list[asyncio.Task[Any]] = []
            try:
                for _ in range(settings.processes):
                    await self._start()
                await self._until_all_speak()
                began = time.monotonic()
                tasks = [asyncio.create_task(doing) for doing in background]
                while (passed := time.monotonic() - began) < settings.seconds:
                    on_progress(passed)
                    self._check_on(tasks)
                    await asyncio.sleep(0.2)
                self._is_over = True
                await asyncio.gather(*tasks[1:])
                self._proxy.clear()
                await asyncio.gather(*(self._dismiss(member) for member in self._members))
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._end_all()
        await self._drain()
        self._journal.close()

    def _check_on(self, tasks: list[asyncio.Task[Any]]) -> None:
        for task in tasks:
            if task.done():
                task.result()
        for member in self._members:
            if member.process.returncode is not None and not member.is_killed:
                raise RuntimeError(f"{member.name} ended with {member.process.returncode}: {member.errors.read_text()}")

    async def _until_all_speak(self) -> None:
        async with asyncio.timeout(STARTING_SECONDS):
            while not all(member.said for member in self._members):
                self._check_on([])
                await asyncio.sleep(0.1)

    async def _start(self) -> None:
        name = f"w{next(self._numbers)}"
        orders = self._orders(name)._asdict()
        errors = self._folder / f"{name}.errors"
        with errors.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.soak.worker",
                json.dumps(orders),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=file,
                cwd=ROOT,
                limit=1 << 20,
            )
        member = Member(name, process, errors)
        member.reading = asyncio.create_task(self._read(member))
        self._members.append(member)

    def _orders(self, name: str) -> Orders:
        place = place_of(self._store, self._proxy.url)
        seed, settings = self._dice.randrange(1 << 32), self.settings
        return Orders(place, self._key, name, seed, session=settings.session, broken=settings.broken)

    async def _read(self, member: Member) -> None:
        assert member.process.stdout is not None
        async for data in member.process.stdout:
            self._hear(member.name, data)
            member.said += 1

    def _hear(self, name: str, data: bytes) -> None:
        self._journal.write(f"{name} ".encode() + data)
        self.ledger.hear(name, decode(data))

    async def _watch(self) -> None:
        """Read the object now and then without the proxy, and keep the proxy's records short."""
        async with DirectQueue(self._store.open(self._key)) as queue:
            while True:
                with suppress(JQueueError):
                    self.ledger.see(await queue.read_state())
                self._count()
                await asyncio.sleep(SEE_EVERY)

    def _count(self) -> None:
        done = len(self._proxy.requests) - REQUESTS_KEPT
        if done > 0:
            del self._proxy.requests[:done]
            self.requests += done

    async def _kill_now_and_then(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self._dice.uniform(*KILL_AFTER))
            busy = [member for member in self._members if member.said >= LEAST_SAID]  # a worker takes long to start
            if not busy:
                continue
            victim = self._dice.choice(busy)
            victim.is_killed = True
            victim.process.kill()
            await self._gone(victim)
            self._members.remove(victim)
            self.kills += 1
            await self._start()

    async def _dismiss(self, member: Member) -> None:
        """Ask a worker to leave, and wait until it has."""
        assert member.process.stdin is not None
        member.process.stdin.close()
        try:
            async with asyncio.timeout(LEAVING_SECONDS):
                await self._gone(member)
        except TimeoutError:
            self.ledger.blame(f"{member.name} did not leave within {LEAVING_SECONDS:g} s")
            return
        if member.process.returncode:
            self.ledger.blame(f"{member.name} ended with {member.process.returncode}: {member.errors.read_text()}")

    async def _gone(self, member: Member) -> None:
        """Wait for the end of a worker and for its last lines."""
        assert member.reading is not None
        await member.process.wait()
        await member.reading

    async def _end_all(self) -> None:
        for member in self._members:
            if member.process.returncode is None:
                member.process.kill()
            await self._gone(member)
        self._count()
        self.requests += len(self._proxy.requests)
        self.fired.update({kind.__name__: count for kind, count in self._proxy.fired.items()})

    async def _drain(self) -> None:
        """Ack the remaining jobs without the proxy, and audit."""
        read, write = os.pipe()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=1 << 20)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read, "rb"))
        orders = self._orders("last")._replace(call_timeout=15.0, claim_timeout=60.0)

        async def drain() -> None:
            try:
                async with asyncio.timeout(DRAIN_SECONDS):
                    await Worker(orders, write).drain(self._store.open(self._key))
            finally:
                os.close(write)

        task = asyncio.create_task(drain())
        async for data in reader:
            self._hear("last", data)
        transport.close()
        try:
            await task
            async with DirectQueue(self._store.open(self._key)) as queue:
                self.ledger.audit(await queue.read_state())
        except (JQueueError, TimeoutError) as error:
            self.ledger.blame(f"the queue could not be drained and read: {type(error).__name__}: {error}")
            self.ledger.audit(None)

    @property
    def faults(self) -> int:
        """Number of faults so far."""
        return self._proxy.fired.total()
