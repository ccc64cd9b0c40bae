"""The store and the network before it: an honest store, and everything that can go wrong on the way to it."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from jqueue.domain.errors import CASConflictError, JQueueError, StorageError, StorageThrottledError
from jqueue.ports.storage import ObjectStoragePort
from jqueue.testing.simulation.schedule import Schedule
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
    OVERTAKEN = "the request arrives late, and others overtake it"
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


KINDS_OF_READS = tuple(kind for kind in FaultKind if kind not in (FaultKind.DUPLICATED, FaultKind.RESENT))


@dataclass
class Network:
    """One store, and the way to it.

    Attributes:
        store: the honest store; a storage adapter of one's own will do.
        schedule: the seed's.
        rate: the share of requests that something happens to; it can be changed.
        kinds: what may happen.
        fired: how often each did.
        landings: every version, in order.
        requests: how many requests were sent.
    """

    store: HonestStore | ObjectStoragePort
    schedule: Schedule
    rate: float
    kinds: tuple[FaultKind, ...] = tuple(FaultKind)
    fired: Counter[str] = field(default_factory=Counter)
    landings: list[Landing] = field(default_factory=list)
    requests: int = 0

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = contextvars.Context()
        self.down_until = 0.0
        self.calm = self.rate == 0.0
        self.kinds_of_reads = tuple(kind for kind in self.kinds if kind in KINDS_OF_READS)

    def client(self, process: str, latency: float, abilities: int = 0) -> SimulatedStorage:
        """The storage object of one process.

        Args:
            process: its name.
            latency: seconds that a request takes there, and back, on average.
            abilities: 0 for the two methods alone, 1 for a store that tells the time, 2 for conditional reads too.
        """
        kind = (SimulatedStorage, TimedStorage, ConditionalStorage)[abilities]
        return kind(self, process, latency)

    def later(self, seconds: float, callback: Callable[..., None], *args: Any) -> None:
        """Run something on the server's side, whatever becomes of the client."""
        self.loop.call_later(seconds, callback, *args, context=self.server)

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
            self.loop.create_task(work, context=self.server.copy())

    async def edit(self, change: Callable[[bytes], bytes | None], by: str | None = None) -> bool:
        """Change the object on the spot, without a network: what a person does. Returns whether it was changed.

        Args:
            change: gives the new content for the old; None leaves it as it is.
            by: whose landing it is; None for a person's.
        """
        store = self.store
        content, etag = store.read() if isinstance(store, HonestStore) else await store.read()
        changed = change(content)
        if changed is None or changed == content:
            return False
        try:
            result = store.write(changed, etag) if isinstance(store, HonestStore) else await store.write(changed, etag)
        except CASConflictError:
            return False
        self._note(changed, result, by)
        return True

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
            self.landings.append(Landing(self.loop.time(), content, by))


class SimulatedStorage:
    """What one process sees of the store: two methods, and no time."""

    def __init__(self, network: Network, process: str, latency: float) -> None:
        self.network = network
        self.process = process
        self.latency = latency
        self.sent = 0
        self._dice = network.schedule.dice(f"requests of {process}")

    async def read(self) -> tuple[bytes, str | None]:
        """A read, over the network."""
        found: tuple[bytes, str | None] = await self._send(None, None)
        return found

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """A write, over the network."""
        etag: str = await self._send(content, if_match)
        return etag

    def _send(self, content: bytes | None, if_match: str | None) -> asyncio.Future[Any]:
        """Send a request on its way; the future is its answer, if there will be one."""
        network, dice = self.network, self._dice
        answer: asyncio.Future[Any] = network.loop.create_future()
        network.requests += 1
        self.sent += 1
        there, back = (self.latency * (0.2 + 1.6 * dice.random()) for _ in range(2))
        fault = self._fault(content is not None)
        if fault is not None:
            self._send_badly(fault, there, back, content, if_match, answer)
            return answer

        def arrive() -> None:
            network.serve(content, if_match, self.process, reply)

        def reply(result: Any) -> None:
            network.later(back, _tell, answer, result)

        network.later(there, arrive)
        return answer

    def _fault(self, write: bool) -> FaultKind | None:
        """Draw what happens to a request."""
        network, dice = self.network, self._dice
        now = network.loop.time()
        if now < network.down_until:
            network.fired[FaultKind.DOWN.name] += 1
            return FaultKind.DOWN
        if dice.random() >= network.rate:
            return None
        kinds = network.kinds if write else network.kinds_of_reads
        kind = dice.choice(kinds) if kinds else None
        how_long = dice.random()
        if kind is None or (kind is FaultKind.DOWN and how_long < 0.8):
            return None
        if not network.schedule.takes_place(f"request {self.sent} of {self.process}: {kind.value}"):
            return None
        if kind is FaultKind.DOWN:
            network.down_until = now + (how_long - 0.8) * 150
        network.fired[kind.name] += 1
        return kind

    def _send_badly(
        self,
        fault: FaultKind,
        there: float,
        back: float,
        content: bytes | None,
        if_match: str | None,
        answer: asyncio.Future[Any],
    ) -> None:
        network, dice = self.network, self._dice

        def arrive(then: Answer) -> None:
            network.serve(content, if_match, self.process, then)

        def reply(result: Any) -> None:
            late = dice.uniform(0.5, 20) if fault is FaultKind.LATE_ANSWER else 0.0
            network.later(late + back, _tell, answer, result)

        def lose(result: Any) -> None:
            reply(StorageError("the connection was reset"))

        if fault in (FaultKind.LOST_REQUEST, FaultKind.DOWN):
            network.later(there, lose, None)
        elif fault is FaultKind.THROTTLED:
            refusal = StorageThrottledError("slow down")
            refusal.nothing_written = self.sent % 2 == 0  # some stores are certain, others do not say
            network.later(there, reply, refusal)
        elif fault is FaultKind.SILENT_ANSWER:
            network.later(there, arrive, _drop)
        elif fault is FaultKind.LOST_ANSWER:
            network.later(there, arrive, lose)
        elif fault is FaultKind.OVERTAKEN:
            network.later(there + dice.uniform(0.05, 2), arrive, reply)
        elif fault is FaultKind.DELAYED:
            network.later(there + dice.uniform(2, LONGEST_DELAY), arrive, reply)
        elif fault is FaultKind.RESENT:
            network.later(there, arrive, lambda _: arrive(reply))
        elif fault is not FaultKind.SILENT_REQUEST:
            network.later(there, arrive, reply)
        if fault is FaultKind.DUPLICATED:
            network.later(there + dice.uniform(0, LONGEST_DELAY), arrive, _drop)


class TimedStorage(SimulatedStorage):
    """A store whose answers tell the time."""

    def store_time(self) -> datetime:
        """The store's own clock, which nobody sets wrong."""
        return EPOCH + timedelta(seconds=self.network.loop.time())


class ConditionalStorage(TimedStorage):
    """A store that also says that nothing has changed, without sending the object."""

    async def read_if_changed(self, etag: str) -> tuple[bytes, str | None] | None:
        """A read, over the network."""
        content, found = await self.read()
        return None if found == etag else (content, found)


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
