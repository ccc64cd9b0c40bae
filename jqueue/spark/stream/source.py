"""The streaming source: jobs of a queue as the micro-batches of a streaming query.

    spark.readStream.format("jqueue").option("max_jobs_per_trigger", 10_000).load("s3://bucket/queue.json")

Spark keeps one `ClaimReader` while the query runs, in a process of its own beside the driver. It claims a batch of
jobs, keeps the claims alive from a thread in the background while the batch runs, and acks them in the very commit that
claims the next batch: by then Spark has noted that the batch is done. It cannot ack sooner: Spark does not tell when
the last batch has ended, and may not tell that the query has.

Every job reaches the query at least once. A batch that is repeated after a restart has the same number, and no new
jobs. So a sink that skips the batches that it has finished sees every job once, if the restart comes within
`claim_timeout`. Later, other workers may have the jobs.

A query draws an id when it first starts, and its first batch is empty: its end, written into the checkpoint, holds the
id. All claims are made under it, so that none is left behind if the driver dies between a claim and its own log.

Single jobs are read once, by the claim, and their lines travel with the partitions. Two reads would see two versions of
a queue, so that jobs would be missing, or appear twice. The rows of a lease never change, so each task reads its own. A
task that cannot read its rows notes the segment in the object of the outcomes of the batch, and leaves them out. If it
cannot write its note, it fails, so that no row is done which no task has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import asdict, replace
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from jqueue.connect import connect
from jqueue.core.blob.lines import encode_record
from jqueue.core.direct import DirectQueue
from jqueue.domain.durations import LONGEST
from jqueue.domain.errors import InvalidURLError, JQueueError
from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT
from jqueue.domain.models import record_of
from jqueue.domain.operations.lookups import LeasesHeldBy
from jqueue.ports.storage import describe
from jqueue.spark.claims import DEADLINE, Staged, open_queue
from jqueue.spark.errors import shows_one_line
from jqueue.spark.fleet import addresses_of, names_several
from jqueue.spark.option_parsing import INTEGER, NAMES, SECONDS, OptionType, parse_options
from jqueue.spark.rows import check_schema
from jqueue.spark.snapshot import BlobLines, Piece, SegmentRows, cut, read_pieces
from jqueue.spark.staging import Staging, absolute
from jqueue.spark.stream.query_claims import OUTCOMES_DEADLINE, ClaimsOfQuery, Offset, holder_of, name_of_outcomes
from jqueue.sync.background import CallEnded, wait_for

if TYPE_CHECKING:
    from pyarrow import RecordBatch

Answer = TypeVar("Answer")

MOST_JOBS = 1_000_000
"""Largest number of jobs in one batch, even if the query asks for more."""

MOST_PARTITIONS = 1000
SHORTEST_TIMEOUT = 1.0


def _timeout(text: str) -> float:
    seconds = float(text)
    if not SHORTEST_TIMEOUT <= seconds <= LONGEST:
        raise ValueError("too short, or not a duration")
    return seconds


OPTIONS: dict[str, tuple[OptionType, Any]] = {
    "entrypoint": (NAMES, None),
    "max_jobs_per_trigger": (INTEGER(1, MOST_JOBS), 10_000),
    "poll_interval": (SECONDS, 1.0),
    "claim_timeout": (
        OptionType(f"a number of seconds, {SHORTEST_TIMEOUT:g} or more", _timeout),
        DEFAULT_CLAIM_TIMEOUT.total_seconds(),
    ),
    "num_partitions": (INTEGER(1, MOST_PARTITIONS), None),
    "deadline": (SECONDS, DEADLINE),
}
"""The options besides the path: their values, and their defaults."""


@dataclass(frozen=True)
class UnreadNotes:
    """Notes the segments that tasks of one batch cannot read. It may be pickled.

    Attributes:
        holder: the holder of the claims of the batch.
        claim: the claim of the batch, which names the object.
        staging: the place of the object.
    """

    holder: str
    claim: str
    staging: Staging = field(repr=False)

    def note(self, segment: str) -> bool:
        """Note a segment. Return False if this process sees another queue than the source does.

        A file on the disk of another machine has neither the segment nor the claim. A note there would not be read.

        Raises:
            JQueueError: the notes are damaged, or the store failed.
        """
        seen: list[bool] = []

        def add(content: bytes | None) -> bytes:
            staged = Staged.decode(content)
            return replace(staged, unread={**staged.unread, segment: "a task could not read it"}).encode()

        async def write() -> None:
            async with connect(self.staging.url, DirectQueue, deadline=self.staging.deadline) as queue:
                [claims] = await queue.apply(LeasesHeldBy(self.holder))
            seen.append(any(claim.segment == segment for claim in claims))
            if seen[0]:
                async with self.staging.opened() as objects:
                    await objects.update(name_of_outcomes(self.claim), add)

        asyncio.run(write())
        return seen[0]


@shows_one_line
class ClaimReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streaming source, as Spark calls it: one call at a time.

    It is also pickled into the tasks, which make rows of the lines that come with their partition, and read leases.

    Args:
        options: as given to `readStream`. The first call that needs them raises if they are wrong, as Spark does not
            pass on errors that are raised here.
        schema: of the rows.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._schema = schema
        self._new_source: str | None = None
        self._unlogged = False  # True until Spark has noted the new id
        self._planned: tuple[Offset | None, list[InputPartition]] = None, []

    def __reduce__(self) -> tuple[Any, ...]:
        return ClaimReader, (self._given, self._schema)

    # Methods that Spark calls, in the order of its calls

    def prepareForTriggerAvailableNow(self) -> None:
        """Take the jobs that are in the queue now, and no later ones."""
        self._call_queue(self._claims.freeze)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the largest number of jobs in a batch."""
        return ReadMaxRows(self._options["max_jobs_per_trigger"])

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query. Spark asks twice, and gets the same answer."""
        if self._new_source is None:
            self._new_source = self._claims.new_id()
            self._unlogged = True
        return asdict(Offset(self._new_source, 0, ""))

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
        return start if end == since else asdict(end)

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
        return read_pieces(partition.value, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark does not call it for the last batch, so batches are acked with the next claim instead."""

    def stop(self) -> None:
        """Send no more heartbeats. Spark does not always call it; the claims stay either way."""
        claims = self.__dict__.pop("_claims", None)
        if claims is not None:
            with suppress(CallEnded):  # the process is ending, which has the same effect
                wait_for(claims.stop)

    # Helpers of these methods

    @cached_property
    def _url(self) -> str:
        addresses = addresses_of(self._given)
        if names_several(addresses):
            raise InvalidURLError("a stream reads one queue, by its URL: for several, start a query for each")
        return absolute(addresses[0])

    @cached_property
    def _options(self) -> dict[str, Any]:
        check_schema(self._schema, fleet=False)
        parsed = parse_options(self._given, {name: kind for name, (kind, _) in OPTIONS.items()})
        return {**{name: default for name, (_, default) in OPTIONS.items()}, **parsed}

    @cached_property
    def _claims(self) -> ClaimsOfQuery:
        options, timeout = self._options, self._options["claim_timeout"]
        queue = open_queue(self._url, timeout, options["deadline"])
        return ClaimsOfQuery(queue, options["entrypoint"], timeout, options["poll_interval"])

    def _partitions_of(self, until: Offset) -> list[InputPartition]:
        """Return the jobs of a batch as partitions: single jobs with their lines, and leases to be read by tasks."""
        held = self._call_queue(lambda: self._claims.batch_of(until))
        name, staging = describe(self._claims.queue.storage), Staging(self._url, OUTCOMES_DEADLINE)
        notes = UnreadNotes(holder_of(until.source, until.claim), until.claim, staging)
        pieces: list[Piece] = [BlobLines(name, b"\n".join(encode_record(record_of(job)) for job in held.jobs))]
        pieces += [SegmentRows.of_entry(name, self._url, claim.id, claim.entry, notes.note) for claim in held.leases]
        return [InputPartition(part) for part in cut(pieces, self._options["num_partitions"])]

    def _call_queue(self, work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Run a coroutine in the thread in the background.

        Raises:
            JQueueError: it failed. The message is one line.
        """
        try:
            return wait_for(work)
        except JQueueError as error:
            raise JQueueError(f"the queue of the streaming query failed: {error}") from None

    def _max_jobs(self, limit: ReadLimit) -> int:
        if isinstance(limit, ReadAllAvailable):
            return MOST_JOBS
        return (
            min(MOST_JOBS, limit.max_rows) if isinstance(limit, ReadMaxRows) else self._options["max_jobs_per_trigger"]
        )
