"""A bulk enqueue under way: its jobs are encoded as they come, and stored in segments that one commit names.

Memory stays bounded: the rows of an entrypoint are written when they are many, and forgotten. A few jobs of an
entrypoint, and a few jobs with an id of their caller's or a unique key, enter the blob instead, in the same commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

from jqueue.core.blob.lines import plain_texts, read_line
from jqueue.core.blob.segment_columns import SegmentColumns
from jqueue.core.blob.segment_writer import row_of
from jqueue.core.blob.segments import Segments
from jqueue.core.calls.segment_commit import SegmentCommit
from jqueue.core.engine import Engine
from jqueue.core.values import ValueObjects
from jqueue.domain.enqueued_jobs import EnqueuedJobs, GivenJobs, bulk_id, bulk_rest
from jqueue.domain.errors import InvalidJobError, JQueueError
from jqueue.domain.header import SetAside
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.limits import check_name
from jqueue.domain.models import Job, job_of
from jqueue.domain.operations import (
    BulkAdded,
    BulkConflicts,
    Enqueue,
    EnqueueSegments,
    NewJob,
    NewSegment,
    Preparation,
)
from jqueue.domain.operations.bulk import conflict_mode
from jqueue.domain.rules import LIMITS
from jqueue.domain.segments import SEGMENTS_KEPT
from jqueue.domain.slices import LINES_PER_SLICE
from jqueue.domain.stored_object import OBJECTS

BUFFER_BYTES = 32 << 20
"""Bytes of the rows of all entrypoints above which the largest group of them is written."""

FEW = 1000
"""Number of jobs with an id of their caller's or a unique key that enter the blob, if they fit into `hot_bytes`."""

MOST_SEGMENTS = SEGMENTS_KEPT // 2
"""Number of new segments above which those of each group are joined."""

Group = tuple[str, bool, bool]
"""The entrypoint of rows; True if they are scheduled; True if the caller has chosen their ids."""


class BulkEnqueue(SegmentCommit):
    """The jobs of one bulk enqueue.

    Args:
        engine: will commit it.
        segments: the segments of the engine.
        objects: stores large payloads.
        preparation: completes the jobs.
        seconds: time within which the store must take an object.

    Attributes:
        given: the jobs so far.
    """

    def __init__(
        self, engine: Engine, segments: Segments, objects: ValueObjects, preparation: Preparation, seconds: float
    ) -> None:
        now = engine.now()
        super().__init__(engine, segments, objects, preparation, seconds)
        self.given = GivenJobs(bulk_rest(preparation.new_id()), now)
        self._preparation = replace(preparation, new_id=lambda: bulk_id(len(self.given) + 1, self.given.rest))
        self._created_at, self._since = now, now.timestamp()
        self._before = now + objects.named_within
        self._floor = engine.draft.header.attempt_floor
        self._groups: dict[Group, SegmentColumns] = {}
        self._grown: dict[Group, SegmentColumns] = {}  # groups with new rows, whose sizes are not seen yet
        self._sizes_seen: dict[Group, int] = {}
        self._buffered = 0
        self._plain: dict[str, SegmentColumns] = {}
        self._alone: list[tuple[int, NewJob]] = []
        self._alone_bytes: int | None = 0
        self._features: set[str] = set()
        self._new: list[NewSegment] = []
        self._creating: asyncio.Task[NewSegment] | None = None
        self._whole: dict[int, JobRecord] | None = {}
        self._whole_bytes = 0
        self._with_ids: set[int] = set()

    # Encoding

    async def feed(self, jobs: Sequence[Enqueue]) -> None:
        """Take more jobs.

        Raises:
            InvalidJobError: a job is wrong, or is no `Enqueue`.
            StorageError: the store failed.
        """
        for first in range(0, len(jobs), LINES_PER_SLICE):
            await self._take(jobs[first : first + LINES_PER_SLICE])
            grown, self._grown = self._grown, {}
            for group, columns in grown.items():
                self._buffered += columns.size - self._sizes_seen.get(group, 0)
                self._sizes_seen[group] = columns.size
                if len(columns) >= self._sizes.most_rows or columns.size >= self._sizes.most_bytes:
                    await self._write(group)
            while self._buffered > BUFFER_BYTES:
                await self._write(max(self._groups, key=lambda group: self._groups[group].size))
            await asyncio.sleep(0)

    async def _take(self, jobs: Sequence[Enqueue]) -> None:
        """Encode a few jobs: those without options together, and the others one by one."""
        plain, large = self._plain, self._preparation.object_bytes
        most = self._preparation.limits.most_payload(objects=large is not None)
        most = most if large is None else min(most, large)
        simple: dict[str, tuple[list[int], list[bytes]]] = {}
        names: list[str] = []  # the entrypoints of simple jobs that `given` still lacks
        others: list[tuple[int, NewJob]] = []
        for number, job in enumerate(jobs, len(self.given) + 1):
            if job.__class__ is not Enqueue:
                raise InvalidJobError(f"enqueue_many takes Enqueue(...), got {type(job).__name__}")
            payload, entrypoint = job.payload, job.entrypoint
            if (
                payload.__class__ is bytes
                and len(payload) <= most
                and job.priority.__class__ is int
                and not job.priority
                and entrypoint.__class__ is str
                and not job.has_options
            ):
                found = simple.get(entrypoint)
                if found is None:
                    if entrypoint not in plain:
                        self._begin_plain(entrypoint)
                    found = simple[entrypoint] = [], []
                found[0].append(number)
                found[1].append(payload)
                names.append(entrypoint)
            else:
                self.given.extend(names)
                names.clear()
                new = job.prepared(self._preparation)
                job_id = new.job.id if new.id_given else None
                others.append((self.given.add(new.job.entrypoint, new.job.priority, job_id), new))
        self.given.extend(names)
        for entrypoint, (numbers, payloads) in simple.items():
            self._add_plain(entrypoint, numbers, payloads)
        given = [new.large.content if new.large is not None else new.job.payload for _, new in others]
        for (number, new), payload in zip(await self._stored(others), given, strict=True):
            self._add(number, new, payload if isinstance(payload, bytes) else b"")

    def _begin_plain(self, entrypoint: str) -> None:
        check_name("entrypoint", entrypoint, self._preparation.limits)
        self._plain[entrypoint] = self._columns((entrypoint, False, False))

    def _columns(self, group: Group) -> SegmentColumns:
        if group not in self._groups:
            self._groups[group] = SegmentColumns(self._since, own_ids=not group[2], given=group[2])
        self._grown[group] = self._groups[group]
        return self._groups[group]

    def _add_plain(self, entrypoint: str, numbers: list[int], payloads: list[bytes]) -> None:
        rest = self.given.rest
        texts = plain_texts(rest, entrypoint, self._created_at)
        self._grown[entrypoint, False, False] = self._plain[entrypoint]
        self._plain[entrypoint].add_bulk(numbers, payloads, rest, texts)
        if self._whole is not None:
            self._keep(
                JobRecord(bulk_id(number, rest), entrypoint, payload, JobStatus.QUEUED, number, self._created_at)
                for number, payload in zip(numbers, payloads, strict=True)
            )

    async def _stored(self, jobs: list[tuple[int, NewJob]]) -> list[tuple[int, NewJob]]:
        """Return jobs with the objects of their large payloads, which are stored."""
        if not any(new.large is not None for _, new in jobs):
            return jobs
        stored, _ = await self._objects.store([new for _, new in jobs], self.seconds_left)
        errors = [error for error in stored if isinstance(error, JQueueError)]
        if errors:
            raise errors[0]
        return [(number, new) for (number, _), new in zip(jobs, stored, strict=True) if isinstance(new, NewJob)]

    def _add(self, number: int, new: NewJob, payload: bytes) -> None:
        """Add a job with options to its group, or to the jobs that are added one by one if its key may be taken."""
        if new.delay is not None:
            run_at = self._created_at + timedelta(seconds=new.delay)
            new = NewJob(new.job.evolve(run_at=run_at), new.id_given, None, new.on_conflict, self._enqueue_bytes)
        if self._whole is not None:
            self._keep([new.job.evolve(sequence=number, created_at=self._created_at, payload=payload)])
            if new.id_given:
                self._with_ids.add(number)
        if (new.id_given or new.job.unique_key is not None) and self._alone_bytes is not None:
            self._alone.append((number, new))
            self._alone_bytes += new.stored_bytes()
            if len(self._alone) <= FEW and self._alone_bytes <= (self._sizes.hot_bytes or 0):
                return
            several, self._alone, self._alone_bytes = self._alone, [], None  # they are many: look at hashes instead
            for pair in several:
                self._add_row(*pair)
        else:
            self._add_row(number, new)

    def _add_row(self, number: int, new: NewJob) -> None:
        job = new.job.evolve(sequence=number, created_at=self._created_at)
        if new.id_given:
            job = job.evolve(attempt=self._floor, attempts_before=self._floor)
        scheduled = job.run_at is not None and job.run_at > self._created_at
        columns = self._columns((job.entrypoint, scheduled, new.id_given))
        columns.add(row_of(job), conflict_mode(new.on_conflict))
        if job.payload_object is not None:
            self._features.add(OBJECTS)
        if job.concurrency_key is not None:
            self._features.add(LIMITS)

    def _keep(self, several: Iterable[JobRecord]) -> None:
        """Keep whole jobs for the answer, as long as they are few."""
        assert self._whole is not None
        for job in several:
            self._whole[job.sequence] = job
            self._whole_bytes += len(job.payload)
        limits = self._preparation.limits
        if len(self._whole) > limits.batch_size or self._whole_bytes > limits.enqueue_bytes:
            self._whole = None

    # Writing

    async def _write(self, group: Group) -> None:
        """Encode the rows of a group, while the segment before it is stored, and begin to store them."""
        columns = self._groups.pop(group)
        self._buffered -= self._sizes_seen.pop(group, 0)
        entrypoint, scheduled, given = group
        if self._plain.get(entrypoint) is columns:
            del self._plain[entrypoint]
        queue = self._engine.known_queue
        encoded = await self._encoded(columns, queue, entrypoint, scheduled=scheduled)
        await self._created()
        modes = bytes(columns.modes)
        self._creating = asyncio.create_task(self._create(encoded, queue, given, modes))

    async def _join(self) -> None:
        """Write the segments of each group again, as few large ones.

        The rows of many entrypoints are written when they fill the memory, before they are many.
        """
        groups: dict[Group, list[NewSegment]] = {}
        for each in self._new:
            groups.setdefault((each.segment.entrypoint, each.segment.scheduled, each.given), []).append(each)
        self._new = [several[0] for several in groups.values() if len(several) == 1]
        for group, several in groups.items():
            for each in several if len(several) > 1 else ():
                await self._add_again(group, each)
            if len(several) > 1 and group in self._groups:
                await self._write(group)
        await self._created()

    async def _add_again(self, group: Group, new: NewSegment) -> None:
        """Add the rows of a segment to the rows of its group that are still to be written."""
        async for row, job in self._all_jobs_of(new):
            columns = self._columns(group)
            columns.add(row_of(job), new.modes[row] if new.modes else 0)
            if len(columns) >= self._sizes.most_rows or columns.size >= self._sizes.most_bytes:
                await self._write(group)

    async def _created(self) -> None:
        """Wait until the segment that is being stored exists."""
        if self._creating is not None:
            creating, self._creating = self._creating, None
            try:
                self._new.append(await creating)
            finally:
                creating.cancel()

    async def end(self) -> None:
        """Cancel the segment that is being stored. Stored segments are litter if no commit names them."""
        if self._creating is not None:
            self._creating.cancel()
            await asyncio.wait([self._creating])

    # The commit

    async def finish(self) -> None:
        """Store the rest of the jobs, except for the few that enter the blob."""
        few = self._sizes.hot_bytes or 0
        for group in sorted(self._groups, key=lambda group: len(self._groups[group]), reverse=True):
            columns = self._groups[group]
            if len(columns) < self._sizes.fewest_rows and (columns.size <= few or len(self._new) >= MOST_SEGMENTS):
                few -= columns.size
                del self._groups[group]
                columns.modes += bytes(len(columns) - len(columns.modes))
                self._alone += [
                    self._single(_read(line), group[2], mode)
                    for line, mode in zip(columns.whole_lines(), columns.modes, strict=True)
                ]
            else:
                await self._write(group)
        await self._created()
        if len(self._new) > MOST_SEGMENTS:
            await self._join()

    async def operation(self) -> EnqueueSegments:
        """Return the operation that adds all jobs, after `finish`."""
        operation = EnqueueSegments(
            len(self.given),
            self._created_at,
            self._new,
            sorted(self._alone, key=lambda pair: pair[0]),
            self._before,
            frozenset(self._features),
        )
        return await self.ready(operation)

    def answer(self, outcome: BulkAdded | BulkConflicts) -> list[Job] | EnqueuedJobs | BulkConflicts:
        """Return the answer to the caller: a list of whole jobs if they are few."""
        if isinstance(outcome, BulkConflicts):
            return outcome
        if self._whole is None:
            return EnqueuedJobs(self.given, outcome)
        return [job_of(self._whole_job(number, job, outcome)) for number, job in sorted(self._whole.items())]

    def _whole_job(self, number: int, job: JobRecord, outcome: BulkAdded) -> JobRecord:
        known, sequence = outcome.one_by_one.get(number), outcome.offset + number
        if known is not None:
            return known.evolve(payload=job.payload) if known.sequence == sequence else known
        attempt = outcome.attempt if number in self._with_ids else 0
        return job.evolve(sequence=sequence, attempt=attempt, attempts_before=attempt)


def _read(line: bytes) -> JobRecord:
    job = read_line(line)
    assert not isinstance(job, SetAside)  # encoded here
    return job
