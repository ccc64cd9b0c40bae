"""Operations that hold others, and the encoded form of every operation, by which it travels to another process.

A prepared operation is JSON: an object with the name of its class as `type`, and the fields that differ from their
defaults. Bytes are base64, times are RFC 3339, a claim is an array of the job's id and the attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from jqueue.domain.draft import Draft
from jqueue.domain.errors import ChangedMeanwhileError
from jqueue.domain.job import JobRecord
from jqueue.domain.models import record_of
from jqueue.domain.operations import ends, enqueue, lookups, operator, ranges, rules, segments
from jqueue.domain.operations.base import GivenJob, JobReference, Operation, Preparation
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.rules import EntrypointRules, QueueSettings, Schedule
from jqueue.domain.selection import Selection


class Guarded(Operation, frozen=True):
    """An operation that is done only if the queue still is as its caller has seen it. Its result is the operation's.

    A person looks at a queue, decides, and acts seconds later. Between the look and the commit a worker may have
    claimed the job, or another person may have changed it. The values are compared in the transition itself, so a
    change between the look and the commit is always noticed.

    Attributes:
        operation: any that hands out no claims and has no large value.
        job: the job is in the queue, and nothing of it but its heartbeat has changed.
        selection, job_id: the job with this id is in the queue and belongs to the selection.
        settings: the settings of the queue have not changed.
        rules, entrypoint: the limits and the pause of this entrypoint have not changed.
        schedule: the cron entry is there, and nothing of it but its times has changed.
    """

    operation: Inner
    job: GivenJob | None = None
    job_id: str = ""
    selection: Selection | None = None
    settings: QueueSettings | None = None
    entrypoint: str = ""
    rules: EntrypointRules | None = None
    schedule: Schedule | None = None

    def prepared(self, preparation: Preparation) -> Guarded:
        """Return the operation with the guarded one checked. A large value of that one stays in it."""
        job = self.job if self.job is None or isinstance(self.job, JobRecord) else record_of(self.job)
        return replace(self, operation=self.operation.prepared(_inline(preparation)), job=job)

    def needs(self, claim_timeout: float) -> Iterable[str]:
        """Return the needs of the guarded operation."""
        return self.operation.needs(claim_timeout)

    def change(self, draft: Draft, now: datetime) -> Any:
        """Compare what the caller has seen, and do the operation.

        Raises:
            JobNotFoundError: the job is not in the queue.
            ChangedMeanwhileError: something has changed.
            JQueueError: the operation is refused.
        """
        if (changed := self._changed(draft, now)) is not None:
            raise ChangedMeanwhileError(f"{changed} meanwhile")
        return self.operation.change(draft, now)

    def _changed(self, draft: Draft, now: datetime) -> str | None:
        """Return the part of an error that names what has changed; None if nothing has."""
        header = draft.header
        if self.job is not None:
            assert isinstance(self.job, JobRecord)
            if _without_place(draft.get(self.job.id)) != _without_place(self.job):
                return f"job {self.job.id!r} has changed"
        if self.selection is not None and not self.selection.matches(draft.get(self.job_id), now):
            return f"job {self.job_id!r} no longer matches: it has changed"
        if self.settings is not None and header.settings != self.settings:
            return "the settings of the queue have changed"
        if self.rules is not None and header.entrypoints.get(self.entrypoint, EntrypointRules()) != self.rules:
            return f"the limits of entrypoint {self.entrypoint!r} have changed"
        if self.schedule is not None:
            known = header.schedules.get(self.schedule.name)
            if known is None or _without_times(known) != _without_times(self.schedule):
                return f"cron entry {self.schedule.name!r} has changed, or was removed,"
        return None

    def references(self) -> Sequence[JobReference]:
        """Return the jobs that the guarded operation names."""
        return self.operation.references()

    def job_ids(self) -> Sequence[str]:
        """Return the ids of the jobs of the guarded operation."""
        return self.operation.job_ids()

    def may_miss(self, result: Any) -> bool:
        """Return True if the guarded operation might answer otherwise."""
        return self.operation.may_miss(result)


def _inline(preparation: Preparation) -> Preparation:
    """Return the preparation of an operation inside another: only the outer one could name an object."""
    return msgspec.structs.replace(preparation, object_bytes=None)


def _without_place(job: JobRecord) -> JobRecord:
    """Return a job without its heartbeat and without its place, which a reader may have numbered."""
    return job.evolve(heartbeat_at=None, sequence=0)


def _without_times(schedule: Schedule) -> Schedule:
    return schedule.evolve(next_at=datetime.min, fired=())


class AllOrNothing(Operation, frozen=True):
    """Do several operations, or none of them. The result is the list of their results.

    `apply_each` does each of its operations by itself, and `apply` all of them as one. A batch needs both in its
    commit: thousands of jobs, each by itself, and with some of them the jobs that their handlers enqueue with the ack.

    Attributes:
        operations: in order. None of them claims jobs.
    """

    needs_space = False

    operations: tuple[Inner, ...]

    def prepared(self, preparation: Preparation) -> AllOrNothing:
        """Return it with each operation checked. Their large values stay in them."""
        inline = _inline(preparation)
        return AllOrNothing(tuple(operation.prepared(inline) for operation in self.operations))

    def change(self, draft: Draft, now: datetime) -> list[Any]:
        """Do the operations in order. The first refusal is the error of all, and the caller takes all of them back."""
        return [operation.change(draft, now) for operation in self.operations]

    def job_ids(self) -> Sequence[str]:
        """Return the ids of the jobs that the operations are about."""
        return [job_id for operation in self.operations for job_id in operation.job_ids()]


TRAVELLING = (
    *(Dequeue, *ends.TRAVELLING, *enqueue.TRAVELLING, *lookups.TRAVELLING, *operator.TRAVELLING),
    *(*ranges.TRAVELLING, *rules.TRAVELLING, *segments.TRAVELLING, Guarded, AllOrNothing),
)
"""The operations that have an encoded form: all but `EnqueueSegments`.

That one holds the hashes of segments that its process has just written, megabytes of them. Whoever commits it must
compare them with the indexes of all segments. It stays with the writer of its segments.
"""

if TYPE_CHECKING:
    Inner = Operation
else:
    Inner = reduce(or_, TRAVELLING)


def encode_operation(operation: Operation) -> bytes:
    """Return a prepared operation as JSON.

    Raises:
        TypeError: it cannot travel: see `TRAVELLING`; or a large value of it is not in its object yet.
    """
    if not isinstance(operation, TRAVELLING):
        raise TypeError(f"{type(operation).__name__} cannot travel: it belongs to the process that made it")
    if operation.large is not None:
        raise TypeError(f"{type(operation).__name__} has a large value, which must be stored first")
    return _encoder.encode(operation)


def decode_operation(data: bytes) -> Operation:
    """Return the operation in these bytes.

    Raises:
        msgspec.ValidationError: they are not an encoded operation.
    """
    return _decoder().decode(data)


_encoder = msgspec.json.Encoder()


@cache
def _decoder() -> msgspec.json.Decoder[Operation]:
    return msgspec.json.Decoder(Inner)
