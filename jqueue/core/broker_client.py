"""The client's side: it takes the calls of a queue object to the broker that serves the queue.

If the broker cannot be used, this process commits the calls itself, as without a broker. A batch that was sent is
committed under its number, so that it lands once, whichever process commits it. A dequeue that was sent names its call,
so that claims whose answer was lost are found, and handed back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from jqueue.core.blob.lines import ENCODING_ERRORS
from jqueue.core.broker_connection import LONGEST_PAUSE, BrokerConnection
from jqueue.core.engine import Engine
from jqueue.core.messages import BATCH_OPERATIONS, LONGEST, Answer, Batch, Claim, Stop, encode
from jqueue.core.requests import Callers, Request, sleep_while_awaited
from jqueue.core.seat_server import SeatServer
from jqueue.core.workers import SHARED_BEAT
from jqueue.domain.commits import Verdict
from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import (
    BatchUnknownError,
    DeadlineExceededError,
    InvalidJobError,
    JQueueError,
    QueueFullError,
    StorageError,
    StorageFatalError,
    UnknownOutcomeError,
)
from jqueue.domain.header import BEAT
from jqueue.domain.operations import lookups
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import (
    TRAVELLING,
    AllOrNothing,
    ClientBatch,
    count_of,
    decode_result,
    encode_operation,
    error_of,
)
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.ends import HandBackCalls
from jqueue.domain.operations.operator import Attend, EmptyCommit, LeaveSeat
from jqueue.ports.sharing import (
    DialURL,
    Link,
    LinkError,
    LinkRefusedError,
    SupportsDialing,
    SupportsSharing,
    client_name,
)

OWN_SECONDS = 30.0
"""Seconds for a call that a client makes for itself."""

STOP_AGAIN = 0.25
"""Seconds after which a broker is first asked again to end a wait. They double each time."""

BATCH_BYTES = 4 << 20
"""Largest size of a batch, unless one call is larger."""

LARGEST_CALL = 16 << 20
"""Largest size of a call that a broker gets: a larger one would stop its event loop, and with it all of its clients."""


class Parcel(NamedTuple):
    """A call in a batch."""

    request: Request
    operations: Sequence[Operation]
    """Its operations as they travel."""
    encoded: list[bytes]
    """The same, encoded."""


class Parked(NamedTuple):
    """A dequeue that waits at a broker."""

    task: asyncio.Task[None]
    link: Link
    call: str


@dataclass(eq=False)
class Sent:
    """A batch that is on its way.

    Attributes:
        sequence: its number.
        token: see `Batch`.
        base: the latest version that was known when it was first sent.
        parcels: the calls in it.
        again: True once it may have been sent.
    """

    sequence: int
    token: str
    base: int
    parcels: list[Parcel]
    again: bool = False

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations of all calls."""
        return tuple(each for parcel in self.parcels for each in parcel.operations)

    @property
    def encoded(self) -> Any:
        """The same, encoded."""
        return tuple(msgspec.Raw(each) for parcel in self.parcels for each in parcel.encoded)

    def seconds(self, now: float) -> tuple[float, ...]:
        """Return the time that is left for each operation: none if its caller has gone."""
        left = ((_left(each.request, now) if each.request.awaited else 0.0, each.encoded) for each in self.parcels)
        return tuple(round(seconds, 3) for seconds, encoded in left for _ in encoded)


class OwnCall(Request):
    """A call that the client makes for itself.

    Args:
        operation: prepared.
        callers: as for every call.
        settled: called with the outcome.
        failed: called with the error if it is not known whether the operation was done.
    """

    __slots__ = ("_failed", "_settled")

    def __init__(
        self,
        operation: Operation,
        callers: Callers,
        settled: Callable[[Any], object],
        failed: Callable[[BaseException], object] = lambda _: None,
    ) -> None:
        super().__init__([operation], callers)
        self._settled, self._failed = settled, failed
        self.until: float = callers.loop.time() + OWN_SECONDS
        self.due: float = self.until

    def settle(self, outcome: Any) -> None:
        """Tell the outcome."""
        super().settle(outcome)
        self._settled(outcome)

    def fail(self, error: BaseException) -> None:
        """Tell the error."""
        super().fail(error)
        self._failed(error)


class BrokerClient:
    """Takes calls to the broker of the queue, one batch at a time, while there is a broker.

    Args:
        store: knows the broker, or dials the broker that the queue's header names.
        engine: commits for this process.
        wake: makes the writer look at its calls again.

    Attributes:
        answering: True while this process answers the messages that a server of its own hands over.
        only: True if the queue can only be reached through its broker. Then calls wait for it until their deadlines.
        seat_server: serves other processes, or tries to; None if this queue object does not.
    """

    seat_server: SeatServer | None = None

    def __init__(self, store: SupportsDialing | DialURL, engine: Engine, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._longest_poll = to_seconds("poll_interval", engine.access.options.poll_interval)
        self._beat = BEAT if isinstance(store, SupportsSharing) else SHARED_BEAT
        self._engine, self._clock, self._entropy = engine, engine.clock, engine.entropy
        self._connection = BrokerConnection(store, engine)
        self.only: bool = self._connection.only
        self.client: str = self._entropy.new_id()[:18]
        self.answering = False
        self.sequence: int = 0
        self._open: Sent | None = None
        self._parked: dict[Request, Parked] = {}
        self._lost_calls: dict[str, Request] = {}
        self._stops: set[asyncio.Task[Any]] = set()

    def abandon(self, *, is_ours: bool) -> None:
        """Free what this process serves, and the connections, as the event loop has stopped.

        Args:
            is_ours: False in a forked child, which leaves them to the parent.
        """
        if self.seat_server is not None:
            self.seat_server.abandon()
            self.seat_server = None
        self._connection.abandon(is_ours=is_ours)

    @property
    def serving(self) -> bool:
        """True while this process commits its calls itself, as it is a broker."""
        return self.answering or (self.seat_server is not None and self.seat_server.serving)

    @property
    def shares(self) -> bool:
        """True if calls share commits with those of other processes."""
        return self.serving or self._connection.current is not None

    @property
    def owes_claims(self) -> bool:
        """True if claims may have been made whose answers were lost."""
        return bool(self._lost_calls)

    def broker_came(self) -> bool:
        """Return True if another process may have begun to serve since the last look for a broker."""
        return not self.serving and self._connection.has_news()

    def waits(self, request: Request) -> bool:
        """Return True if a broker will answer the call."""
        return request in self._parked

    async def carry(self, requests: Sequence[Request], callers: Callers) -> list[Request]:
        """Send calls to the broker, and return the calls that this process must commit itself.

        A dequeue is answered later. The other calls are answered when this returns, as far as the broker answers.
        """
        connection = self._connection
        while True:
            if not self.serving and (link := await connection.connect()) is not None:
                try:
                    return await self._take(link, requests, callers)
                except LinkError as error:
                    connection.drop(link, error)
                    for request in requests if self.only else ():
                        request.last_error = error
            if not self.only:
                return self._left_to_us(requests, callers)
            for request in requests if (why := connection.why) is not None else ():
                request.last_error = why
                if isinstance(why, StorageFatalError):
                    request.give_up(why, "a broker may have done the operation", why)
            waiting = [request for request in requests if request.awaited and request not in self._parked]
            if not waiting:
                return []
            await sleep_while_awaited(waiting, max(0.0, connection.next_dial - self._clock.monotonic()))

    def _left_to_us(self, requests: Sequence[Request], callers: Callers) -> list[Request]:
        """Return the calls that this process must commit itself, as no broker has answered."""
        left = [each for each in requests if each not in self._parked] if self._parked else list(requests)
        if (sent := self._open) is not None:
            there = {request for request, *_ in sent.parcels}
            left = [self._here(sent, callers), *(request for request in left if request not in there)]
        if self._lost_calls:
            left.append(self._hand_back_here(callers))
        if (seat := self._connection.gone) is not None and not all(map(_may_change_nothing, left)):
            self._connection.gone = None
            left.append(OwnCall(LeaveSeat(seat.writer, seat.term, doubted=True), callers, lambda _: None))
        return left

    async def _take(self, link: Link, requests: Sequence[Request], callers: Callers) -> list[Request]:
        if (sent := self._open) is not None:
            try:
                await self._send(link, sent)
            except LinkRefusedError as refusal:
                if not self.only:
                    raise
                self._refused(sent, BatchUnknownError(f"a broker may have done it, and refuses it now: {refusal}"))
        self.client = client_name(self.client, link.token_hash)
        ours, batch = list[Request](), deque[Parcel]()
        own = [self._hand_back_here(callers)] if self._lost_calls else []
        if self._engine.existed and self._engine.workers.are_due(self._clock.monotonic()):
            own.append(self._attend(callers))
        batch += [Parcel(each, each.operations, [*map(encode_operation, each.operations)]) for each in own]
        for request in requests:
            if not request.awaited or request in self._parked:
                continue
            operations = request.operations
            if request.callers is not callers:  # a client's, from when this process served: it knows this one alone
                ours.append(request)
            elif len(operations) == 1 and type(operations[0]) is Dequeue:
                if not self._park(link, request, operations[0]):
                    ours.append(request)
            elif (request.claims_jobs and not (self.only and _looks(operations))) or not all(map(_travels, operations)):
                ours.append(request)
            else:
                if request.atomic and len(operations) > 1:
                    operations = [AllOrNothing(tuple(operations))]
                try:
                    parcel = Parcel(request, operations, [*map(encode_operation, operations)])
                    is_ours = not self.only and sum(map(len, parcel.encoded)) > LARGEST_CALL
                except ENCODING_ERRORS:  # this process knows which value it is
                    is_ours = True
                if is_ours:
                    ours.append(request)
                else:
                    batch.append(parcel)
        alone = 0  # number of calls that are sent one by one, as the broker has refused them together
        while batch:
            some: list[Parcel] = []
            size = count = 0
            while batch and not (some and alone):
                count += count_of(batch[0].operations)
                size += sum(map(len, batch[0].encoded))
                if some and (size > BATCH_BYTES or count > BATCH_OPERATIONS):
                    break
                some.append(batch.popleft())
            self.sequence += 1
            base = self._connection.version or self._engine.draft.header.version
            self._open = Sent(self.sequence, self._entropy.new_id()[:18], base, some)
            self._engine.observers.sent(self._open.token, [request for request, *_ in some])
            try:
                await self._send(link, self._open)
            except LinkRefusedError as refusal:
                if not self.only:
                    raise
                if len(some) > 1 and not refusal.everything:
                    batch.extendleft(reversed(some))
                    alone = len(some)
                    continue
                for request, *_ in some:
                    request.fail(refusal.error)
            alone = max(0, alone - 1)
        return self._done_without_store(ours) if self.only else ours

    def _done_without_store(self, requests: Sequence[Request]) -> list[Request]:
        """Answer calls that do not travel, where no process but the broker can commit."""
        for request in requests:
            if all(isinstance(operation, EmptyCommit) for operation in request.operations):
                request.settle([None for _ in request.operations])  # every batch that was sent is known by now
            else:
                names = ", ".join(sorted({type(operation).__name__ for operation in request.operations}))
                request.fail(InvalidJobError(f"{names}: only a process that can reach the store itself can do this"))
        return []

    async def _send(self, link: Link, sent: Sent) -> None:
        """Send a batch, and answer its calls.

        Raises:
            LinkError: there is no broker, or it did not answer.
        """
        message = Batch(
            client=self.client,
            queue=self._engine.queue_id,
            sequence=sent.sequence,
            token=sent.token,
            base=sent.base,
            operations=sent.encoded,
            seconds=sent.seconds(asyncio.get_running_loop().time()),
            again=sent.again,
        )
        encoded = encode(message)
        for request, *_ in sent.parcels:
            request.in_flight = True
        try:
            answer = await self._connection.exchange(link, encoded)
        except LinkError as error:
            sent.again = sent.again or error.sent
            if not sent.again:
                self._release(sent)
            raise
        except BaseException:
            sent.again = True
            raise
        if answer.leaving:
            if not sent.again:
                self._release(sent)
            raise LinkError("the broker is leaving", sent=sent.again, pause=answer.pause)
        if answer.error is not None:
            failure = error_of(answer.error)
            if (
                isinstance(failure, BatchUnknownError)
                and not sent.again
                and (sent.sequence, sent.base) != (1, answer.version)
            ):
                # Nothing was done: too much is forgotten since, a backup was restored, or a copy of this process calls
                self.client, self.sequence = client_name(self._entropy.new_id()[:18], link.token_hash), 1
                sent.sequence, sent.base = 1, answer.version
                await self._send(link, sent)
                return
            is_known = not sent.again and not isinstance(failure, UnknownOutcomeError)
            if not is_known and not isinstance(failure, BatchUnknownError):
                sent.again = True
                raise LinkError("it is not known if a broker has done the calls", sent=True)
            try:
                self._check_cause(failure, len(sent.parcels))
            except LinkError:
                self._release(sent)
                raise
            self._refused(sent, failure)
        else:
            sent.again = True  # unless the results can be read
            self._answered(sent, _results(sent.operations, answer))

    def _check_cause(self, failure: JQueueError | None, calls: int = 1) -> None:
        """Check that an error, with which nothing was done, is not of this broker alone, or of some calls together.

        Raises:
            LinkError: this process may reach the store, know a newer operation, or have room for a call.
            LinkRefusedError: each call may pass alone.
        """
        if self.only and calls > 1 and isinstance(failure, InvalidJobError):
            raise LinkRefusedError(failure)
        if self.only or isinstance(failure, DeadlineExceededError | BatchUnknownError):
            return
        if isinstance(failure, StorageError | InvalidJobError | QueueFullError):
            raise LinkError(f"the broker could not do the calls: {failure}", sent=False, pause=LONGEST_PAUSE)

    def _release(self, sent: Sent) -> None:
        """Forget a batch that no broker has taken."""
        self._open = None
        for request, *_ in sent.parcels:
            request.in_flight = False

    def _settled(self, sent: Sent) -> None:
        if self._open is sent:  # it may have been settled before: an earlier write of it lands late
            self._open = None

    def _answered(self, sent: Sent, results: Sequence[Any]) -> None:
        """Answer the calls of a batch."""
        self._settled(sent)
        rest = iter(results)
        for request, operations, _ in sent.parcels:
            own = [next(rest) for _ in operations]
            if all(isinstance(each, DeadlineExceededError) for each in own):
                outcome: Any = own[0]
            elif not request.atomic:
                outcome = own
            elif isinstance(own[0], JQueueError):
                outcome = own[0]
            else:
                outcome = own if len(request.operations) == 1 else own[0]
            if isinstance(outcome, DeadlineExceededError):
                request.refuse(outcome)
            else:
                request.settle(outcome)

    def _refused(self, sent: Sent, error: JQueueError) -> None:
        """Fail the calls of a batch that was refused as a whole, or whose fate can no longer be known."""
        self._settled(sent)
        for request, *_ in sent.parcels:
            if isinstance(error, BatchUnknownError):
                request.in_flight, request.last_error = False, error
                request.release(Verdict.UNKNOWABLE)
            else:
                request.refuse(error)

    def _here(self, sent: Sent, callers: Callers) -> Request:
        """Return the call that commits a batch in this process, under its number."""
        now, base = self._engine.now(), asyncio.get_running_loop().time()
        seconds = sent.seconds(base)
        due = tuple(now + timedelta(seconds=each) for each in seconds)
        carried = ClientBatch(self.client, sent.sequence, sent.token, sent.base, sent.operations, due, again=True)

        def settled(outcome: Any) -> None:
            if isinstance(outcome, JQueueError):
                self._refused(sent, outcome)
            else:
                self._answered(sent, outcome[0])

        def failed(error: BaseException) -> None:
            for request, *_ in sent.parcels:
                request.fail(request.unknown("a broker may have done the operation, and this process could not", error))

        request = OwnCall(carried, callers, settled, failed)
        request.due = base + max([1.0, *seconds])
        return request

    def _park(self, link: Link, request: Request, operation: Dequeue) -> bool:
        """Send a dequeue, and answer it when the broker does. Return False if it cannot travel."""
        is_new = operation.call is None
        call = operation.call or f"{self.client}/{self._entropy.new_id()[:18]}"  # a copy of the process draws another
        operation = replace(operation, call=call)
        now = asyncio.get_running_loop().time()
        left = _left(request, now)
        wait = max(0.0, min(left, request.wait_until - now)) if request.waits_for_jobs else None
        message = Claim(
            client=self.client,
            queue=self._engine.queue_id,
            operation=operation,
            seconds=round(left - (wait or 0.0), 3),
            wait=None if wait is None else ceil(wait * 1000) / 1000,  # else it may end early, and be sent again
            poll=self._longest_poll,
        )
        try:
            encoded = encode(message)
        except ENCODING_ERRORS:
            return False
        if is_new:
            request.operations, request.ending = (operation,), self._stop_waiting
            self._engine.observers.sent(call, [request])
        request.in_flight = True
        work = self._wait_for_jobs(link, request, operation, encoded)
        task = asyncio.get_running_loop().create_task(work, name="jqueue-dequeue")
        self._parked[request] = Parked(task, link, call)
        return True

    async def _wait_for_jobs(self, link: Link, request: Request, operation: Dequeue, message: bytes) -> None:
        try:
            answer = await self._connection.exchange(link, message)
            failure = None if answer.error is None else error_of(answer.error)
            if answer.leaving or isinstance(failure, UnknownOutcomeError):
                raise LinkError("the broker is leaving", sent=failure is not None, pause=answer.pause)
            if failure is not None and request.open_writes:
                raise LinkError(f"an earlier broker may have claimed jobs: {failure}", sent=False)
            self._check_cause(failure)
            request.in_flight = False
            if failure is not None:
                request.fail(failure)
            else:
                [jobs] = _results([operation], answer)
                self._settle_claim(request, jobs)
        except LinkError as error:
            if self.only:
                request.last_error = error
                if isinstance(error, LinkRefusedError):
                    request.fail(error.error)
            if error.sent:
                assert operation.call is not None
                self._lost_calls[operation.call] = request  # a late copy may claim for this call, which ends here
                request.operations = (replace(operation, call=None),)
                request.open_writes += 1  # until the claims are handed back
                request.doubtful = True
            request.in_flight = False
            self._connection.drop(link, error)
        finally:
            self._parked.pop(request, None)
        self._wake()

    def _settle_claim(self, request: Request, jobs: Any) -> None:
        """Answer a dequeue. A job whose payload this process cannot read goes back."""
        if self.only and isinstance(jobs, list) and (apart := [job.id for job in jobs if job.payload_object]):
            request.hand_back_claims([jobs])
            request.fail(
                StorageFatalError(
                    f"job {apart[0]!r} has its payload in an object beside the queue, which a client without access to "
                    "the store cannot read: run its worker where the store can be reached"
                )
            )
        else:
            request.settle(jobs if isinstance(jobs, JQueueError) else [jobs])

    def _stop_waiting(self, request: Request) -> None:
        """Have the broker answer a dequeue that waits."""
        if (parked := self._parked.get(request)) is None or not parked.task.get_loop().is_running():
            return  # it ends, and all tasks with it
        answering, link, call = parked

        async def stop() -> None:
            message, pause = encode(Stop(client=self.client, queue=self._engine.queue_id, call=call)), STOP_AGAIN
            try:
                while not answering.done():  # a message on a connection of its own may overtake the dequeue's
                    await self._connection.exchange(link, message)
                    await asyncio.wait([answering], timeout=pause)
                    pause *= 2
            except LinkError as error:
                self._connection.drop(link, error)

        task = asyncio.get_running_loop().create_task(stop(), name="jqueue-stop")
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    def _hand_back_here(self, callers: Callers) -> Request:
        """Return the call that hands back what was claimed for calls whose answers were lost."""
        calls = tuple(sorted(self._lost_calls))

        def settled(outcome: Any) -> None:
            for call in () if isinstance(outcome, JQueueError) else calls:
                if (request := self._lost_calls.pop(call, None)) is not None:
                    request.open_writes -= 1
                    request.release(Verdict.NOT_DONE)

        return OwnCall(HandBackCalls(calls), callers, settled)

    def _attend(self, callers: Callers) -> Request:
        """Return the call that shows the workers of this process in the queue."""
        workers = self._engine.workers
        run_records = workers.records(self._engine.now().timestamp(), self._beat).items()
        records = {run: record and record.evolve(client=self.client) for run, record in run_records}

        def settled(outcome: Any) -> None:
            if not isinstance(outcome, JQueueError):
                workers.landed(records, self._clock.monotonic(), self._beat)
                workers.stop(outcome[0])

        return OwnCall(Attend(records), callers, settled)

    def stop_waiting(self) -> None:
        """Have the broker answer every dequeue that waits."""
        for request in self._parked:
            self._stop_waiting(request)

    async def answered_all(self, seconds: float) -> None:
        """Wait until no dequeue is at the broker: jobs that it claims for a caller that has left must go back."""
        tasks = [*(parked.task for parked in self._parked.values()), *self._stops]
        if tasks:
            await asyncio.wait(tasks, timeout=max(0.0, seconds))

    def close(self) -> None:
        """End the connections, and what still waits for an answer."""
        for task in (*(parked.task for parked in self._parked.values()), *self._stops):
            task.cancel()
        self._connection.close()


def _left(request: Request, now: float) -> float:
    """Return the seconds that are left for a call. The own calls of this process have no deadline."""
    return max(0.0, min(LONGEST, request.until - now))


def _travels(operation: Operation) -> bool:
    """Return True if a broker can commit an operation for this process. A fence is about the writes of this one."""
    return isinstance(operation, TRAVELLING) and operation.large is None and not isinstance(operation, EmptyCommit)


def _looks(operations: Sequence[Operation]) -> bool:
    """Return True if a call only looks: a wait for a result is asked again and again, where there is no store."""
    return all(isinstance(operation, lookups.TRAVELLING) for operation in operations)


def _may_change_nothing(request: Request) -> bool:
    """Return True for a call that may change nothing: a process that may only read can make it."""
    return request.claims_jobs or _looks(request.operations)


def _results(operations: Sequence[Operation], answer: Answer) -> list[Any]:
    """Return the results of a broker's answer.

    Raises:
        LinkError: it is no answer to these operations.
    """
    try:
        return [decode_result(*pair) for pair in zip(operations, answer.results, strict=True)]
    except (ValueError, msgspec.MsgspecError) as error:
        raise LinkError(f"the broker's answer cannot be read: {type(error).__name__}", sent=True) from None
