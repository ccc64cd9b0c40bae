"""The broker's side: calls of other processes become calls of this process's writer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec

from jqueue.core.claims import ClaimRegistry
from jqueue.core.engine import Engine
from jqueue.core.messages import LONGEST, Answer, Batch, Claim, Stop, encode, message_decoder
from jqueue.core.requests import Callers, Request
from jqueue.core.writer import Writer
from jqueue.domain.errors import (
    BlobMissingError,
    DeadlineExceededError,
    InvalidJobError,
    JQueueError,
    QueueClosedError,
    StorageError,
    StorageFatalError,
    UnknownOutcomeError,
)
from jqueue.domain.job import JobRecord
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import Carried, encode_result, refusal_of
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.lookups import LastSequence
from jqueue.ports.log import logger_of
from jqueue.ports.sharing import Seat, SupportsSharing

logger = logger_of("jqueue")

PATIENCE = 10.0
"""Seconds that a broker tries a batch. Then its client tries elsewhere, as the broker may be cut off from the store."""

RETRY = 0.25
"""Seconds between two looks for a free seat."""


class _OthersClaims(ClaimRegistry):
    """Notes nothing: the claims of clients are not this process's."""

    def note(self, operation: Operation, result: Any) -> None:
        pass

    def lose(self, error: JQueueError) -> None:
        pass

    def remember(self, jobs: Iterable[JobRecord]) -> None:
        pass

    def reopen(self, operations: Iterable[Operation]) -> None:
        pass


class Service:
    """Answers the messages of clients.

    Args:
        writer: commits their calls, together with those of this process.
        engine: the writer's.
    """

    def __init__(self, writer: Writer, engine: Engine) -> None:
        self._writer, self._engine = writer, engine
        self._callers = Callers(asyncio.get_running_loop(), _OthersClaims(), writer.hand_back, writer.resolve, None)
        self._waiting: dict[str, Request] = {}
        self._leaving = False

    def leave(self) -> None:
        """Answer every waiting dequeue, and refuse what comes from now on."""
        self._leaving = True
        for request in self._waiting.values():
            request.stop_waiting()

    async def handle(self, data: bytes) -> bytes:
        """Return the answer to a client's message."""
        try:
            return await self.answer(read_message(data))
        except InvalidJobError as error:
            answer: bytes = encode(Answer(error=refusal_of(error)))
            return answer

    async def answer(self, message: Batch | Claim | Stop) -> bytes:
        """Return the answer to a client's message, which was read."""
        answer: bytes = encode(await self._answer(message))
        return answer

    async def _answer(self, message: Batch | Claim | Stop) -> Answer:
        try:
            if isinstance(message, Stop):
                if (waiting := self._waiting.get(message.call)) is not None:
                    waiting.stop_waiting()
                return self._done([])
            if self._leaving:
                return Answer(leaving=True)
            await self._check_queue(message.queue)
            done = self._commit(message) if isinstance(message, Batch) else self._claim(message)
            return await done
        except QueueClosedError:
            return Answer(leaving=True)
        except JQueueError as error:
            return Answer(error=refusal_of(error))
        except Exception as error:
            logger.exception("a broker could not answer a client")
            return Answer(error=refusal_of(UnknownOutcomeError(f"the broker failed: {type(error).__name__}")))

    async def look(self) -> None:
        """Read the queue, so that it is known which one it is."""
        await self._writer.enter([LastSequence()], PATIENCE, callers=self._callers, convert=list)

    async def _check_queue(self, known: str) -> None:
        """Refuse a client that knows another queue at this place."""
        engine = self._engine
        if known and not engine.queue_id:
            await self.look()
        if known and known != engine.queue_id:
            if engine.queue_id:
                raise StorageFatalError("the queue's object now holds another queue: make a new queue object")
            raise BlobMissingError("the queue's object has disappeared: restore it, or make a new queue object")

    async def _commit(self, message: Batch) -> Answer:
        if len(message.seconds) != len(message.operations):
            raise InvalidJobError("a batch needs the seconds that are left for each of its operations")
        engine = self._engine
        now, longest = engine.now(), max(message.seconds, default=0.0)
        carried = Carried(
            message.client,
            message.sequence,
            message.base if message.again else max(message.base, engine.draft.header.version),
            message.operations,
            tuple(now + timedelta(seconds=min(LONGEST, each)) for each in message.seconds),
            message.again,
        )
        try:
            [results] = await self._writer.enter([carried], min(PATIENCE, longest), callers=self._callers, convert=list)
        except DeadlineExceededError:
            if longest <= PATIENCE:
                raise
            return Answer(leaving=True)  # the client may reach the store
        return self._done([encode_result(*pair) for pair in zip(carried.operations, results, strict=True)])

    async def _claim(self, message: Claim) -> Answer:
        operation = message.operation
        if not isinstance(operation, Dequeue) or not operation.call:
            raise InvalidJobError("a broker claims jobs for a Dequeue that names its call")
        wait = None if message.wait is None else min(LONGEST, message.wait)
        request = self._writer.enter(
            [operation], min(LONGEST, message.seconds), wait=wait, callers=self._callers, convert=list
        )
        self._waiting[operation.call] = request
        try:
            [jobs] = await request
        finally:
            if self._waiting.get(operation.call) is request:
                del self._waiting[operation.call]
        if self._leaving and not jobs and wait is not None:
            return Answer(leaving=True)
        return self._done([encode_result(operation, jobs)])

    def _done(self, results: list[msgspec.Raw]) -> Answer:
        engine = self._engine
        return Answer(engine.queue_id, engine.draft.header.version, results)


def read_message(data: bytes | bytearray) -> Batch | Claim | Stop:
    """Return the message in these bytes.

    Raises:
        InvalidJobError: they are not a message. The error shows none of them.
    """
    try:
        return message_decoder().decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # ValidationError is one; its text has no values
        raise InvalidJobError(f"a broker got a message that it cannot read: {error}") from None


class Offer:
    """Serves a queue for other processes from the moment that no other process does, until the queue is closed.

    Args:
        storage: has the seat.
        writer: commits the calls.
        service: answers the messages.
    """

    def __init__(self, storage: SupportsSharing, writer: Writer, service: Service) -> None:
        self._storage, self._writer, self._service = storage, writer, service
        self._seat: Seat | None = None
        self._task = asyncio.get_running_loop().create_task(self._take(), name="jqueue-offer")

    async def _take(self) -> None:
        while self._seat is None:
            with suppress(StorageError):
                self._seat = await self._storage.take_seat(self._service.handle)
            if self._seat is None:
                await asyncio.sleep(RETRY)
        assert self._writer.courier is not None
        self._writer.courier.serving = True

    def leave(self) -> None:
        """Stop looking for a free seat."""
        self._task.cancel()

    async def left(self) -> None:
        """Free the seat."""
        if self._seat is not None:
            await self._seat.leave()
            assert self._writer.courier is not None
            self._writer.courier.serving = False
