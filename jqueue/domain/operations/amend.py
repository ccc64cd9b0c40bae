"""The operation that gives a job other options: what an operator edits by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar

from jqueue.domain.draft import Draft
from jqueue.domain.errors import DuplicateJobError, InvalidJobError, JobStateError
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.job_options import STORED, check_options
from jqueue.domain.limits import Limits, check_name, check_payload, check_priority
from jqueue.domain.operations.base import JobReference, Operation, Preparation
from jqueue.domain.operations.jobs import NewJob, drop_outlived
from jqueue.domain.rules import LIMITS
from jqueue.domain.size_limit import take_space
from jqueue.domain.transitions import Verb

AMENDABLE: tuple[str, ...] = tuple(name for name, option in STORED.items() if option.name != "job_id")
"""The fields of a job that an operator may change, besides its payload."""


@dataclass(frozen=True, slots=True)
class Amend(Operation):
    """Give a queued or dead job other options. Its result is the job. An option that is not given is unset.

    Attributes:
        job_id: the id of the job.
        options: the new values, by the names in `AMENDABLE`.
        payload: the new payload; None keeps the payload.
        enqueue_bytes: number of bytes up to which its writer fills a blob that has no limit of its own.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("reschedule",)

    job_id: str
    options: Mapping[str, Any] = field(repr=False)
    payload: bytes | None = field(default=None, repr=False)
    enqueue_bytes: int = Limits().enqueue_bytes

    def prepared(self, preparation: Preparation) -> Amend:
        """Return the operation with its options checked and completed.

        Raises:
            InvalidJobError: an option is wrong, or there is no such option.
        """
        limits = preparation.limits
        check_name("job_id", self.job_id, limits)
        unknown = sorted(self.options.keys() - set(AMENDABLE))
        if unknown:
            raise InvalidJobError(f"a job has no option {unknown[0]!r} to change: it has {', '.join(AMENDABLE)}")
        given = {name: value for name, value in self.options.items() if name != "priority"}
        checked = check_options(given, limits)
        checked["priority"] = check_priority(self.options.get("priority", 0))
        options = {name: checked.get(name, STORED[name].unset) for name in AMENDABLE}
        payload = None if self.payload is None else check_payload(self.payload, limits)
        return replace(self, options=options, payload=payload, enqueue_bytes=limits.enqueue_bytes)

    def change(self, draft: Draft, now: datetime) -> JobRecord:
        """Change the job, which keeps its place among the jobs of its priority.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is in progress or completed.
            DuplicateJobError: another job has the new unique key.
            QueueFullError: there is no room for the new values.
        """
        drop_outlived(draft, now)
        job = draft.get(self.job_id)
        if job.status not in (JobStatus.QUEUED, JobStatus.DEAD):
            raise JobStateError(job.id, job.status, "only a queued or a dead job can be edited")
        changes: dict[str, Any] = dict(self.options)
        if self.payload is not None:
            changes |= {"payload": self.payload, "payload_object": None}
        after = job.evolve(**changes)
        if after == job:
            return job
        self._check_key(draft, job, after, now)
        size = _stored_bytes(after) - _stored_bytes(job)
        if size > 0:
            take_space(draft, size, self.enqueue_bytes, f"{size} more bytes of job {job.id!r}")
        elif size < 0:
            draft.note_added(size)
        if after.concurrency_key is not None:
            draft.require(LIMITS)
        draft.move(job, Verb.EDIT, after, job.status)
        return after

    def references(self) -> Sequence[JobReference]:
        """Return the id of the job."""
        return (self.job_id,)

    def _check_key(self, draft: Draft, job: JobRecord, after: JobRecord, now: datetime) -> None:
        """Check that no other job has the unique key of a queued job. A dead job holds no key."""
        key = after.unique_key
        if key is None or key == job.unique_key or job.status is not JobStatus.QUEUED:
            return
        holder = draft.key_holder(key, now)
        if holder is not None:
            raise DuplicateJobError(key, holder)


def _stored_bytes(job: JobRecord) -> int:
    return NewJob(job, True, None, "return", 0).stored_bytes()
