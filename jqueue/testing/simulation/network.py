"""A simulated store and the network before it: the store works correctly, and every fault happens on the way to it."""

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
"""Called with a result, or with an error in its place."""

LONGEST_DELAY = 45.0
"""Seconds after which even the latest request has arrived."""


class FaultKind(Enum):
    """Faults of the network, each on one request."""

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
        at: time at which it landed, in seconds of the simulation.
        content: its bytes.
        by: name of the process that wrote it; None for an edit by hand.
    """

    at: float
    content: bytes
    by: str | None


class HonestStore:
    """An object in memory, changed only by compare-and-set. Simulations use it by default."""

    def __init__(self) -> None:
        self._content = b""
        self._count = 0

    def read(self) -> tuple[bytes, str | None]:
        """Return the content and its etag."""
        return self._content, str(self._count) if self._count else None

    def write(self, content: bytes, if_match: str | None) -> str:
        """Write if the etag is still `if_match`; None means that the object must not exist yet."""
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
        store: the working store; a storage adapter of your own will do.
        schedule: the schedule of the seed.
        rate: share of requests with a fault, from 0 to 1; it can be changed.
        kinds: faults that may happen.
        fired: number of times that each fault happened.
        landings: every version, in order.
        requests: number of requests sent.
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
        """Return the storage object of one process.

        Args:
            process: name of the process.
            latency: average seconds that a request takes to the store, and the same for its answer.
            abilities: 0 for `read` and `write` alone, 1 to tell the store's time as well, 2 for conditional reads, too.
        """
        kind = (SimulatedStorage, TimedStorage, ConditionalStorage)[abilities]
        return kind(self, process, latency)

    def later(self, seconds: float, callback: Callable[..., None], *args: Any) -> None:
        """Run a callback on the server's side, even if the client is gone by then."""
        self.loop.call_later(seconds, callback, *args, context=self.server)

    def serve(self, content: bytes | None, if_match: str | None, by: str | None, answer: Answer) -> None:
        """Handle a request that arrives at the store: a write, or without content a read."""
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
        """Change the object at once, without the network, as a person does. Return True if it was changed.

        Args:
            change: returns the new content for the old, or None to leave it.
            by: name of the writer; None for a person.
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
    """The store as one process sees it: two methods, and no time."""

    def __init__(self, network: Network, process: str, latency: float) -> None:
        self.network = network
        self.process = process
        self.latency = latency
        self.sent = 0
        self._dice = network.schedule.dice(f"requests of {process}")

    async def read(self) -> tuple[bytes, str | None]:
        """Read over the network."""
        found: tuple[bytes, str | None] = await self._send(None, None)
        return found

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Write over the network."""
        etag: str = await self._send(content, if_match)
        return etag

    def _send(self, content: bytes | None, if_match: str | None) -> asyncio.Future[Any]:
        """Send a request. The future gets its answer, if there will be one."""
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
        """Draw the fault of a request; None for no fault."""
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
            refusal.nothing_written = self.sent % 2 == 0  # some stores promise it, others do not say
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
    """A store that tells its time."""

    def store_time(self) -> datetime:
        """Return the time of the store's own clock, which is always right."""
        return EPOCH + timedelta(seconds=self.network.loop.time())


class ConditionalStorage(TimedStorage):
    """A store with conditional reads: it can say that nothing has changed, without sending the object."""

    async def read_if_changed(self, etag: str) -> tuple[bytes, str | None] | None:
        """Read over the network, and return None if nothing has changed."""
        content, found = await self.read()
        return None if found == etag else (content, found)


def _drop(result: Any) -> None:
    """Drop an answer."""


def _tell(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
        answer.exception()  # marked as retrieved: the client may be gone
    else:
        answer.set_result(result)
