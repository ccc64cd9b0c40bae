"""The commit of a bulk enqueue whose tasks have staged segments: it names them in the manifest, and copies nothing.

A few jobs enter the blob instead, where they belong. More segments than the manifest has room for are written again as
larger ones first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter

from jqueue.core.blob.segment_staging import StagedTask
from jqueue.core.blob.segments import Segments
from jqueue.core.calls.segment_commit import CONFLICTS_LATE, SegmentCommit
from jqueue.core.engine import Engine
from jqueue.core.values import ValueObjects
from jqueue.domain.errors import DeadlineExceededError, JQueueError, StorageError
from jqueue.domain.header import Header
from jqueue.domain.job_options import OnConflict
from jqueue.domain.operations import (
    BulkAdded,
    BulkConflicts,
    Enqueue,
    EnqueueSegments,
    NewSegment,
    Preparation,
    StagedReceipt,
    Transaction,
)
from jqueue.domain.operations.enqueue import stored_bytes
from jqueue.domain.printable import counted
from jqueue.domain.segments import FOLDER, SEGMENTS_KEPT, STAGED_NAMED_WITHIN, staged_name
from jqueue.domain.size_limit import enqueue_limit
from jqueue.ports.log import logger_of

logger = logger_of("jqueue")

KEPT_FREE = SEGMENTS_KEPT // 8
"""Number of entries of the manifest that a bulk enqueue leaves free, if it can."""


class SegmentsGoneError(StorageError):
    """Staged segments do not exist."""


class StagedCommit(SegmentCommit):
    """The commit of segments that tasks have staged.

    Args:
        engine: will commit it.
        segments: the segments of the engine.
        objects: repeats requests that fail.
        preparation: has the limits of the queue.
        seconds: time within which the store must answer each request.
        staged: the segments, by task.
        transaction: the identity of the write.
        on_conflict: see `Enqueue`.

    Attributes:
        jobs: number of jobs.
    """

    def __init__(
        self,
        engine: Engine,
        segments: Segments,
        objects: ValueObjects,
        preparation: Preparation,
        seconds: float,
        staged: Sequence[StagedTask],
        transaction: Transaction,
        on_conflict: OnConflict,
    ) -> None:
        super().__init__(engine, segments, objects, preparation, seconds, on_conflict)
        self.jobs = sum(task.jobs for task in staged)
        self.named_within = STAGED_NAMED_WITHIN
        self._staged = staged
        self._transaction = transaction
        self._there: set[str] = set()

    async def operation(self) -> EnqueueSegments:
        """Return the operation that adds all jobs.

        Raises:
            SegmentsGoneError: staged segments do not exist.
            StorageError: the store failed.
            InvalidJobError: too many unique keys are taken.
        """
        new, now = self._numbered(), self._engine.now()
        await self._check_presence(new)
        begun = min((each.created_at or now for each in new), default=now)
        before = min(now + self._objects.named_within, begun + self.named_within)
        one_by_one = await self._few_jobs(new)
        if one_by_one:
            new = []
        elif len(new) > SEGMENTS_KEPT - KEPT_FREE - len(self._engine.draft.header.segments):
            new = await self._joined(new)
        new = [replace(each, index=await self._index_of(each)) if each.segment.keys else each for each in new]
        features = frozenset().union(*(task.features for task in self._staged))
        operation = EnqueueSegments(self.jobs, min(begun, now), new, one_by_one, before, features, self._transaction)
        return await self.ready(operation)

    def outcome(self, results: Sequence[BulkAdded | BulkConflicts | StagedReceipt]) -> StagedReceipt:
        """Return the receipt of a commit whose outcome was unknown for a while.

        Raises:
            DeadlineExceededError: nothing was added.
        """
        [found] = results
        if isinstance(found, BulkConflicts):
            raise DeadlineExceededError(CONFLICTS_LATE)
        return self.receipt(found)

    def receipt(self, outcome: BulkAdded | StagedReceipt) -> StagedReceipt:
        """Return the receipt of a commit that added the jobs, or had nothing to add."""
        if isinstance(outcome, StagedReceipt):
            return outcome
        return StagedReceipt(self.jobs - outcome.existing, outcome.existing, version=outcome.version)

    async def _few_jobs(self, new: Sequence[NewSegment]) -> list[tuple[int, Enqueue]]:
        """Return all jobs, with their numbers, if they are few and the blob has room; otherwise none."""
        if self.jobs > self._sizes.few_staged or sum(each.segment.index for each in new) > (self._sizes.hot_bytes or 0):
            return []
        jobs = [(job, each.behind) for each in new async for _, job in self._jobs_of(each)]
        most = self._preparation.limits.enqueue_bytes
        room = enqueue_limit(self._engine.draft, most) - self._engine.draft.taken_bytes
        if sum(stored_bytes(job) for job, _ in jobs) > room:
            return []
        found = [self._single(job, False, behind) for job, behind in jobs]
        return sorted(found, key=itemgetter(0))  # the first row of a write gets a unique key

    def _numbered(self) -> list[NewSegment]:
        """Return the segments, with the number of jobs of the tasks before each."""
        new, behind = [], 0
        for task in self._staged:
            new += [replace(each, behind=behind) for each in task.segments]
            behind += task.jobs
        return new

    async def _check_presence(self, new: Sequence[NewSegment]) -> None:
        """Check that all segments exist: a commit that names a missing one would lose its jobs."""
        prefix = FOLDER + staged_name(self._transaction.app_id, self._transaction.version, "")
        listed = await self._objects.retried(
            lambda: self._objects.storage.list_beside(prefix), self.seconds_left, reads=True
        )
        there = {entry.suffix: entry.size for entry in listed}
        self._there = set(there)
        gone = [each for each in new if there.get(FOLDER + each.name) != each.segment.bytes]
        if gone:
            raise SegmentsGoneError(
                f"{len(gone)} of {counted(len(new), 'staged segment')} are gone: they were removed, or tasks ran on "
                "machines that do not share the store (a file is on one machine)"
            )

    async def remove_others(self, operation: EnqueueSegments) -> None:
        """Remove the segments of the transaction that its commit did not need: of repeated tasks, or copied ones.

        Nothing will ever name them, as the transaction is done. If they cannot be removed, they go by age.
        """
        await self._remove(self._there - {FOLDER + each.name for each in operation.segments})

    async def remove_own(self, header: Header) -> None:
        """Remove these segments, unless the queue names them: their transaction was done before.

        Args:
            header: of a version that was read after that. The draft of the engine may be older, or empty.
        """
        record = header.transactions.get(self._transaction.app_id)
        if record is None or record.version < self._transaction.version:
            return
        own = {each.name for task in self._staged for each in task.segments}
        await self._remove({FOLDER + name for name in own - header.segments.keys() - header.retired.keys()})

    async def _remove(self, suffixes: set[str]) -> None:
        try:
            async with asyncio.timeout(self.seconds_left):
                await self._objects.remove(sorted(suffixes))
        except (JQueueError, OSError, TimeoutError) as error:
            logger.warning("staged segments that are no longer needed are removed later: %s", error)
