"""How simulated processes reach each other: the seat of a broker, and links to it with latency and faults.

A link is like a stream: what is sent arrives in order, or nothing more arrives. A lost message breaks it, and its
client notices the silence.
"""

from __future__ import annotations

import asyncio
import contextvars
from enum import Enum
from typing import TYPE_CHECKING, Any

from jqueue.ports.sharing import Handle, Link, LinkError
from tests.simulation.loop import CURRENT, SimulatedProcess

if TYPE_CHECKING:
    from tests.simulation.network import Network

BEAT, SILENCE = 0.5, 2.0
"""Seconds between a broker's signs of life, and seconds without one after which its client gives it up."""

LONGEST_LATE, LONGEST_CUT = 45.0, 12.0

STORE = "the store"


class LinkFault(Enum):
    """Faults between two processes, each on one message or one dial."""

    REFUSED_DIAL = "the broker cannot be reached"
    LOST_MESSAGE = "the message is lost, and nothing more arrives"
    LATE_MESSAGE = "the message arrives when its client may have gone on elsewhere"
    LOST_REPLY = "the message is handled, and its reply is lost"
    LATE_REPLY = "the message is handled, and its reply comes late"
    PARTITION = "for a while, the client cannot reach the broker, or one of them not the store"


FAULTS = (*(kind for kind in LinkFault if kind is not LinkFault.REFUSED_DIAL), *(LinkFault.LOST_REPLY,) * 3)


class RoadStorage:
    """The part of a simulated store that knows the way to other processes."""

    def __init__(self, network: Network, process: str, latency: float) -> None:
        super().__init__(network, process, latency)  # type: ignore[call-arg]
        self.roads, self.own, self.distance = network, process, latency
        self.roads_dice = network.schedule.dice(f"links of {process}")
        self._messages = 0

    def delay(self) -> float:
        """Draw the seconds that a message takes."""
        return self.distance * (0.2 + 1.6 * self.roads_dice.random())

    def fault(self, kinds: tuple[LinkFault, ...]) -> LinkFault | None:
        """Draw the fault of a message or a dial; None for no fault."""
        self._messages += 1
        dice = self.roads_dice
        if dice.random() >= self.roads.rate:
            return None
        kind = dice.choice(kinds)
        if not self.roads.schedule.takes_place(f"message {self._messages} of {self.own}: {kind.value}"):
            return None
        self.roads.fired[kind.name] += 1
        return kind


class SharingStorage(RoadStorage):
    """The part of a simulated store that finds the broker. See `SupportsSharing`."""

    async def dial(self) -> SimulatedLink | None:
        """Return a link to a broker; None if there is none."""
        await asyncio.sleep(self.delay())
        seats = [seat for seat in self.roads.seats if seat.listens and not seat.process.dead]
        if not seats or self.fault((LinkFault.REFUSED_DIAL,)):
            return None
        seat = self.roads_dice.choice(seats)
        if self.roads.is_cut(self.own, seat.process.name):
            await asyncio.sleep(SILENCE)
            raise LinkError("the broker does not answer", sent=False)
        return SimulatedLink(self, seat)

    def broker_epoch(self) -> object:
        """Return what a process can see of the brokers without a request."""
        return self.roads.epoch

    async def take_seat(self, handle: Handle) -> SimulatedSeat | None:
        """Serve the queue, if no other process does; in some worlds sometimes beside another one."""
        await asyncio.sleep(self.delay())
        roads = self.roads
        if self.fault((LinkFault.REFUSED_DIAL,)):
            raise LinkError("the seat cannot be reached", sent=False)
        is_taken = any(not seat.process.dead for seat in roads.seats)
        if is_taken and (roads.exclusive or self.roads_dice.random() < 0.5):
            return None
        roads.fired["seat taken beside another"] += is_taken
        roads.fired["seat taken"] += 1
        seat = SimulatedSeat(roads, handle)
        roads.seats.append(seat)
        roads.epoch += 1
        return seat


class DialingStorage(RoadStorage):
    """The part of a simulated store whose clients find the broker by the header of the queue. See `DialURL`."""

    async def dial_url(self, url: str) -> Link:
        """Return a link to the process of this name. It fails at the first message if that is gone."""
        await asyncio.sleep(self.delay())
        seat = self.roads.servers.get(url)
        if seat is None or seat.process.dead or self.fault((LinkFault.REFUSED_DIAL,)):
            return RefusedLink()
        return SimulatedLink(self, seat)


class RefusedLink:
    """A link to a process that is gone."""

    closed, token_hash = False, ""

    async def exchange(self, message: bytes) -> bytes:
        """Fail."""
        raise LinkError("the connection was refused", sent=False)

    def close(self) -> None:
        """Do nothing."""


class SimulatedSeat:
    """The place of a broker: what it does runs in the context of its process."""

    def __init__(self, roads: Network, handle: Handle) -> None:
        process = CURRENT.get()
        assert process is not None
        self.process, self._handle, self.context = process, handle, contextvars.copy_context()
        self.listens = True
        self.links: list[SimulatedLink] = []
        self._roads, self._beats = roads, False

    async def serve(self, message: bytes) -> bytes:
        """Handle a message in the process of the broker."""
        return await self._handle(message)

    def beat(self) -> None:
        """Give signs of life from now on, while a message is handled and the process runs."""
        if not self._beats:
            self._beats = True
            self._roads.loop.call_later(BEAT, self._tick, context=self.context)

    def _tick(self) -> None:
        self._beats = False
        for link in self.links:
            if link.client.dead:
                link.hang_up()
            elif link.handled:
                link.send_back(0.0, link.hear)
        if any(link.handled for link in self.links):
            self.beat()

    def is_held(self) -> bool:
        """Return True: nobody takes it away."""
        return True

    def abandon(self) -> None:
        """Take no more clients."""
        self.listens = False

    async def leave(self) -> None:
        """Take no more clients, send the answers under way, and free the place."""
        self.listens = False
        handled = [task for link in self.links for task in link.handled]
        if handled:
            await asyncio.wait(handled, timeout=SILENCE)
        for link in self.links:
            link.hang_up()
            link.send_back(0.0, link.end)
        self.links.clear()
        if self in self._roads.seats:
            self._roads.seats.remove(self)
        self._roads.servers.pop(self.process.name, None)
        self._roads.fired["seat left"] += 1


class SimulatedLink:
    """A client's link to a broker. See `Link`."""

    def __init__(self, storage: RoadStorage, seat: SimulatedSeat) -> None:
        client = CURRENT.get()
        assert client is not None
        self.client: SimulatedProcess = client
        self.closed, self.token_hash = False, ""
        self.handled: dict[asyncio.Task[bytes], None] = {}
        self._storage, self._roads, self._seat = storage, storage.roads, seat
        self._waiting: dict[asyncio.Future[bytes], None] = {}
        self._heard = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._broken = False
        self._there = self._back = 0.0  # times before which nothing more arrives
        seat.links.append(self)

    async def exchange(self, message: bytes) -> bytes:
        """Send a message, and return the answer."""
        if self.closed:
            raise LinkError("the link has ended", sent=False)
        loop, fault = self._roads.loop, self._storage.fault(FAULTS)
        answer: asyncio.Future[bytes] = loop.create_future()
        if not self._waiting:
            self._heard = loop.time()
            if self._watch is None:
                self._watch = loop.call_later(SILENCE, self._listen)
        self._waiting[answer] = None
        if fault is LinkFault.PARTITION:
            pairs = [(self.client.name, self._seat.process.name)]
            pairs += [(self.client.name, STORE), (self._seat.process.name, STORE)]
            dice = self._storage.roads_dice
            self._roads.cuts[frozenset(dice.choice(pairs))] = loop.time() + dice.uniform(1.0, LONGEST_CUT)
        late = fault is LinkFault.LATE_MESSAGE
        there = self._storage.roads_dice.uniform(SILENCE, LONGEST_LATE) if late else self._storage.delay()
        self._there = max(self._there + 1e-6, loop.time() + there)
        if fault is LinkFault.LOST_MESSAGE:
            self._broken = True
        self._roads.later(self._there - loop.time(), self._arrive, message, answer, fault)
        try:
            return await answer
        finally:
            self._waiting.pop(answer, None)

    def close(self) -> None:
        """End the link from the client's side. The broker hears of it, unless it is out of reach."""
        if not self.closed and not self._broken and not self._is_cut():
            self._roads.later(self._storage.delay(), self.hang_up)
        self.end()

    def end(self) -> None:
        """Notice that the link has ended."""
        self.closed = True
        if self._watch is not None:
            self._watch.cancel()
        for answer in [*self._waiting]:
            if not answer.done():
                answer.set_exception(LinkError("the broker is gone, or does not answer", sent=True))

    def hear(self) -> None:
        """Notice that the broker is at work."""
        self._heard = self._roads.loop.time()

    def _listen(self) -> None:
        self._watch = None
        if self._waiting and not self.closed:
            left = self._heard + SILENCE - self._roads.loop.time()
            if left <= 0:
                self.close()
            else:
                self._watch = self._roads.loop.call_later(left, self._listen)

    # The broker's side

    def _is_cut(self) -> bool:
        return self._roads.is_cut(self.client.name, self._seat.process.name)

    def _arrive(self, message: bytes, answer: asyncio.Future[bytes], fault: LinkFault | None) -> None:
        self._broken = self._broken or self._is_cut()
        if self._broken:
            return
        if self._seat.process.dead or self not in self._seat.links:
            self.send_back(0.0, self.end)
            return
        dice = self._storage.roads_dice
        task = self._roads.loop.create_task(self._seat.serve(message), context=self._seat.context.copy())
        self.handled[task] = None
        task.add_done_callback(lambda _: self._answer(task, answer, fault), context=self._roads.server)
        if self.closed:
            self._roads.fired["message to an old broker"] += 1
            if dice.random() < 0.5:
                self._roads.later(dice.uniform(0.0, 1.0), self.hang_up)
        self._seat.beat()

    def _answer(self, task: asyncio.Task[bytes], answer: asyncio.Future[bytes], fault: LinkFault | None) -> None:
        self.handled.pop(task, None)
        self._broken = self._broken or fault is LinkFault.LOST_REPLY
        if not task.cancelled():
            late = self._storage.roads_dice.uniform(0.5, 20.0) if fault is LinkFault.LATE_REPLY else 0.0
            self.send_back(late, self._told, answer, task.result())

    def _told(self, answer: asyncio.Future[bytes], content: bytes) -> None:
        self.hear()
        if not answer.done():
            answer.set_result(content)

    def send_back(self, late: float, then: Any, *args: Any) -> None:
        """Send something to the client: it arrives in order, or nothing more does."""
        self._broken = self._broken or self._is_cut()
        if not self._broken:
            now = self._roads.loop.time()
            self._back = max(self._back + 1e-6, now + late + self._storage.delay())
            self._roads.later(self._back - now, then, *args)

    def hang_up(self) -> None:
        """End what is handled for the client, which is gone."""
        for task in [*self.handled]:
            task.cancel()
