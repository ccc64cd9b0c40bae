"""Replays the whole chain of versions and every call against the safety rules, and says which is broken where.

It knows nothing of how the queue works: only the versions that the store has held, and what callers were told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jqueue.core.blob import Blob
from jqueue.core.codec import parse_blob
from jqueue.domain.errors import ClaimLostError, JobNotFoundError, StorageFatalError
from jqueue.domain.models import Claim, Job, JobStatus
from jqueue.domain.operations.operator import STALE_ERROR
from jqueue.testing.simulation.history import NEVER, Call
from jqueue.testing.simulation.network import Landing

Pauses = Mapping[str, list[tuple[float, float]]]
"""From when to when each process was paused."""

LATE = 0.5
"""Seconds by which a call may end after its limit: the scheduling of the simulation itself."""


class Violation(AssertionError):
    """A safety rule was broken.

    Attributes:
        rule: its number in docs/protocol.md; 0 for liveness.
        version: the version at which it shows, if it shows in one.
    """

    def __init__(self, rule: int, what: str, version: int | None = None) -> None:
        super().__init__(f"rule {rule}: {what}" + (f" (version {version})" if version is not None else ""))
        self.rule = rule
        self.version = version


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the queue, decoded."""

    at: float
    number: int
    jobs: dict[str, Job]
    by: str | None
    finished: dict[str, int]


class Auditor:
    """Checks one simulation.

    Args:
        landings: every version of the object, in order.
        calls: every call.
        pauses: when each process was paused.
    """

    def __init__(self, landings: list[Landing], calls: list[Call], pauses: Pauses) -> None:
        self.calls = calls
        self.pauses = pauses
        self.versions = _decode(landings)
        self._times = [version.at for version in self.versions]
        self._calls: dict[str, list[Call]] = defaultdict(list)
        for call in calls:
            self._calls[call.verb].append(call)
        self.removed: dict[Claim, list[int]] = defaultdict(list)
        self.added: dict[str, list[int]] = defaultdict(list)
        self.claimed: dict[Claim, list[tuple[int, Any]]] = defaultdict(list)
        self.nacked: Counter[str] = Counter()
        self._moved_at: dict[Claim, float] = {}

    def check(self) -> None:
        """Check everything.

        Raises:
            Violation: a rule is broken.
        """
        for index, version in enumerate(self.versions):
            before = self.versions[index - 1] if index else Version(0.0, 0, {}, None, {})
            self._check_step(before, version)
        for call in self.calls:
            self._check_call(call)

    # Versions

    def _check_step(self, before: Version, after: Version) -> None:
        if after.by is None:  # by hand
            return
        if after.number != before.number + 1:
            raise Violation(1, f"version {before.number} is followed by {after.number}", after.number)
        for job_id in before.jobs.keys() - after.jobs.keys():
            self._check_removal(before.jobs[job_id], after)
        for job_id, job in after.jobs.items():
            old = before.jobs.get(job_id)
            if old is None:
                self._check_addition(job, after)
            elif old is not job and old != job:
                self._check_change(old, job, after)

    def _check_removal(self, job: Job, after: Version) -> None:
        if job.status is JobStatus.IN_PROGRESS:
            self.removed[job.claim].append(after.number)
            acks = [call for verb in ("ack", "apply") for call in self._calls[verb] if call.claim == job.claim]
            explained = after.by == "drain" or self._may_be_cancelled(job.id, after.at)
            if not explained and not any(call.started <= after.at for call in acks):
                raise Violation(1, f"{job.id} attempt {job.attempt} vanished, and nobody had acked it", after.number)
        elif job.status is JobStatus.QUEUED:
            if not self._may_be_cancelled(job.id, after.at):
                raise Violation(1, f"{job.id} vanished while it was queued", after.number)
        else:
            raise Violation(1, f"{job.id} vanished while it was {job.status}", after.number)

    def _check_addition(self, job: Job, after: Version) -> None:
        self.added[job.id].append(after.number)
        if job.status is JobStatus.IN_PROGRESS:
            self._note_claim(job, after)
        elif job.status is not JobStatus.QUEUED:
            raise Violation(4, f"{job.id} appeared as {job.status}", after.number)

    def _check_change(self, old: Job, new: Job, after: Version) -> None:
        if new.attempt < old.attempt:
            raise Violation(4, f"the attempt of {new.id} shrank from {old.attempt} to {new.attempt}", after.number)
        if new.attempt > old.attempt + 1 and after.by != "drain":
            raise Violation(4, f"{new.id} was claimed twice in one version", after.number)
        claim_ended = old.status is JobStatus.IN_PROGRESS and (
            new.status is not JobStatus.IN_PROGRESS or new.attempt != old.attempt
        )
        if claim_ended:
            self._check_claim_end(old, new, after)
        if new.attempt > old.attempt:
            self._note_claim(new, after)
        elif new.status is JobStatus.IN_PROGRESS and new.heartbeat_at != old.heartbeat_at:
            self._moved_at[new.claim] = after.at

    def _note_claim(self, job: Job, after: Version) -> None:
        if job.status is JobStatus.IN_PROGRESS:
            self.claimed[job.claim].append((after.number, job.claim_timeout))
            self._moved_at[job.claim] = after.at

    def _check_claim_end(self, old: Job, new: Job, after: Version) -> None:
        """A claim ended without an ack: by its holder's nack, handed back, or stale."""
        if new.error is not None and new.error != old.error and new.error != STALE_ERROR:
            self.nacked[new.error] += 1
            return
        if new.failures < old.failures or new.attempt > old.attempt + 1:
            return  # handed back
        timeout = old.claim_timeout or 0.0
        stood = after.at - self._moved_at.get(old.claim, 0.0)
        charged = new.failures >= old.failures and new.sequence != old.sequence
        if charged and stood < timeout:
            what = f"the claim on {old.id} attempt {old.attempt} was revoked after {stood:.3f} of {timeout:.3f} s"
            raise Violation(6, what, after.number)

    # Calls

    def _check_call(self, call: Call) -> None:
        paused = sum(
            max(0.0, min(call.ended, until) - max(call.started, since))
            for since, until in self.pauses.get(call.process, ())
        )
        if call.ended != NEVER and call.ended - call.started > call.limit + paused + LATE:
            raise Violation(0, f"{call.verb} of {call.process} took {call.ended - call.started:.1f} s of {call.limit}")
        if isinstance(call.error, StorageFatalError):
            raise Violation(
                7, f"{call.verb} of {call.process}: {call.error!r}, although the object was there and whole"
            )
        check = getattr(self, f"_check_{call.verb}", None)
        if check is not None:
            check(call)
        if isinstance(call.error, ClaimLostError) and call.claim is not None:
            if not any(not _holds(version, call.claim) for version in self._during(call)):
                raise Violation(3, f"{call.verb} of {call.claim} by {call.process}: lost, although it was current")
        elif isinstance(call.error, JobNotFoundError) and not any(
            call.job_id not in version.jobs for version in self._during(call)
        ):
            raise Violation(3, f"{call.verb} of {call.job_id} by {call.process}: not found, although it was there")

    def _check_enqueue(self, call: Call) -> None:
        assert call.job_id is not None
        added = self.added[call.job_id]
        if not added and self._may_be_cancelled(call.job_id, call.ended):
            return  # added and cancelled by one commit
        self._check_count(call, added, f"enqueue of {call.job_id}")

    def _check_apply(self, call: Call) -> None:
        assert call.job_id is not None
        assert call.claim is not None
        added, removed = self.added[call.job_id], self.removed[call.claim]
        self._check_count(call, added, f"apply with {call.job_id}")
        if added and added != [number for number in removed if number in added]:
            raise Violation(9, f"{call.job_id} was added without its ack", added[0])

    def _check_dequeue(self, call: Call) -> None:
        made = [claim for claim, claims in self.claimed.items() for _, tag in claims if tag == call.tag]
        if call.certainly_not_done and made:
            raise Violation(2, f"a dequeue of {call.process} that was not done claimed {made}")
        if not call.succeeded:
            return
        told = [job.claim for job in call.result]
        if sorted(told) != sorted(claim for claim in made if claim in told):
            raise Violation(2, f"a dequeue of {call.process} returned {told}, and the blob says {made}")
        for claim in told:
            if len(self.claimed[claim]) != 1:
                raise Violation(4, f"the claim {claim} was made {len(self.claimed[claim])} times")
        if not told and all(self._has_ready(version, call) for version in self._during(call)):
            raise Violation(3, f"a dequeue of {call.process} found nothing, although there was a job all the time")

    def _check_ack(self, call: Call) -> None:
        assert call.claim is not None
        if call.succeeded and not any(
            number for number in self.removed[call.claim] if self._landed(number) <= call.ended
        ):
            raise Violation(2, f"ack of {call.claim} by {call.process} succeeded, and the job was never removed")
        if len(self.removed[call.claim]) > 1:
            raise Violation(4, f"{call.claim} was acked twice", self.removed[call.claim][1])

    def _check_nack(self, call: Call) -> None:
        assert call.claim is not None
        if not self.nacked[call.tag] and self._may_be_cancelled(call.claim.job_id, call.ended):
            return  # given back and cancelled by one commit
        self._check_count(call, [0] * self.nacked[call.tag], f"nack of {call.claim}", timed=False)

    def _check_cancel(self, call: Call) -> None:
        if call.succeeded and any(call.job_id in version.jobs for version in self.versions if version.at > call.ended):
            again = [number for number in self.added[call.job_id or ""] if self._landed(number) > call.started]
            if not again:
                raise Violation(2, f"{call.job_id} was cancelled, and is still there")

    def _check_count(self, call: Call, effects: list[int], what: str, *, timed: bool = True) -> None:
        if len(effects) > 1:
            raise Violation(2, f"{what} by {call.process} took effect in {len(effects)} versions: {effects}")
        if call.succeeded and not effects:
            raise Violation(2, f"{what} by {call.process} succeeded, and took effect in no version")
        if call.succeeded and timed and self._landed(effects[0]) > call.ended:
            raise Violation(2, f"{what} by {call.process} returned before its commit", effects[0])
        if call.certainly_not_done and effects:
            raise Violation(2, f"{what} by {call.process} was said not to be done", effects[0])

    # Looking up

    def _may_be_cancelled(self, job_id: str, at: float) -> bool:
        """Whether somebody had tried to cancel the job by then."""
        return any(call.job_id == job_id and call.started <= at for call in self._calls["cancel"])

    def _landed(self, number: int) -> float:
        return next(version.at for version in self.versions if version.number == number)

    def _during(self, call: Call) -> list[Version]:
        """The versions that were current at some moment of the call."""
        first = max(0, bisect_right(self._times, call.started) - 1)
        last = bisect_right(self._times, call.ended)
        empty = [Version(0.0, 0, {}, None, {})] if not self._times or self._times[0] > call.started else []
        return [*empty, *self.versions[first:last]]

    def _has_ready(self, version: Version, call: Call) -> bool:
        return any(
            job.status is JobStatus.QUEUED and job.run_at is None and call.entrypoint in (None, job.entrypoint)
            for job in version.jobs.values()
        )


def _holds(version: Version, claim: Claim) -> bool:
    job = version.jobs.get(claim.job_id)
    return job is not None and job.status is JobStatus.IN_PROGRESS and job.attempt == claim.attempt


def _decode(landings: list[Landing]) -> list[Version]:
    """Every version, parsing each line once."""
    blob = Blob()
    versions = []
    for landing in landings:
        parsed = parse_blob(landing.content)
        blob.adopt(parsed, len(landing.content))
        draft = blob.draft
        versions.append(Version(landing.at, draft.version, dict(draft.jobs), landing.by, dict(draft.finished)))
    return versions
