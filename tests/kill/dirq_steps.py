"""Steps of tests with the stores of dirq, without a queue: one change at a time, at a given time."""

from datetime import UTC, datetime, timedelta
from typing import Any

from jqueue.domain.models import Job, JobStatus
from jqueue.formats.dirq.store import DirqStore
from jqueue.formats.port import Change, Outcome, StoredJob

START = datetime(2026, 11, 22, 5, 0, 7, 250_000, tzinfo=UTC)
NEXT = 2**50
"""A sequence number unlike any that a store gives: the job goes to the back."""


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def now() -> datetime:
    return datetime.now(UTC)


class Steps:
    """Single changes that a store carries out; a lost race is raised."""

    def __init__(self, store: DirqStore) -> None:
        self.store = store

    def do(self, before: Job | None, changed: Job | None, place: str, moment: datetime) -> Outcome:
        [outcome] = self.store.carry_out([Change(before, changed, place)], moment)
        return outcome

    def _kept(self, outcome: Outcome) -> StoredJob:
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None
        return outcome

    def add(self, payload: bytes = b"payload", moment: datetime = START, **fields: Any) -> StoredJob:
        job = Job(entrypoint=fields.pop("entrypoint", self.store.entrypoint), payload=payload, **fields)
        return self._kept(self.do(None, job, "", moment))

    def claim(self, kept: StoredJob, moment: datetime = START) -> StoredJob:
        job = kept.job
        claimed = job.evolve(
            status=JobStatus.IN_PROGRESS,
            attempt=job.attempt + 1,
            failures=job.failures + 1,
            heartbeat_at=moment,
            claim_timeout=30.0,
        )
        return self._kept(self.do(job, claimed, kept.place, moment))

    def beat(self, kept: StoredJob, moment: datetime = START) -> StoredJob:
        return self._kept(self.do(kept.job, kept.job.evolve(heartbeat_at=moment), kept.place, moment))

    def release(self, kept: StoredJob, moment: datetime = START, **changes: Any) -> StoredJob:
        free = {"status": JobStatus.QUEUED, "heartbeat_at": None, "claim_timeout": None, **changes}
        return self._kept(self.do(kept.job, kept.job.evolve(**free), kept.place, moment))

    def to_the_back(self, kept: StoredJob, moment: datetime = START) -> StoredJob:
        return self.release(kept, moment, sequence=NEXT)

    def bury(self, kept: StoredJob, moment: datetime = START) -> StoredJob:
        dead = {"status": JobStatus.DEAD, "heartbeat_at": None, "claim_timeout": None, "dead_at": moment}
        return self._kept(self.do(kept.job, kept.job.evolve(**dead), kept.place, moment))

    def revive(self, kept: StoredJob, moment: datetime = START) -> StoredJob:
        return self._kept(
            self.do(kept.job, kept.job.evolve(status=JobStatus.QUEUED, dead_at=None, failures=0), kept.place, moment)
        )

    def remove(self, kept: StoredJob, moment: datetime = START) -> StoredJob:
        return self._kept(self.do(kept.job, None, kept.place, moment))

    def only(self, moment: datetime = START) -> StoredJob:
        [kept] = self.store.scan(moment)
        return kept
