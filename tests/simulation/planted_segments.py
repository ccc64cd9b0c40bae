"""Planted bugs of segments, ranges, bulk enqueues, objects and passes: see `tests.simulation.planted_bugs`."""

import asyncio
import zlib
from contextlib import nullcontext
from dataclasses import replace
from weakref import WeakKeyDictionary

from jqueue.core.blob import segment_reader
from jqueue.core.blob.engine import CommitEngine
from jqueue.core.calls import collection
from jqueue.core.calls.collection import Collector
from jqueue.core.calls.staged_commit import StagedCommit
from jqueue.core.calls.value_objects import ValueObjects
from jqueue.core.queue_base import QueueBase
from jqueue.domain import commits, tallies
from jqueue.domain.draft import Draft
from jqueue.domain.indexed_jobs import IndexedJobs
from jqueue.domain.job_table import packed
from jqueue.domain.models import NO_CLAIM, TransactionRecord, fields_of
from jqueue.domain.operations import Dequeue, EnqueueSegments, EnqueueStaged, LastTransaction, bulk
from jqueue.domain.operations.ranges import EndRange
from jqueue.domain.operations.segments import Merge, Spill
from jqueue.domain.operations.transactions import Transaction
from jqueue.domain.order import Order
from jqueue.domain.segment_index import SegmentIndex
from jqueue.domain.segment_rows import SegmentRows
from jqueue.domain.segments import Segment, joined
from jqueue.domain.sequence_numbers import PlacedJobs
from jqueue.domain.stored_object import RESULTS, StoredObject
from jqueue.domain.transitions import MoveRun, Verb
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


def transaction_in_a_commit_of_its_own(patch):
    """The version of a bulk enqueue is recorded one commit after its jobs"""
    change, apply = EnqueueStaged.change, CommitEngine._apply
    owed: WeakKeyDictionary = WeakKeyDictionary()

    def later(self, draft, now):
        if self.transaction is None:
            return change(self, draft, now)
        app, version, _ = Transaction(*self.transaction)
        record = draft.header.transactions.get(app)
        if record is not None and record.version >= version:
            return change(self, draft, now)
        owed.setdefault(asyncio.get_running_loop(), {})[app] = version
        return change(replace(self, transaction=None), draft, now)

    async def with_debts(self, pending):
        for app, version in owed.pop(asyncio.get_running_loop(), {}).items():
            self.draft.note(self.draft.header.transactions, app, TransactionRecord(version, 4e9))
        return await apply(self, pending)

    patch.setattr(EnqueueStaged, "change", later)
    patch.setattr(CommitEngine, "_apply", with_debts)


def same_version_added_again(patch):
    """A version equal to the last one counts as new"""
    change = EnqueueStaged.change

    def careless(self, draft, now):
        if self.transaction is not None:
            app, version, _ = Transaction(*self.transaction)
            record = draft.header.transactions.get(app)
            if record is not None and record.version == version:
                draft.note(draft.header.transactions, app, record._replace(version=version - 1))
        return change(self, draft, now)

    patch.setattr(EnqueueStaged, "change", careless)


def placed_lines_kept_by_an_undo(patch):
    """Lines placed by a write that did not land are written a second time by the retry"""

    def for_good(self, jobs, now):
        placed = PlacedJobs(jobs, self.jobs.last_sequence + 1, now)
        self.jobs.last_sequence += jobs.jobs
        self.placed = (*self.placed, placed)
        self.touch()
        self.note_added(jobs.size)

    patch.setattr(Draft, "place", for_good)


def draft_kept_after_placed_lines(patch):
    """A writer that has placed lines goes on with a draft without their jobs"""
    settle = Draft.settle

    def unaware(self):
        settle(self)
        self.placed = ()

    patch.setattr(Draft, "settle", unaware)


def transactions_not_written(patch):
    """The next commit of another writer forgets the transactions"""
    take_header = Draft.take_header

    def forgetful(self, header):
        take_header(self, header)
        self.header.transactions = {}

    patch.setattr(Draft, "take_header", forgetful)


def holder_kept_after_the_claim(patch):
    """A job without a claim still names its last holder"""
    patch.delitem(NO_CLAIM, "holder")


def bound_ignored(patch):
    """A dequeue with a bound takes later jobs, too"""
    patch.setattr(Order, "only_through", lambda self, sequence: nullcontext())


def passed_over_jobs_lost(patch):
    """Jobs that a bounded dequeue passes over are not put back"""
    only_through = Order.only_through

    def leaky(self, sequence):
        self._later = type("Leaky", (list,), {"append": lambda self, entry: None})()
        return only_through(self, sequence)

    patch.setattr(Order, "only_through", leaky)


STAGED_SEGMENTS = Settings(rate=0.2, processes=4, modern=1.0, staged=1.0, segments=1.0, history=0.0)
"""Some faults, and in every seed applications whose writes name segments."""


def segments_named_again_by_a_rerun(patch):
    """A repeated write names its segments without a look at its transaction"""
    change = EnqueueSegments.change

    def careless(self, draft, now):
        if self.transaction is not None:
            draft.header.transactions.pop(self.transaction[0], None)
        return change(self, draft, now)

    async def unaware(self, operation, deadline):
        return None if isinstance(operation, LastTransaction) else await done(self, operation, deadline)

    done = QueueBase._done
    patch.setattr(QueueBase, "_done", unaware)
    patch.setattr(EnqueueSegments, "change", careless)


def segments_without_their_transaction(patch):
    """A write that names segments does not record its transaction"""
    patch.setattr(bulk, "remember", lambda draft, transaction, now: None)


def staged_segments_collected(patch):
    """Segments that wait for their commit are removed as early as others that nothing names"""
    patch.setattr(collection, "awaits_commit", lambda name, transactions: False)
    patch.setattr(StagedCommit, "_check_presence", lambda self, new: asyncio.sleep(0))


def rows_of_tasks_not_moved(patch):
    """The rows of each task begin at the first place of the write"""
    numbered = StagedCommit._numbered
    patch.setattr(StagedCommit, "_numbered", lambda self: [replace(each, behind=0) for each in numbered(self)])


def segments_of_a_repeated_write_removed(patch):
    """A repeated write removes its segments without a look at the manifest"""
    remove_own = StagedCommit.remove_own

    async def blind(self, header):
        await remove_own(self, header.model_copy(update={"segments": {}, "retired": {}}))

    patch.setattr(StagedCommit, "remove_own", blind)


LARGE = Settings(modern=1.0, large=1.0, segments=0.0)


def object_created_after_the_commit(patch):
    """The commit does not wait until the object of its payload is there"""

    async def hasty(self, folder, content, digest):
        suffix = self._fresh(folder)

        async def create():
            await asyncio.sleep(0.5)
            await self.storage.create_object(suffix, content)

        self.hasty = asyncio.create_task(create())
        self.hasty.add_done_callback(lambda task: task.cancelled() or task.exception())
        return StoredObject(suffix, len(content), digest)

    patch.setattr(ValueObjects, "_create", hasty)


def named_object_collected(patch):
    """A collection removes old objects without a look at the queue"""

    async def blind(self, suspects):
        return set()

    patch.setattr(Collector, "_named", blind)


def named_result_collected(patch):
    """A collection takes the results that jobs name for results that nothing names"""
    named = Collector._named

    async def forgetful(self, suspects):
        return {suffix for suffix in await named(self, suspects) if not suffix.startswith(RESULTS)}

    patch.setattr(Collector, "_named", forgetful)


CROWDED = Settings(rate=0.2, processes=4, crowds=1.0, segments=0.0)
"""Some faults, and many callers of one queue object in every seed."""


IN_SEGMENTS = replace(CROWDED, segments=1.0)
"""The same with segments in every seed."""


def jobs_of_a_pass_given_to_two_callers(patch):
    """A pass gives the jobs of its first dequeue to the second, too"""
    change_run = Dequeue.change_run

    def careless(run, draft, now):
        results = change_run(run, draft, now)
        return [*results[:1], *results[:1], *results[2:]] if len(results) > 1 else results

    patch.setattr(Dequeue, "change_run", staticmethod(careless))


def jobs_finished_by_a_pass_forgotten(patch):
    """A pass of acks does not remember its jobs as finished"""

    def forgetful(self, jobs):
        self._note_run(MoveRun(Verb.ACK, jobs, None, fields_of(jobs)))
        self.jobs.finish_plain(fields_of(jobs))

    patch.setattr(Draft, "finish_plain", forgetful)


def pass_undone_in_part(patch):
    """An undo takes back the first transition of a pass alone"""
    restore = IndexedJobs.restore

    def partial(self, job_id, old):
        if isinstance(old, MoveRun):
            old = MoveRun(old.verb, old.before and old.before[:1], old.after and old.after[:1], old.fields[:1])
        restore(self, job_id, old)

    patch.setattr(IndexedJobs, "restore", partial)


def pass_not_counted(patch):
    """The counters overlook the transitions of a pass"""
    patch.setattr(tallies, "_count_run", lambda *_: None)


def rows_of_a_pass_not_taken(patch):
    """The rows of segments that a pass of dequeues claims are not marked as taken"""

    def careless(self, ready, claimed):
        self._note_run(MoveRun(Verb.CLAIM, ready, claimed, fields_of(claimed)))
        self.jobs.claim_plain(claimed, fields_of(claimed))

    patch.setattr(Draft, "claim_plain", careless)
