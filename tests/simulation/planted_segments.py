"""Planted bugs of segments: see `tests.simulation.planted_bugs`."""

import zlib
from dataclasses import replace

from jqueue.core.blob import segment_reader
from jqueue.core.blob.engine import CommitEngine
from jqueue.core.calls.value_objects import ValueObjects
from jqueue.domain import commits
from jqueue.domain.indexed_jobs import IndexedJobs
from jqueue.domain.job_table import packed
from jqueue.domain.operations.ranges import EndRange
from jqueue.domain.operations.segments import Merge, Spill
from jqueue.domain.segment_index import SegmentIndex
from jqueue.domain.segment_rows import SegmentRows
from jqueue.domain.segments import Segment, joined
from tests.simulation.runner import Settings

SEGMENTED = Settings(rate=0.2, processes=4, modern=0.8, segments=1.0)
"""Some faults, and segments in every seed."""

DAMAGED = replace(SEGMENTED, damage=1.0)
"""Segments in every seed, and damage to them."""

TIMELESS = replace(SEGMENTED, timeless=1.0)
"""Segments in every seed, on stores that do not tell the time."""

RANGED = replace(SEGMENTED, rate=0.3, processes=6, steps=5, ranges=1.0, history=0.0)
"""Segments in every seed, and jobs claimed by ranges."""


RANGED_AND_DAMAGED = replace(RANGED, damage=1.0)
"""Segments in every seed, jobs claimed by ranges, and damage."""


def row_admitted_twice(patch):
    """The manifest does not mark the rows that a commit takes"""
    patch.setattr(SegmentRows, "manifest", lambda self: self.segments)


def segment_dropped_before_its_last_row(patch):
    """A segment leaves the manifest when it has one row left"""
    taking = Segment.taking

    def hasty(self, rows):
        first, spans = taking(self, rows)
        left = self.rows - first - sum(last - start for start, last in spans)
        return (self.rows, ()) if left == 1 and self.waiting > 1 else (first, spans)

    patch.setattr(Segment, "taking", hasty)


def named_segment_collected(patch):
    """A collection removes old segments without a look at the manifest"""

    async def blind(self, header):
        return set()

    patch.setattr(CommitEngine, "objects_named_in", blind)


def litter_aged_by_the_own_clock(patch):
    """If the store does not tell the time, a collection takes that of its own process"""
    older_than = ValueObjects.older_than

    async def trusting(self, *arguments):
        self._store_time = self._now
        return await older_than(self, *arguments)

    patch.setattr(ValueObjects, "older_than", trusting)


def segment_not_retired(patch):
    """A segment that has left the manifest may be removed at once"""
    patch.setattr(commits, "retired_after", lambda before, after, retired, *rest: retired)


def jobs_spilled_by_two_writers(patch):
    """A spill names its segment whole, although another writer has spilled some of its jobs"""
    change = Spill.change

    def careless(self, draft, now):
        gone = [job_id for job_id in self.rows if job_id not in draft.jobs.entries]
        moved = change(self, draft, now)
        if gone and moved:
            named = self.segment.model_copy(update={"at": now.timestamp()})
            draft.note(draft.header.segments, self.name, named)
        return moved

    patch.setattr(Spill, "change", careless)


def changed_job_spilled(patch):
    """A spill takes jobs out of the blob that have changed since it wrote them"""
    change = Spill.change

    def careless(self, draft, now):
        jobs, rows = draft.jobs, draft.jobs.rows.of
        here = {job_id: packed(jobs[job_id], {}) for job_id in self.rows if job_id in jobs and job_id not in rows}
        return change(replace(self, rows={**self.rows, **here}), draft, now)

    patch.setattr(Spill, "change", careless)


def tombstone_lost(patch):
    """A commit that takes rows forgets the rows behind the first that were taken before"""

    def forgetful(self, rows):
        spans, first = joined((row, row + 1) for row in rows), self.next
        if spans and spans[0][0] <= first:
            first = max(first, spans.pop(0)[1])
        return first, tuple(spans)

    patch.setattr(Segment, "taking", forgetful)


def unique_key_overlooked_in_a_segment(patch):
    """An enqueue looks for the holder of its unique key in the blob alone"""
    patch.setattr(IndexedJobs, "find_key", lambda self, key: self.keys_held.get(key))


def id_overlooked_in_a_segment(patch):
    """A lookup of a job by its id does not look into segments"""
    patch.setattr(IndexedJobs, "find", lambda self, job_id: self.get(job_id))


def head_too_high(patch):
    """The head of a segment is that of its last chunk once a row was taken"""
    current = SegmentRows.current

    def ahead(self, name):
        segment, index = current(self, name), self.indexes.get(name)
        if segment is None or index is None or segment is self.segments[name]:
            return segment
        last = index.chunks[-1].first
        return segment.model_copy(update={"head": last._replace(sequence=last.sequence + segment.offset)})

    patch.setattr(SegmentRows, "current", ahead)


def rows_taken_during_a_merge_forgotten(patch):
    """A merge names rows that were taken while it wrote its segment"""
    change = Merge.change

    def forgetful(self, draft, now):
        rows = draft.jobs.rows
        current, rows.current = rows.current, lambda name: None
        try:
            whole = [replace(source, rows=()) for source in self.sources]
            return change(replace(self, sources=whole), draft, now)
        finally:
            rows.current = current

    patch.setattr(Merge, "change", forgetful)


def rows_kept_taken_by_an_undo(patch):
    """A commit that is rolled back leaves its rows taken"""

    def forgetful(self, job_id, old):
        name, _ = self.of[job_id] = old
        self._left[self._entrypoints[name]] += 1

    patch.setattr(SegmentRows, "restore", forgetful)


def rows_of_others_kept(patch):
    """A writer keeps loaded rows that another writer has taken meanwhile"""
    adopt = SegmentRows.adopt

    def careless(self, *manifest):
        self.committed = {}
        adopt(self, *manifest)

    patch.setattr(SegmentRows, "adopt", careless)


def rows_overlooked_by_a_purge(patch):
    """A purge of queued jobs removes only the rows that happen to be loaded"""
    patch.setattr(SegmentRows, "require", lambda self, *rest: None)


def taken_rows_counted(patch):
    """Statistics count the rows of a segment that were taken behind its next row"""
    patch.setattr(Segment, "waiting", property(lambda self: self.rows - self.next))


def damaged_rows_believed(patch):
    """The checksum of a chunk of rows is not compared"""
    decode = segment_reader.decode_chunk  # type: ignore[attr-defined]

    def believing(data, number, segment, index, *rest):
        found = SegmentIndex(index.chunks, index.end, index.ids, index.keys, texts=index.texts)
        found.chunks = {number: index.chunks[number]._replace(crc=zlib.crc32(data))}  # type: ignore[assignment]
        return decode(data, number, segment, found, *rest)

    patch.setattr(segment_reader, "decode_chunk", believing)


def range_ended_by_a_stale_holder(patch):
    """The end of a range by a holder whose claim is stale ends the next claim on its rows"""
    change = EndRange.change

    def careless(self, draft, now):
        claim = self.claim
        if claim.id not in draft.header.ranges and claim.id not in draft.header.finished:
            for range_id, held in draft.header.ranges.items():
                if held.segment == claim.segment and held.has(claim.held.first):
                    return change(replace(self, claim=replace(claim, id=range_id, held=held)), draft, now)
        return change(self, draft, now)

    patch.setattr(EndRange, "change", careless)


def failures_of_a_range_forgotten(patch):
    """The end of a range takes its failed jobs for done"""
    change = EndRange.change
    patch.setattr(EndRange, "change", lambda self, draft, now: change(replace(self, failed={}), draft, now))


def range_ended_with_its_first_jobs(patch):
    """The end of the first jobs of a range ends all of its jobs"""
    change = EndRange.change
    patch.setattr(EndRange, "change", lambda self, draft, now: change(replace(self, jobs=None), draft, now))


def kept_jobs_of_a_range_forgotten(patch):
    """The end of a range takes the jobs that stay in progress for done"""
    change = EndRange.change
    patch.setattr(EndRange, "change", lambda self, draft, now: change(replace(self, kept=()), draft, now))


def repeated_end_ends_the_next_jobs(patch):
    """A repeated end of the first jobs of a range counts them from the first job that is left"""

    def careless(self, draft, held):
        row = held.row_behind(self.jobs) if self.jobs is not None else held.last
        return held.among(0, row), held.among(row, held.last)

    patch.setattr(EndRange, "_parts", careless)


def unread_rows_of_a_range_done(patch):
    """The end of a range takes the rows that its holder could not read for done"""
    change = EndRange.change

    def careless(self, draft, now):
        return change(replace(self, claim=replace(self.claim, unread=())), draft, now)

    patch.setattr(EndRange, "change", careless)
