"""The operations on leases: claim thousands of jobs of a segment as one, and end their claim as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from jqueue.domain.draft import Draft
from jqueue.domain.errors import ClaimLostError, InvalidJobError, JobNotFoundError
from jqueue.domain.fields import COUNT_MAX, Count, Duration, Positive
from jqueue.domain.job import Claim, JobRecord, JobStatus
from jqueue.domain.limits import FINISHED_KEPT, check_integer, check_name
from jqueue.domain.operations.base import GivenNames, JobReference, Operation, Preparation, claim_of
from jqueue.domain.operations.dequeue import Claims, Dequeue, sought_names
from jqueue.domain.operations.ends import Ack, Nack, bulk_move, give_back
from jqueue.domain.parents import awaited_rows
from jqueue.domain.segment_rows import RowsMissingError, Wanted
from jqueue.domain.segments import (
    CHUNK_ROWS,
    SEGMENTS_KEPT,
    JobFailure,
    Lease,
    Segment,
    SegmentIndex,
    Span,
    common,
    has,
    object_of,
    size_of,
    without,
)
from jqueue.domain.transitions import BulkMove, Verb
from jqueue.domain.turns import clock_of

CHUNKS_AHEAD = 64
"""Largest number of chunks that a batch asks for at once: they are read within one deadline."""

LeaseId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,150}\Z")]


class _Leases(Claims, frozen=True, kw_only=True):
    """Base of the operations that lease rows.

    Attributes:
        least: smallest number of jobs that are leased; if fewer can be claimed from an entry, none is.
        rows: largest number of jobs of a lease.
        inline: True to lease nothing of a segment with payloads in objects of their own.
        lease_id: first part of the ids of the leases; set when the operation is prepared.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("leases",)

    rows: Positive = COUNT_MAX
    least: Positive = CHUNK_ROWS
    inline: bool = False
    lease_id: LeaseId = ""

    def completed(self, preparation: Preparation) -> dict[str, Any]:
        """Return the values of these fields in the prepared operation."""
        return {
            "rows": check_integer("rows", self.rows, 1, COUNT_MAX),
            "least": check_integer("least", self.least, 1, COUNT_MAX),
            "inline": self.inline,
            "lease_id": self.lease_id or preparation.new_id(),
            **super().completed(preparation),
        }

    def lease(self, draft: Draft, job_id: str, now: datetime, most: int, ids: Sequence[str]) -> list[Lease]:
        """Lease rows from the next job on, as several leases if they are many. Return none if they cannot be leased.

        Args:
            draft: the queue.
            job_id: the next job.
            now: the time.
            most: largest number of jobs.
            ids: ids of the leases, if there are as many.
        """
        if not self.lease_id:
            raise InvalidJobError("rows are leased under an id, which the preparation of the operation draws")
        rows = draft.jobs.rows
        place = rows.of.get(job_id)
        segment = None if place is None else rows.manifest.current(place[0])
        if place is None or segment is None or not self._may_be_leased(draft, place[0], segment, job_id):
            return []
        name, row = place
        index = rows.manifest.indexes.get(object_of(name))
        if index is None:
            raise RowsMissingError([Wanted(object_of(name), None)])
        if index.single or row != segment.next:
            return []
        behind, worst = segment.row_behind(most), self.worst_priority(draft, name, now)
        if worst is not None:
            behind = min(behind, _row_behind(worst, row, segment, index))
        jobs, is_whole = segment.waiting_before(behind), segment.waiting_before(behind) == segment.left
        room = SEGMENTS_KEPT - len(draft.header.segments) + is_whole
        size = jobs if segment.claims else min(jobs, self.rows)  # what a dead holder leaves is not split again
        parts = min(-(-jobs // max(size, 1)), room, len(ids))
        if jobs < self.least or parts < 1:
            return []
        edges = [segment.row_behind(jobs * part // parts) for part in range(1, parts)]
        leases = []
        for lease_id, span in zip(ids, zip([0, *edges], [*edges, behind], strict=True), strict=False):
            leases.append(self._lease(draft, f"{object_of(name)}~{lease_id}", name, segment, span, now))
        for job_id in [each for each, (there, its) in rows.of.items() if there == name and its < behind]:
            draft.hide_row(job_id, next(each.id for each in leases if not each.entry.is_taken(rows.of[job_id][1])))
        if is_whole:
            draft.drop_segment(name)
        else:
            draft.name_segment(name, rows.manifest.advanced(name, segment, [(0, behind)]))
        return leases

    def worst_priority(self, draft: Draft, name: str, now: datetime) -> float | None:
        """Return a priority that no row of an entry may be behind if it is leased; None: any may be."""
        return None

    def _may_be_leased(self, draft: Draft, name: str, segment: Segment, job_id: str) -> bool:
        """Return True if rows of an entry may be leased by this operation, as far as the manifest says."""
        if segment.scheduled or (self.inline and segment.objects) or segment.entrypoint in draft.header.entrypoints:
            return False
        if draft.jobs.rows.damage_of(object_of(name)) is not None:
            return False
        if clock_of(segment.entrypoint, draft.jobs[job_id].priority) in draft.header.turns:
            return False  # jobs with a fair key come between its rows
        return self.through is None or 0 < segment.largest <= self.through

    def _lease(self, draft: Draft, lease: str, name: str, segment: Segment, span: Span, now: datetime) -> Lease:
        """Add the entry of a lease to the manifest: the rows of an entry in a span."""
        rows, (first, behind) = draft.jobs.rows, span
        if lease in draft.header.segments:
            raise InvalidJobError("a lease needs an id of its own")
        others = [(0, first), (behind, segment.rows)]
        held = rows.manifest.advanced(name, segment, [each for each in others if each[0] < each[1]]).evolve(
            claims=segment.claims + 1,
            failures=segment.failures + 1,
            heartbeat_at=now,
            claim_timeout=self.claim_timeout,
            claimed_at=now,
            holder=self.holder,
        )
        draft.name_segment(lease, held)
        index, waits = rows.manifest.indexes[object_of(name)], []
        for chunk in range(segment.chunk_of(held.next), segment.chunk_of(behind - 1) + 1):
            jobs = size_of(held.spans_in(chunk))
            waits.append((now.timestamp() - index.chunks[chunk].first.since, jobs))
        move = BulkMove(
            Verb.CLAIM,
            held.entrypoint,
            JobStatus.QUEUED,
            JobStatus.IN_PROGRESS,
            held.left,
            held.claims,
            self.holder,
            tuple(waits),
            rows=((lease, held.spans),),
        )
        draft.move_rows(move)
        return Lease(lease, held)


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


class ClaimLease(_Leases, frozen=True):
    """Lease rows of a segment. Its result is a list: the lease, or nothing if the next job is not in a segment.

    It takes the first waiting rows of an entry of the manifest. Nothing is leased of a segment with a job that keeps a
    result or its unique key, expires, or has a concurrency key, a fair key or a group; nor of an entrypoint with
    limits, or whose jobs take turns: a dequeue claims each of these jobs by itself. With `through`, it claims only from
    a segment without a job whose `sequence` is larger.

    Attributes:
        entrypoint: of the jobs.
    """

    entrypoint: str

    def prepared(self, preparation: Preparation) -> ClaimLease:
        """Return the operation, checked and completed."""
        entrypoint = check_name("entrypoint", self.entrypoint, preparation.limits)
        return ClaimLease(entrypoint, **self.completed(preparation))

    def change(self, draft: Draft, now: datetime) -> list[Lease]:
        """Lease the next rows, if the next job is a row of a segment."""
        self.tidy(draft, now)
        if not draft.header.segments:
            return []
        with draft.jobs.order.only_through(self.through):
            entry = draft.jobs.order.next_entry((self.entrypoint,), now)
        return [] if entry is None else self.lease(draft, entry[-1], now, self.rows, [self.lease_id])


if TYPE_CHECKING:  # as callers give them, and as they travel: see `jqueue.domain.operations.base`
    GivenLease = Lease | Claim
    GivenFailure = JobFailure | BaseException | str | None
else:
    GivenLease, GivenFailure = Claim, str


class EndLease(Operation, frozen=True):
    """End a lease. Its jobs are done, except failed jobs, and jobs that nobody worked on.

    A job that failed, or that has a result, becomes a single job, and ends as by a nack or an ack. The outcome of a job
    that was cancelled meanwhile is ignored.

    Repeating it soon after, with the same lease, changes nothing. The last `FINISHED_KEPT` done jobs are remembered as
    acked jobs are, unless jqueue made the ids of all jobs: then no caller can enqueue one of them again.

    Attributes:
        lease: the lease.
        failed: the failures, by job id.
        results: results, each with the time to keep it, by job id; None keeps it for the jobs that need it, if any.
        withheld: True if done jobs may have results that are not sent. Those that other jobs wait for are handed back.
        worked_on: number of jobs at the start of the lease that were worked on; None means all. The others wait again
            in their places, uncharged.
        last: number of the row behind these jobs; set when the operation is prepared.
        singles: the ends of jobs that become single ones, by job id; set when the operation is prepared.
    """

    needs_space = False
    ends_claims = True
    always_needs: ClassVar[tuple[str, ...]] = ("leases",)

    lease: GivenLease
    failed: Mapping[str, GivenFailure] = {}
    results: Mapping[str, tuple[Any, Duration | None]] = {}
    worked_on: Count | None = None
    withheld: bool = False
    last: Count | None = None
    singles: Mapping[str, Ack | Nack] = {}

    def prepared(self, preparation: Preparation) -> EndLease:
        """Return the operation, checked, with errors as texts, and delays in seconds."""
        lease, last = self.lease, self.last
        if not isinstance(lease, Lease | Claim):
            raise InvalidJobError(f"end_lease takes what claim_lease returned, got {type(lease).__name__}")
        if self.worked_on is not None:
            worked_on = check_integer("worked_on", self.worked_on, 0, COUNT_MAX)
            if isinstance(lease, Claim):
                raise InvalidJobError("end_lease needs the lease for worked_on, and got only its claim")
            last = lease.entry.row_behind(worked_on)
        if not isinstance(self.failed, Mapping):
            raise InvalidJobError(f"failed takes the error of each job by its id, got {type(self.failed).__name__}")
        if self.failed.keys() & self.results.keys():
            raise InvalidJobError("a job of a lease has failed, or it has a result, and not both")
        singles = dict(self.singles)
        for job_id, each in self.failed.items():
            failure = each if isinstance(each, JobFailure) else JobFailure(each)
            end = (failure.delay, failure.error, failure.dead, failure.charge)
            singles[job_id] = Nack(Claim(job_id, 0), *end, traceback=failure.traceback)
        for job_id, (result, keep_result) in self.results.items():
            singles[job_id] = Ack(Claim(job_id, 0), result, keep_result)
        own = msgspec.structs.replace(preparation, find_claim=claim_of, object_bytes=None)
        ends = {job_id: each.prepared(own) for job_id, each in singles.items()}
        claim = preparation.find_claim(lease) if isinstance(lease, Claim) else lease.claim
        return EndLease(claim, last=last, withheld=self.withheld, singles=ends)

    def change(self, draft: Draft, now: datetime) -> None:
        """End the lease.

        Raises:
            ClaimLostError: the lease was given back, or ended otherwise.
            JobNotFoundError: a named job is not in the part of the lease that was worked on.
            SegmentDamagedError: a named job cannot be read, so that nothing can be noted with it.
        """
        claim, rows = self._claim, draft.jobs.rows
        held = draft.lease_of(claim)
        if held is None:
            if draft.header.finished.get(claim.job_id) == claim.attempt:
                return
            raise ClaimLostError(*claim, "the lease was ended, or its claim became stale")
        last = held.rows if self.last is None else min(self.last, held.rows)
        singles = self.singles
        if self.withheld:
            parts = [(object_of(claim.job_id), common(held.spans, [(0, last)]))]
            back = Nack(claim, charge=False)
            singles = {**dict.fromkeys(awaited_rows(draft.jobs.order, rows, parts), back), **singles}
        alone = self._alone(draft, claim.job_id, last, singles)
        done = without(common(held.spans, [(0, last)]), ((row, row + 1) for row in alone))
        lately = chain.from_iterable(reversed(range(*span)) for span in reversed(done))
        finished = rows.jobs_of(claim.job_id, [] if held.own_ids else [*islice(lately, FINISHED_KEPT)][::-1])
        draft.move_rows(bulk_move(Verb.ACK, claim.job_id, held, JobStatus.COMPLETED, done, now))
        if held.waiting_before(last) < held.left:
            give_back(draft, claim.job_id, now, first=last, charge=False)
        else:
            draft.drop_segment(claim.job_id)
        for job in alone.values():
            draft.admit(job)
            replace(singles[job.id], job=job.claim).change(draft, now)
        for job in finished:
            draft.note(draft.header.finished, job.id, job.attempt)
        draft.note(draft.header.finished, claim.job_id, claim.attempt)
        if (floor := held.claims + held.attempts) > draft.header.attempt_floor:
            draft.note_floor(floor)

    def _alone(self, draft: Draft, lease: str, last: int, singles: Iterable[str]) -> dict[int, JobRecord]:
        """Return jobs of a lease by their rows, in order, without cancelled jobs, given their ids."""
        rows, jobs_by_row, missing = draft.jobs.rows, dict[int, JobRecord](), set[Wanted]()
        its, index = rows.manifest.spans_there(object_of(lease)), rows.manifest.indexes.get(object_of(lease))
        for job_id in singles:
            try:
                draft.jobs.find(job_id)
            except RowsMissingError as error:  # all are asked for at once: each time, all is done anew
                missing |= error.wanted
                continue
            leased = rows.leased(job_id)
            if leased is not None and leased.lease == lease and leased.row < last:
                jobs_by_row[leased.row] = leased.job
            elif index is None or all(has(its, row) for row in index.rows_of(job_id)):  # it has not left meanwhile
                raise JobNotFoundError(job_id)
        if missing:
            raise RowsMissingError(missing)
        return dict(sorted(jobs_by_row.items()))

    @property
    def _claim(self) -> Claim:
        return self.lease if isinstance(self.lease, Claim) else self.lease.claim

    def references(self) -> Sequence[JobReference]:
        """Return the claim of the lease."""
        return (self._claim,)


class ClaimBatch(_Leases, frozen=True):
    """Claim the next jobs, by priority and then by commit order. Its result is a list of jobs and leases.

    Behind the largest number of leases, jobs are claimed one by one. At the largest number of such jobs, the batch ends
    early. A lease has no job whose priority is lower than that of a job beside it. Among jobs of equal priority, those
    of a lease are claimed before jobs that were enqueued between them.

    Attributes:
        entrypoints: the entrypoints of the jobs: one name, several, or None for all.
        jobs: largest number of jobs.
        singles: largest number of jobs that are claimed one by one. A lease is tried again after `least` of them, then
            after twice as many.
        leases: largest number of leases.
        alone: entrypoints whose jobs are claimed one by one.
    """

    hands_out_jobs = True
    is_batch = True
    always_needs: ClassVar[tuple[str, ...]] = ("leases", "holders", "claim_timeout")

    entrypoints: GivenNames | None
    jobs: Count
    singles: Count
    leases: Count
    alone: tuple[str, ...] = ()

    def prepared(self, preparation: Preparation) -> ClaimBatch:
        """Return the operation, checked and completed."""
        return ClaimBatch(
            None if self.entrypoints is None else sought_names(self.entrypoints),
            check_integer("jobs", self.jobs, 0, COUNT_MAX),
            check_integer("singles", self.singles, 0, COUNT_MAX),
            check_integer("leases", self.leases, 0, COUNT_MAX),
            self.alone,
            **{**self.completed(preparation), "inline": True},
        )

    def change(self, draft: Draft, now: datetime) -> list[JobRecord | Lease]:
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
        raise RowsMissingError(
            {*missing, *ahead, *rows.unloaded.upcoming(rows.unloaded.entrypoints(self._names), self.jobs)}
        )

    def _singles_behind(self, missing: Wanted, draft: Draft) -> list[Wanted]:
        """Return the chunks behind a missing one, if its rows are claimed one by one: each load repeats the commit."""
        rows, manifest, loads = draft.jobs.rows, draft.jobs.rows.manifest, list[Wanted]()
        index = manifest.indexes.get(missing.segment)
        if index is None or missing.chunk is None:
            return []
        for name, entry in manifest.entries_of(missing.segment).items():
            if index.single or entry.entrypoint in {*self.alone, *draft.header.entrypoints}:
                wanted = -(-min(self.jobs, self.singles) // entry.chunk_rows)
                loads += [Wanted(missing.segment, chunk) for chunk in rows.next_chunks(name, min(CHUNKS_AHEAD, wanted))]
        return [each for each in loads if (each.chunk or 0) >= missing.chunk]

    @property
    def _names(self) -> tuple[str, ...] | None:
        assert self.entrypoints is None or isinstance(self.entrypoints, tuple)
        return self.entrypoints

    def worst_priority(self, draft: Draft, name: str, now: datetime) -> float | None:
        """Return the best priority of a waiting job beside an entry; None if there is none."""
        return draft.jobs.order.best_priority_beside(name, self._names, now)

    def _claim(self, draft: Draft, now: datetime) -> list[JobRecord | Lease]:
        claims: list[JobRecord | Lease] = []
        several = self.least
        left, singles, ids = self.jobs, self.singles, [f"{self.lease_id}-{number}" for number in range(self.leases)]
        terms = {name: getattr(self, name) for name in Claims.__struct_fields__}
        one_by_one = Dequeue(self.entrypoints, **terms)
        while left and singles:
            if not draft.header.segments or not ids:
                return [*claims, *one_by_one.claim_next(draft, now, min(left, singles))]
            entry = draft.jobs.order.next_entry(self._names, now)
            if entry is None:
                break
            leases = [] if entry[2] in self.alone else self.lease(draft, entry[-1], now, left, ids)
            if leases:
                claims += leases
                left, ids, several = left - sum(each.rows for each in leases), ids[len(leases) :], self.least
                continue
            jobs = one_by_one.claim_next(draft, now, min(left, singles, several))
            several *= 2  # a look for a lease takes time that grows with the jobs that were claimed before
            claims += jobs
            left, singles = left - len(jobs), singles - len(jobs)
        return claims


TRAVELLING = (ClaimLease, EndLease, ClaimBatch)
