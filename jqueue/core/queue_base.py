"""What all queues have underneath: one engine, one writer, and the memory of the claims that were handed out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jqueue.core.claims import ClaimRegistry, HeldClaim
from jqueue.core.engine import CommitEngine
from jqueue.core.options import QueueOptions
from jqueue.core.writer import Writer
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import ClaimLostError, InvalidJobError, JobNotFoundError, UnknownOutcomeError
from jqueue.domain.models import Claim
from jqueue.domain.operations import Ack, Dequeue, Heartbeat, JobReference, Nack, Operation, Preparation
from jqueue.ports.storage import ObjectStoragePort, SupportsRelease


class QueueBase:
    """Turns prepared operations into results, and remembers the claims in them.

    Args:
        storage: where the queue is.
        options: its settings.
        batch_limit: the most calls in one commit.
        max_retries: after so many lost races in one call, CASConflictError; None: never.
    """

    def __init__(
        self, storage: ObjectStoragePort, options: QueueOptions, *, batch_limit: int, max_retries: int | None = None
    ) -> None:
        if not isinstance(storage, ObjectStoragePort):
            raise InvalidJobError(
                f"a queue needs a storage, got {type(storage).__name__}: for a file, LocalFileSystemStorage(path); for "
                "anything else, an object with the methods read and write"
            )
        options.check()
        self.storage = storage
        self.options = options
        self._batch_limit = batch_limit
        self._max_retries = max_retries
        self._claims = ClaimRegistry()
        self._preparation = Preparation(
            limits=options.limits,
            claim_timeout=to_seconds("stale_timeout", options.stale_timeout),
            new_id=options.entropy.new_id,
            find_claim=self._claims.find,
        )
        self._engine = CommitEngine(
            storage,
            options.clock,
            options.entropy,
            claim_timeout=self._preparation.claim_timeout,
            call_timeout=to_seconds("call_timeout", options.call_timeout),
            max_conflicts=max_retries,
        )
        self._writer = Writer(
            self._engine,
            batch_limit=batch_limit,
            max_pending=options.max_pending,
            deadline=to_seconds("deadline", options.deadline),
            longest_poll=to_seconds("poll_interval", options.poll_interval),
        )

    def held_claim(self, job_id: JobReference) -> HeldClaim | None:
        """What this queue object remembers of a claim that it handed out; None if nothing."""
        return self._claims.held(self._claims.find(job_id))

    def claim_age(self, job_id: JobReference) -> float | None:
        """Seconds since the store last confirmed a claim handed out by this queue object; None if it knows of none."""
        held = self.held_claim(job_id)
        return None if held is None else self.options.clock.monotonic() - held.confirmed

    def _seconds(self, deadline: Duration | None) -> float:
        return to_seconds("deadline", self.options.deadline if deadline is None else deadline)

    async def _one(self, operation: Operation, deadline: Duration | None) -> Any:
        [result] = await self._submit([operation.prepared(self._preparation)], deadline=deadline, convert=first_of)
        return result

    async def _each(self, operations: Sequence[Operation], deadline: Duration | None) -> list[Exception]:
        if not operations:
            return []
        prepared = [operation.prepared(self._preparation) for operation in operations]
        return errors_of(await self._submit(prepared, deadline=deadline, atomic=False, convert=errors_of))

    async def _submit(
        self,
        operations: Sequence[Operation],
        *,
        deadline: Duration | None,
        atomic: bool = True,
        wait: Duration | None = None,
        convert: Callable[[list[Any]], Any] = list,
    ) -> list[Any]:
        limit = self.options.limits.batch_size
        if max(len(operations), *(len(operation.job_ids()) for operation in operations)) > limit:
            raise InvalidJobError(
                f"more than {limit} operations or jobs in one call: split it, or raise Limits(batch_size=)"
            )
        seconds = self._seconds(deadline)
        patience = None if wait is None else to_seconds("wait", wait) or None
        try:
            results = await self._writer.submit(operations, atomic=atomic, deadline=seconds, wait=patience)
        except JobNotFoundError as error:
            self._note_lost(error)
            raise
        except UnknownOutcomeError as error:
            error.returning(convert)
            raise
        for operation, result in zip(operations, results, strict=True):
            self._note(operation, result)
        return results

    def _note(self, operation: Operation, result: Any) -> None:
        """Remember the claims handed out and ended."""
        now = self.options.clock.monotonic()
        if isinstance(result, JobNotFoundError):
            self._note_lost(result)
        elif isinstance(operation, Dequeue):
            self._claims.remember(result, now)
        elif isinstance(operation, Ack | Nack) and isinstance(operation.job, Claim):
            self._claims.end(operation.job)
        elif isinstance(operation, Heartbeat):
            lost = {error.job_id for error in result}
            for error in result:
                self._note_lost(error)
            for claim in operation.jobs:
                if isinstance(claim, Claim) and claim.job_id not in lost:
                    self._claims.confirm(claim, now)

    def _note_lost(self, error: JobNotFoundError) -> None:
        if isinstance(error, ClaimLostError) and error.attempt is not None:
            claim = Claim(error.job_id, error.attempt)
            error.ended_here = self._claims.was_ended(claim)
            self._claims.forget(claim)

    async def _release_storage(self) -> None:
        if isinstance(self.storage, SupportsRelease):
            await self.storage.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.storage, self._settings())

    def _settings(self) -> dict[str, Any]:
        return dict(vars(self.options))


def first_of(results: list[Any]) -> Any:
    """What a call of one operation returns."""
    return results[0]


def nothing(results: list[Any]) -> None:
    """What a call that returns nothing returns."""
    return None


def errors_of(results: list[Any]) -> list[Exception]:
    """What a call of many operations returns that may fail one by one."""
    return [result for result in results if isinstance(result, Exception)]


def _rebuild(kind: type[QueueBase], storage: ObjectStoragePort, settings: dict[str, Any]) -> Any:
    """Unpickle a queue: the same settings, and a writer of its own."""
    return kind(storage, **settings)
