"""The streaming source: jobs of a queue as the micro-batches of a streaming query.

    spark.readStream.format("jqueue").option("maxJobsPerTrigger", 10_000).load("s3://bucket/queue.json")

Spark keeps one `ClaimReader` while the query runs, in a process of its own beside the driver. It claims a batch of
jobs, keeps the claims alive from a thread in the background while the batch runs, and acks them in the very commit that
claims the next batch: by then Spark has noted that the batch is done. It cannot ack sooner: Spark does not tell when
the last batch has ended, and may not tell that the query has.

Every job reaches the query at least once. A batch that is repeated after a restart has the same number, and no new
jobs. So a sink that skips the batches that it has finished sees every job once, if the restart comes within
`claimTimeout`. Later, other workers may have the jobs.

A query draws an id when it first starts, and its first batch is empty: its end, written into the checkpoint, holds the
id. All claims are made under it, so that none is left behind if the driver dies between a claim and its own log.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.connect import connect
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import InvalidURLError, JQueueError
from jqueue.domain.limits import Limits
from jqueue.domain.segments import RANGES_KEPT
from jqueue.ports.storage import SupportsScratch, describe
from jqueue.spark.errors import shows_one_line
from jqueue.spark.rows import check_schema
from jqueue.spark.snapshot.reader import SnapshotPartition, cut, read_pieces
from jqueue.spark.staging import Staging, absolute
from jqueue.spark.stream.offsets import Offset, holder_of
from jqueue.spark.stream.query_claims import SIZES, BatchSizes, ClaimsOfQuery, one_line
from jqueue.spark.stream.row_outcomes import DEADLINE as OUTCOMES_DEADLINE
from jqueue.spark.stream.shipping import ShippedRows, rows_of_claim, shipped, split_between
from jqueue.spark.stream.source_options import MOST_JOBS, MOST_SINGLES, SourceOptions
from jqueue.spark.stream.unread_rows import UnreadNotes
from jqueue.sync.background import CallEnded, background
from jqueue.sync.open_queue import OpenQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pyarrow import RecordBatch

Answer = TypeVar("Answer")

DEADLINE = 60.0
"""Seconds that one call of the queue may take: it may read the indexes of many segments."""


def open_queue(options: SourceOptions) -> DirectQueue:
    """Return a queue object for one query. It takes a call that ends a batch and claims another.

    Raises:
        InvalidURLError: the URL is wrong.
    """
    limits = Limits(batch_size=2 * (MOST_SINGLES + RANGES_KEPT) + 2)
    queue = connect(options.url, DirectQueue, limits=limits, stale_timeout=options.claim_timeout, deadline=DEADLINE)
    if isinstance(queue.storage, InMemoryStorage):
        raise InvalidURLError(
            "an in-memory queue is visible only to its own process: give the URL of a file or a store"
        )
    return queue


@shows_one_line
class ClaimReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streaming source, as Spark calls it: one call at a time.

    It is also pickled into the tasks, which only unpack the rows that come with their partition.

    Args:
        options: as given to `readStream`. The first call that needs them raises if they are wrong, as Spark does not
            pass on errors that are raised here.
        schema: of the rows.
        opened: makes the queue.
        sizes: largest sizes of a batch.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        schema: StructType,
        *,
        opened: Callable[[SourceOptions], DirectQueue] = open_queue,
        sizes: BatchSizes = SIZES,
    ) -> None:
        self._given = dict(options)
        self._schema = schema
        self._opened = opened
        self._sizes = sizes
        self._new_source: str | None = None
        self._unlogged = False  # True until Spark has noted the new id
        self._planned: tuple[Offset | None, list[InputPartition]] = None, []
        self._stopped = False

    def __reduce__(self) -> tuple[Any, ...]:
        return ClaimReader, (self._given, self._schema)

    # Methods that Spark calls, in the order of its calls

    def prepareForTriggerAvailableNow(self) -> None:
        """Take the jobs that are in the queue now, and no later ones."""
        self._call_queue(self._claims.freeze)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the largest number of jobs in a batch."""
        return ReadMaxRows(self._options.most_jobs)

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query. Spark asks twice, and gets the same answer."""
        if self._new_source is None:
            self._new_source = self._claims.new_id()
            self._unlogged = True
        return Offset(self._new_source, 0, "").as_dict()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Finish the batch that ends at `start`, claim the next, and return its end.

        Spark calls it again and again, about 80 times a second while there is nothing to do.
        """
        since = Offset.read(start)
        if since.source == self._new_source and self._unlogged:
            self._unlogged = False
            self._claims.begin(since.source)
            if not isinstance(limit, ReadAllAvailable):  # with that limit, Spark asks only once
                return start
        if not self._claims.is_due:
            return start
        end = self._call_queue(lambda: self._claims.after(since, self._max_jobs(limit)))
        return start if end == since else end.as_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the backlog, which Spark shows as `latestOffset` in the progress of the query.

        Spark asks after each `latestOffset`, and uses it for nothing else. It costs no request.
        """
        return self._claims.progress()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the jobs between two offsets, as rows. Each action on a batch asks, and must get the same."""
        until = Offset.read(end)
        if start == end or not until.claim:
            return []
        if self._planned[0] != until:
            self._planned = until, self._partitions_of(until)
        return list(self._planned[1])

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Return the rows of one partition, in a task."""
        if isinstance(partition, ShippedRows):
            return partition.batches()
        assert isinstance(partition, SnapshotPartition)
        return read_pieces(partition.value, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark does not call it for the last batch, so batches are acked with the next claim instead."""

    def stop(self) -> None:
        """Send no more heartbeats. Spark does not always call it; the claims stay either way."""
        open_queue = self.__dict__.get("_open_queue")
        if open_queue is not None and not self._stopped:
            self._stopped = True
            with suppress(CallEnded):  # the process is ending, which has the same effect
                open_queue.run(lambda _: self._claims.stop())
            open_queue.close(None)

    # Helpers of these methods

    @cached_property
    def _options(self) -> SourceOptions:
        check_schema(self._schema, fleet=False)
        return SourceOptions.read(self._given)

    @cached_property
    def _open_queue(self) -> OpenQueue:
        return OpenQueue(background(), self._opened(self._options))

    @cached_property
    def _claims(self) -> ClaimsOfQuery:
        return ClaimsOfQuery(self._queue, self._options, self._sizes)

    @property
    def _queue(self) -> DirectQueue:
        queue = self._open_queue.queue
        assert isinstance(queue, DirectQueue)
        return queue

    def _partitions_of(self, until: Offset) -> list[InputPartition]:
        """Return the jobs of a batch as partitions: single jobs with their rows, and ranges to be read by tasks."""
        held = self._call_queue(lambda: self._claims.batch_of(until))
        in_ranges = held.number - len(held.jobs)
        single, several = split_between(self._options.partitions, len(held.jobs), in_ranges)
        found: list[InputPartition] = [*shipped(held.jobs, self._schema, single)] if held.jobs else []
        if held.ranges:
            name, url = describe(self._queue.storage), absolute(self._options.url)
            notes = self._notes_of(until, url)
            pieces = [rows_of_claim(name, url, claim, notes) for claim in held.ranges]
            found += [SnapshotPartition(part) for part in cut(pieces, several)]
        return found

    def _notes_of(self, until: Offset, url: str) -> UnreadNotes | None:
        """Return the place for notes of rows that tasks cannot read; None if the store cannot hold them."""
        if not isinstance(self._queue.storage, SupportsScratch):
            return None
        return UnreadNotes(url, holder_of(until.source, until.claim), Staging(url, OUTCOMES_DEADLINE))

    def _call_queue(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Run a coroutine in the thread in the background.

        Raises:
            JQueueError: it failed. The message is one line.
        """
        try:
            with _no_collections():
                answer: Answer = self._open_queue.run(lambda _: work())
        except JQueueError as error:
            failure = error
        else:
            return answer
        raise JQueueError(f"the queue of the streaming query failed: {one_line(failure)}") from None

    def _max_jobs(self, limit: ReadLimit) -> int:
        if isinstance(limit, ReadAllAvailable):
            return MOST_JOBS
        return min(MOST_JOBS, limit.max_rows) if isinstance(limit, ReadMaxRows) else self._options.most_jobs


@contextmanager
def _no_collections() -> Iterator[None]:
    """Pause Python's garbage collection, which would scan ten thousand new jobs again and again.

    The process is Spark's, for this one source, and waits for the result.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
