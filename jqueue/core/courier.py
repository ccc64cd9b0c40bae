"""The client's side: a courier takes the calls of a queue object to the broker that serves the queue.

Whatever goes wrong, the calls are committed by this process, as without a broker. A batch that was sent is committed
under its number, so that it lands once, whoever commits it. A dequeue that was sent names its call, so that claims
whose answer was lost are found, and handed back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from jqueue.core.engine import Engine
from jqueue.core.messages import LONGEST, Answer, Batch, Claim, Stop, decode_answer, encode
from jqueue.core.requests import Callers, Request, sleep_while_awaited
from jqueue.core.tasks import TRANSIENT
from jqueue.domain.commits import Verdict
from jqueue.domain.errors import (
    BatchUnknownError,
    DeadlineExceededError,
    InvalidJobError,
    JQueueError,
    StorageError,
    StorageFatalError,
    UnknownOutcomeError,
)
from jqueue.domain.header import BrokerSeat
from jqueue.domain.operations import lookups
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import TRAVELLING, AllOrNothing, Carried, decode_result, error_of
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.ends import HandBackCalls
from jqueue.domain.operations.operator import Attend, Fence
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.log import logger_of
from jqueue.ports.sharing import DialURL, Link, LinkError, LinkRefusedError, SupportsDialing, SupportsSharing

logger = logger_of("jqueue")

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
"""Seconds without a broker before one is looked for again: the first time, and after many silent ones."""

OWN_SECONDS = 30.0
"""Seconds for a call that a courier makes for itself."""

MOST_MOVES, MOVES_WITHIN = 3, 10.0
"""Number of times that brokers may send a client on within these seconds. Then it commits its calls itself as long."""

BATCH_OPERATIONS = 4096
"""Largest number of operations in a batch."""

BATCH_BYTES = 4 << 20
"""About the largest size of a batch."""


_LEFT_TO_PARENT: list[Link] = []
"""Connections from before a fork. They are never closed, nor collected: that would end them for the parent too."""


@dataclass(eq=False)
class Sent:
    """A batch that is on its way.

    Attributes:
        sequence: its number.
        base: the latest version that was known when it was first sent.
        requests: the calls in it, each with its operations as they travel.
        again: True once it may have been sent.
    """

    sequence: int
    base: int
    requests: list[tuple[Request, Sequence[Operation]]]
    again: bool = False

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations of all calls."""
        return tuple(each for _, operations in self.requests for each in operations)

    def seconds(self, now: float) -> tuple[float, ...]:
        """Return the time that is left for each operation: none if its caller has gone."""
        left = ((_left(request, now) if request.awaited else 0.0, ops) for request, ops in self.requests)
        return tuple(round(seconds, 3) for seconds, operations in left for _ in operations)


class CommittedHere(Request):
    """A batch that was sent to a broker, and is now committed by this process under its number."""

    __slots__ = ("_courier", "_sent")

    def __init__(self, courier: Courier, sent: Sent, operation: Carried, callers: Callers) -> None:
        super().__init__([operation], callers)
        self._courier, self._sent = courier, sent

    def settle(self, outcome: Any) -> None:
        """Answer the calls of the batch."""
        super().settle(outcome)
        if isinstance(outcome, JQueueError):
            self._courier.refused(self._sent, outcome)
        else:
            self._courier.answered(self._sent, outcome[0])

    def fail(self, error: BaseException) -> None:
        """Fail the calls of the batch, which the broker may still do."""
        super().fail(error)
        for request, _ in self._sent.requests:
            request.fail(request.unknown("a broker may have done the operation, and this process could not", error))


class OwnCall(Request):
    """A call that the courier makes for itself.

    Args:
        operation: prepared.
        callers: as for every call.
        landed: called when it has landed.
    """

    __slots__ = ("_landed",)

    def __init__(self, operation: Operation, callers: Callers, landed: Callable[[], object]) -> None:
        super().__init__([operation], callers)
        self._landed = landed
        self.until = self.due = callers.loop.time() + OWN_SECONDS

    def settle(self, outcome: Any) -> None:
        """Note that it has landed."""
        super().settle(outcome)
        if not isinstance(outcome, JQueueError):
            self._landed()


class Courier:
    """Takes calls to the broker of the queue, one batch at a time, while there is a broker.

    Args:
        store: knows the broker, or dials the one that has the seat in the queue's header.
        engine: commits for this process.
        wake: makes the writer look at its calls again.

    Attributes:
        serving: True while this process commits its calls itself, as it is a broker.
        only: True if the queue can only be reached through its broker. Then calls wait for it until their deadlines.
    """

    def __init__(
        self,
        store: SupportsDialing | DialURL,
        engine: Engine,
        clock: Clock,
        entropy: Entropy,
        wake: Callable[[], None],
    ) -> None:
        self._store, self._engine, self._clock, self._entropy, self._wake = store, engine, clock, entropy, wake
        self.only = isinstance(store, SupportsDialing) and not isinstance(store, SupportsSharing)
        self._warned = ""
        self._link: Link | None = None
        self._parked: dict[Request, tuple[asyncio.Task[None], Link]] = {}
        self.reset()

    def reset(self) -> None:
        """Begin anew, as another client: in another event loop, or after a fork."""
        self.client = self._entropy.new_id()[:18]
        self.serving = False
        self._sequence = self._calls = self._version = 0
        _LEFT_TO_PARENT.extend(link for _, link in self._parked.values())
        if self._link is not None:
            _LEFT_TO_PARENT.append(self._link)
            self._link = None
        self._next_dial, self._pause = 0.0, FIRST_PAUSE
        self._seat: BrokerSeat | None = None
        self._moves: list[float] = []
        self._moved, self._alone_until = False, 0.0
        self._open: Sent | None = None
        self._parked = {}
        self._claiming: dict[Request, str] = {}
        self._lost_calls: set[str] = set()
        self._stops: set[asyncio.Task[Any]] = set()

    @property
    def shares(self) -> bool:
        """True if calls share commits with those of other processes."""
        return self.serving or self._link is not None

    @property
    def owes_claims(self) -> bool:
        """True if claims may have been made whose answers were lost."""
        return bool(self._lost_calls)

    def waits(self, request: Request) -> bool:
        """Return True if a broker will answer the call."""
        return request in self._parked

    async def carry(self, requests: Sequence[Request], callers: Callers) -> list[Request]:
        """Take calls to the broker, and return those that this process must commit itself.

        A dequeue is answered later. The other calls are answered when this returns, as far as the broker answers.
        """
        self._note_lost()
        while True:
            if not self.serving and (link := await self._linked()) is not None:
                try:
                    return await self._take(link, requests, callers)
                except LinkError as error:
                    self._drop(link, error)
                    for request in requests if self.only else ():
                        request.last_error = error
            if not self.only:
                return self._left_to_us(requests, callers)
            waiting = [request for request in requests if request.awaited and request not in self._parked]
            if not waiting:
                return []
            await sleep_while_awaited(waiting, max(0.0, self._next_dial - self._clock.monotonic()))

    def _left_to_us(self, requests: Sequence[Request], callers: Callers) -> list[Request]:
        """Return the calls that this process must commit itself, as no broker has answered."""
        left = [request for request in requests if request.awaited and request not in self._parked]
        if (sent := self._open) is not None:
            there = {request for request, _ in sent.requests}
            left = [self._here(sent, callers), *(request for request in left if request not in there)]
        if self._lost_calls:
            left.append(self._hand_back_here(callers))
        return left

    async def _take(self, link: Link, requests: Sequence[Request], callers: Callers) -> list[Request]:
        if self._open is not None:
            await self._send(link, self._open)
        ours, batch, size = list[Request](), list[tuple[Request, Sequence[Operation]]](), 0
        own = [self._hand_back_here(callers)] if self._lost_calls else []
        if self._engine.existed and self._engine.workers.are_due(self._clock.monotonic()):
            own.append(self._attend(callers))
        batch += [(request, request.operations) for request in own]
        for request in requests:
            if not request.awaited or request in self._parked:
                continue
            operations = request.operations
            if len(operations) == 1 and type(operations[0]) is Dequeue:
                self._park(link, request, operations[0])
            elif (request.claims_jobs and not (self.only and _looks(operations))) or not all(map(_travels, operations)):
                ours.append(request)
            else:
                if request.atomic and len(operations) > 1:
                    operations = [AllOrNothing(tuple(operations))]
                batch.append((request, operations))
        alone = 0  # number of calls that are sent one by one, as the broker has refused them together
        while batch:
            some: list[tuple[Request, Sequence[Operation]]] = []
            size = count = 0
            while batch and (not some or (size < BATCH_BYTES and count < BATCH_OPERATIONS and not alone)):
                some.append(batch.pop(0))
                count += len(some[-1][1])
                size += sum(map(_size_of, some[-1][1]))
            self._sequence += 1
            self._open = Sent(self._sequence, max(self._version, self._engine.draft.header.version), some)
            self._engine.observers.sent((self.client, self._sequence), [request for request, _ in some])
            try:
                await self._send(link, self._open)
            except LinkRefusedError as refusal:
                if not self.only:
                    raise
                if len(some) > 1:
                    batch[:0], alone = some, len(some)
                    continue
                some[0][0].fail(refusal.error)
            alone = max(0, alone - 1)
        return self._done_without_store(ours) if self.only else ours

    def _done_without_store(self, requests: Sequence[Request]) -> list[Request]:
        """Answer calls that do not travel, where no process but the broker can commit."""
        for request in requests:
            if all(isinstance(operation, Fence) for operation in request.operations):
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
            base=sent.base,
            operations=sent.operations,
            seconds=sent.seconds(asyncio.get_running_loop().time()),
            again=sent.again,
        )
        encoded = encode(message)
        for request, _ in sent.requests:
            request.in_flight = True
        try:
            answer = self._read(link, await link.exchange(encoded))
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
            raise LinkError("the broker is leaving", sent=sent.again)
        if answer.error is not None:
            failure = error_of(answer.error)
            is_known = not sent.again and not isinstance(failure, UnknownOutcomeError)
            if not is_known and not isinstance(failure, BatchUnknownError):
                sent.again = True
                raise LinkError("it is not known if a broker has done the calls", sent=True)
            self.refused(sent, failure)
        else:
            self.answered(sent, _results(sent.operations, answer))

    def _release(self, sent: Sent) -> None:
        """Forget a batch that no broker has taken."""
        self._open = None
        for request, _ in sent.requests:
            request.in_flight = False

    def answered(self, sent: Sent, results: Sequence[Any]) -> None:
        """Answer the calls of a batch."""
        self._open = None
        rest = iter(results)
        for request, operations in sent.requests:
            own = [next(rest) for _ in operations]
            if not request.atomic:
                outcome: Any = own
            elif isinstance(own[0], JQueueError):
                outcome = own[0]
            else:
                outcome = own if len(request.operations) == 1 else own[0]
            if isinstance(outcome, DeadlineExceededError):
                request.in_flight = False
                request.fail(outcome)
                request.verdict = Verdict.NOT_DONE
            else:
                request.settle(outcome)

    def refused(self, sent: Sent, error: JQueueError) -> None:
        """Fail the calls of a batch that was refused as a whole, or whose fate can no longer be known."""
        self._open = None
        for request, _ in sent.requests:
            request.in_flight = False
            if isinstance(error, BatchUnknownError):
                request.last_error = error
                request.release(Verdict.UNKNOWABLE)
            else:
                request.fail(error)
                request.verdict = request.verdict or Verdict.NOT_DONE

    def _here(self, sent: Sent, callers: Callers) -> Request:
        """Return the call that commits a batch in this process, under its number."""
        now, base = self._engine.now(), asyncio.get_running_loop().time()
        seconds = sent.seconds(base)
        due = tuple(now + timedelta(seconds=each) for each in seconds)
        carried = Carried(self.client, sent.sequence, sent.base, sent.operations, due, again=True)
        request = CommittedHere(self, sent, carried, callers)
        request.due = base + max([1.0, *seconds])
        return request

    def _park(self, link: Link, request: Request, operation: Dequeue) -> None:
        """Send a dequeue, and answer it when the broker does."""
        call = self._claiming.get(request)
        if call is None:
            self._calls += 1
            call = self._claiming[request] = f"{self.client}/{self._calls}"
            request.operations = (operation := replace(operation, call=call),)
            request.failing = self._caller_left
            self._engine.observers.sent(call, [request])
        now = asyncio.get_running_loop().time()
        left = _left(request, now)
        wait = max(0.0, min(left, request.wait_until - now)) if request.waits_for_jobs else None
        message = Claim(
            client=self.client,
            queue=self._engine.queue_id,
            operation=operation,
            seconds=round(left - (wait or 0.0), 3),
            wait=None if wait is None else round(wait, 3),
        )
        request.in_flight = True
        work = self._wait_for_jobs(link, request, operation, encode(message))
        self._parked[request] = asyncio.get_running_loop().create_task(work, name="jqueue-dequeue"), link

    async def _wait_for_jobs(self, link: Link, request: Request, operation: Dequeue, message: bytes) -> None:
        call = self._claiming[request]
        try:
            answer = self._read(link, await link.exchange(message))
            failure = None if answer.error is None else error_of(answer.error)
            if answer.leaving or isinstance(failure, UnknownOutcomeError):
                raise LinkError("the broker is leaving", sent=failure is not None)
            request.in_flight = False
            if failure is not None:
                request.fail(failure)
            else:
                [jobs] = _results([operation], answer)
                request.waits_for_jobs = False
                self._settle_claim(request, jobs)
            self._claiming.pop(request, None)
        except LinkError as error:
            if self.only:
                request.last_error = error
                if isinstance(error, LinkRefusedError):
                    request.fail(error.error)
            if error.sent:
                request.operations = (replace(operation, again=True),)
                request.open_writes = 1  # until this process or another broker has looked for claims of this call
                if not request.awaited:
                    self._claiming.pop(request, None)
                    self._lost_calls.add(call)
            request.in_flight = False
            self._drop(link, error)
        finally:
            self._parked.pop(request, None)
            self._close_unused(link)
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

    def _caller_left(self, request: Request) -> None:
        """End the wait of a dequeue whose caller has gone."""
        call = self._claiming.get(request)
        if call is not None and request in self._parked:
            self._stop(self._parked[request][1], call)

    def _stop(self, link: Link, call: str) -> None:
        async def stop() -> None:
            try:
                await link.exchange(encode(Stop(client=self.client, call=call)))
            except LinkError as error:
                self._drop(link, error)

        task = asyncio.get_running_loop().create_task(stop(), name="jqueue-stop")
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    def _note_lost(self) -> None:
        """Find the dequeues whose callers have gone before it was known what they claimed."""
        for request, call in [*self._claiming.items()]:
            if request not in self._parked and not request.awaited:
                del self._claiming[request]
                if request.open_writes and request.verdict is not Verdict.LANDED:
                    self._lost_calls.add(call)

    def _hand_back_here(self, callers: Callers) -> Request:
        """Return the call that hands back what was claimed for calls whose answers were lost."""
        calls = tuple(sorted(self._lost_calls))
        return OwnCall(HandBackCalls(calls), callers, lambda: self._lost_calls.difference_update(calls))

    def _attend(self, callers: Callers) -> Request:
        """Return the call that shows the workers of this process in the queue."""
        workers = self._engine.workers
        records = workers.records(self._engine.now().timestamp())
        return OwnCall(Attend(dict(records)), callers, lambda: workers.landed(records, self._clock.monotonic()))

    def _read(self, link: Link, data: bytes) -> Answer:
        try:
            answer = decode_answer(data)
        except msgspec.DecodeError as error:
            raise LinkError(f"the broker's answer cannot be read: {type(error).__name__}", sent=True) from None
        known = self._engine.queue_id
        if not self.only and known and answer.queue not in ("", known):  # at an address of another machine
            raise LinkError("the broker serves another queue", sent=False)
        if (answer.leaving or answer.moved) and link is self._link and not (self._moved or self.only):
            self._sent_on(answer)
        self._pause = FIRST_PAUSE
        if answer.queue:
            self._version = max(self._version, answer.version)
            if not self._engine.queue_id:
                self._engine.queue_id, self._engine.existed = answer.queue, True
        return answer

    def _sent_on(self, answer: Answer) -> None:
        """Note that the broker sends this client on. If that happens too often, nothing is followed for a while."""
        now = self._clock.monotonic()
        self._moves = [at for at in self._moves if at > now - MOVES_WITHIN] + [now]
        self._moved = len(self._moves) <= MOST_MOVES
        if answer.leaving and not self._moved:
            self._alone_until = now + MOVES_WITHIN

    async def _linked(self) -> Link | None:
        """Return the connection to the broker, perhaps a new one.

        A broker that has failed is asked again later and later; one that has the seat now, and had not then, at once.
        """
        engine, now = self._engine, self._clock.monotonic()
        try:
            if self._moved:
                self._moved = False
                await self._follow()
            if self._link is not None and not self._link.closed:
                return self._link
            if now < self._alone_until or (now < self._next_dial and engine.draft.header.broker == self._seat):
                return None
            self._link = await self._dial()
        except (StorageError, *TRANSIENT):  # a commit of this process gets the error, too
            pass
        self._seat = engine.draft.header.broker
        if self._link is None:
            self._next_dial = self._clock.monotonic() + FIRST_PAUSE
        return self._link

    async def _follow(self) -> None:
        """Let go of the connection if another process has the seat. Dequeues wait on at the old one."""
        if not isinstance(self._store, SupportsDialing):
            await self._engine.refresh()
        if self._engine.draft.header.broker != self._seat and (link := self._link) is not None:
            self._link = None
            self._close_unused(link)

    def _close_unused(self, link: Link) -> None:
        if link is not self._link and all(link is not other for _, other in self._parked.values()):
            link.close()

    async def _dial(self) -> Link | None:
        if isinstance(self._store, SupportsDialing):
            return await self._store.dial()
        if not self._engine.loaded:
            await self._engine.refresh()
        seat = self._engine.draft.header.broker
        return None if seat is None or not seat.url else await self._store(seat.url)

    def _drop(self, link: Link, error: LinkError) -> None:
        """End a connection that failed. A broker that fails again and again is asked less and less."""
        if self._link is link:
            self._link = None
            refused = LONGEST_PAUSE if isinstance(error, LinkRefusedError) else 0.0
            self._next_dial = self._clock.monotonic() + max(self._pause, error.pause, refused)
            if refused and not self.only and self._warned != str(error):
                self._warned = str(error)
                logger.warning("this process commits its calls itself: %s", error)
            self._pause = min(LONGEST_PAUSE, 2 * self._pause)
        link.close()

    def stop_waiting(self) -> None:
        """Have the broker answer every dequeue that waits."""
        for request in self._parked:
            self._caller_left(request)

    async def answered_all(self, seconds: float) -> None:
        """Wait until no dequeue is at the broker: jobs that it claims for a caller that has left must go back."""
        tasks = [*(task for task, _ in self._parked.values()), *self._stops]
        if tasks:
            await asyncio.wait(tasks, timeout=max(0.0, seconds))

    def close(self) -> None:
        """End the connection."""
        if self._link is not None:
            self._link.close()
            self._link = None


def _left(request: Request, now: float) -> float:
    """Return the seconds that are left for a call. What this process does for itself has no deadline."""
    return max(0.0, min(LONGEST, request.until - now))


def _travels(operation: Operation) -> bool:
    """Return True if a broker can commit an operation for this process. A fence is about the writes of this one."""
    return isinstance(operation, TRAVELLING) and operation.large is None and not isinstance(operation, Fence)


def _looks(operations: Sequence[Operation]) -> bool:
    """Return True if a call only looks: a wait for a result is asked again and again, where there is no store."""
    return all(isinstance(operation, lookups.TRAVELLING) for operation in operations)


def _size_of(operation: Operation) -> int:
    """Return about how many bytes an operation takes in a message."""
    if isinstance(operation, AllOrNothing):
        return sum(map(_size_of, operation.operations))
    payload = getattr(operation, "payload", None) or b""
    return len(payload) * 4 // 3 + getattr(operation, "result_bytes", 0)


def _results(operations: Sequence[Operation], answer: Answer) -> list[Any]:
    """Return the results of a broker's answer.

    Raises:
        LinkError: it is no answer to these operations.
    """
    try:
        return [decode_result(*pair) for pair in zip(operations, answer.results, strict=True)]
    except (ValueError, msgspec.MsgspecError) as error:
        raise LinkError(f"the broker's answer cannot be read: {type(error).__name__}", sent=True) from None
