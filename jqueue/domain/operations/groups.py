"""The operations on groups of jobs: open, close, cancel, and look at one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from jqueue.domain.draft import Draft, take_space
from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import GroupEndedError, InvalidJobError, QueueFullError, shown
from jqueue.domain.fields import Count
from jqueue.domain.groups import ENDED_AGE, ENDED_KEPT, GROUPS, GROUPS_KEPT, count_moves
from jqueue.domain.header import GroupRecord, PendingJob
from jqueue.domain.job import DEAD, IN_PROGRESS, QUEUED
from jqueue.domain.limits import END_BYTES, groups_bytes
from jqueue.domain.operations.base import Operation, Preparation
from jqueue.domain.operations.call import Call, NewJob
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.parents import children_first
from jqueue.domain.rules import LIMITS
from jqueue.domain.transitions import Verb

if TYPE_CHECKING:  # as callers give it, and as it travels: see `jqueue.domain.operations.base`
    GivenNewJob = NewJob
else:
    GivenNewJob = Enqueue

NOT_FOR_PENDING = ("job_id", "unique_key", "group", "after")
"""Options that the jobs of a group cannot have: nothing may keep them from being enqueued when it ends."""


class GroupStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """A group at a moment.

    Attributes:
        id: its id.
        added: number of members that were ever added.
        done: number of members that are done.
        dead: number of members that are dead now.
        gone: number of members that were cancelled, expired or purged.
        waiting: number of members that wait or run.
        closed: True if its opener adds no more members.
        ended: True if it is closed, and no member waits or runs.
        cancelled: True if it was cancelled.
        then_id: id of the job that is enqueued when all members are done; None if there is none.
        then_enqueued: True if that job was enqueued.
    """

    id: str
    added: Count = 0
    done: Count = 0
    dead: Count = 0
    gone: Count = 0
    waiting: Count = 0
    closed: bool = False
    ended: bool = False
    cancelled: bool = False
    then_id: str | None = None
    then_enqueued: bool = False


def status_of(group: str, record: GroupRecord) -> GroupStatus:
    """Return the status of a group."""
    counts = (record.added, record.done, record.dead, record.gone, record.live)
    enqueued = record.then_id is not None and record.then is None and not record.cancelled
    return GroupStatus(group, *counts, record.closed, record.at_rest, record.cancelled, record.then_id, enqueued)


class OnGroup(Operation, frozen=True):
    """Base of the operations on one group.

    Attributes:
        group: its id.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("groups",)
    checked_names: ClassVar[tuple[str, ...]] = ("group",)

    group: str

    def known(self, draft: Draft) -> GroupRecord:
        """Return the record of the group.

        Raises:
            GroupEndedError: the queue does not know it.
        """
        record = draft.header.groups.get(self.group)
        if record is None:
            raise GroupEndedError(self.group, "is not known to the queue: it was never opened, or ended long ago")
        return record

    def recovered(self, draft: Draft, at: datetime) -> Any:
        """Return the status of the group as it is now."""
        return status_of(self.group, self.known(draft))


class OpenGroup(OnGroup, frozen=True):
    """Open a group of jobs. Its result is the group's `GroupStatus`. A group that is open stays as it is.

    Attributes:
        group: its id.
        then: the enqueue of a job that follows when all members are done, or gone. Dead ones must be redriven or purged
            first.
        on_end: the enqueue of a job that follows when no member waits or runs, whatever became of them.
    """

    then: GivenNewJob | None = None
    on_end: GivenNewJob | None = None

    def prepared(self, preparation: Preparation) -> OpenGroup:
        """Return the operation, checked, with ids for its jobs. Their payloads stay in the queue's object."""
        checked, inline = super().prepared(preparation), msgspec.structs.replace(preparation, object_bytes=None)
        jobs: dict[str, Enqueue] = {}
        for name in ("then", "on_end"):
            if (job_or_call := getattr(self, name)) is None:
                continue
            job = job_or_call.operation() if isinstance(job_or_call, Call) else job_or_call
            if not isinstance(job, Enqueue):
                raise InvalidJobError(f"{name} takes Enqueue(...) or a call of a handler, got {type(job).__name__}")
            for option in NOT_FOR_PENDING:
                if getattr(job, option):
                    raise InvalidJobError(
                        f"the job of {name} takes no {option}: nothing may keep it from being enqueued"
                    )
            jobs[name] = job.prepared(inline)
        return msgspec.structs.replace(checked, **jobs)

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Yield the capabilities that the group and its jobs need."""
        yield from self.always_needs
        for job in (self.then, self.on_end):
            if isinstance(job, Enqueue):
                yield from job.needs(claim_timeout)

    def change(self, draft: Draft, now: datetime) -> GroupStatus:
        """Open the group, and forget groups that ended long ago.

        Raises:
            GroupEndedError: a group with this id was closed.
            QueueFullError: there are too many groups, or there is no room.
        """
        groups = draft.header.groups
        if (stored_group := groups.get(self.group)) is not None:
            if stored_group.closed:
                raise GroupEndedError(self.group, "was closed before: give the group another id")
            return status_of(self.group, stored_group)
        self._tidy(draft, now)
        if sum(not each.ended_at for each in groups.values()) >= GROUPS_KEPT:
            raise QueueFullError(
                f"no room for group {shown(self.group)}: {GROUPS_KEPT} groups have not ended, the most that a queue "
                "keeps. Wait for some, or cancel those that nobody closes"
            )
        then, on_end = (self._pending(draft, job, now) for job in (self.then, self.on_end))
        record = GroupRecord(
            opened_at=round(now.timestamp(), 3), then=then, on_end=on_end, then_id=None if then is None else then.job.id
        )
        ends = END_BYTES * sum(each is not None for each in (then, on_end))
        take_space(draft, groups_bytes({self.group: record}) + ends, f"group {shown(self.group)}")
        draft.note(groups, self.group, record)
        draft.require(GROUPS)
        return status_of(self.group, record)

    @staticmethod
    def _pending(draft: Draft, job: Any, now: datetime) -> PendingJob | None:
        if job is None:
            return None
        if not job.new_id:
            raise InvalidJobError("the jobs of a group that is not prepared by a queue need ids")
        if job.concurrency_key is not None:
            draft.require(LIMITS)
        return PendingJob(job.job(0, now), 0.0 if job.delay is None else to_seconds("delay", job.delay))

    @staticmethod
    def _tidy(draft: Draft, now: datetime) -> None:
        """Forget the groups that ended long ago. If too many are left, forget the oldest."""
        groups = draft.header.groups
        ended = sorted((each.ended_at, name) for name, each in groups.items() if each.ended_at)
        for number, (at, name) in enumerate(reversed(ended), 1):
            if number > ENDED_KEPT or at < now.timestamp() - ENDED_AGE:
                draft.forget(groups, name)


class CloseGroup(OnGroup, frozen=True):
    """Close a group: its opener adds no more members. Its result is the group's `GroupStatus`.

    Members may still add members while one of them waits or runs.
    """

    needs_space = False

    def change(self, draft: Draft, now: datetime) -> GroupStatus:
        """Close it. If no member waits or runs, its jobs are enqueued in this commit.

        Raises:
            GroupEndedError: the queue does not know it.
        """
        record = self.known(draft)
        if not record.closed:
            record = record.evolve(closed=True)
            draft.note(draft.header.groups, self.group, record)
        return status_of(self.group, record)


class CancelGroup(OnGroup, frozen=True):
    """Cancel a group. Its result is its `GroupStatus`.

    Waiting members leave, running ones are stopped as by `Cancel(running=True)`, and dead ones stay. `then` is dropped.
    The group counts what is there, so it also ends a group with members that a person has removed by hand.

    Attributes:
        group: its id.
        asked_by: see `Cancel`.
    """

    needs_space = False

    asked_by: str | None = None

    def change(self, draft: Draft, now: datetime) -> GroupStatus:
        """Cancel the members.

        Raises:
            GroupEndedError: the queue does not know it.
        """
        self.known(draft)
        rows = draft.jobs.rows.of
        members = [job for job in draft.jobs.values() if job.group == self.group and job.id not in rows]
        for member in children_first(members):
            job = draft.jobs.get(member.id)
            if job is None:
                continue
            if job.status is QUEUED:
                draft.move(job, Verb.CANCEL, None, None)
            elif job.status is IN_PROGRESS and not job.cancel_requested:
                draft.move(job, Verb.CANCEL, job.evolve(cancel_requested=True), IN_PROGRESS)
        names = [name for name, segment in draft.header.segments.items() if segment.group == self.group]
        draft.drop_waiting(names, Verb.CANCEL)
        for group in count_moves(draft):  # the end of the operation ends them, if they have ended
            draft.note(draft.header.groups, group, draft.header.groups[group])
        there = Counter(job.status for job in draft.jobs.values() if job.group == self.group)
        record = self.known(draft)
        gone = max(0, record.added - record.done - there[DEAD] - there[IN_PROGRESS])
        record = record.evolve(closed=True, cancelled=True, then=None, dead=there[DEAD], gone=gone)
        draft.note(draft.header.groups, self.group, record)
        return status_of(self.group, record)


class LookAtGroup(OnGroup, frozen=True):
    """Look at a group. Its result is its `GroupStatus`."""

    def change(self, draft: Draft, now: datetime) -> GroupStatus:
        """Return the status, and change nothing.

        Raises:
            GroupEndedError: the queue does not know it.
        """
        return status_of(self.group, self.known(draft))


class AwaitGroup(OnGroup, frozen=True):
    """Look for the end of a group. Its result is a list: its `GroupStatus`, or nothing while a member waits or runs.

    It is applied after the other operations of a commit, like a dequeue.
    """

    claims_jobs = True
    needs_space = False

    def change(self, draft: Draft, now: datetime) -> list[GroupStatus]:
        """Return the status in a list; an empty list while the group has not ended.

        Raises:
            GroupEndedError: the queue does not know it.
        """
        record = self.known(draft)
        return [status_of(self.group, record)] if record.at_rest else []


LOOKUPS = (LookAtGroup, AwaitGroup)
TRAVELLING = (OpenGroup, CloseGroup, CancelGroup, *LOOKUPS)
