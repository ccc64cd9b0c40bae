"""Bugs planted one at a time: likely mistakes in a queue, and the seeds within which the simulation finds each.

Each takes pytest's `monkeypatch` and breaks one line of the protocol.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest

from jqueue.core.blob import engine
from jqueue.core.blob.content import Blob
from jqueue.core.blob.engine import CommitEngine
from jqueue.core.calls.writer import Writer
from jqueue.core.engine import requests
from jqueue.core.engine.requests import Request
from jqueue.core.engine.staleness import StaleWatch
from jqueue.core.pacing.turns import Turns
from jqueue.domain.commits import Verdict, next_header, recognise
from jqueue.domain.draft import Draft
from jqueue.domain.errors import ClaimLostError, JQueueError, StorageError
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Sweep, perform
from jqueue.domain.operations.operator import Redrive, revoke
from jqueue.domain.order import Order
from tests.simulation import planted_orders as orders
from tests.simulation import planted_segments as segments
from tests.simulation.network import HonestStore
from tests.simulation.runner import Settings


def no_commit_id(patch):
    """A commit whose answer was lost is not recognised."""

    def forgetful(header, commit):
        verdict = recognise(header, commit)
        return Verdict.NOT_DONE if verdict is Verdict.LANDED else verdict

    patch.setattr(engine, "recognise", forgetful)


def certain_of_lost_answers(patch):
    """The error for a lost answer states that nothing was written."""
    patch.setattr(StorageError, "nothing_written", True)


def keep_records(patch, count):
    """Keep only `count` records in the commit table, without recording the dropped ones."""

    def short(draft, commit, *rest):
        header = next_header(draft, commit, *rest)
        newest = sorted(header.commits.items(), key=lambda item: item[1].version)[-count:]
        return header.model_copy(update={"commits": dict(newest), "evicted_through": draft.header.evicted_through})

    patch.setattr(engine, "next_header", short)


def last_writer_only(patch):
    """Only the last writer's commit can be recognised."""
    keep_records(patch, 1)


def ring_of_two(patch):
    """Only the last two writers' commits can be recognised."""
    keep_records(patch, 2)


def eviction_not_recorded(patch):
    """Records are dropped by age, and `evicted_through` does not record it."""
    keep_records(patch, 1_000_000)


def claim_not_checked(patch):
    """An ack, nack or heartbeat succeeds with any claim."""

    def unchecked(self, claim):
        job = self.jobs.get(claim.job_id)
        if job is None or job.status is not JobStatus.IN_PROGRESS:
            raise ClaimLostError(*claim)
        return job

    patch.setattr(Draft, "held", unchecked)


def attempt_reset_by_redrive(patch):
    """A redriven job starts again with attempt 0."""
    queue = Redrive._queue
    patch.setattr(Redrive, "_queue", lambda self, draft, job, now: queue(self, draft, job.evolve(attempt=0), now))


def attempts_of_gone_jobs_forgotten(patch):
    """A job id that is used again starts with attempt 0."""
    patch.setattr(Draft, "note_floor", lambda self, attempt: None)


def heartbeats_after_the_sweep(patch):
    """Stale claims are revoked before the heartbeats of the same commit are applied."""
    apply = CommitEngine._apply

    async def sweep_first(self, pending):
        if any(request.claims_jobs for request in pending):
            perform(Sweep(self.watch.suspects()), self.draft, self.now())
        return await apply(self, pending)

    patch.setattr(CommitEngine, "_apply", sweep_first)


def foreign_timeout(patch):
    """A claim gets the timeout of the queue that watches it, and not its own."""
    patch.setattr(StaleWatch, "_timeout", lambda self, _: self._default_timeout)


def moved_heartbeat_ignored(patch):
    """A suspected claim is revoked although its heartbeat has moved."""
    observed = StaleWatch.observed

    def half_blind(self, draft, *rest):
        draft.jobs.claims_moved = {job_id: None for job_id in draft.jobs.claims_moved if job_id not in self._seen}
        observed(self, draft, *rest)

    def careless(self, draft, now):
        claims = {claim: None for claim, _ in self.suspects}
        stale = [draft.jobs[claim.job_id] for claim in claims if claim.job_id in draft.jobs.claimed]
        return revoke(draft, stale, now)

    patch.setattr(StaleWatch, "observed", half_blind)
    patch.setattr(Sweep, "change", careless)


def no_sweep(patch):
    """Stale claims are never revoked."""
    patch.setattr(Sweep, "change", lambda self, draft, now: 0)


def stale_cache(patch):
    """An empty dequeue is answered from the cached state."""
    make = Request.__init__

    def hasty(self, *arguments, **options):
        make(self, *arguments, **options)
        self.seen_empty = True

    patch.setattr(Request, "__init__", hasty)


def cancelled_dequeue_kept(patch):
    """The claims of a cancelled dequeue are not handed back."""
    patch.setattr(Request, "hand_back_claims", lambda self, outcome: None)


def abandoned_attempt_forgotten(patch):
    """A write with an unknown outcome is forgotten when its caller has left."""
    commit = CommitEngine.commit

    async def forgetful(self, requests, *, read_first=False):
        self.open_writes.writes = [
            sent for sent in self.open_writes.writes if any(request.awaited for request, _ in sent.outcomes)
        ]
        await commit(self, requests, read_first=read_first)

    patch.setattr(CommitEngine, "commit", forgetful)
    patch.setattr(Writer, "_may_owe_claims", lambda self: False)


def exit_before_writes_are_known(patch):
    """Leaving does not wait until the outcome of the last writes is known."""
    patch.setattr(Writer, "_may_owe_claims", lambda self: False)


def unconditional_create(patch):
    """A write without an etag overwrites an existing object."""
    write = HonestStore.write

    def careless(self, content, if_match):
        return write(self, content, self.read()[1] if if_match is None else if_match)

    patch.setattr(HonestStore, "write", careless)


def partial_apply(patch):
    """A refused operation does not undo the earlier operations of its `apply`."""

    def partial(self, draft, now):
        results = []
        for operation in self.operations:
            result = perform(operation, draft, now)
            if self.atomic and isinstance(result, JQueueError):
                return result
            results.append(result)
        return results

    patch.setattr(Request, "perform", partial)


def one_error_fails_the_commit(patch):
    """An unexpected exception in one operation fails the whole commit."""
    patch.setattr(requests, "perform", lambda operation, draft, now: operation.change(draft, now))


def answered_before_the_commit(patch):
    """A waiting dequeue is answered when its job is found, before the claim is committed."""
    write = CommitEngine._write

    async def hasty(self, outcomes):
        for request, outcome in outcomes:
            if request.waits_for_jobs:
                request.deliver(outcome)
        await write(self, outcomes)

    patch.setattr(CommitEngine, "_write", hasty)


def answered_when_sent(patch):
    """Every call is answered when its commit is sent, before the store answers."""
    write = CommitEngine._write

    async def hasty(self, outcomes):
        for request, outcome in outcomes:
            request.deliver(outcome)
        await write(self, outcomes)

    patch.setattr(CommitEngine, "_write", hasty)


def writer_that_never_yields(patch):
    """A continuous writer leaves no time for the others."""
    patch.setattr(Turns, "landed", lambda self, *_: None)


def finished_jobs_forgotten(patch):
    """The blob does not remember acked jobs."""
    note = Draft.note
    patch.setattr(
        Draft, "note", lambda self, table, *rest: None if table is self.header.finished else note(self, table, *rest)
    )


def unreadable_lines_dropped(patch):
    """Lines that cannot be read as a job are not written back."""
    encoding = Blob.encoding

    def tidy(self, header):
        self.draft.set_aside = ()
        return encoding(self, header)

    patch.setattr(Blob, "encoding", tidy)


def unknown_fields_dropped(patch):
    """Unknown fields of the header are not written back."""
    patch.setattr(engine, "next_header", lambda *given: next_header(*given).model_copy(update={"extra": {}}))


def served_in_reverse(patch):
    """The newest job is served first."""

    def newest(self, entrypoints, now):
        self._promote(now)
        queued = [job for job in self.jobs.values() if job.status is JobStatus.QUEUED]
        ready = [job for job in queued if job.run_at is None or job.run_at <= now]
        sought = [job for job in ready if entrypoints is None or job.entrypoint in entrypoints]
        free = [job for job in sought if self.is_open(job.entrypoint, now) and self._is_free(job)]
        return max(free, key=lambda job: job.sequence, default=None)

    patch.setattr(Order, "take", newest)


def busy_while_it_waits(patch):
    """A waiting consumer is always told that a job is due now."""
    patch.setattr(Draft, "next_due", lambda self: datetime.min.replace(tzinfo=UTC))


def deadline_ignored(patch):
    """A call does not end at its deadline."""
    patch.setattr(Request, "expire", lambda self: None)


def unknown_called_not_done(patch):
    """A deadline that passes while a write is under way is reported as "not done"."""
    expire = Request.expire

    def sure(self):
        self.in_flight, self.open_writes, kept = False, 0, (self.in_flight, self.open_writes)
        expire(self)
        self.in_flight, self.open_writes = kept

    patch.setattr(Request, "expire", sure)


STORM = Settings(rate=0.4, processes=6, short_table=1.0, segments=0.0)
"""Many processes, many faults, and the shortest commit table that is allowed."""

MODERN = Settings(rate=0.4, processes=6, short_table=1.0, modern=1.0, segments=0.0)
"""Like `STORM`, and every seed uses limits, cron entries and results."""


HISTORY = Settings(modern=1.0, staged=0.5, history=1.0, segments=0.0)
STAGED = Settings(rate=0.4, processes=6, modern=1.0, staged=1.0, segments=0.0)
"""Many processes and faults; every seed also enqueues in transactions and claims under names."""


@dataclass(frozen=True)
class Planted:
    """One planted bug.

    Attributes:
        plant: function that plants the bug with pytest's `monkeypatch`.
        seeds: number of seeds within which the bug is found.
        settings: settings of the simulation.
    """

    plant: Callable[[pytest.MonkeyPatch], None]
    seeds: int
    settings: Settings = STORM


PLANTED = [
    Planted(no_commit_id, 50),
    Planted(certain_of_lost_answers, 50),
    Planted(last_writer_only, 50),
    Planted(ring_of_two, 50),
    Planted(eviction_not_recorded, 50),
    Planted(claim_not_checked, 200),
    Planted(attempt_reset_by_redrive, 100),
    Planted(attempts_of_gone_jobs_forgotten, 50),
    Planted(heartbeats_after_the_sweep, 50),
    Planted(foreign_timeout, 50),
    Planted(moved_heartbeat_ignored, 50),
    Planted(no_sweep, 50),
    Planted(stale_cache, 50),
    Planted(cancelled_dequeue_kept, 50),
    Planted(abandoned_attempt_forgotten, 50),
    Planted(exit_before_writes_are_known, 200),
    Planted(unconditional_create, 50),
    Planted(partial_apply, 50),
    Planted(one_error_fails_the_commit, 50),
    Planted(answered_before_the_commit, 50),
    Planted(answered_when_sent, 50),
    Planted(writer_that_never_yields, 20, Settings(contention=1.0)),
    Planted(finished_jobs_forgotten, 50),
    Planted(unreadable_lines_dropped, 50),
    Planted(unknown_fields_dropped, 50),
    Planted(served_in_reverse, 50),
    Planted(busy_while_it_waits, 50),
    Planted(deadline_ignored, 50),
    Planted(unknown_called_not_done, 50),
    Planted(orders.counts_not_rolled_back, 50, MODERN),
    Planted(orders.ceiling_checked_once, 50, MODERN),
    Planted(orders.key_ceiling_off_by_one, 50, MODERN),
    Planted(orders.rate_not_counted_by_a_retry, 50, MODERN),
    Planted(orders.rate_used_for_ever, 50, MODERN),
    Planted(orders.pause_ignored_by_all, 50, MODERN),
    Planted(orders.parked_job_forgotten, 50, MODERN),
    Planted(orders.aging_ignored, 50, MODERN),
    Planted(orders.dead_jobs_retire_at_once, 50, MODERN),
    Planted(orders.cron_fired_twice, 50, MODERN),
    Planted(orders.cron_fired_from_memory, 50, MODERN),
    Planted(orders.cron_lost_with_the_answer, 50, MODERN),
    Planted(orders.cron_of_others_ignored, 50, MODERN),
    Planted(orders.cron_gap_taken_for_fired, 50, MODERN),
    Planted(orders.cron_waits_for_the_clock_ahead, 100, MODERN),
    Planted(orders.cron_remembers_the_last_only, 50, MODERN),
    Planted(orders.cron_fires_for_the_past, 100, MODERN),
    Planted(orders.result_lost_with_its_ack, 50, MODERN),
    Planted(orders.result_emptied_by_a_retry, 50, MODERN),
    Planted(orders.reserve_not_kept, 50, MODERN),
    Planted(orders.dropped_result_not_recorded, 50, MODERN),
    Planted(orders.result_returned_too_early, 50, MODERN),
    Planted(orders.stopped_job_queued_again, 50, MODERN),
    Planted(orders.holder_not_told_to_stop, 100, MODERN),
    Planted(segments.transaction_in_a_commit_of_its_own, 50, STAGED),
    Planted(segments.same_version_added_again, 50, STAGED),
    Planted(segments.placed_lines_kept_by_an_undo, 50, STAGED),
    Planted(segments.draft_kept_after_placed_lines, 50, STAGED),
    Planted(segments.transactions_not_written, 50, STAGED),
    Planted(segments.holder_kept_after_the_claim, 50, STAGED),
    Planted(segments.bound_ignored, 50, STAGED),
    Planted(segments.passed_over_jobs_lost, 50, STAGED),
    Planted(orders.recognised_commit_counted_twice, 50),
    Planted(orders.refused_transitions_counted, 50),
    Planted(orders.staged_jobs_not_counted, 50, STAGED),
    Planted(orders.own_transitions_only, 50),
    Planted(orders.outbox_dropped_before_its_object_landed, 50, HISTORY),
    Planted(orders.loser_drops_its_own_range, 50, HISTORY),
    Planted(orders.numbers_used_again_after_a_lost_answer, 50, HISTORY),
    Planted(orders.lines_without_an_event, 50, HISTORY),
    Planted(orders.rows_given_back_counted_as_done, 50, replace(segments.RANGED, history=1.0)),
    Planted(segments.object_created_after_the_commit, 50, segments.LARGE),
    Planted(segments.named_object_collected, 50, segments.LARGE),
    Planted(segments.named_result_collected, 50, segments.LARGE),
    Planted(orders.guard_checked_by_the_caller, 50, orders.OVERSEEN),
    Planted(orders.guard_checked_once, 100, orders.OVERSEEN),
    Planted(orders.edit_counts_from_zero, 50, orders.OVERSEEN),
    Planted(orders.edit_loses_the_unique_key, 100, orders.OVERSEEN),
    Planted(orders.edit_takes_a_held_key, 50, orders.OVERSEEN),
    Planted(orders.run_sent_again, 200, orders.OVERSEEN),
    Planted(orders.run_counts_as_an_occurrence, 50, orders.OVERSEEN),
    Planted(orders.purge_of_one_purges_all, 50, orders.OVERSEEN),
    Planted(orders.edit_without_an_event, 50, orders.RECORDED),
    Planted(orders.queue_created_again, 50, orders.OVERSEEN),
    Planted(segments.segments_named_again_by_a_rerun, 50, segments.STAGED_SEGMENTS),
    Planted(segments.segments_without_their_transaction, 50, segments.STAGED_SEGMENTS),
    Planted(segments.staged_segments_collected, 50, segments.STAGED_SEGMENTS),
    Planted(segments.segments_of_a_repeated_write_removed, 100, segments.STAGED_SEGMENTS),
    Planted(segments.rows_of_tasks_not_moved, 50, segments.STAGED_SEGMENTS),
    Planted(segments.row_admitted_twice, 50, segments.SEGMENTED),
    Planted(segments.segment_dropped_before_its_last_row, 50, segments.SEGMENTED),
    Planted(segments.named_segment_collected, 50, segments.SEGMENTED),
    Planted(segments.litter_aged_by_the_own_clock, 50, segments.TIMELESS),
    Planted(segments.segment_not_retired, 50, segments.SEGMENTED),
    Planted(segments.jobs_spilled_by_two_writers, 50, segments.SEGMENTED),
    Planted(segments.changed_job_spilled, 50, segments.SEGMENTED),
    Planted(segments.tombstone_lost, 50, segments.SEGMENTED),
    Planted(segments.unique_key_overlooked_in_a_segment, 50, segments.SEGMENTED),
    Planted(segments.id_overlooked_in_a_segment, 50, segments.SEGMENTED),
    Planted(segments.head_too_high, 50, segments.SEGMENTED),
    Planted(segments.rows_taken_during_a_merge_forgotten, 50, segments.SEGMENTED),
    Planted(segments.rows_kept_taken_by_an_undo, 50, segments.SEGMENTED),
    Planted(segments.rows_of_others_kept, 50, segments.SEGMENTED),
    Planted(segments.rows_overlooked_by_a_purge, 50, segments.SEGMENTED),
    Planted(segments.taken_rows_counted, 50, replace(segments.SEGMENTED, timeless=0.0)),
    Planted(segments.range_ended_by_a_stale_holder, 50, segments.RANGED),
    Planted(segments.failures_of_a_range_forgotten, 50, segments.RANGED),
    Planted(segments.range_ended_with_its_first_jobs, 50, segments.RANGED),
    Planted(segments.kept_jobs_of_a_range_forgotten, 50, segments.RANGED),
    Planted(segments.repeated_end_ends_the_next_jobs, 50, segments.RANGED),
    Planted(segments.damaged_rows_believed, 100, segments.DAMAGED),
    Planted(segments.unread_rows_of_a_range_done, 50, segments.RANGED_AND_DAMAGED),
    Planted(segments.jobs_of_a_pass_given_to_two_callers, 50, segments.CROWDED),
    Planted(segments.jobs_finished_by_a_pass_forgotten, 50, segments.CROWDED),
    Planted(segments.pass_undone_in_part, 50, segments.CROWDED),
    Planted(segments.pass_not_counted, 50, segments.CROWDED),
    Planted(segments.rows_of_a_pass_not_taken, 50, segments.IN_SEGMENTS),
]
