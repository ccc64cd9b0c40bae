"""Planted bugs of limits, cron entries, results, operators, counters and the history: see `planted_bugs`."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from jqueue.core.blob import engine
from jqueue.core.blob.content import Blob
from jqueue.core.blob.engine import CommitEngine
from jqueue.core.blob.history_mover import HistoryMover
from jqueue.core.engine.open_writes import OpenWrites
from jqueue.core.queue_base import QueueBase
from jqueue.domain import commits, occurrences, order
from jqueue.domain.commits import Verdict, next_header
from jqueue.domain.draft import Draft
from jqueue.domain.ended_jobs import EndedJobs
from jqueue.domain.errors import CASConflictError, DeadlineExceededError, JobCancelledError, UnknownOutcomeError
from jqueue.domain.events import batches_of
from jqueue.domain.history import Moved, span_of
from jqueue.domain.journal import Journal
from jqueue.domain.models import JobStatus
from jqueue.domain.occurrences import with_fired
from jqueue.domain.operations import (
    Ack,
    Amend,
    AwaitResult,
    CreateQueue,
    Dequeue,
    Guarded,
    Heartbeat,
    Purge,
    RunSchedule,
    claims,
    dequeue,
    operator,
    ranges,
    schedules,
)
from jqueue.domain.operations.claims import send_back
from jqueue.domain.operations.jobs import NewJob
from jqueue.domain.operations.returned_ranges import bulk_move
from jqueue.domain.order import Order
from jqueue.domain.rules import Span
from jqueue.domain.tallies import with_moves
from jqueue.domain.transitions import Verb
from jqueue.ports.storage import SupportsObjects
from tests.simulation.runner import Settings
from tests.simulation.workload import DEADLINE


def counts_not_rolled_back(patch):
    """A rollback does not restore the counts of running jobs"""
    rollback = Draft.rollback

    def forgetful(self, savepoint=None):
        order = self.jobs.order
        counts = dict(order.running), dict(order.running_keys)
        rollback(self, savepoint)
        order.running, order.running_keys = counts

    patch.setattr(Draft, "rollback", forgetful)


def ceiling_checked_once(patch):
    """A dequeue checks the ceiling once, and not for each job that it claims"""
    change, is_open = Dequeue.change, Order.is_open
    seen: dict = {}

    def begin(self, draft, now):
        seen[draft.jobs.order] = dict(draft.jobs.order.running)
        return change(self, draft, now)

    def as_it_was(self, entrypoint, now):
        self.running, kept = seen[self], self.running
        try:
            return is_open(self, entrypoint, now)
        finally:
            self.running = kept

    patch.setattr(Dequeue, "change", begin)
    patch.setattr(Order, "is_open", as_it_was)


def key_ceiling_off_by_one(patch):
    """One job more than the limit of its concurrency key is claimed"""

    def generous(self, job):
        key = job.concurrency_key
        return key is None or self.running_keys.get(key, 0) <= (job.concurrency_limit or 1)

    patch.setattr(Order, "_is_free", generous)


def rate_not_counted_by_a_retry(patch):
    """The claims of a retried commit do not count against the rate"""
    note, rollback, settle = Draft.note, Draft.rollback, Blob.settle
    again = set()

    def forgetful(self, table, *rest):
        if not (table is self.header.recent and self in again):
            note(self, table, *rest)

    def undo(self, savepoint=None):
        if self._journal.entries and not (savepoint and savepoint[0]):
            again.add(self)
        rollback(self, savepoint)

    def done(self, *rest):
        again.discard(self.draft)
        settle(self, *rest)

    patch.setattr(Draft, "note", forgetful)
    patch.setattr(Draft, "rollback", undo)
    patch.setattr(Blob, "settle", done)


def rate_used_for_ever(patch):
    """Old claims count against the rate for ever"""
    patch.setattr(order, "claims_left", lambda usage, now, rate, per: rate - sum(span.claims for span in usage))


def pause_ignored_by_all(patch):
    """A dequeue from all entrypoints takes jobs of paused ones, too"""
    take = Order.take

    def careless(self, entrypoints, now):
        if entrypoints is None:
            paused = {name: rules.model_copy(update={"paused": False}) for name, rules in self.rules.items()}
            kept, self.rules = self.rules, paused
            try:
                return take(self, entrypoints, now)
            finally:
                self.rules = kept
        return take(self, entrypoints, now)

    patch.setattr(Order, "take", careless)


def parked_job_forgotten(patch):
    """A job held back by its concurrency key never becomes ready again"""
    patch.setattr(Order, "_unpark", lambda self, key: None)


def aging_ignored(patch):
    """Jobs are served by priority alone, however long they have waited"""
    patch.setattr(Order, "_aged", lambda self, priority, since: priority)


def dead_jobs_retire_at_once(patch):
    """Dead jobs with a retention time are removed at once"""
    kept_until = EndedJobs.kept_until

    def hasty(self, job):
        return job.dead_at if kept_until(self, job) and job.status is JobStatus.DEAD else kept_until(self, job)

    patch.setattr(EndedJobs, "kept_until", hasty)


def cron_fired_twice(patch):
    """A cron entry stays due after it has fired"""
    fire = schedules.fire_due

    def stuck(draft, now, room):
        before = dict(draft.header.schedules)
        fire(draft, now, room)
        for name, schedule in before.items():
            if draft.header.schedules[name] != schedule:
                draft.note(draft.header.schedules, name, schedule)

    patch.setattr(dequeue, "fire_due", stuck)


def cron_fired_from_memory(patch):
    """A queue fires a cron entry from memory, without checking if another queue has fired it"""
    fire = schedules.fire_due
    known: dict = {}

    def remember(draft, now, room):
        for name, schedule in list(draft.header.schedules.items()):
            mine = known.setdefault((draft, name), schedule)
            if schedule.next_at > now >= mine.next_at:
                values = schedules._job_values(mine, now)
                NewJob(values, False, None, "return", room).change(draft, now)
        fire(draft, now, room)
        known.update({(draft, name): schedule for name, schedule in draft.header.schedules.items()})

    patch.setattr(dequeue, "fire_due", remember)


def cron_lost_with_the_answer(patch):
    """The firing of a commit whose answer was lost is undone, but the entry is no longer due"""
    rollback = Draft.rollback

    def forgetful(self, savepoint=None):
        schedules = self.header.schedules
        fired = dict(schedules)
        rollback(self, savepoint)
        for name, schedule in fired.items():
            if name in schedules and schedule.next_at > schedules[name].next_at:
                schedules[name] = schedule

    patch.setattr(Draft, "rollback", forgetful)


def cron_of_others_ignored(patch):
    """A dequeue fires only the cron entries of its own entrypoints"""
    change, due = Dequeue.change, Order.due_schedules
    sought: list = []

    def own(self, draft, now):
        sought[:] = [self.entrypoints]
        return change(self, draft, now)

    def of_mine(self, now):
        return [entry for entry in due(self, now) if sought[0] is None or entry.entrypoint in sought[0]]

    patch.setattr(Dequeue, "change", own)
    patch.setattr(Order, "due_schedules", of_mine)


def cron_gap_taken_for_fired(patch):
    """After a clock that is ahead has fired, all earlier occurrences count as fired, too"""
    fired = occurrences.with_fired

    def without_gaps(*given):
        after = fired(*given)
        whole = Span(after.fired[0].first, after.fired[-1].last)
        return after.model_copy(update={"fired": (whole,)})

    patch.setattr(schedules, "with_fired", without_gaps)


def cron_waits_for_the_clock_ahead(patch):
    """A cron entry is due only at the next time of the clock that is furthest ahead"""
    patch.setattr(order, "is_pending", lambda schedule, now: schedule.next_at <= now)


def cron_remembers_the_last_only(patch):
    """A cron entry that fires forgets the occurrences fired before"""
    fired = occurrences.with_fired

    def short(*given):
        after = fired(*given)
        return after.model_copy(update={"fired": after.fired[-1:]})

    patch.setattr(schedules, "with_fired", short)


def cron_fires_for_the_past(patch):
    """A clock that is behind all known times of a cron entry fires for a past occurrence"""
    met = occurrences.with_clock

    def a_day_before(schedule, now):
        return met(schedule, now - timedelta(days=1))

    patch.setattr(schedules, "with_clock", a_day_before)


def result_lost_with_its_ack(patch):
    """An ack that is retried finishes its job without keeping the result"""
    change, tried = Ack.change, set()

    def once(self, draft, now):
        job = draft.jobs.get(self.job.job_id)
        if job is not None and (self.job, draft) in tried and job.keep_result is not None:
            draft.jobs.entries[job.id] = job.evolve(keep_result=None)
        tried.add((self.job, draft))
        change(self, draft, now)

    patch.setattr(Ack, "change", once)


def result_emptied_by_a_retry(patch):
    """An ack that is retried keeps an empty result"""
    change, tried = Ack.change, set()

    def once(self, draft, now):
        again = (self.job, draft) in tried
        tried.add((self.job, draft))
        change(Ack(self.job) if again else self, draft, now)

    patch.setattr(Ack, "change", once)


def reserve_not_kept(patch):
    """A result is kept even if the queue then exceeds its size limit"""
    patch.setattr(claims, "take_reserve", lambda draft, size, blob_bytes: True)


def dropped_result_not_recorded(patch):
    """A result that does not fit is dropped without a record"""
    change = Ack.change

    def silent(self, draft, now):
        dropped = change(self, draft, now)
        job = draft.jobs.get(self.job.job_id)
        if dropped and job is not None:
            draft.jobs.entries[job.id] = job.evolve(result_dropped=0)

    patch.setattr(Ack, "change", silent)


def result_returned_too_early(patch):
    """A caller that waits for a result gets it when the commit is sent, even if it does not land"""
    write = CommitEngine._write

    async def hasty(self, outcomes):
        for request, outcome in outcomes:
            if isinstance(request.operations[0], AwaitResult):
                request.deliver(outcome)
        await write(self, outcomes)

    patch.setattr(CommitEngine, "_write", hasty)


def stopped_job_queued_again(patch):
    """A job with a requested cancellation is queued again when its claim is stale"""

    def forgiving(draft, job, *rest, **changes):
        send_back(draft, job.evolve(cancel_requested=False), *rest, **changes)

    patch.setattr(operator, "send_back", forgiving)


def holder_not_told_to_stop(patch):
    """The heartbeat of a job with a requested cancellation does not report it"""
    change = Heartbeat.change

    def silent(self, draft, now):
        return [error for error in change(self, draft, now) if not isinstance(error, JobCancelledError)]

    patch.setattr(Heartbeat, "change", silent)


OVERSEEN = Settings(rate=0.4, processes=6, modern=1.0, overseen=1.0, segments=0.0)
"""Many processes and faults; in every seed, operators act on what they have seen."""

RECORDED = Settings(modern=1.0, overseen=1.0, history=1.0, segments=0.0)
"""In every seed, operators act on what they have seen, and the history is kept."""


def guard_checked_by_the_caller(patch):
    """The guard of an order is checked when the caller looks, and not in the commit"""
    patch.setattr(Guarded, "change", lambda self, draft, now: self.operation.change(draft, now))


def guard_checked_once(patch):
    """The guard of an order is not checked again when its commit is retried"""
    change, checked = Guarded.change, {}

    def once(self, draft, now):
        if id(self) in checked:
            return self.operation.change(draft, now)
        result = change(self, draft, now)
        checked[id(self)] = self
        return result

    patch.setattr(Guarded, "change", once)


def edit_counts_from_zero(patch):
    """An edit resets the attempts and the failures of its job"""
    prepared = Amend.prepared

    def resetting(self, preparation):
        ready = prepared(self, preparation)
        return replace(ready, options={**ready.options, "attempt": 0, "failures": 0})

    patch.setattr(Amend, "prepared", resetting)


def edit_loses_the_unique_key(patch):
    """A job that was edited holds its unique key no longer"""
    change = Amend.change

    def losing(self, draft, now):
        job = change(self, draft, now)
        draft.jobs.keys_held.pop(job.unique_key, None)
        return job

    patch.setattr(Amend, "change", losing)


def edit_takes_a_held_key(patch):
    """An edit gives its job a unique key that another job holds"""
    patch.setattr(Amend, "_check_key", lambda *_: None)


def run_sent_again(patch):
    """A run of a cron entry whose answer is lost is sent again, for another job"""
    apply = QueueBase.apply

    async def insistent(self, *operations, deadline=None):
        if not isinstance(getattr(operations[0], "operation", operations[0]), RunSchedule):
            return await apply(self, *operations, deadline=deadline)
        try:
            return await apply(self, *operations, deadline=DEADLINE / 2)
        except (UnknownOutcomeError, DeadlineExceededError):
            return await apply(self, *operations, deadline=DEADLINE / 2)

    patch.setattr(QueueBase, "apply", insistent)


def run_counts_as_an_occurrence(patch):
    """A run of a cron entry counts as its next occurrence, which is then left out"""
    change = RunSchedule.change

    def moving(self, draft, now):
        job = change(self, draft, now)
        entry = draft.header.schedules[self.name]
        draft.note(draft.header.schedules, self.name, with_fired(entry, entry.next_at, entry.next_at))
        return job

    patch.setattr(RunSchedule, "change", moving)


def purge_of_one_purges_all(patch):
    """The purge of one dead job purges all dead jobs"""
    change = Purge.change
    patch.setattr(Purge, "change", lambda self, draft, now: change(replace(self, job_id=None), draft, now))


def edit_without_an_event(patch):
    """An edit makes no event"""

    def incomplete(moves, *rest, **options):
        return batches_of([move for move in moves if move[0] is not Verb.EDIT], *rest, **options)

    patch.setattr(commits, "batches_of", incomplete)


def queue_created_again(patch):
    """An order to create the queue succeeds although the queue exists"""
    patch.setattr(CreateQueue, "change", lambda self, draft, now: draft.touch())


def recognised_commit_counted_twice(patch):
    """A commit that is recognised after its answer was lost counts a second time"""
    sent = {}
    close = OpenWrites.close

    def remembering(draft, commit, queue, now, *rest):
        sent[commit] = draft, list(draft.moves), now
        return next_header(draft, commit, queue, now, *rest)

    def counting(self, verdicts, landed=None):
        for write, verdict in verdicts.items():
            if verdict is Verdict.LANDED and write.commit in sent:
                draft, moves, now = sent[write.commit]
                draft.header.counters = with_moves(draft.header.counters, moves, {}, now)
        return close(self, verdicts, landed=landed)

    patch.setattr(engine, "next_header", remembering)
    patch.setattr(OpenWrites, "close", counting)


def refused_transitions_counted(patch):
    """The transitions of a refused operation are undone, and still counted"""
    undo = Journal.undo
    patch.setattr(
        Journal, "undo", lambda self, mark, moves, bulk: undo(self, mark, len(self.moves) if mark else 0, bulk)
    )


def staged_jobs_not_counted(patch):
    """Jobs that were added as lines are not counted"""
    patch.setattr(commits, "_added", lambda draft: {})


def own_transitions_only(patch):
    """A writer counts from its own last commit, and forgets what others have counted since"""
    known: dict[str, Any] = {}

    def forgetful(draft, commit, *rest):
        header = next_header(draft, commit, *rest)
        own = known.get(commit.writer, draft.header.counters)
        counters = with_moves(own, draft.moves, {}, rest[1])
        known[commit.writer] = counters
        return header.model_copy(update={"counters": counters})

    patch.setattr(engine, "next_header", forgetful)


def outbox_dropped_before_its_object_landed(patch):
    """Events are dropped from the blob when their object is sent, before the store answers"""
    move = HistoryMover._move

    async def hasty(self, objects, history, queue):
        self.moved = Moved(history.series, history.batches)
        return await move(self, objects, history, queue)

    patch.setattr(HistoryMover, "_move", hasty)


def loser_drops_its_own_range(patch):
    """The loser of two movers drops its own range of events instead of the winner's"""
    move = HistoryMover._move

    async def careless(self, objects, history, queue):
        class Unread:
            async def create_object(self, suffix, content):
                try:
                    await objects.create_object(suffix, content)
                except CASConflictError:
                    return

        return await move(self, cast("SupportsObjects", Unread()), history, queue)

    patch.setattr(HistoryMover, "_move", careless)


def numbers_used_again_after_a_lost_answer(patch):
    """A commit after a lost answer uses the numbers of the commit that landed unnoticed"""
    pending: dict[str, int] = {}
    settle = Blob.settle

    def reusing(draft, commit, *rest):
        header, known = next_header(draft, commit, *rest), draft.header.history
        if known is None or header.history is None:
            return header
        surplus = known.last - pending.setdefault(commit.writer, known.last)
        if not surplus:
            return header
        kept = [batch for batch in header.history.batches if span_of(batch).first <= known.last]
        new = [
            f"[{span_of(batch).first - surplus},{batch.partition(',')[2]}"
            for batch in header.history.batches[len(kept) :]
        ]
        changes = {"batches": (*kept, *new), "last": header.history.last - surplus}
        return header.model_copy(update={"history": header.history.model_copy(update=changes)})

    def clean(self, header, size):
        for writer, record in header.commits.items():
            if record.version == header.version:
                pending.pop(writer, None)
        return settle(self, header, size)

    patch.setattr(engine, "next_header", reusing)
    patch.setattr(Blob, "settle", clean)


def lines_without_an_event(patch):
    """Jobs that were added as lines make no event"""
    patch.setattr(
        commits,
        "batches_of",
        lambda moves, placed, number, now, **options: batches_of(moves, (), number, now, **options),
    )


def rows_given_back_counted_as_done(patch):
    """The event of the end of a range names the rows that were given back, too"""

    def careless(verb, held, after, spans, now):
        return bulk_move(verb, held, after, spans, now)._replace(rows=((held.segment, held.spans),))

    patch.setattr(ranges, "bulk_move", careless)
