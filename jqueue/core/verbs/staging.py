"""The verb that adds jobs which tasks on many machines have staged as segments."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from jqueue.core.blob.segment_staging import StagedTask
from jqueue.core.calls.staged_commit import SegmentsGoneError, StagedCommit
from jqueue.core.queue_base import QueueBase
from jqueue.domain.durations import Duration
from jqueue.domain.errors import (
    DeadlineExceededError,
    InvalidJobError,
    JQueueError,
    ObjectMissingError,
    QueueClosedError,
    UnknownOutcomeError,
)
from jqueue.domain.job_options import OnConflict, check_conflict
from jqueue.domain.operations import Configure, LastTransaction, StagedReceipt, Transaction
from jqueue.domain.operations.transactions import checked, is_repeated
from jqueue.domain.segments import STAGED_NAMED_WITHIN

A_MOMENT = 0.01
"""Seconds by which a timer may fire early."""


class StagingVerbs(QueueBase):
    """The verb of staged segments.

    Attributes:
        staged_named_within: longest time from the creation of a staged segment to the commit that names it.
    """

    staged_named_within = STAGED_NAMED_WITHIN

    @property
    def takes_segments(self) -> bool:
        """True if the queue keeps waiting jobs in segments, so that `enqueue_staged` can name them."""
        return self._bulk_threshold is not None

    async def staging_time(self, *, deadline: Duration | None = None) -> datetime | None:
        """Read the queue, and return the time of an enqueue of jobs staged from now on; None if it keeps no segments.

        Raises:
            StorageError: the store failed.
        """
        if not self.takes_segments:
            return None
        await self._done(Configure(), deadline)
        return self._engine.now()

    async def enqueue_staged(
        self,
        staged: Sequence[StagedTask],
        transaction: Transaction,
        *,
        on_conflict: OnConflict = "return",
        deadline: Duration | None = None,
    ) -> StagedReceipt:
        """Add the jobs of staged segments, all or none, unless the transaction was done before.

        Args:
            staged: the segments, by task, in the order of the jobs. They are stored under names of the transaction.
            transaction: the identity of the write.
            on_conflict: see `Enqueue`.
            deadline: maximum time for the call.

        Raises:
            InvalidJobError: the queue keeps no segments, or too many unique keys are taken.
            QueueFullError: there is no room for the segments.
            DuplicateJobError: a unique key is taken, and `on_conflict` is "raise".
            StorageError: segments are gone, or the store failed. Nothing was added.
            UnknownOutcomeError: the jobs may have been added. Repeat the call with the same transaction.
        """
        if not self.takes_segments:
            raise InvalidJobError("this queue keeps no segments: its storage has no objects, or hot_bytes is None")
        check_conflict(on_conflict)
        identity, seconds = checked(transaction, self.options.limits), self._seconds(deadline)
        until = asyncio.get_running_loop().time() + seconds
        self._writer.check_open()
        commit = self._new_staged(staged, identity, on_conflict, seconds)
        commit.named_within, commit.until = self.staged_named_within, until
        closed = QueueClosedError("the queue was closed before staged segments were added, and nothing was done")
        if (done := await self._done_before(identity, seconds)) is not None:
            await self._tidied(self._remove_own(commit))
            return done
        self._writer.check_open()
        try:
            operation, found = await self._submit_segments(commit, commit.operation(), closed, commit.outcome)
        except (
            ObjectMissingError,
            SegmentsGoneError,
        ):  # another process may have done the same write, and removed what it did not need
            if (done := await self._done_before(identity, commit.seconds_left)) is not None:
                return done
            raise
        receipt = commit.receipt(found)
        if not receipt.repeated:
            await self._tidied(commit.remove_others(operation))
        return receipt

    async def _tidied(self, removal: Coroutine[Any, Any, None]) -> None:
        """Remove segments that are no longer needed. If the queue is closed meanwhile, they go by age."""
        closed = QueueClosedError("the queue was closed")
        with suppress(QueueClosedError):
            await self._writer.objects.load(removal, closed)

    async def _remove_own(self, commit: StagedCommit) -> None:
        """Remove the segments of a write that was done before. If the queue cannot be read, they go by age."""
        with suppress(JQueueError):
            await commit.remove_own((await self._view(commit.seconds_left)).header)

    async def _done_before(self, transaction: Transaction, seconds: float) -> StagedReceipt | None:
        """Return the receipt of a transaction that was done before; None if it was not."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            try:
                last = await self._done(LastTransaction(transaction.app_id), max(0.0, until - loop.time()))
            except UnknownOutcomeError as error:  # of a mere look, which can be repeated
                if loop.time() >= until - A_MOMENT:
                    message = "the store did not answer in time, and nothing was added"
                    raise DeadlineExceededError(message, error) from None
            else:
                return StagedReceipt(repeated=True, version=last) if is_repeated(transaction, last) else None

    def _new_staged(
        self, staged: Sequence[StagedTask], transaction: Transaction, on_conflict: OnConflict, seconds: float
    ) -> StagedCommit:
        """Return a new commit of staged segments."""
        raise NotImplementedError
