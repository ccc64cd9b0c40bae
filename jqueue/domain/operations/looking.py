"""Looking at jobs without claiming them: which ones a dequeue would give, how one stands, how many wait.

Who chooses among several queues has to know what each of them has before it claims from one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar

from jqueue.domain.draft import Draft
from jqueue.domain.limits import check_name
from jqueue.domain.models import Job, JobStatus, trusted_job
from jqueue.domain.operations.base import JobReference, Operation, Preparation
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.jobs import PLAIN


@dataclass(frozen=True, slots=True)
class Peek(Operation):
    """Look which jobs a dequeue would give. Its result is their list, as they stand, without their payloads.

    It does all that a dequeue does but the claiming: what has expired leaves, and cron entries that are due enqueue
    their jobs. So it can be waited with as a dequeue can.

    Attributes:
        dequeue: what would be asked for.
    """

    claims_jobs: ClassVar[bool] = True
    surveys: ClassVar[bool] = True

    dequeue: Dequeue

    def prepared(self, preparation: Preparation) -> Peek:
        """Checked, as the dequeue is."""
        return replace(self, dequeue=self.dequeue.prepared(preparation))

    def change(self, draft: Draft, now: datetime) -> list[Job]:
        """Claim them, note which they are, and take the claims back: so every limit counts as it would."""
        self.dequeue.tidy(draft, now)
        savepoint = draft.savepoint()
        ids = [job.id for job in self.dequeue.claim(draft, now)]
        draft.rollback(savepoint)
        return [draft.jobs[job_id].evolve(payload=b"") for job_id in ids]

    def search_key(self) -> Hashable | None:
        """That of the dequeue: where one finds nothing, neither does the other."""
        return self.dequeue.search_key()


@dataclass(frozen=True, slots=True)
class CountQueued(Operation):
    """Count the jobs that wait. Its result is how many of each entrypoint are queued, ready or not."""

    def change(self, draft: Draft, now: datetime) -> dict[str, int]:
        """Nothing is changed."""
        return draft.jobs.order.queued()


@dataclass(frozen=True, slots=True)
class Find(Operation):
    """Look how a job stands. Its result is a list: the job without its payload, or nothing if it is not there.

    Of one that was finished a short while ago, it says the id, the attempt, and that it is completed.

    Attributes:
        job_id: which.
    """

    surveys: ClassVar[bool] = True

    job_id: str

    def prepared(self, preparation: Preparation) -> Find:
        """Checked."""
        check_name("job_id", self.job_id, preparation.limits)
        return self

    def change(self, draft: Draft, now: datetime) -> list[Job]:
        """Nothing is changed."""
        job = draft.jobs.get(self.job_id)
        if job is not None:
            return [job.evolve(payload=b"")]
        attempt = draft.header.finished.get(self.job_id)
        if attempt is None:
            return []
        said = {"id": self.job_id, "attempt": attempt, "status": JobStatus.COMPLETED, "created_at": now}
        return [trusted_job({**PLAIN, "entrypoint": "", "payload": b"", **said})]

    def references(self) -> Sequence[JobReference]:
        """The job looked for."""
        return (self.job_id,)
