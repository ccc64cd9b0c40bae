"""Finds the broker of a queue, and keeps the connection to it.

The store knows the broker, or the seat in the queue's header has its URL. A broker that is silent is asked again later
and later, until the store or the seat shows that another one serves, or that it is back. A client that finds nobody at
the URL says so in its next commit, so that the next programs need not find out, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec

from jqueue.core.engine import Engine
from jqueue.core.messages import Answer, Stop, decode_answer, encode
from jqueue.core.tasks import TRANSIENT
from jqueue.domain.errors import StorageError
from jqueue.domain.header import BrokerSeat
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.sharing import (
    DialURL,
    Link,
    LinkError,
    LinkRefusedError,
    NoBrokerError,
    SupportsDialing,
    SupportsSharing,
    client_name,
)

logger: Logger = logger_of("jqueue")

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
"""Seconds without a broker before one is looked for again: the first time, and after many silent ones."""

SHORTEST_PATIENCE, SLOWER = 0.3, 3.0
"""Seconds for a broker that has not committed for a while to answer at all; or so many times its last answer took."""

MOST_MOVES, MOVES_WITHIN = 3, 10.0
"""Number of times that brokers may send a client on within these seconds. Then none is followed for as long."""

_LEFT_TO_PARENT: list[Link] = []
"""Connections from before a fork. They are never closed, nor collected: that would end them for the parent too."""


class BrokerConnection:
    """Finds the broker of the queue, and keeps the connection to it.

    Args:
        store: knows the broker, or dials the broker that the queue's header names.
        engine: knows the header.

    Attributes:
        only: True if the queue can only be reached through its broker.
        current: the connection; None if there is no broker.
        next_dial: time of the clock before which no broker is looked for.
        why: the error of the last look for a broker; None if it had none.
        version: the latest version of the queue that a broker has told.
        gone: the seat in the header at which nobody was found; None if its broker answers.
    """

    def __init__(self, store: SupportsDialing | DialURL, engine: Engine) -> None:
        self._store, self._engine, self._clock = store, engine, engine.clock
        self.only: bool = isinstance(store, SupportsDialing) and not isinstance(store, SupportsSharing)
        self._warned = ""
        self.current: Link | None = None
        self._under_way: list[Link] = []
        self.next_dial: float = 0.0
        self._pause = FIRST_PAUSE
        self._epoch: object = None  # tells the broker of the last look from any other one
        self._epoch_now: Callable[[], object] = (
            store.broker_epoch if isinstance(store, SupportsDialing) else lambda: engine.draft.header.broker
        )
        self._moves: list[float] = []
        self._moved, self._alone_until = False, 0.0
        self.gone: BrokerSeat | None = None
        self._answered = 0.0  # seconds that the last broker took to answer when it was asked if it is there
        self._failing = False  # True if the only way to the queue has failed
        self.why: Exception | None = None
        self.version: int = 0

    @property
    def _links(self) -> set[Link]:
        return {*self._under_way, *(() if self.current is None else (self.current,))}

    def abandon(self, *, is_ours: bool) -> None:
        """Let go of the connections: see `BrokerClient.abandon`."""
        if is_ours:
            with suppress(RuntimeError):  # the event loop was closed
                self.close()
        _LEFT_TO_PARENT.extend(link for link in self._links if not link.closed)
        self.current, self._under_way = None, []

    async def connect(self) -> Link | None:
        """Return the connection to the broker, perhaps a new one; None if there is none.

        A broker that has failed is asked again later and later; one of another epoch than the last one, at once.
        """
        store, engine, now = self._store, self._engine, self._clock.monotonic()
        try:
            if self._moved:
                self._moved = False
                await self._follow()
            if self.current is not None and not self.current.closed:
                return self.current
            if now < self._alone_until or (now < self.next_dial and self._epoch_now() == self._epoch):
                return None
            if not isinstance(store, SupportsDialing) and not engine.loaded:
                await engine.look()
            self._epoch, self.why = self._epoch_now(), None
            if isinstance(store, SupportsDialing):
                self.current = await store.dial()
            else:
                header, moment, self.current = engine.draft.header, engine.now(), None
                if (seat := header.broker) is not None and seat.url and not seat.is_doubted(moment):
                    self.current = await store(seat.url)
                if self.current is not None and header.is_quiet(moment):
                    await self._ask(self.current)
                    return self.current
        except (StorageError, *TRANSIENT) as error:  # a commit of this process gets the error, too
            self.why = error
        if self.current is None:
            self.next_dial = self._clock.monotonic() + FIRST_PAUSE
        return self.current

    def has_news(self) -> bool:
        """Return True if a broker may have come since the last look for one."""
        now = self._clock.monotonic()
        return self.current is None and now >= self._alone_until and self._epoch_now() not in (None, self._epoch)

    async def _ask(self, link: Link) -> None:
        """Let go of a new connection if no broker answers there soon."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            await ask(link, self._engine.writer_id, max(SHORTEST_PATIENCE, SLOWER * self._answered))
            self._answered = loop.time() - begun
        except LinkError as error:
            self._note_absent(error)
            if is_absent(error) or error.pause:
                self.drop(link, error)  # or else another message may be allowed

    def _note_absent(self, error: LinkError) -> None:
        if is_absent(error) and isinstance(self._epoch, BrokerSeat):
            self.gone = self._epoch

    async def _follow(self) -> None:
        """Let go of the connection if another process has the seat. Exchanges under way go on at the old one."""
        if not isinstance(self._store, SupportsDialing):
            await self._engine.look()
        if self._epoch_now() != self._epoch and (link := self.current) is not None:
            self.current = None
            self._close_unused(link)

    async def exchange(self, link: Link, message: bytes) -> Answer:
        """Send a message, and return the broker's answer.

        Raises:
            LinkError: there is none, or none of this queue's broker.
        """
        engine, under_way = self._engine, self._under_way
        under_way.append(link)
        try:
            answer = _read(await link.exchange(message))
            if not self.only and engine.queue_id and answer.queue not in ("", engine.queue_id):  # on another machine
                raise LinkError("the broker serves another queue", sent=False)
        except LinkError as error:
            if link is self.current:
                self._note_absent(error)
            raise
        finally:
            under_way.remove(link)
            if under_way is self._under_way:  # and the link was not left to the parent
                self._close_unused(link)
        if (answer.leaving or answer.moved) and link is self.current and not (self._moved or self.only):
            now = self._clock.monotonic()
            self._moves = [at for at in self._moves if at > now - MOVES_WITHIN] + [now]
            self._moved = len(self._moves) <= MOST_MOVES
            if answer.leaving and not self._moved:
                self._alone_until = now + MOVES_WITHIN
        self._pause, self.gone = FIRST_PAUSE, None
        if self._failing:
            self._failing = False
            engine.observers.broker_called(None)
        if answer.queue:
            self.version = answer.version
            if not engine.queue_id:
                engine.queue_id, engine.existed = answer.queue, True
        return answer

    def _close_unused(self, link: Link) -> None:
        if link is not self.current and link not in self._under_way:
            link.close()

    def drop(self, link: Link, error: LinkError) -> None:
        """End a connection that failed. A broker that fails again and again is asked less and less."""
        is_refused = isinstance(error, LinkRefusedError)
        if is_refused and self.only:
            return  # the caller has the error, and other calls may be allowed
        if self.only:
            self._failing = True
            self._engine.observers.broker_called(error)
        if self.current is link:
            self.current = None
            pause = max(self._pause, error.pause, LONGEST_PAUSE if is_refused else 0.0)
            self.next_dial = self._clock.monotonic() + pause
            if is_refused and self._warned != str(error):
                self._warned = str(error)
                logger.warning("this process commits its calls itself: %s", error)
            self._pause = min(LONGEST_PAUSE, 2 * self._pause)
        link.close()

    def close(self) -> None:
        """End the connections."""
        for link in self._links:
            link.close()
        self.current = None


def _read(answer: bytes) -> Answer:
    try:
        return decode_answer(answer)
    except msgspec.DecodeError as error:
        raise LinkError(f"the broker's answer cannot be read: {type(error).__name__}", sent=True) from None


def is_absent(error: LinkError) -> bool:
    """Return True if no broker has answered at all."""
    return isinstance(error, NoBrokerError) or not (isinstance(error, LinkRefusedError) or error.pause)


async def ask(link: Link, drawn: str, seconds: float | None = None) -> None:
    """Ask a broker for an answer that costs it nothing, as a client of a name.

    Raises:
        LinkError: it has not answered, or not within some seconds, or refuses this process.
    """
    try:
        async with asyncio.timeout(seconds):
            name = client_name(drawn, link.token_hash)
            await link.exchange(encode(Stop(client=name, call=f"{name}/")))
    except TimeoutError:
        raise LinkError("no broker answers", sent=False) from None
