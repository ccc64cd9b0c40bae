"""The base of every queue: its calls, its deadlines, and what it hands out."""

from __future__ import annotations

import asyncio
import os
import weakref
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic_core import from_json

from jqueue.core.access import Access
from jqueue.core.bulk import BulkEnqueue, StagedCommit
from jqueue.core.claims import HeldClaim
from jqueue.core.requests import Request
from jqueue.core.session import Session
from jqueue.core.values import ClaimedPayloads, ValueObjects, handed_out, with_given_payloads
from jqueue.core.view import QueueView
from jqueue.core.workers import Describe
from jqueue.core.writer import Writer
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import (
    DeadlineExceededError,
    InvalidJobError,
    JQueueError,
    NotLoadedError,
    QueueClosedError,
    QueueMissingError,
    UnknownOutcomeError,
)
from jqueue.domain.job import StoredObject
from jqueue.domain.models import for_callers
from jqueue.domain.operations.base import JobReference, Operation, Preparation
from jqueue.domain.operations.bulk import BulkConflicts, EnqueueSegments
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.operator import EmptyCommit
from jqueue.ports.queue import Capabilities, SupportsApply, SupportsWorkers
from jqueue.ports.storage import storage_of
from jqueue.runtime.queue_options import QueueOptions
from jqueue.runtime.system import process_id, process_name

Made = TypeVar("Made")
Constructor = TypeVar("Constructor", bound=Callable[..., None])


def place_of(queue: object) -> tuple[Any, ...]:
    """Return the place of a queue, as far as it is known without access to the store.

    Args:
        queue: a queue, a storage, or a store of jobs.
    """
    store: Any = storage_of(queue) or queue
    path = getattr(store, "path", None)
    if isinstance(path, str | os.PathLike):
        return "path", os.path.realpath(os.fspath(path))
    url, endpoint = getattr(store, "url", None), getattr(store, "endpoint_url", None)
    if isinstance(url, str):
        return "url", url, endpoint
    return "object", id(store)


def is_same_place(one: object, other: object) -> bool:
    """True if two queue objects refer to the same queue. Links and other names of the same file are recognised."""
    ours, theirs = place_of(one), place_of(other)
    if ours == theirs:
        return True
    if ours[0] != "path" or theirs[0] != "path":
        return False
    try:
        return os.path.samefile(ours[1], theirs[1])
    except OSError:
        return False


A_MOMENT = 0.01
"""Seconds by which a timer may fire early."""

DEQUEUES_KEPT = 256
"""Number of prepared dequeues that a queue caches."""

Prepared = TypeVar("Prepared", bound=Operation)

Convert = Callable[[list[Any]], Any]


def first_of(results: list[Any]) -> Any:
    """Return the result of a call that has one operation."""
    return for_callers(results[0])


def all_of(results: list[Any]) -> list[Any]:
    """Return the results of a call."""
    return [for_callers(result) for result in results]


def nothing(results: list[Any]) -> None:
    """Return None, for a call without a result."""
    return None


def errors_of(results: list[Any]) -> list[Exception]:
    """Return the errors of a call whose operations may fail one by one."""
    return [result for result in results if isinstance(result, Exception)]


def _check_operations(verb: str, operations: Sequence[object]) -> None:
    for operation in operations:
        if not isinstance(operation, Operation):
            raise InvalidJobError(f"{verb} takes operations such as Ack(job), got {type(operation).__name__}")


def _in_place(entries: Sequence[Operation | JQueueError], results: Iterable[Any]) -> list[Any]:
    """Return the results of the operations among entries, with the errors among them in their places."""
    rest = iter(results)
    return [next(rest) if isinstance(entry, Operation) else entry for entry in entries]


class QueueBase(SupportsApply):
    """Turns prepared operations into results, and remembers the claims in them.

    Args:
        options: settings of the queue.
        objects: stores and loads large payloads and results; None if the queue keeps none.
    """

    def __init__(self, options: QueueOptions, objects: ValueObjects | None = None) -> None:
        self.options = options
        self._objects = objects
        self._deadline = to_seconds("deadline", options.deadline)
        own: Self = weakref.proxy(self)  # a queue object that is dropped is freed at once, and ends its connection
        self._session = self._new_session(lambda: own._here(), None)
        self._enter = self._session.enter
        self._claims = self._session.claims
        self._preparation = Preparation(
            limits=options.limits,
            claim_timeout=to_seconds("stale_timeout", options.stale_timeout),
            new_id=options.entropy.new_id,
            find_claim=self._claims.find,
            holder=lambda: own._holder(),
            object_bytes=None if objects is None else options.limits.object_bytes,
        )
        self._dequeues_kept = lru_cache(DEQUEUES_KEPT, typed=True)(
            lambda *key, **options: own._new_dequeue(*key, **options)
        )

    @abstractmethod
    def _new_session(self, here: Callable[[], Session], before: Any) -> Session:
        """Make a session.

        Args:
            here: see `_here`.
            before: the session of this kind that it replaces; None for the first one.
        """

    def _here(self) -> Session:
        """Return the session of this process and event loop. After a fork, or on another loop, it is a new one.

        Raises:
            JQueueError: the loop of the present session runs in another thread.
        """
        if not self._session.is_here():
            self._session = self._new_session(self._session.here, self._session)
            self._enter = self._session.enter
            self._session.is_here()  # from now on
        return self._session

    @property
    def _bulk_threshold(self) -> int | None:
        """Number of jobs above which those of a call are written to segments. None: they never are."""
        return None

    @abstractmethod
    def _now(self) -> datetime:
        """Return the time by the store's clock if it has one, or else by the own clock."""

    @abstractmethod
    async def _view(self, seconds: float, last_view: QueueView | None = None) -> QueueView:
        """Return the queue as it is now, or a known view if nothing has changed since."""

    @abstractmethod
    async def _require_queue(self) -> None:
        """Check, after a call that found nothing, that there is a queue.

        Raises:
            QueueMissingError: there is none.
        """

    @abstractmethod
    def _missing(self) -> QueueMissingError:
        """Return the error that names the store which holds no queue."""

    async def _submit(
        self,
        operations: Sequence[Operation],
        deadline: Duration | None,
        *,
        atomic: bool = True,
        wait: Duration | None = None,
        convert: Convert = all_of,
    ) -> list[Any]:
        """Commit prepared operations of any kind in one commit, and return their results. See `Session.enter`."""
        results: list[Any] = await self._enter(operations, deadline, atomic=atomic, wait=wait, convert=convert)
        return results

    async def _with_payloads(self, request: Request, results: list[Any]) -> list[Any]:
        """Return the results of a request, with the payloads of the jobs that it claimed."""
        return results

    async def _seen(self, seconds: float) -> QueueView:
        """Return the queue as it is now.

        Raises:
            QueueMissingError: there is none.
        """
        view = await self._view(seconds)
        if view.absent:
            raise self._missing()
        return view

    async def apply(self, *operations: Operation, deadline: Duration | None = None) -> list[Any]:
        self.capabilities.require("transactions")
        _check_operations("apply", operations)
        if not operations:
            return []
        prepared = [self._prepared(operation) for operation in operations]
        self._check_size(len(prepared), *(len(operation.job_ids()) for operation in prepared))
        return all_of(await self._submit(prepared, deadline))

    async def apply_each(self, *operations: Operation, deadline: Duration | None = None) -> list[Any]:
        _check_operations("apply_each", operations)
        prepared: list[Operation | JQueueError] = []
        for operation in operations:
            try:
                prepared.append(self._prepared(operation))
            except JQueueError as error:
                prepared.append(error)
        valid = [operation for operation in prepared if isinstance(operation, Operation)]
        if not valid:
            return list(prepared)
        self._check_size(len(valid), *(len(operation.job_ids()) for operation in valid))

        def answers(results: list[Any]) -> list[Any]:
            return _in_place(prepared, all_of(results))

        return answers(await self._submit(valid, deadline, atomic=False, convert=answers))

    async def _done(self, operation: Operation, deadline: Duration | None) -> Any:
        """Prepare and commit one operation, and return its result, in which jobs are records."""
        [result] = await self._enter((self._prepared(operation),), deadline, convert=first_of)
        return result

    async def _searched(
        self, operation: Operation, seconds: float, wait: float = 0.0, late: str = "the store did not answer in time"
    ) -> Any:
        """Return the result of a prepared operation that changes nothing, and is repeated if its outcome is unknown.

        Args:
            operation: the search.
            seconds: time for the store to answer, in addition to `wait`.
            wait: seconds to wait for a result that is not empty.
            late: the error at the end of that time.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        until = end + seconds
        while True:
            now = loop.time()
            left, waiting = max(0.0, min(seconds, until - now)), max(0.0, end - now)
            try:
                [answer] = await self._submit((operation,), left, wait=waiting)
            except UnknownOutcomeError as error:
                if loop.time() >= until - A_MOMENT:
                    raise DeadlineExceededError(late, error) from None
            else:
                return answer

    async def _loaded(self, result: Any, stored: StoredObject | None, seconds: float) -> Any:
        """Return a result that is kept with a job, or in an object."""
        if stored is None or self._objects is None:
            return deepcopy(result)  # the cached state holds the same object
        closed = QueueClosedError("the queue was closed while the result was loaded")
        content = await self._session.loading.do(self._objects.read(stored, seconds), closed)
        return from_json(content, allow_inf_nan=False)

    def held_claim(self, job_id: JobReference) -> HeldClaim | None:
        """Return the record of a claim that this queue object handed out; None if there is none."""
        return self._claims.held(job_id)

    def claim_age(self, job_id: JobReference) -> float | None:
        """Seconds since the store last confirmed a claim handed out by this queue object; None for an unknown claim."""
        held = self.held_claim(job_id)
        return None if held is None else self.options.clock.monotonic() - held.confirmed

    def _prepared(self, operation: Operation) -> Operation:
        """Return an operation with its arguments checked and completed, if this queue can do it.

        The result may be of another class. A caller that needs the class of `prepared` uses
        `_checked(operation.prepared(self._preparation))`.
        """
        return self._checked(operation.prepared(self._preparation))

    def _checked(self, operation: Prepared) -> Prepared:
        """Return a prepared operation, if this queue can do it.

        Raises:
            InvalidJobError: the queue cannot do it. The message says what is missing.
        """
        return operation

    def _seconds(self, deadline: Duration | None) -> float:
        return self._deadline if deadline is None else to_seconds("deadline", deadline)

    def _dequeues(self, entrypoint: object, options: Mapping[str, object]) -> tuple[Dequeue]:
        """Return a prepared dequeue. It is cached by its arguments, as workers repeat the same dequeue.

        Args:
            entrypoint: the first field of `Dequeue`.
            options: its other fields.
        """
        try:
            return self._dequeues_kept(process_id(), entrypoint, **options)  # a child has another name as the holder
        except (TypeError, ValueError):  # a list cannot be a key, nor can some invalid arguments
            return self._new_dequeue(process_id(), entrypoint, **options)

    def _holder(self) -> str | None:
        """Return the name that claims keep: of this queue object, or of this process, which may be a fork."""
        if not self.capabilities.holders:
            return None
        return process_name() if self.options.holder is None else self.options.holder

    def _new_dequeue(self, _: int, entrypoint: Any, **options: Any) -> tuple[Dequeue]:
        return (self._checked(Dequeue(entrypoint, **options).prepared(self._preparation)),)

    async def _each(self, operations: Sequence[Operation], deadline: Duration | None) -> list[Exception]:
        if not operations:
            return []
        self._check_size(len(operations))
        prepared = [self._prepared(operation) for operation in operations]
        return errors_of(await self._submit(prepared, deadline, atomic=False, convert=errors_of))

    def _check_size(self, *numbers: int) -> None:
        """Check the number of operations, or of jobs in one operation, against `Limits.batch_size`.

        Raises:
            InvalidJobError: a number is above the limit.
        """
        limit = self.options.limits.batch_size
        if max(numbers) > limit:
            raise InvalidJobError(
                f"{max(numbers)} operations or jobs in one call; the limit is {limit}. Split the call, or set "
                "Limits(batch_size=...)"
            )

    def _open(self) -> None:
        """Take calls from now on."""
        self._here().closed = None

    async def _close(self, reason: str, seconds: float) -> None:
        """Take no more calls, and finish those under way within some seconds."""
        await self._here().close(reason, seconds)


class UsableAtOnce(QueueBase):
    """A queue that can be used without opening it, and that `async with` closes."""

    async def __aenter__(self) -> Self:
        self._open()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Finish the calls under way, hand back claims that no caller took, and close the store, by the deadline."""
        closed = f"this {type(self).__name__} is closed: make a new one, or enter it again"
        await self._close(closed, self._deadline)


ALL_CAPABILITIES = Capabilities()
"""The capabilities of a queue on one object."""

WITHOUT_OBJECTS = Capabilities(objects=False, history=False, leases=False)
"""The capabilities of a queue on a storage that keeps no objects beside the queue."""

CONFLICTS_LATE = "ids or unique keys of these jobs were taken, and nothing was done: repeat the call"
"""The error of a commit that added nothing, if that was not known in time for another try."""


class BlobBase(QueueBase, SupportsWorkers):
    """The base of queues in one object, whose engine commits to it.

    Args:
        access: to the store.
        batch_limit: maximum number of calls in one commit.
    """

    _session: Writer
    _finalizer: weakref.finalize[Any, Any] | None = None

    def __init__(self, access: Access, *, batch_limit: int) -> None:
        self._access, self._batch_limit = access, batch_limit
        objects = None if access.objects is None else ValueObjects(access, access.objects)
        super().__init__(access.options, objects)
        self._claimed_payloads: ClaimedPayloads | None = None
        if objects is not None:
            own: Self = weakref.proxy(self)
            self._claimed_payloads = ClaimedPayloads(
                objects,
                access.options.limits,
                lambda claims: own._session.hand_back(claims),
                lambda nacks, left: own._each(nacks, left),
            )

    def _new_session(self, here: Callable[[], Session], before: Any) -> Writer:
        writer = Writer(self._access, self._objects, self._batch_limit, here, before)
        self._engine = writer.engine
        self._drop_at_end(writer)
        return writer

    def _open(self) -> None:
        super()._open()
        if self._finalizer is not None and not self._finalizer.alive:
            self._drop_at_end(self._session)

    def _drop_at_end(self, writer: Writer) -> None:
        """End the connections of this session when the queue object is freed.

        Until then, or until the queue is closed, the session is kept, with all that its observers refer to.
        """
        if self._finalizer is not None:
            self._finalizer.detach()
        if writer.broker_client is not None:
            self._finalizer = weakref.finalize(self, writer.drop)
            self._finalizer.atexit = False

    async def _close(self, reason: str, seconds: float) -> None:
        await super()._close(reason, seconds)
        if self._finalizer is not None:
            self._finalizer.detach()

    def attend(self, run: str, describe: Describe, stop: Callable[[], object]) -> None:
        self._here()
        self._engine.workers.attend(run, describe, stop, self.options.clock.monotonic())

    def leave(self, run: str) -> None:
        self._engine.workers.leave(run)

    async def remove_left(self, deadline: Duration) -> None:
        if self._engine.workers.left:
            await self._done(EmptyCommit(), deadline)

    def _now(self) -> datetime:
        return self._engine.now()

    async def _view(self, seconds: float, last_view: QueueView | None = None) -> QueueView:
        new_view = await self._engine.view(last_view.etag if last_view else None, seconds)
        if new_view is None:
            assert last_view is not None
            return last_view
        return replace(new_view, limits=self.options.limits)

    async def _require_queue(self) -> None:
        if not self._engine.existed:
            raise self._missing()

    def _missing(self) -> QueueMissingError:
        return QueueMissingError(self._access.storage)

    @property
    def _bulk_threshold(self) -> int | None:
        if self._objects is None or self._access.numbers.hot_bytes is None:
            return None
        most = self._access.numbers.bulk_jobs
        return self.options.limits.batch_size if most is None else most

    @property
    def capabilities(self) -> Capabilities:
        return ALL_CAPABILITIES if self._objects is not None else WITHOUT_OBJECTS

    async def _submit(
        self,
        operations: Sequence[Operation],
        deadline: Duration | None,
        *,
        atomic: bool = True,
        wait: Duration | None = None,
        convert: Convert = all_of,
    ) -> list[Any]:
        """Store the large values of the operations, and commit them."""
        objects = self._objects
        if objects is None or all(operation.large is None for operation in operations):
            request = self._enter(operations, deadline, atomic=atomic, wait=wait, convert=convert)
            return await self._with_payloads(request, await request)
        self._here().check_open()
        closed = QueueClosedError("the queue was closed while a payload or a result was stored, and nothing was done")
        storing = objects.store(operations, self._seconds(deadline))
        stored, seconds = await self._session.storing.do(storing, closed)
        self._claims.saw_objects = True
        named = [operation for operation in stored if isinstance(operation, Operation)]
        originals = [before for before, after in zip(operations, stored, strict=True) if isinstance(after, Operation)]
        errors = [error for error in stored if isinstance(error, JQueueError)]
        if errors and atomic:
            raise errors[0]
        if not named:
            return errors

        def in_place(results: list[Any]) -> list[Any]:
            return _in_place(stored, with_given_payloads(originals, named, results))

        results = await self._submit(
            named, seconds, atomic=atomic, wait=wait, convert=lambda results: convert(in_place(results))
        )
        return in_place(results)

    async def _submit_segments(
        self,
        commit: BulkEnqueue | StagedCommit,
        encoding: Coroutine[Any, Any, EnqueueSegments],
        closed: QueueClosedError,
    ) -> tuple[EnqueueSegments, Any]:
        """Commit an operation that names segments. Try again with the jobs that must be added one by one.

        Args:
            commit: prepares the operation.
            encoding: returns the operation for the first try.
            closed: the error if the queue is closed before a try.

        Returns:
            The operation that was committed, and its answer to the caller.
        """

        def answer(results: list[Any]) -> Any:
            if isinstance(results[0], BulkConflicts):
                raise DeadlineExceededError(CONFLICTS_LATE)
            return commit.answer(results[0])

        operation = await self._session.storing.do(encoding, closed)
        while True:
            [result] = await self._submit((operation,), commit.seconds_left, convert=answer)
            if not isinstance(result, BulkConflicts):
                return operation, commit.answer(result)
            self._here().check_open()
            operation = await self._session.storing.do(commit.ready(operation, result.rows), closed)

    async def _with_payloads(self, request: Request, results: list[Any]) -> list[Any]:
        """Return the results of a request, with the payloads of the jobs that it claimed.

        Raises:
            NotLoadedError: no payload could be loaded, and the call did nothing else.
        """
        payloads, operations = self._claimed_payloads, request.operations
        if payloads is None or all(job.payload_object is None for job in handed_out(operations, results)):
            return results
        self._claims.saw_objects = True
        unloaded = NotLoadedError(reason="were not loaded before the queue closed")
        try:
            loaded: list[Any] = await self._session.loading.do(
                payloads.loaded(operations, results, request.until), unloaded
            )
        except (asyncio.CancelledError, NotLoadedError):
            request.caller_cancelled()
            raise
        return loaded
