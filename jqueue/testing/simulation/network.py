"""The store and the network before it: an honest store, and everything that can go wrong on the way to it."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from jqueue.domain.errors import CASConflictError, JQueueError, StorageError, StorageThrottledError
from jqueue.ports.storage import ObjectStoragePort
from jqueue.testing.virtual_time import EPOCH

Answer = Callable[[Any], None]
"""What is done with a result, or with the error instead of it."""

LONGEST_DELAY = 45.0
"""Seconds after which even the latest request has arrived."""


class FaultKind(Enum):
    """What the network can do to one request."""

    LOST_REQUEST = "the request is lost, and the client is told so"
    LOST_ANSWER = "the answer is lost, and the client is told so"
    SILENT_REQUEST = "the request is lost, and the client waits"
    SILENT_ANSWER = "the answer is lost, and the client waits"
    DELAYED = "the request arrives when the client has given up"
    LATE_ANSWER = "the request is done at once, and answered late"
    DUPLICATED = "the request arrives twice, the second time late"
    RESENT = "the client library sends it again, and reports the second answer"
    THROTTLED = "the store asks for fewer requests"
    DOWN = "the store is down for a while"


@dataclass(frozen=True, slots=True)
class Landing:
    """One version of the object, as the store has it.

    Attributes:
        at: when it landed, in seconds of the simulation.
        content: its bytes.
        by: the process that wrote it; None for an edit by hand and the like.
    """

    at: float
    content: bytes
    by: str | None


class HonestStore:
    """An object that is changed only by compare-and-set, without any I/O: what a simulation runs on by default."""

    def __init__(self) -> None:
        self._content = b""
        self._count = 0

    def read(self) -> tuple[bytes, str | None]:
        """The content and its etag."""
        return self._content, str(self._count) if self._count else None

    def write(self, content: bytes, if_match: str | None) -> str:
        """Write, if the etag is still the one named; None means that there must be nothing yet."""
        if if_match != (str(self._count) if self._count else None):
            raise CASConflictError("the object is another by now")
        self._content = content
        self._count += 1
        return str(self._count)


@dataclass
class Network:
    """One store, and the way to it.

    Attributes:
        store: the honest store; a storage adapter of one's own will do.
        dice: the seed's.
        rate: the share of requests that something happens to; it can be changed.
        kinds: what may happen.
        fired: how often each did.
        landings: every version, in order.
        reads: how many reads were asked for.
        writes: how many writes were asked for.
    """

    store: HonestStore | ObjectStoragePort
    dice: random.Random
    rate: float
    kinds: tuple[FaultKind, ...] = tuple(FaultKind)
    fired: Counter[FaultKind] = field(default_factory=Counter)
    landings: list[Landing] = field(default_factory=list)
    reads: int = 0
    writes: int = 0
    _down_until: float = 0.0
    _server: contextvars.Context = field(default_factory=contextvars.Context)

    def client(self, process: str, latency: float, tells_time: bool) -> SimulatedStorage:
        """The storage object of one process."""
        return (TimedStorage if tells_time else SimulatedStorage)(self, process, latency)

    def fault(self, *, write: bool) -> FaultKind | None:
        """Draw what happens to a request."""
        now = asyncio.get_running_loop().time()
        if now < self._down_until:
            self.fired[FaultKind.DOWN] += 1
            return FaultKind.DOWN
        if not self.kinds or self.dice.random() >= self.rate:
            return None
        kind = self.dice.choice(self.kinds)
        if not write and kind in (FaultKind.DUPLICATED, FaultKind.RESENT):
            return None
        if kind is FaultKind.DOWN:
            if self.dice.random() < 0.8:
                return None
            self._down_until = now + self.dice.uniform(1, 40)
        self.fired[kind] += 1
        return kind

    def later(self, seconds: float, callback: Callable[..., None], *args: Any) -> None:
        """Run something on the server's side, whatever becomes of the client."""
        asyncio.get_running_loop().call_later(seconds, callback, *args, context=self._server)

    def serve(self, content: bytes | None, if_match: str | None, by: str | None, answer: Answer) -> None:
        """A request arrives at the store: a write, or without content a read."""
        if isinstance(self.store, HonestStore):
            try:
                result: Any = self.store.read() if content is None else self.store.write(content, if_match)
            except CASConflictError as error:
                result = error
            self._note(content, result, by)
            answer(result)
        else:
            work = self._serve_slowly(self.store, content, if_match, by, answer)
            asyncio.get_running_loop().create_task(work, context=self._server.copy())

    async def _serve_slowly(
        self, store: ObjectStoragePort, content: bytes | None, if_match: str | None, by: str | None, answer: Answer
    ) -> None:
        try:
            result: Any = await (store.read() if content is None else store.write(content, if_match))
        except (JQueueError, OSError) as error:
            result = error
        self._note(content, result, by)
        answer(result)

    def _note(self, content: bytes | None, result: Any, by: str | None) -> None:
        if content is not None and not isinstance(result, Exception):
            self.landings.append(Landing(asyncio.get_running_loop().time(), content, by))


@dataclass
class SimulatedStorage:
    """What one process sees of the store: two methods, and no time."""

    network: Network
    process: str
    latency: float

    async def read(self) -> tuple[bytes, str | None]:
        """A read, over the network."""
        self.network.reads += 1
        found: tuple[bytes, str | None] = await self._send(self.network.fault(write=False), None, None)
        return found

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """A write, over the network."""
        self.network.writes += 1
        etag: str = await self._send(self.network.fault(write=True), content, if_match)
        return etag

    def _send(self, fault: FaultKind | None, content: bytes | None, if_match: str | None) -> asyncio.Future[Any]:
        """Send a request on its way; the future is its answer, if there will be one."""
        network, dice = self.network, self.network.dice
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def arrive(then: Answer) -> None:
            network.serve(content, if_match, self.process, then)

        def reply(result: Any) -> None:
            delay = dice.uniform(0.5, 20) if fault is FaultKind.LATE_ANSWER else 0.0
            network.later(delay + self._travel(), _tell, answer, result)

        def lose(result: Any) -> None:
            reply(StorageError("the connection was reset"))

        there = self._travel()
        if fault in (FaultKind.LOST_REQUEST, FaultKind.DOWN):
            network.later(there, lose, None)
        elif fault is FaultKind.THROTTLED:
            network.later(there, reply, StorageThrottledError("slow down"))
        elif fault is FaultKind.SILENT_ANSWER:
            network.later(there, arrive, _drop)
        elif fault is FaultKind.LOST_ANSWER:
            network.later(there, arrive, lose)
        elif fault is FaultKind.DELAYED:
            network.later(there + dice.uniform(1, LONGEST_DELAY), arrive, reply)
        elif fault is FaultKind.RESENT:
            network.later(there, arrive, lambda _: arrive(reply))
        elif fault is not FaultKind.SILENT_REQUEST:
            network.later(there, arrive, reply)
        if fault is FaultKind.DUPLICATED:
            network.later(there + dice.uniform(0, LONGEST_DELAY), arrive, _drop)
        return answer

    def _travel(self) -> float:
        return self.latency * self.network.dice.uniform(0.2, 1.8)


class TimedStorage(SimulatedStorage):
    """A store whose answers tell the time."""

    def store_time(self) -> datetime:
        """The store's own clock, which nobody sets wrong."""
        return EPOCH + timedelta(seconds=asyncio.get_running_loop().time())


def _drop(result: Any) -> None:
    """Nobody hears of it."""


def _tell(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
        answer.exception()  # the client may be gone
    else:
        answer.set_result(result)
