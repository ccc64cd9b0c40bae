"""One soak: worker processes on one queue, faults on the way to its store, kills, and an auditor."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from jqueue import JQueueError
from tests.journal import Journal, Journals
from tests.servers.fault_proxy import FaultProxy
from tests.simulation.history import NEVER, Violation
from tests.soak.places import FILE, Place
from tests.soak.worker import KINDS, Orders, Settings, Worker, main

REQUESTS_KEPT = 100
LEAVING_SECONDS = 90.0
"""Seconds that a worker may take to leave: more than two consecutive calls, their resolve() and the exit need."""

STARTING_SECONDS = 120.0
DRAIN_SECONDS = 120.0
STOPPED, LONGEST_STOP = 0.3, 4.0
"""Share of the workers that are stopped for up to so many seconds before they are killed."""

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.soak.worker"])


class Member(NamedTuple):
    """A worker process, for the parent."""

    name: str
    process: Any
    pipe: socket.socket
    journal: Path

    @property
    def speaks(self) -> bool:
        """True once it has made a call."""
        return self.journal.exists() and self.journal.stat().st_size > 0


class Soak:
    """One run.

    Args:
        settings: settings of the run.
        place: place of the queue's object, on the way without faults.
        folder: an empty folder for the journals.

    Attributes:
        journals: the journals of the workers, once the queue was drained.
        violations: the broken promises.
        folder: of the journals.
        fired: number of faults of each kind.
        requests: number of requests through the proxy.
        kills: number of killed workers.
    """

    def __init__(self, settings: Settings, place: Place, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.journals = Journals({})
        self.violations: list[str] = []
        self.requests = 0
        self.kills = 0
        self._place = place
        self._dice = random.Random(settings.seed)
        self._numbers = itertools.count(1)
        self._members: list[Member] = []
        self._unanswered: list[str] = []
        self._proxy = self._made_proxy()

    @property
    def fired(self) -> Counter[str]:
        """Number of faults of each kind so far."""
        return Counter({} if self._proxy is None else {k.__name__: count for k, count in self._proxy.fired.items()})

    def _made_proxy(self) -> FaultProxy | None:
        if self._place.name == FILE:
            return None
        server = self._place.server
        address = urlsplit(str(server.get("account_url", self._place.url)))
        assert address.hostname is not None
        assert address.port is not None
        return FaultProxy(address.hostname, address.port, seed=self.settings.seed)

    async def run(self, on_progress: Callable[[float], Any] = lambda _: None) -> None:
        """Work, stop, drain and audit.

        Args:
            on_progress: called with the share of the work that is done.
        """
        if self._proxy is None:
            await self._work(on_progress)
        else:
            async with self._proxy:
                self._proxy.kinds, self._proxy.rate = KINDS, self.settings.rate
                await self._work(on_progress)
        await self._drain()

    async def _work(self, on_progress: Callable[[float], Any]) -> None:
        settings = self.settings
        try:
            for _ in range(settings.processes):
                await self._start()
            await self._until_all_speak()
            began = time.monotonic()
            while self._share(began) < 1:
                on_progress(self._share(began))
                self._count(REQUESTS_KEPT)
                self._check_on_members()
                if settings.kills:
                    await self._kill_one()
                else:
                    await asyncio.sleep(0.2)
            if self._proxy is not None:
                self._proxy.clear()
            await asyncio.gather(*(self._dismiss(member) for member in self._members))
        finally:
            for member in self._members:
                member.process.kill()
                await self._gone(member)
            self._count(0)

    def _share(self, began: float) -> float:
        """Return the share of the work that is done."""
        settings = self.settings
        return self.kills / settings.kills if settings.kills else (time.monotonic() - began) / settings.seconds

    def _check_on_members(self) -> None:
        for member in self._members:
            if member.process.exitcode is not None:
                raise RuntimeError(f"{member.name} ended with {member.process.exitcode}: see its traceback above")

    async def _until_all_speak(self) -> None:
        async with asyncio.timeout(STARTING_SECONDS):
            while not all(member.speaks for member in self._members):
                await asyncio.sleep(0.05)

    async def _start(self) -> None:
        name = f"w{next(self._numbers)}"
        ours, theirs = socket.socketpair()
        repeats, self._unanswered = self._unanswered, []
        journal = self.folder / name
        orders = self._orders(name)._replace(repeats=repeats)
        process = _processes.Process(target=main, args=(orders, journal, theirs))
        process.start()
        theirs.close()
        self._members.append(Member(name, process, ours, journal))

    def _orders(self, name: str) -> Orders:
        place = self._place if self._proxy is None else self._place._replace(url=self._proxy.url)
        orders = Orders(place, name, self._dice.randrange(1 << 32), self.settings)
        return orders._replace(claim_timeout=0.5, thought=0.0) if self._proxy is None else orders

    def _count(self, keep: int) -> None:
        """Count the requests, and keep the proxy's records short."""
        done = 0 if self._proxy is None else len(self._proxy.requests) - keep
        if self._proxy is not None and done > 0:
            del self._proxy.requests[:done]
            self.requests += done

    async def _kill_one(self) -> None:
        """Kill a worker at a random moment, and let another take its place."""
        longest = 0.2 if self._proxy is None else 4.0
        await asyncio.sleep(self._dice.uniform(0.0, longest))
        busy = [member for member in self._members if member.speaks]
        if not busy:
            return
        victim = self._dice.choice(busy)
        if self.settings.shared and self._dice.random() < STOPPED:
            os.kill(victim.process.pid, signal.SIGSTOP)
            await asyncio.sleep(self._dice.uniform(0.0, LONGEST_STOP))
            os.kill(victim.process.pid, signal.SIGCONT)
            await asyncio.sleep(self._dice.uniform(0.0, longest))
        victim.process.kill()
        await self._gone(victim)
        self._members.remove(victim)
        calls = Journals({victim.name: victim.journal.read_bytes()}).calls
        unanswered = (call for call in calls if call.verb == "enqueue_many" and call.ended == NEVER)
        self._unanswered += [job_id for call in unanswered for job_id in call.job_ids]
        self.kills += 1
        await self._start()

    async def _dismiss(self, member: Member) -> None:
        """Ask a worker to leave, and wait until it has."""
        member.pipe.shutdown(socket.SHUT_WR)
        try:
            async with asyncio.timeout(LEAVING_SECONDS):
                await self._gone(member)
        except TimeoutError:
            self.violations.append(f"{member.name} did not leave within {LEAVING_SECONDS:g} s")
            return
        if member.process.exitcode:
            self.violations.append(f"{member.name} ended with {member.process.exitcode}: see its traceback above")

    async def _gone(self, member: Member) -> None:
        """Wait for the end of a worker."""
        await asyncio.to_thread(member.process.join)
        member.pipe.close()

    async def _drain(self) -> None:
        """Ack the remaining jobs without faults, and compare the journals with the model."""
        orders = self._orders("last")._replace(place=self._place, call_timeout=15.0, claim_timeout=60.0)
        storage, content = self._place.open(), None
        with (self.folder / "last").open("ab", buffering=0) as file:
            try:
                async with asyncio.timeout(DRAIN_SECONDS):
                    await Worker(orders, Journal("last", file.write)).drain(storage)
                    content = bytes((await storage.read())[0])
            except (JQueueError, TimeoutError) as error:
                self.violations.append(f"the queue could not be drained and read: {type(error).__name__}: {error}")
        await asyncio.to_thread(self._audit, content)
        if self._place.name == FILE:
            self._check_folder(Path(self._place.key))

    def _audit(self, content: bytes | None) -> None:
        self.journals = journals = Journals({path.name: path.read_bytes() for path in self.folder.iterdir()})
        self.violations += journals.broken
        if content is None:
            return
        try:
            journals.check(content)
        except Violation as violation:
            self.violations.append(str(violation))
        else:
            if left := journals.last.jobs:
                self.violations.append(f"jobs are left that cannot be acked: {', '.join(left)}")

    def _check_folder(self, file: Path) -> None:
        """Check that killed processes have left nothing beside the file for ever."""
        expected = {file.name, f"{file.name}.lock", f"{file.name}.segments"}
        expected |= {f"{file.name}.broker", f"{file.name}.broker.lock"}  # the next broker takes them away
        if left := {path.name for path in file.parent.iterdir()} - expected:
            self.violations.append(f"something was left beside the file: {', '.join(sorted(left))}")
        if (size := Path(f"{file}.lock").stat().st_size) > LARGEST_SIDECAR:
            self.violations.append(f"the sidecar has grown to {size} bytes")


LARGEST_SIDECAR = 256
