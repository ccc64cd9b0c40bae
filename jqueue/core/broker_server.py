"""The broker's side: calls of other processes become calls of this process's writer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from operator import itemgetter
from typing import Any

import msgspec

from jqueue.core.broker_connection import ask, is_absent
from jqueue.core.claims import ClaimRegistry
from jqueue.core.messages import (
    ANSWER_BYTES,
    BATCH_OPERATIONS,
    LONGEST,
    Answer,
    Batch,
    Claim,
    Stop,
    check_values,
    encode,
    message_decoder,
)
from jqueue.core.requests import Callers, Request
from jqueue.core.session import SHORTEST_POLL
from jqueue.core.writer import Writer
from jqueue.domain.errors import (
    BatchUnknownError,
    BlobMissingError,
    DeadlineExceededError,
    InvalidJobError,
    JQueueError,
    QueueClosedError,
    StorageFatalError,
    UnknownOutcomeError,
)
from jqueue.domain.header import BrokerSeat
from jqueue.domain.limits import CLIENTS_KEPT
from jqueue.domain.operations import lookups
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import (
    ClientBatch,
    count_of,
    encode_result,
    held_by,
    received,
    receiving,
    refusal_of,
)
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.lookups import LastSequence
from jqueue.domain.operations.operator import EmptyCommit, LeaveSeat, TakeSeat
from jqueue.domain.stats import crowd_warning
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.sharing import DialURL, LinkError

logger: Logger = logger_of("jqueue")

PATIENCE = 10.0
"""Seconds that a broker tries a batch. Then its client tries elsewhere, as the broker may be cut off from the store."""

SHUNNED = 30.0
"""Seconds for which clients better commit their calls themselves, if a broker is cut off from the store."""

AGAIN = 5.0
"""Seconds for a batch that is sent again, at least: its client must learn if it was done, although no caller waits."""

LOOK = 2.0
"""Seconds between two looks of a broker at its seat in the header. They double with each seat that was lost."""

STILL = 2.0
"""Seconds that a process must have stood still for its clients to have given it up."""


class _OthersClaims(ClaimRegistry):
    """Notes nothing: the claims of clients are not this process's."""

    def note(self, operation: Operation, result: Any) -> None:
        pass

    def lose(self, error: JQueueError) -> None:
        pass


class BrokerServer:
    """Answers the messages of clients.

    Args:
        writer: commits their calls, together with those of this process.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer, self._engine = writer, writer.engine
        limits = writer.engine.access.options.limits
        self._receiving = receiving(limits, writer.engine.access.claim_timeout)
        self._most = max(BATCH_OPERATIONS, limits.batch_size)
        self._callers = Callers(asyncio.get_running_loop(), _OthersClaims(), writer.hand_back, writer.resolve, None)
        self._waiting: dict[str, Request] = {}
        self._here: Counter[str] = Counter()  # the calls under way by client
        self._begun: dict[str, tuple[int, str]] = {}  # the number and the token of each client's last batch
        self._stuck: set[str] = set()  # the dequeues that had an error of the store at the last look
        self._watch: asyncio.TimerHandle | None = None
        self._leaving = self._away = self._crowded = False
        self.moved: Callable[[], bool] = lambda: False  # True while another process has the seat

    def leave(self) -> None:
        """Answer every waiting dequeue, and refuse what comes from now on."""
        self._leaving = True
        for request in self._waiting.values():
            request.stop_waiting()

    def read(self, data: bytes | bytearray) -> Batch | Claim | Stop:
        """Return the message in these bytes.

        Raises:
            InvalidJobError: they are not a message, are too many operations, or an operation has a wrong value.
        """
        check_values(data)
        try:
            message = message_decoder().decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:  # ValidationError has no values in its text
            raise InvalidJobError(f"a broker got a message that it cannot read: {error}") from None
        if isinstance(message, Stop):
            return message
        if isinstance(message, Claim):
            return msgspec.structs.replace(message, operation=received(message.operation, self._receiving))
        if (count := count_of(message.operations)) > self._most:
            raise InvalidJobError(f"a batch has {count} operations, and a broker takes at most {self._most}")
        operations = tuple(received(each, self._receiving) for each in message.operations)
        return msgspec.structs.replace(message, operations=operations)

    async def handle(self, data: bytes) -> bytes:
        """Return the answer to a client's message."""
        try:
            return await self.answer(self.read(data))
        except InvalidJobError as error:
            answer: bytes = encode(Answer(error=refusal_of(error)))
            return answer

    async def answer(self, message: Batch | Claim | Stop, *, hidden: bool = False) -> bytes:
        """Return the answer to a client's message, which was read.

        Args:
            message: the message.
            hidden: True if the client may not see the payload, the headers and the result of another's job.
        """
        self._here[message.client] += 1
        try:
            answer: bytes = encode(await self._answer(message, hidden))
        finally:
            self._here[message.client] -= 1
            if not self._here[message.client]:
                del self._here[message.client]
        return answer

    @property
    def clients(self) -> int:
        """Number of clients that have a call here."""
        return len(self._here)

    @property
    def waiting_claims(self) -> int:
        """Number of calls that wait for jobs."""
        return len(self._waiting)

    async def _answer(self, message: Batch | Claim | Stop, hidden: bool) -> Answer:
        try:
            if isinstance(message, Stop):
                if message.queue and not self._engine.queue_id:
                    await self._reaches_store()  # after its dequeue, which may look now, too
                if (waiting := self._waiting.get(message.call)) is not None:
                    waiting.stop_waiting()
                return self._done([])
            client = self._writer.broker_client
            if self._leaving or (client is not None and client.client == message.client):
                return Answer(leaving=True)  # a process that begins to serve may find itself, and would wait for itself
            if message.queue and not self._engine.queue_id and not await self._reaches_store():
                return self._shunned()  # the client may have more time
            self._check_queue(message.queue)
            done = self._commit(message, hidden) if isinstance(message, Batch) else self._claim(message)
            return await done
        except QueueClosedError:
            return Answer(leaving=True)
        except JQueueError as error:
            if self._leaving and isinstance(error, DeadlineExceededError):  # that of closing, perhaps: nothing was done
                return Answer(leaving=True)
            return Answer(self._engine.queue_id, self._engine.draft.header.version, error=refusal_of(error))
        except Exception as error:
            logger.exception("a broker could not answer a client")
            return Answer(error=refusal_of(UnknownOutcomeError(f"the broker failed: {type(error).__name__}")))

    def _shunned(self) -> Answer:
        """Leave calls to their client, which may reach the store, for a while."""
        self._away = True
        return Answer(leaving=True, pause=SHUNNED)

    async def rest(self, seconds: float) -> bool:
        """Wait. Return True if clients may have given this broker up, which can commit now."""
        until = self._callers.loop.time() + seconds
        await asyncio.sleep(seconds)
        away, self._away = self._away or self._callers.loop.time() > until + STILL, False
        if away:
            try:
                probe = EmptyCommit() if self._engine.existed else LastSequence()  # a broker creates no queue
                await self._writer.enter([probe], PATIENCE, callers=self._callers, convert=list)
            except JQueueError:
                self._away, away = True, False
        return away

    async def look(self) -> None:
        """Read the queue, so that it is known which one it is."""
        await self._writer.enter([LastSequence()], PATIENCE, callers=self._callers, convert=list)

    async def _reaches_store(self) -> bool:
        with suppress(DeadlineExceededError):
            await self.look()
            return True
        return False

    def _check_queue(self, client_queue_id: str) -> None:
        """Refuse a client that knows another queue at this place."""
        if client_queue_id and client_queue_id != self._engine.queue_id:
            if self._engine.queue_id:
                raise StorageFatalError(
                    "the broker has another queue: restart it if the queue was moved, or make a new queue object"
                )
            raise BlobMissingError("the queue's object has disappeared: restore it, or make a new queue object")

    async def _commit(self, message: Batch, hidden: bool) -> Answer:
        if not message.operations or len(message.seconds) != len(message.operations):
            raise InvalidJobError("a batch needs operations, and the seconds that are left for each of them")
        if any(map(_claims, message.operations)):
            raise InvalidJobError("a batch takes no batch, and nothing that claims jobs: send each dequeue as a claim")
        before = self._begun.pop(message.client, (0, ""))
        self._begun[message.client] = max(before, (message.sequence, message.token), key=itemgetter(0))
        if (
            before == (message.sequence, message.token) and not message.again
        ):  # it may have changed nothing, and left no record
            raise UnknownOutcomeError("a batch came twice, and only its first copy is done")
        if message.sequence <= before[0] and not message.again:
            raise BatchUnknownError("the client, or a copy of its process, has sent a later batch")
        if len(self._begun) > CLIENTS_KEPT:
            del self._begun[next(iter(self._begun))]
        engine = self._engine
        now, longest = engine.now(), max([AGAIN * message.again, *message.seconds])
        carried = ClientBatch(
            message.client,
            message.sequence,
            message.token,
            message.base,
            message.operations,
            tuple(now + timedelta(seconds=min(LONGEST, each)) for each in message.seconds),
            message.again,
            None if hidden else ANSWER_BYTES,  # without what is hidden, no result is large
        )
        try:
            [results] = await self._writer.enter([carried], min(PATIENCE, longest), callers=self._callers, convert=list)
        except BatchUnknownError:
            self._begun[message.client] = before  # the client sends it again, with a base that is young enough
            raise
        except DeadlineExceededError:
            if longest <= PATIENCE:
                raise
            return self._shunned()
        if not self._crowded and (crowd := crowd_warning(engine.draft.header)) is not None:
            self._crowded = True
            logger.warning("%s", crowd)
        pairs = zip(carried.operations, results, strict=True)
        return self._done([encode_result(*pair, hidden=hidden) for pair in pairs])

    async def _claim(self, message: Claim) -> Answer:
        operation = message.operation
        if not isinstance(operation, Dequeue) or not operation.call:
            raise InvalidJobError("a broker claims jobs for a Dequeue that names its call")
        wait = None if message.wait is None else min(LONGEST, message.wait)
        request = self._writer.enter(
            [operation], min(LONGEST, message.seconds), wait=wait, callers=self._callers, convert=list
        )
        request.poll = max(SHORTEST_POLL, message.poll)
        self._waiting[operation.call] = request
        if self._watch is None:
            self._watch = self._callers.loop.call_later(PATIENCE, self._give_up)
        try:
            [jobs] = await request
        except DeadlineExceededError:
            if self._leaving or self._callers.loop.time() >= request.until:
                raise
            return self._shunned()
        finally:
            if self._waiting.get(operation.call) is request:
                del self._waiting[operation.call]
        if self._leaving and not jobs and wait is not None:
            return Answer(leaving=True)
        return self._done([encode_result(operation, jobs)])

    def _give_up(self) -> None:
        """Leave dequeues to their clients if the store has not answered for a while, as the clients may reach it."""
        stuck = {call for call, request in self._waiting.items() if request.last_error is not None}
        for call in stuck & self._stuck:
            self._waiting[call].expire()
        self._stuck = stuck
        self._watch = self._callers.loop.call_later(PATIENCE / 2, self._give_up) if self._waiting else None

    def _done(self, results: list[msgspec.Raw]) -> Answer:
        engine = self._engine
        return Answer(engine.queue_id, engine.draft.header.version, results, moved=self.moved())


def _claims(operation: Operation) -> bool:
    """Return True if an operation hands out claims or speaks for another client, or holds an operation that does."""
    looks = isinstance(operation, lookups.TRAVELLING)  # these come last, as operations that claim
    claims = (operation.claims_jobs and not looks) or isinstance(operation, ClientBatch)
    return claims or any(map(_claims, held_by(operation)))


class HeaderOffer:
    """Keeps the seat in the queue's header for this process, until the queue is closed.

    It takes a seat that is empty, and that of a process which does not answer, after a random pause. While another
    process has the seat and answers, this one does not touch the store.

    Args:
        url: where this process answers.
        dial_url: makes connections to others.
        writer: commits the calls.
        service: answers the messages.
    """

    def __init__(self, url: str, dial_url: DialURL, writer: Writer, service: BrokerServer) -> None:
        self._url, self._dial_url, self._writer, self._service = url, dial_url, writer, service
        self._engine = engine = writer.engine
        self._own = BrokerSeat()
        self._taken = 0
        service.moved = lambda: self._is_others(engine.draft.header.broker)
        self._task = asyncio.get_running_loop().create_task(self._keep(), name="jqueue-offer")

    def _is_others(self, seat: BrokerSeat | None) -> bool:
        """Return True if clients that look for the broker go elsewhere. Two processes may share one URL."""
        return seat is not None and seat.url not in ("", self._url)

    async def _keep(self) -> None:
        back = False
        while True:
            with suppress(JQueueError):  # a process that cannot reach the store, or is too late, is no broker
                await self._take(back)
            back = await self._service.rest(LOOK * 2 ** min(5, max(0, self._taken - 1)))

    async def _take(self, back: bool) -> None:
        """Take the seat if it is free; or anew, so that clients see that this process is back."""
        engine = self._engine
        seat = engine.draft.header.broker
        if seat is not None and engine.loaded and seat.url:
            if not self._is_others(seat):
                back = back or seat.doubted_at > 0
                if self._taken and not back:
                    return  # every commit of this process shows if another one has taken it
            elif await self._answers(seat.url):
                return
            else:
                await asyncio.sleep(engine.entropy.jitter(LOOK))
        await self._service.look()
        now = engine.draft.header.broker
        if not engine.existed or (self._is_others(now) and now != seat):
            return  # the first job creates the queue; or this process looks at the new seat first
        seen = 0 if now is None else now.term
        self._own = BrokerSeat(writer=engine.writer_id, url=self._url, term=seen + 1)  # also if the answer gets lost
        await self._writer.enter([TakeSeat(self._url, engine.writer_id, seen)], self._writer.deadline, convert=list)
        self._taken += not back

    async def _answers(self, url: str) -> bool:
        """Return True if a process answers there, or cannot be asked."""
        link = await self._dial_url(url)
        if link is None:
            return True
        try:
            await ask(link, self._engine.writer_id)
        except LinkError as error:
            return not is_absent(error)
        finally:
            link.close()
        return True

    def leave(self) -> None:
        """Leave the seat, with the last commit."""
        self._task.cancel()
        self._service.moved = lambda: False
        if self._own.url:
            self._writer.enter([LeaveSeat(self._own.writer, self._own.term)], self._writer.deadline, convert=list)
