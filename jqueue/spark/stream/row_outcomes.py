"""Outcomes of single rows of a batch, on their way from the function of `foreachBatch` to the process of the source.

The function runs in the driver, and the claims are in another process. So the outcomes are staged in an object beside
the queue, named by the claim of the batch. The source reads it when Spark has noted that the batch is done, and tells
the outcomes in the commit that ends the batch: nothing is told of a batch that failed, and nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from jqueue.domain.durations import Duration
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.ends import Ack
from jqueue.domain.operations.ranges import EndRange
from jqueue.domain.segments import RangeClaim, RangeFailure
from jqueue.ports.storage import SupportsScratch
from jqueue.spark.batch.outcomes import Outcome, decode_outcomes, encode_outcomes
from jqueue.spark.staging import PREFIX, StagedObjects, Staging
from jqueue.spark.stream.unread_rows import name_of as name_of_notes
from jqueue.spark.stream.unread_rows import read_notes

DEADLINE = 30.0
"""Seconds to read or write them, repetitions included."""


class OutcomeStore:
    """Holds the outcomes of the batches of one queue.

    Args:
        storage: of the queue. Its client is shared, and not released.
    """

    def __init__(self, storage: SupportsScratch) -> None:
        self._objects = StagedObjects(Staging("", DEADLINE), storage)

    @classmethod
    def of(cls, storage: object) -> OutcomeStore | None:
        """Return the outcomes of the queue on a storage; None if the storage cannot hold them."""
        return cls(storage) if isinstance(storage, SupportsScratch) else None

    async def write(self, claim: str, outcomes: Sequence[Outcome]) -> None:
        """Stage the outcomes of a batch, in place of others.

        Raises:
            StorageError: the store failed.
        """
        await self._objects.replace(_name_of(claim), encode_outcomes(outcomes))

    async def read(self, claim: str) -> Sequence[Outcome] | None:
        """Return the outcomes of a batch that were told; None if nothing was told.

        Raises:
            InvalidBlobError: they are damaged.
            StorageError: the store failed.
        """
        [content] = await self._objects.read([_name_of(claim)])
        return None if content is None else decode_outcomes(content)

    async def unread(self, claim: str) -> Sequence[str]:
        """Return the names of the segments that tasks of a batch could not read. Errors are as for `read`."""
        return await read_notes(self._objects, claim)

    async def remove(self, claim: str) -> None:
        """Remove the outcomes of a batch and the notes of its unread segments, if there are any.

        Raises:
            StorageError: the store failed.
        """
        await self._objects.remove(_name_of(claim))
        await self._objects.remove(name_of_notes(claim))


def _name_of(claim: str) -> str:
    return f"{PREFIX}stream-{claim}"


def end_of_job(job: Job, outcome: Outcome | None) -> Operation:
    """Return the operation that ends the claim on a single job. Without an outcome, it is done."""
    return Ack(job) if outcome is None else replace(outcome, attempt=job.attempt).operation()


def end_of_range(claim: RangeClaim, told: Iterable[Outcome]) -> EndRange:
    """Return the operation that ends a range, with the outcomes that were told. All other jobs are done."""
    failed: dict[str, RangeFailure | BaseException | str | None] = {}
    results: dict[str, tuple[Any, Duration]] = {}
    for outcome in told:
        if outcome.kind != "done":
            failed[outcome.job_id] = outcome.failure
        elif outcome.keep_result is not None:
            results[outcome.job_id] = outcome.result, outcome.keep_result
    return EndRange(claim, failed, results=results)
