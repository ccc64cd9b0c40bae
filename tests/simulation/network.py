"""A simulated store and the network before it: the store works correctly, and every fault happens on the way to it."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, TypeVar, cast

from jqueue.domain.errors import (
    CASConflictError,
    JQueueError,
    ObjectMissingError,
    StorageError,
    StorageThrottledError,
)
from jqueue.ports.storage import Listed, ObjectStoragePort
from jqueue.testing.virtual_time import EPOCH
from tests.simulation.links import STORE, DialingStorage, SharingStorage, SimulatedSeat
from tests.simulation.schedule import Schedule

Result = TypeVar("Result")
Answer = Callable[[Any], None]
"""Called with a result, or with an error in its place."""

LONGEST_DELAY = 45.0
"""Seconds after which even the latest request has arrived."""

UNREAD = 3
"""Number of reads of an object that fail in a row until a process may take it for one that cannot be read."""


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
class Request:
    """A request to the store.

    Attributes:
        work: does what is requested, given the store. It returns the result, or an awaitable of it.
        content: the new content of the queue's object, if it writes that one.
    """

    work: Callable[[Any], Any]
    content: bytes | None = None


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


class _SilenceError(JQueueError):
    """The store never answers the request."""


class HonestStore:
    """An object in memory, changed only by compare-and-set, and objects beside it. Simulations use it by default.

    Attributes:
        objects: content and time of creation of each object that is there, by suffix.
        created: time and content of the first creation of each object.
        removed: time of the first removal of each object.
        unreadable: the error that answers reads of an object, by suffix; None for no answer.
    """

    def __init__(self) -> None:
        self.unreadable: dict[str, StorageError | None] = {}
        self._content = b""
        self._count = 0
        self.objects: dict[str, tuple[bytes, datetime]] = {}
        self.created: dict[str, tuple[float, bytes]] = {}
        self.removed: dict[str, float] = {}

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

    def create_object(self, suffix: str, content: bytes) -> None:
        """Create an object beside the queue's."""
        if suffix in self.objects:
            raise CASConflictError(f"the object {suffix} exists")
        now = asyncio.get_running_loop().time()
        self.objects[suffix] = content, EPOCH + timedelta(seconds=now)
        self.created.setdefault(suffix, (now, content))

    def read_object(self, suffix: str, start: int, stop: int | None) -> bytes:
        """Return a range of an object beside the queue's."""
        if suffix not in self.objects:
            raise ObjectMissingError(suffix)
        if suffix in self.unreadable:
            raise self.unreadable[suffix] or _SilenceError()
        return self.objects[suffix][0][start:stop]

    def remove_object(self, suffix: str) -> None:
        """Delete an object beside the queue's."""
        if self.objects.pop(suffix, None) is not None:
            self.removed.setdefault(suffix, asyncio.get_running_loop().time())

    def list_beside(self, prefix: str) -> list[Listed]:
        """Return the objects beside the queue's."""
        listed = [Listed(suffix, moment, len(content)) for suffix, (content, moment) in self.objects.items()]
        return sorted(each for each in listed if each.suffix.startswith(prefix))


KINDS = tuple(FaultKind)
KINDS_OF_READS = tuple(kind for kind in KINDS if kind not in (FaultKind.DUPLICATED, FaultKind.RESENT))


@dataclass
class Network:
    """One store, and the way to it.

    Attributes:
        store: the working store; a storage adapter of your own will do.
        schedule: the schedule of the seed.
        rate: share of requests with a fault, from 0 to 1; it can be changed.
        fired: number of times that each fault happened.
        landings: every version, in order.
        requests: number of requests sent.
        seats: the brokers that serve the queue, and those that died while they did.
        epoch: number of times that a broker began to serve, or was back.
        exclusive: True if one process at a time has the seat.
        by_header: True if the seat is in the header of the queue.
        servers: what answers at each URL, which is the name of its process, if the seat is in the header.
        cuts: the pairs of parties that cannot reach each other, each with the end of that.
        unread: the objects of which a process could not read anything again and again.
    """

    store: HonestStore | ObjectStoragePort
    schedule: Schedule
    rate: float
    fired: Counter[str] = field(default_factory=Counter)
    landings: list[Landing] = field(default_factory=list)
    requests: int = 0
    seats: list[SimulatedSeat] = field(default_factory=list)
    epoch: int = 0
    exclusive: bool = True
    by_header: bool = False
    servers: dict[str, SimulatedSeat] = field(default_factory=dict)
    cuts: dict[frozenset[str], float] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = contextvars.Context()
        self.down_until = 0.0
        self.calm = self.rate == 0.0

    @property
    def created(self) -> dict[str, tuple[float, bytes]]:
        """The time and the content of each object that was ever created beside the queue's; none in a real store."""
        return self.store.created if isinstance(self.store, HonestStore) else {}

    def client(self, process: str, latency: float, abilities: int = 0, *, shares: bool = False) -> SimulatedStorage:
        """Return the storage object of one process.

        Args:
            process: name of the process.
            latency: average seconds that a request takes to the store, and the same for its answer.
            abilities: 0 for `read` and `write` alone, 1 to tell the store's time as well, 2 for conditional reads, too,
                and 3 for objects beside the queue's as well; 4 for such objects alone.
            shares: True if the process can reach a broker.
        """
        kinds = (SimulatedStorage, TimedStorage, ConditionalStorage, ObjectsStorage, TimelessObjectsStorage)
        kind = kinds[abilities]
        if shares:
            roads = DialingStorage if self.by_header else SharingStorage
            kind = cast("type[SimulatedStorage]", type(f"Sharing{kind.__name__}", (roads, kind), {}))
        return kind(self, process, latency)

    def is_cut(self, one: str, other: str) -> bool:
        """True if two parties cannot reach each other now."""
        return self.cuts.get(frozenset((one, other)), 0.0) > self.loop.time()

    def later(self, seconds: float, callback: Callable[..., None], *args: Any) -> None:
        """Run a callback on the server's side, even if the client is gone by then."""
        self.loop.call_later(seconds, callback, *args, context=self.server)

    def serve(self, request: Request, by: str | None, answer: Answer) -> None:
        """Handle a request that arrives at the store."""
        if isinstance(self.store, HonestStore):
            try:
                result: Any = request.work(self.store)
            except _SilenceError:
                return
            except JQueueError as error:
                result = error
            self._note(request.content, result, by)
            answer(result)
        else:
            self.loop.create_task(self._serve_slowly(request, by, answer), context=self.server.copy())

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

    async def _serve_slowly(self, request: Request, by: str | None, answer: Answer) -> None:
        try:
            result = await request.work(self.store)
        except (JQueueError, OSError) as error:
            result = error
        self._note(request.content, result, by)
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
        self._failures = Counter[str]()

    async def read(self) -> tuple[bytes, str | None]:
        """Read over the network."""
        return await self._send(lambda store: store.read())

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Write over the network."""
        return await self._send(lambda store: store.write(content, if_match), changes=True, content=content)

    def _send(
        self, work: Callable[[Any], Result], *, changes: bool = False, content: bytes | None = None
    ) -> asyncio.Future[Result]:
        """Send a request. The future gets its answer, if there will be one."""
        network, dice = self.network, self._dice
        answer: asyncio.Future[Result] = network.loop.create_future()
        network.requests += 1
        self.sent += 1
        there, back = (self.latency * (0.2 + 1.6 * dice.random()) for _ in range(2))
        self._deliver(self._fault(changes), there, back, Request(work, content), answer)
        return answer

    def _fault(self, write: bool) -> FaultKind | None:
        """Draw the fault of a request; None for no fault."""
        network, dice = self.network, self._dice
        now = network.loop.time()
        if now < network.down_until or network.is_cut(self.process, STORE):
            network.fired[FaultKind.DOWN.name] += 1
            return FaultKind.DOWN
        if dice.random() >= network.rate:
            return None
        kind, how_long = dice.choice(KINDS if write else KINDS_OF_READS), dice.random()
        if kind is FaultKind.DOWN and how_long < 0.8:
            return None
        if not network.schedule.takes_place(f"request {self.sent} of {self.process}: {kind.value}"):
            return None
        if kind is FaultKind.DOWN:
            network.down_until = now + (how_long - 0.8) * 150
        network.fired[kind.name] += 1
        return kind

    def _deliver(
        self, fault: FaultKind | None, there: float, back: float, request: Request, answer: asyncio.Future[Any]
    ) -> None:
        network, dice = self.network, self._dice

        def arrive(then: Answer) -> None:
            network.serve(request, self.process, then)

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


class TimelessObjectsStorage(SimulatedStorage):
    """A store that keeps objects beside the queue's. An object from pieces is one request, after the last piece."""

    async def create_object(self, suffix: str, content: bytes) -> None:
        """Create an object over the network."""
        await self._send(lambda store: store.create_object(suffix, content), changes=True)

    async def create_object_from(self, suffix: str, pieces: AsyncIterable[bytes]) -> int:
        """Create an object from pieces over the network."""
        content = b"".join([piece async for piece in pieces])
        await self.create_object(suffix, content)
        return len(content)

    async def read_object(self, suffix: str, start: int = 0, stop: int | None = None) -> bytes:
        """Read a range of an object over the network, and note an object that cannot be read again and again."""
        try:
            content: bytes = await self._send(lambda store: store.read_object(suffix, start, stop))
        except BaseException:  # also if the caller no longer waits for an answer
            self._failures[suffix] += 1
            if self._failures[suffix] >= UNREAD:
                self.network.unread.add(suffix)
            raise
        self._failures.pop(suffix, None)
        return content

    async def remove_object(self, suffix: str) -> None:
        """Delete an object over the network."""
        await self._send(lambda store: store.remove_object(suffix), changes=True)

    async def list_beside(self, prefix: str) -> list[Listed]:
        """List objects over the network."""
        return await self._send(lambda store: store.list_beside(prefix))


class ObjectsStorage(TimelessObjectsStorage, ConditionalStorage):
    """A store that keeps objects, tells its time, and has conditional reads."""


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
