"""The operations on ranges: claim thousands of jobs of a segment as one, and end their claim as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec
from msgspec.structs import replace

from jqueue.domain.draft import Draft
from jqueue.domain.errors import ClaimLostError, InvalidJobError, JobNotFoundError
from jqueue.domain.fields import COUNT_MAX, Count, Duration, JobId, Positive
from jqueue.domain.job import Claim, JobRecord, JobStatus
from jqueue.domain.limits import FINISHED_KEPT, check_integer, check_name
from jqueue.domain.operations.base import GivenNames, JobReference, Operation, Preparation, claim_of
from jqueue.domain.operations.dequeue import Claims, Dequeue, count_claims, sought_names
from jqueue.domain.operations.ends import Ack, Nack, bulk_move, give_range_back
from jqueue.domain.segment_rows import RowsMissingError, Wanted
from jqueue.domain.segments import (
    CHUNK_ROWS,
    RANGES_KEPT,
    Range,
    RangeClaim,
    RangeFailure,
    Segment,
    SegmentIndex,
    without,
)
from jqueue.domain.transitions import BulkMove, Verb
from jqueue.domain.turns import clock_of

Claiming = TypeVar("Claiming", bound=Claims)

CHUNKS_AHEAD = 64
"""Largest number of chunks that a batch asks for at once: they are read within one deadline."""

WorstPriority = Callable[[str], float | None]


class ClaimRange(Claims, frozen=True):
    """Claim rows of a segment as one. Its result is a list: the claim, or nothing if the next job is not in a segment.

    The rows follow each other, wait, and were claimed equally often: a range ends before the first other row. Jobs that
    keep a result or their unique key, expire, have a concurrency key or a fair key, or take turns with such jobs, are
    never in a range: a dequeue claims each of them by itself. With `through`, it claims only from a segment without a
    job whose `sequence` is larger.

    Attributes:
        entrypoint: of the jobs.
        rows: largest number of jobs.
        least: smallest number of jobs; if fewer can be claimed, none is.
        inline: True to claim none if payloads of the segment are in objects of their own.
        range_id: id of the range; set when the operation is prepared.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("ranges",)

    entrypoint: str
    rows: Positive
    least: Positive = 1
    inline: bool = False
    range_id: JobId = ""

    def prepared(self, preparation: Preparation) -> ClaimRange:
        """Return the operation, checked and completed."""
        return ClaimRange(
            check_name("entrypoint", self.entrypoint, preparation.limits),
            check_integer("rows", self.rows, 1, COUNT_MAX),
            check_integer("least", self.least, 1, COUNT_MAX),
            self.inline,
            self.range_id or preparation.new_id(),
            **self.completed(preparation),
        )

    def change(self, draft: Draft, now: datetime) -> list[RangeClaim]:
        """Claim the next rows, if the next job is a row of a segment."""
        self.tidy(draft, now)
        if not draft.header.segments:
            return []
        with draft.jobs.order.only_through(self.through):
            entry = draft.jobs.order.next_entry((self.entrypoint,), now)
        found = None if entry is None else self.claim_at(draft, entry[-1], now)
        return [] if found is None else [found]

    def claim_at(
        self, draft: Draft, job_id: str, now: datetime, worst: WorstPriority = lambda name: None
    ) -> RangeClaim | None:
        """Claim rows from the next job on. Return None if they cannot be a range.

        Args:
            draft: the queue.
            job_id: the next job of the entrypoint.
            now: the time.
            worst: takes the name of the segment. Returns a priority that no row may be behind; None: any may be.
        """
        if not self.range_id:
            raise InvalidJobError("a range is claimed under an id, which its preparation draws")
        rows = draft.jobs.rows
        place = rows.of.get(job_id)
        allowed = draft.jobs.order.claims_allowed(self.entrypoint, now, self.rows)
        if place is None or allowed < self.least or len(draft.header.ranges) >= RANGES_KEPT:
            return None
        name, row = place
        segment, index = rows.current(name), rows.indexes.get(name)
        if clock_of(self.entrypoint, draft.jobs[job_id].priority) in draft.header.turns:
            return None  # jobs with a fair key come between its rows
        if rows.damage_of(name) is not None or (segment is not None and not self._may_be_range(segment)):
            return None
        if segment is None or index is None:
            raise RowsMissingError([Wanted(name, None)])
        last = min(row + allowed, segment.end_of_run(row), _next_single(row, segment, index))
        if last - row >= self.least and (priority := worst(name)) is not None:
            last = min(last, _row_behind(priority, row, segment, index))
        if last - row < self.least:
            return None
        claims, failures = segment.tries_of(row)
        chunk = segment.chunk_of(row)
        key = index.chunks[chunk].first
        assert isinstance(self.claim_timeout, float | int)
        held = Range(
            segment=name,
            entrypoint=self.entrypoint,
            first=row,
            last=last,
            claims=claims + 1,
            failures=failures + 1,
            head=key._replace(sequence=key.sequence + segment.offset),
            oldest=index.oldest[chunk],
            heartbeat_at=now,
            claim_timeout=self.claim_timeout,
            holder=self.holder,
            claimed_at=now,
        )
        self._claim(draft, name, segment, index, held, now)
        return RangeClaim(self.range_id, name, segment, held)

    def _may_be_range(self, segment: Segment) -> bool:
        """Return True if rows of a segment may be a range for this claim."""
        if segment.scheduled or (self.inline and segment.objects):
            return False
        return self.through is None or 0 < segment.largest <= self.through

    def _claim(
        self, draft: Draft, name: str, segment: Segment, index: SegmentIndex, held: Range, now: datetime
    ) -> None:
        rows = draft.jobs.rows
        for job_id in [job_id for job_id, (there, row) in rows.of.items() if there == name and held.has(row)]:
            draft.hide_row(job_id, self.range_id)
        draft.name_segment(name, rows.advanced(segment, [held.span], index))
        draft.set_range(self.range_id, held)
        waits = []
        for chunk in range(segment.chunk_of(held.first), segment.chunk_of(held.last - 1) + 1):
            first, last = chunk * segment.chunk_rows, (chunk + 1) * segment.chunk_rows
            jobs = min(last, held.last) - max(first, held.first)
            waits.append((now.timestamp() - index.chunks[chunk].first.since, jobs))
        move = BulkMove(
            Verb.CLAIM,
            self.entrypoint,
            JobStatus.QUEUED,
            JobStatus.IN_PROGRESS,
            held.rows,
            held.claims,
            self.holder,
            tuple(waits),
            rows=((name, [held.span]),),
        )
        draft.move_rows(move)
        if draft.header.entrypoints:
            count_claims(draft, self.entrypoint, now, held.rows)


def _row_behind(worst: float, row: int, segment: Segment, index: SegmentIndex) -> int:
    """Return the number of a row behind a first one, so that no row between them has a priority behind the worst.

    Only the priorities of the first rows of chunks are known.
    """
    low, high = segment.chunk_of(row) + 1, segment.chunks  # chunk `high` begins behind the worst, or is behind the last
    while low < high:
        middle = (low + high) // 2
        if index.chunks[middle].first.priority > worst:
            high = middle
        else:
            low = middle + 1
    return segment.rows if low == segment.chunks else max(row, (low - 1) * segment.chunk_rows)


def _next_single(row: int, segment: Segment, index: SegmentIndex) -> int:
    """Return the number of the first row from a row on that is never in a range; that behind the last if none is."""
    place = max(0, bisect_right(index.single, (row, segment.rows)) - 1)
    return next((max(row, first) for first, last in index.single[place : place + 2] if last > row), segment.rows)


if TYPE_CHECKING:  # as callers give them, and as they travel: see `jqueue.domain.operations.base`
    GivenRange = RangeClaim | Claim
    GivenFailure = RangeFailure | BaseException | str | None
else:
    GivenRange, GivenFailure = Claim, str


class EndRange(Operation, frozen=True):
    """End the claim on a range. Its jobs are done, except failed jobs, and jobs that nobody worked on.

    A job that failed, or that has a result, becomes a single job, and ends as by a nack or an ack.

    Repeating it soon after, with the same claim, changes nothing. The last `FINISHED_KEPT` done jobs are remembered as
    acked jobs are, unless jqueue made the ids of all jobs: then no caller can enqueue one of them again.

    Attributes:
        claim: of the range.
        failed: the failures, by job id.
        results: the results to keep, each with the time to keep it, by job id.
        worked_on: number of jobs at the start of the range that were worked on; None means all. The others wait again
            in their places, uncharged.
        singles: the ends of jobs that become single ones, by job id; set when the operation is prepared.
    """

    needs_space = False
    ends_claims = True
    always_needs: ClassVar[tuple[str, ...]] = ("ranges",)

    claim: GivenRange
    failed: Mapping[str, GivenFailure] = {}
    results: Mapping[str, tuple[Any, Duration]] = {}
    worked_on: Count | None = None
    singles: Mapping[str, Ack | Nack] = {}

    def prepared(self, preparation: Preparation) -> EndRange:
        """Return the operation, checked, with errors as texts, and delays in seconds."""
        if not isinstance(self.claim, RangeClaim | Claim):
            raise InvalidJobError(f"end_range takes what claim_range returned, got {type(self.claim).__name__}")
        worked_on = None if self.worked_on is None else check_integer("worked_on", self.worked_on, 0, COUNT_MAX)
        if not isinstance(self.failed, Mapping):
            raise InvalidJobError(f"failed takes the error of each job by its id, got {type(self.failed).__name__}")
        if self.failed.keys() & self.results.keys():
            raise InvalidJobError("a job of a range has failed, or it has a result, and not both")
        singles = dict(self.singles)
        for job_id, each in self.failed.items():
            failure = each if isinstance(each, RangeFailure) else RangeFailure(each)
            end = (failure.delay, failure.error, failure.dead, failure.charge)
            singles[job_id] = Nack(Claim(job_id, 0), *end, traceback=failure.traceback)
        for job_id, (result, keep_result) in self.results.items():
            singles[job_id] = Ack(Claim(job_id, 0), result, keep_result)
        own = msgspec.structs.replace(preparation, find_claim=claim_of, object_bytes=None)
        ends = {job_id: each.prepared(own) for job_id, each in singles.items()}
        claim = preparation.find_claim(self.claim) if isinstance(self.claim, Claim) else self.claim.claim
        return EndRange(claim, worked_on=worked_on, singles=ends)

    def change(self, draft: Draft, now: datetime) -> None:
        """End the claim.

        Raises:
            ClaimLostError: the range was given back, or ended otherwise.
            JobNotFoundError: a named job is not in the part of the range that was worked on.
            SegmentDamagedError: a named job cannot be read, so that nothing can be noted with it.
        """
        claim, rows = self._claim, draft.jobs.rows
        held = draft.header.ranges.get(claim.job_id)
        if held is None or held.claims != claim.attempt:
            if draft.header.finished.get(claim.job_id) == claim.attempt:
                return
            raise ClaimLostError(*claim, "the range was ended, or its claim became stale")
        segment = draft.header.segments[held.segment]
        last = held.last if self.worked_on is None else min(held.last, held.first + self.worked_on)
        jobs, alone, missing = [], set[int](), set[Wanted]()
        for job_id in self.singles:
            try:
                job, row = draft.jobs.find(job_id), rows.row_in(claim.job_id, job_id)
            except RowsMissingError as error:  # all are asked for at once: each time, all is done anew
                missing |= error.wanted
                continue
            if job is None or row is None or row >= last:
                raise JobNotFoundError(job_id)
            jobs.append(job)
            alone.add(row)
        if missing:
            raise RowsMissingError(missing)
        done = without([(held.first, last)], ((row, row + 1) for row in alone))
        near = range(max(held.first, last - FINISHED_KEPT - len(alone)), last)
        kept = [] if segment.own_ids else [row for row in near if row not in alone][-FINISHED_KEPT:]
        finished = rows.jobs_of(claim.job_id, kept)
        draft.move_rows(bulk_move(Verb.ACK, held, JobStatus.COMPLETED, done, now))
        if last < held.last:  # the segment may leave the manifest with the last of its cancelled jobs
            give_range_back(draft, claim.job_id, now, first=last, charge=False)
        else:
            draft.set_range(claim.job_id, None)
        for job in jobs:
            draft.admit(job)
            replace(self.singles[job.id], job=job.claim).change(draft, now)
        for job in finished:
            draft.note(draft.header.finished, job.id, job.attempt)
        draft.note(draft.header.finished, claim.job_id, claim.attempt)
        if (floor := held.claims + segment.attempts) > draft.header.attempt_floor:
            draft.note_floor(floor)

    @property
    def _claim(self) -> Claim:
        return self.claim if isinstance(self.claim, Claim) else self.claim.claim

    def references(self) -> Sequence[JobReference]:
        """Return the claim of the range."""
        return (self._claim,)


class ClaimBatch(Claims, frozen=True):
    """Claim the next jobs, by priority and then by commit order. Its result is a list of jobs and claims of ranges.

    Behind the largest number of ranges, jobs are claimed one by one. At the largest number of such jobs, the batch ends
    early. A range has no job whose priority is lower than that of a job beside it. Among jobs of equal priority, those
    of a range are claimed before jobs that were enqueued between them.

    Attributes:
        entrypoints: the entrypoints of the jobs: one name, several, or None for all.
        jobs: largest number of jobs.
        singles: largest number of jobs that are claimed one by one.
        ranges: largest number of ranges.
        least: smallest number of jobs of a range. A range is tried again after as many single jobs, then twice as many.
        rows: largest number of jobs of a range.
        alone: entrypoints whose jobs are claimed one by one.
        range_id: first part of the ids of the ranges; set when the operation is prepared.
    """

    hands_out_jobs = True
    always_needs: ClassVar[tuple[str, ...]] = ("ranges", "holders", "claim_timeout")

    entrypoints: GivenNames | None
    jobs: Count
    singles: Count
    ranges: Count
    least: Positive = CHUNK_ROWS
    range_id: JobId = ""
    rows: Positive = COUNT_MAX
    alone: tuple[str, ...] = ()

    def prepared(self, preparation: Preparation) -> ClaimBatch:
        """Return the operation, checked and completed."""
        return ClaimBatch(
            None if self.entrypoints is None else sought_names(self.entrypoints),
            check_integer("jobs", self.jobs, 0, COUNT_MAX),
            check_integer("singles", self.singles, 0, COUNT_MAX),
            check_integer("ranges", self.ranges, 0, COUNT_MAX),
            check_integer("least", self.least, 1, COUNT_MAX),
            self.range_id or preparation.new_id(),
            check_integer("rows", self.rows, 1, COUNT_MAX),
            self.alone,
            **self.completed(preparation),
        )

    def change(self, draft: Draft, now: datetime) -> list[JobRecord | RangeClaim]:
        """Claim the jobs.

        Raises:
            RowsMissingError: rows are not loaded. It names those of all segments that the batch may need.
        """
        self.tidy(draft, now)
        try:
            with draft.jobs.order.only_through(self.through):
                return self._claim(draft, now)
        except RowsMissingError as error:
            missing = error.wanted
        rows = draft.jobs.rows
        ahead = {part for each in missing for part in self._singles_behind(each, draft)}
        raise RowsMissingError({*missing, *ahead, *rows.upcoming(rows.unloaded(self._names), self.jobs)})

    def _singles_behind(self, missing: Wanted, draft: Draft) -> list[Wanted]:
        """Return the chunks behind a missing one, if its rows are claimed one by one: each load repeats the commit."""
        rows, name = draft.jobs.rows, missing.segment
        segment, index = rows.current(name), rows.indexes.get(name)
        if segment is None or index is None or missing.chunk is None:
            return []
        first = missing.chunk * segment.chunk_rows
        alone = segment.entrypoint in self.alone or _next_single(first, segment, index) < first + segment.chunk_rows
        wanted = -(-min(self.jobs, self.singles) // segment.chunk_rows)
        chunks = rows.next_chunks(name, min(CHUNKS_AHEAD, wanted)) if alone else []
        return [Wanted(name, chunk) for chunk in chunks if chunk >= missing.chunk]

    @property
    def _names(self) -> tuple[str, ...] | None:
        assert self.entrypoints is None or isinstance(self.entrypoints, tuple)
        return self.entrypoints

    def _with_fields_of(self, kind: type[Claiming], *fields: Any, **more: Any) -> Claiming:
        """Return a claim of another kind with the same timeout, holder and bounds."""
        return kind(*fields, **more, **{name: getattr(self, name) for name in Claims.__struct_fields__})

    def _claim(self, draft: Draft, now: datetime) -> list[JobRecord | RangeClaim]:
        found: list[JobRecord | RangeClaim] = []
        left, singles, ranges, several = self.jobs, self.singles, self.ranges, self.least
        one_by_one = self._with_fields_of(Dequeue, self.entrypoints)
        while left and singles:
            if not draft.header.segments or not ranges:
                return [*found, *one_by_one.claim_next(draft, now, min(left, singles))]
            claimed = self._range(draft, now, left, self.ranges - ranges)
            if claimed is not None:
                found.append(claimed)
                left, ranges, several = left - claimed.rows, ranges - 1, self.least
                continue
            jobs = one_by_one.claim_next(draft, now, min(left, singles, several))
            several *= 2  # a look for a range takes time that grows with the jobs that were claimed before
            if not jobs:
                break
            found += jobs
            left, singles = left - len(jobs), singles - len(jobs)
        return found

    def _range(self, draft: Draft, now: datetime, most: int, number: int) -> RangeClaim | None:
        """Claim a range from the next job on; None if it cannot be one.

        Args:
            draft: the queue.
            now: the time.
            most: largest number of jobs.
            number: number of ranges that were claimed before.
        """
        names, order = self._names, draft.jobs.order
        entry = order.next_entry(names, now)
        if entry is None or entry[2] in self.alone:
            return None
        range_id = f"{self.range_id}-{number}"
        rows = min(most, self.rows)
        wanted = self._with_fields_of(ClaimRange, entry[2], rows, self.least, inline=True, range_id=range_id)
        return wanted.claim_at(draft, entry[-1], now, lambda name: order.best_priority_beside(name, names, now))


TRAVELLING = (ClaimRange, EndRange, ClaimBatch)
