"""Planted bugs of bulk enqueues and of claims with a name: see `tests.simulation.planted_bugs`."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from weakref import WeakKeyDictionary

from jqueue.core.blob.engine import CommitEngine
from jqueue.core.calls import collection
from jqueue.core.calls.staged_commit import StagedCommit
from jqueue.core.queue_base import QueueBase
from jqueue.domain.draft import Draft
from jqueue.domain.models import NO_CLAIM, TransactionRecord
from jqueue.domain.operations import EnqueueSegments, EnqueueStaged, LastTransaction, bulk
from jqueue.domain.operations.transactions import Transaction
from jqueue.domain.order import Order
from jqueue.domain.sequence_numbers import PlacedJobs
from tests.simulation.runner import Settings


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
