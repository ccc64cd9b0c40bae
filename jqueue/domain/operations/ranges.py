"""The operations on ranges: claim thousands of jobs of a segment as one, and end their claim as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from typing import ClassVar

from jqueue.domain.draft import Draft
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import ClaimLostError, InvalidJobError, JobNotFoundError, SegmentDamagedError
from jqueue.domain.limits import FINISHED_KEPT, TRACEBACK_BYTES, Limits, check_integer, check_name, cut_error
from jqueue.domain.models import COUNT_MAX, LARGEST, Claim, Job, JobStatus
from jqueue.domain.operations.base import ClaimLog, JobReference, Operation, Preparation
from jqueue.domain.operations.claims import Nack
from jqueue.domain.operations.dequeue import count_claims
from jqueue.domain.operations.jobs import drop_outlived
from jqueue.domain.operations.returned_ranges import bulk_move, return_rows
from jqueue.domain.operations.schedules import fire_due
from jqueue.domain.range_jobs import RangeClaim, RangeFailure
from jqueue.domain.ranges import HOLES, MOST_SPANS, RANGES_KEPT, Range
from jqueue.domain.segment_index import SegmentIndex
from jqueue.domain.segment_rows import RowsMissingError, Wanted
from jqueue.domain.segments import Segment, Span, common, joined, size_of, without
from jqueue.domain.transitions import BulkMove, Verb

WorstPriority = Callable[[str], float | None]


@dataclass(frozen=True, slots=True)
class ClaimRange(Operation):
    """Claim rows of a segment as one. Its result is a list: the claim, or nothing if the next job is not in a segment.

    Jobs that keep a result or their unique key, expire, or have a concurrency key are left out: a dequeue claims
    each of them by itself.

    Attributes:
        entrypoint: of the jobs.
        rows: largest number of jobs.
        least: smallest number of jobs; if fewer can be claimed, none is.
        inline: True to claim none if payloads of the segment are in objects of their own.
        claim_timeout: time that the claim lasts without a heartbeat; None means the queue's own.
        holder: name kept with the claim; None: the queue object's own.
        through: claim only from a segment without a job whose `sequence` is larger; None: from any.
        enqueue_bytes: number of bytes up to which cron entries fill a blob that has no limit of its own.
        range_id: id of the range; set when the operation is prepared.
    """

    claims_jobs: ClassVar[bool] = True
    always_needs: ClassVar[tuple[str, ...]] = ("ranges",)

    entrypoint: str
    rows: int
    _: KW_ONLY
    least: int = 1
    inline: bool = False
    claim_timeout: Duration | None = None
    holder: str | None = None
    through: int | None = None
    enqueue_bytes: int = Limits().enqueue_bytes
    range_id: str = ""

    def prepared(self, preparation: Preparation) -> ClaimRange:
        """Return the operation, checked and completed."""
        timeout = preparation.claim_timeout if self.claim_timeout is None else self.claim_timeout
        holder = preparation.holder() if self.holder is None else self.holder
        return ClaimRange(
            check_name("entrypoint", self.entrypoint, preparation.limits),
            check_integer("rows", self.rows, 1, COUNT_MAX),
            least=check_integer("least", self.least, 1, COUNT_MAX),
            inline=self.inline,
            claim_timeout=to_seconds("claim_timeout", timeout),
            holder=None if holder is None else check_name("holder", holder, preparation.limits),
            through=None if self.through is None else check_integer("through", self.through, 0, LARGEST),
            enqueue_bytes=preparation.limits.enqueue_bytes,
            range_id=preparation.new_id(),
        )

    def change(self, draft: Draft, now: datetime) -> list[RangeClaim]:
        """Claim the next rows, if the next job is a row of a segment."""
        drop_outlived(draft, now)
        fire_due(draft, now, self.enqueue_bytes)
        if not draft.header.segments:
            return []
        with only_through(draft, self.through):
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
        rows = draft.jobs.rows
        place = rows.of.get(job_id)
        allowed = draft.jobs.order.claims_allowed(self.entrypoint, now, self.rows)
        if place is None or allowed < self.least or len(draft.header.ranges) >= RANGES_KEPT:
            return None
        name, row = place
        segment, index = rows.current(name), rows.indexes.get(name)
        if segment is not None and not self._may_be_range(segment):
            return None
        if segment is None or index is None:
            raise RowsMissingError([Wanted(name, None)])
        spans = _spans_from(row, allowed, segment, index, rows.doubtful_spans(name))
        if self._is_long_enough(spans, row) and (priority := worst(name)) is not None:
            spans = without(spans, [(_row_behind(priority, row, segment, index), segment.rows)])
        if not self._is_long_enough(spans, row):
            return None
        held = self._held(name, segment, index, spans, now)
        self._claim(draft, name, segment, index, held, now)
        return RangeClaim(self.range_id, name, segment, held)

    def _is_long_enough(self, spans: Sequence[Span], row: int) -> bool:
        return bool(spans) and spans[0][0] == row and size_of(spans) >= self.least

    def _may_be_range(self, segment: Segment) -> bool:
        """Return True if rows of a segment may be a range for this claim."""
        if segment.scheduled or (self.inline and segment.objects) or len(segment.taken) > MOST_SPANS:
            return False
        return self.through is None or 0 < segment.largest <= self.through

    def _held(self, name: str, segment: Segment, index: SegmentIndex, spans: Sequence[Span], now: datetime) -> Range:
        first, last = spans[0][0], spans[-1][1]
        claims, failures = segment.tries_of(first)
        chunk = segment.chunk_of(first)
        key = index.chunks[chunk].first
        assert isinstance(self.claim_timeout, float | int)
        return Range(
            segment=name,
            entrypoint=self.entrypoint,
            first=first,
            last=last,
            without=tuple(without([(first, last)], spans)),
            claims=claims + 1,
            failures=failures + 1,
            head=key._replace(sequence=key.sequence + segment.offset),
            oldest=index.oldest[chunk],
            heartbeat_at=now,
            claim_timeout=self.claim_timeout,
            holder=self.holder,
            claimed_at=now,
        )

    def _claim(
        self, draft: Draft, name: str, segment: Segment, index: SegmentIndex, held: Range, now: datetime
    ) -> None:
        rows = draft.jobs.rows
        for job_id in [job_id for job_id, (there, row) in rows.of.items() if there == name and held.has(row)]:
            draft.hide_row(job_id, self.range_id)
        draft.name_segment(name, rows.advanced(segment, *segment.taking_spans(held.spans), index))
        draft.set_range(self.range_id, held)
        waits = []
        for chunk in range(segment.chunk_of(held.first), segment.chunk_of(held.last - 1) + 1):
            inside = (chunk * segment.chunk_rows, (chunk + 1) * segment.chunk_rows)
            jobs = size_of(held.spans) - size_of(without(held.spans, [inside]))
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
            rows=((name, held.spans),),
        )
        draft.move_rows(move)
        if draft.header.entrypoints:
            count_claims(draft, self.entrypoint, now, held.rows)

    def claims(self, result: list[RangeClaim]) -> Sequence[Claim]:
        """Return the claim of the range."""
        return [claimed.claim for claimed in result]

    def may_miss(self, result: list[RangeClaim]) -> bool:
        """Return True if nothing was claimed."""
        return not result


@contextmanager
def only_through(draft: Draft, sequence: int | None) -> Iterator[None]:
    """Pass over jobs with a larger sequence number inside the `with` block; None: over none."""
    if sequence is None:
        yield
        return
    with draft.jobs.order.only_through(sequence):
        yield


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


def _spans_from(row: int, most: int, segment: Segment, index: SegmentIndex, doubtful: Sequence[Span]) -> list[Span]:
    """Return the waiting rows for a range from a row on. They may be in one, and were tried equally often.

    The range goes around taken rows, whatever their numbers of claims, and ends at the first row that could be in it
    but was tried more or less often.

    Args:
        row: the first row.
        most: largest number of rows.
        segment: their segment.
        index: its index.
        doubtful: rows that could not be read.
    """
    last = segment.rows
    near = max(0, bisect_right(index.single, (row, segment.rows)) - 1)
    behind = near + HOLES + 2
    if behind < len(index.single):  # the range ends before, as it may have few gaps
        last = min(last, index.single[behind][0])
    others = joined([(0, segment.next), *segment.taken, *index.single[near:behind], *doubtful])
    waiting = without([(row, last)], others)
    if unlike := without(waiting, segment.tried_like(row)):
        waiting = without(waiting, [(unlike[0][0], last)])
    found: list[Span] = []
    for first, end in waiting[: HOLES + 1]:
        found.append((first, min(end, first + most)))
        most -= found[-1][1] - first
        if not most:
            break
    return found


def _ids(option: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return the ids in an option, each once.

    Raises:
        InvalidJobError: it is something else.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidJobError(f"{option} takes the ids of jobs, as a list for example, got {type(given).__name__}")
    ids = tuple(given)
    for each in ids:
        if not isinstance(each, str):
            raise InvalidJobError(f"{option} takes the ids of jobs, and one is of the type {type(each).__name__}")
    return tuple(dict.fromkeys(ids))


def _last_of(spans: Sequence[Span], most: int) -> list[Span]:
    """Return the last rows of spans in order, at most a certain number."""
    found: list[Span] = []
    for first, last in reversed(spans):
        first = max(first, last - most)
        if first < last:
            found.insert(0, (first, last))
        most -= last - first
    return found


@dataclass(frozen=True, slots=True)
class EndRange(Operation):
    """End the claim on a range, or on its first jobs: they are done, but for some that failed and some given back.

    Jobs that the holder could not read are given back: see `RangeClaim.without`. So is a failed or kept job whose row
    can no longer be read, as nothing can be noted with it.

    Repeating it soon after, with the same claim, changes nothing. The last `FINISHED_KEPT` done jobs are remembered as
    acked jobs are, unless jqueue made the ids of all jobs: then no caller can enqueue one of them again.

    Attributes:
        claim: of the range.
        failed: the failures, by job id.
        returned: ids of jobs that were not worked on. They wait again in their places, uncharged.
        kept: ids of jobs that stay in progress. From now on, the claim of each is its own.
        nothing_done: True if no job was worked on: all but the failed and the kept ones are given back.
        jobs: number of jobs at the start of the range, as it was claimed, that end; None means all. The claim on the
            others goes on.
        blob_bytes: the size limit of its writer, for a blob that has none of its own.
    """

    needs_space: ClassVar[bool] = False
    ends_claims: ClassVar[bool] = True
    always_needs: ClassVar[tuple[str, ...]] = ("ranges",)

    claim: RangeClaim
    failed: Mapping[str, RangeFailure | BaseException | str | None] = field(default_factory=dict, repr=False)
    returned: Iterable[str] = field(default=(), repr=False)
    nothing_done: bool = False
    _: KW_ONLY
    kept: Iterable[str] = field(default=(), repr=False)
    jobs: int | None = None
    blob_bytes: int = Limits().blob_bytes

    @property
    def _is_whole(self) -> bool:
        """True if it ends the range, and not only its first jobs."""
        return self.jobs is None or self.jobs >= self.claim.rows

    def prepared(self, preparation: Preparation) -> EndRange:
        """Return the operation, checked, with errors as texts and delays in seconds."""
        if not isinstance(self.claim, RangeClaim):
            raise InvalidJobError(f"end_range takes what claim_range returned, got {type(self.claim).__name__}")
        if self.jobs is not None:
            check_integer("jobs", self.jobs, 1, COUNT_MAX)
        if not isinstance(self.failed, Mapping):
            raise InvalidJobError(f"failed takes the error of each job by its id, got {type(self.failed).__name__}")
        failed = {}
        for job_id, failure in self.failed.items():
            given = failure if isinstance(failure, RangeFailure) else RangeFailure(failure)
            failed[job_id] = RangeFailure(
                None if given.error is None else cut_error(given.error),
                None if given.delay is None else to_seconds("delay", given.delay),
                given.dead,
                given.charge,
                None if given.traceback is None else cut_error(given.traceback, TRACEBACK_BYTES),
            )
        returned, kept = _ids("returned", self.returned), _ids("kept", self.kept)
        if len({*failed, *returned, *kept}) < len(failed) + len(returned) + len(kept):
            raise InvalidJobError("a job of a range is either failed, returned or kept")
        limit = preparation.limits.blob_bytes
        return replace(self, failed=failed, returned=returned, kept=kept, blob_bytes=limit)

    def change(self, draft: Draft, now: datetime) -> None:
        """End the claim.

        Raises:
            ClaimLostError: the range was given back, or ended otherwise.
            JobNotFoundError: a named job is not one of the ended jobs.
        """
        claim = self.claim.claim
        held = draft.header.ranges.get(claim.job_id)
        if held is None or held.claims != claim.attempt:
            if draft.header.finished.get(claim.job_id) == claim.attempt:
                return
            raise ClaimLostError(*claim, "the range was ended, or its claim became stale")
        part, others = self._parts(draft, held)
        if part is None:
            return
        segment = draft.header.segments[part.segment]
        draft.jobs.rows.doubt(part.segment, segment.chunks_of(self.claim.unread))
        cancelled = self._cancelled(part)
        failed, lost = self._found(draft, part, {**self.failed, **cancelled})
        kept, others_lost = self._found(draft, part, self.kept)
        unread = joined([*common(part.spans, self.claim.unread), *((row, row + 1) for row in (*lost, *others_lost))])
        alone = [row for job in (*failed, *kept) for row in self._rows(draft, part, [job.id])]
        rest = without(part.spans, [*unread, *((row, row + 1) for row in alone)])
        returned = [job_id for job_id in self.returned if job_id not in cancelled]
        back = rest if self.nothing_done else joined((row, row + 1) for row in self._rows(draft, part, returned))
        done = without(rest, back)
        finished = [] if segment.own_ids else draft.jobs.rows.attempts_in(claim.job_id, _last_of(done, FINISHED_KEPT))
        draft.set_range(claim.job_id, others)
        for job in (*failed, *kept):
            draft.admit(job)
        for job in failed:
            failure = self.failed.get(job.id, RangeFailure(charge=False))
            assert isinstance(failure, RangeFailure)
            end = (failure.delay, failure.error, failure.dead, failure.charge, self.blob_bytes, failure.traceback)
            Nack(job.claim, *end).change(draft, now)
        if back or unread:
            return_rows(draft, claim.job_id, part, joined([*back, *unread]), now, charge=False)
        if unread and part.cancelled:
            gone = common(unread, [(row, row + 1) for row in self._rows(draft, part, part.cancelled)])
            draft.drop_waiting((part.segment,), Verb.CANCEL, gone)
        draft.move_rows(bulk_move(Verb.ACK, part, JobStatus.COMPLETED, done, now))
        for job_id, attempt in finished:
            draft.note(draft.header.finished, job_id, attempt)
        if others is None:
            draft.note(draft.header.finished, claim.job_id, claim.attempt)
        if (floor := part.claims + segment.attempts) > draft.header.attempt_floor:
            draft.note_floor(floor)

    def _parts(self, draft: Draft, held: Range) -> tuple[Range | None, Range | None]:
        """Return the claim on the jobs that end, and the claim on the others; None for no jobs."""
        if self.jobs is None or self._is_whole:
            return held, None
        row = self.claim.held.row_behind(self.jobs, self.claim.unread)
        part, others = held.among(0, row), held.among(row, held.last)
        if not held.cancelled or part is None or others is None:
            return part, others
        index = self._index(draft, held)
        first = [job_id for job_id in held.cancelled if any(part.has(row) for row in index.ids.find(job_id))]
        last = [job_id for job_id in held.cancelled if job_id not in first]
        return (
            part.model_copy(update={"cancelled": tuple(first)}),
            others.model_copy(update={"cancelled": tuple(last)}),
        )

    def _cancelled(self, held: Range) -> dict[str, None]:
        """Return the cancelled jobs that were not done: they leave the queue."""
        given_back = {*held.cancelled} - {*self.kept} if self.nothing_done else {*held.cancelled} & {*self.returned}
        return dict.fromkeys(job_id for job_id in held.cancelled if job_id in given_back)

    def _found(self, draft: Draft, held: Range, job_ids: Iterable[str]) -> tuple[list[Job], list[int]]:
        """Return jobs of the range as they are in progress, and the rows that can no longer be read."""
        found, lost = [], list[int]()
        for job_id in job_ids:
            try:
                job = draft.jobs.find(job_id)
            except SegmentDamagedError:
                lost += self._rows(draft, held, [job_id])
                continue
            if job is None or draft.jobs.rows.range_of(job_id) != self.claim.id:
                raise JobNotFoundError(job_id)
            found.append(job)
        return found, lost

    def _index(self, draft: Draft, held: Range) -> SegmentIndex:
        """Return the index of the segment of the range.

        Raises:
            RowsMissingError: it is not loaded.
        """
        return draft.jobs.rows.index_of(held.segment)

    def _rows(self, draft: Draft, held: Range, job_ids: Sequence[str]) -> list[int]:
        """Return the rows of jobs of the range."""
        if not job_ids:
            return []
        index = self._index(draft, held)
        found = []
        for job_id in job_ids:
            rows = [row for row in index.ids.find(job_id) if held.has(row)]
            if not rows:
                raise JobNotFoundError(job_id)
            found += rows
        return found

    def references(self) -> Sequence[JobReference]:
        """Return the claim of the range."""
        return (self.claim.claim,)

    def tell(self, claims: ClaimLog, result: None) -> None:
        """Report that the claim is ended: a heartbeat that comes later does not count as lost."""
        if self._is_whole:
            claims.end(self.claim.claim)
