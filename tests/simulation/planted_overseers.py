"""Planted bugs in the orders of operators who act on what they have seen: see `tests.simulation.planted_bugs`."""

from dataclasses import replace

from jqueue.core.queue_base import QueueBase
from jqueue.domain import commits
from jqueue.domain.errors import DeadlineExceededError, UnknownOutcomeError
from jqueue.domain.events import batches_of
from jqueue.domain.occurrences import with_fired
from jqueue.domain.operations import Amend, CreateQueue, Guarded, Purge, RunSchedule
from jqueue.domain.transitions import Verb
from tests.simulation.runner import Settings
from tests.simulation.workload import DEADLINE

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
