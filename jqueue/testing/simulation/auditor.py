"""Replays the whole chain of versions against the safety rules, and says which one is broken where.

It knows nothing of how the queue works: only the versions that the store has held, and what callers were told
(`jqueue.testing.simulation.testimony` compares the two).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from jqueue.domain.models import Claim
from jqueue.testing.simulation.chain import (
    DEAD,
    IN_PROGRESS,
    NOTHING,
    Fields,
    Version,
    attempt_of,
    failures_of,
    is_ready,
    status_of,
)
from jqueue.testing.simulation.history import Call
from jqueue.testing.simulation.people import OLD_PROGRAM

STALE_ERROR = "stale: no heartbeat within the claim's timeout"
"""What a revoked job says. Written out here: a queue that says something else is another queue."""

NEVER_CHANGED = ("entrypoint", "payload", "max_attempts", "unique_key", "headers", "note")


class Violation(AssertionError):
    """A rule was broken.

    Attributes:
        rule: its number in docs/protocol.md; 0 for liveness.
        index: the place in the chain of the version at which it shows; None if it shows in none.
        call: the call that it is about; None if it is about none.
    """

    def __init__(self, rule: int, what: str, *, version: Version | None = None, call: Call | None = None) -> None:
        where = f" (version {version.number})" if version is not None else ""
        who = f"{call} by {call.process}: " if call is not None else ""
        super().__init__(f"{'liveness' if rule == 0 else f'rule {rule}'}: {who}{what}{where}")
        self.rule = rule
        self.index = version.index if version is not None else None
        self.call = call


class Calls:
    """The calls of a history, by what they were about."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self.all = list(calls)
        self.adding: dict[str, list[Call]] = defaultdict(list)
        self.ending: dict[Claim, list[Call]] = defaultdict(list)
        self.acking_by_id: dict[str, list[Call]] = defaultdict(list)
        self.beating: dict[Claim, list[Call]] = defaultdict(list)
        self.by_tag: dict[object, Call] = {}
        self.by_verb: dict[str, list[Call]] = defaultdict(list)
        for call in self.all:
            self.by_verb[call.verb].append(call)
            if call.tag is not None:
                self.by_tag[call.tag] = call
            if call.verb in ("enqueue", "enqueue_many", "apply"):
                for job_id in call.job_ids:
                    self.adding[job_id].append(call)
            if call.verb in ("ack", "ack_many", "apply") and not call.certain:
                for claim in call.claims:
                    self.ending[claim].append(call)
                    if call.bare:
                        self.acking_by_id[claim.job_id].append(call)
            elif call.verb in ("heartbeat", "heartbeat_many"):
                for claim in call.claims:
                    self.beating[claim].append(call)

    def cancelling(self, job_id: str, at: float) -> bool:
        """Whether somebody may have cancelled a job by then."""
        return any(job_id in call.job_ids and call.started <= at for call in self.by_verb["cancel"])

    def may_act(self, verb: str, at: float) -> bool:
        """Whether a call of this verb may have taken effect at that time."""
        return any(may_act(call, at) for call in self.by_verb[verb])

    def replacing(self, key: str | None, at: float, by_another_than: Call | None = None) -> bool:
        """Whether a job with a unique key may have been replaced at that time."""
        calls = (call for call in self.by_verb["enqueue"] if call.key == key and call is not by_another_than)
        return key is not None and any(may_act(call, at) for call in calls)


class Auditor:
    """Checks every step from one version to the next, and notes what took effect where.

    Args:
        versions: the chain.
        calls: the history.

    Attributes:
        added: where each job id was added.
        made: the claims that each dequeue made, by its tag.
        claimed: where each claim was made.
        removed: where each claim was acked.
        nacked: the claims that each nack ended, by its tag.
        beaten: where the heartbeat of each claim moved.
        ended: where each claim ended, in whatever way.
        by_hand: the jobs that a person has touched.
        doubtful: claims that were acked, or lost their job in another way in that very moment.
    """

    def __init__(self, versions: list[Version], calls: Calls) -> None:
        self.versions = versions
        self.calls = calls
        self.added: dict[str, list[Version]] = defaultdict(list)
        self.made: dict[object, list[Claim]] = defaultdict(list)
        self.claimed: dict[Claim, Version] = {}
        self.removed: dict[Claim, list[Version]] = defaultdict(list)
        self.nacked: dict[object, list[tuple[Claim, Version]]] = defaultdict(list)
        self.beaten: dict[Claim, list[Version]] = defaultdict(list)
        self.ended: dict[Claim, Version] = {}
        self._attempts: dict[str, int] = {}
        self._moved_at: dict[Claim, float] = {}
        self.by_hand: set[str] = set()
        self.doubtful: set[Claim] = set()

    def check(self) -> None:
        """Check every step.

        Raises:
            Violation: a rule is broken.
        """
        before = NOTHING
        for after in self.versions:
            if after.by is None or after.by == OLD_PROGRAM:
                self._note_edit(before, after)
            else:
                self._check_step(before, after)
            before = after

    # Steps

    def _note_edit(self, before: Version, after: Version) -> None:
        for job_id, job in after.jobs.items():
            if before.jobs.get(job_id) != job:
                self.by_hand.add(job_id)
                self._attempts[job_id] = attempt_of(job)
                if status_of(job) == IN_PROGRESS:
                    self._moved_at[Claim(job_id, attempt_of(job))] = after.at
        self.by_hand |= before.jobs.keys() - after.jobs.keys()

    def _check_step(self, before: Version, after: Version) -> None:
        if after.number != before.number + 1:
            raise Violation(1, f"version {before.number} is followed by {after.number}", version=after)
        if before.broken != after.broken:
            raise Violation(8, "a line that could not be read was not kept as it was", version=after)
        if before.notes != after.notes:
            raise Violation(8, "a field that the queue does not know was not kept as it was", version=after)
        old_jobs, new_jobs = before.jobs, after.jobs
        for job_id in old_jobs.keys() - new_jobs.keys():
            self._check_removal(job_id, old_jobs[job_id], after)
        claimed: list[tuple[str, Fields]] = []
        for job_id, job in new_jobs.items():
            old = old_jobs.get(job_id)
            if old is job or old == job:
                continue
            if old is not None and "created_at" in old and old["created_at"] != job["created_at"]:
                self._check_removal(job_id, old, after)  # cancelled, and enqueued again, by one commit
                old = None
            if old is None:
                self._check_addition(job_id, job, after)
            else:
                self._check_change(job_id, old, job, before, after)
            if status_of(job) == IN_PROGRESS and (old is None or attempt_of(old) < attempt_of(job)):
                claimed.append((job_id, job))
            self._attempts[job_id] = attempt_of(job)
        for job_id, job in claimed:
            self._check_claim(job_id, job, before, after)

    def _check_removal(self, job_id: str, job: Fields, after: Version) -> None:
        calls, at, status = self.calls, after.at, status_of(job)
        purged = status in (DEAD, IN_PROGRESS) and calls.may_act("purge", at)
        expired = status != DEAD and job.get("expires_at") is not None
        replaced = calls.replacing(job.get("unique_key"), at)
        without_ack = purged or expired or replaced or calls.cancelling(job_id, at)
        if status == IN_PROGRESS:
            claim = Claim(job_id, attempt_of(job))
            self.ended[claim] = after
            acks = [*calls.ending.get(claim, ()), *calls.acking_by_id.get(job_id, ())]
            if any(call.started <= at for call in acks):
                self.removed[claim].append(after)
                if without_ack:
                    self.doubtful.add(claim)
                return
        if not without_ack:
            raise Violation(1, f"{job_id} vanished while it was {status}, and nobody had ended it", version=after)

    def _check_addition(self, job_id: str, job: Fields, after: Version) -> None:
        self.added[job_id].append(after)
        if status_of(job) == DEAD:
            raise Violation(4, f"{job_id} appeared as dead", version=after)
        callers = self.calls.adding.get(job_id, ())
        if not any(call.started <= after.at and not call.certain for call in callers):
            raise Violation(9, f"{job_id} appeared, and nobody had asked for it", version=after)
        if attempt_of(job) < self._attempts.get(job_id, 0):
            raise Violation(4, f"the attempt of {job_id} fell to {attempt_of(job)} as it came back", version=after)
        key = job.get("unique_key")
        if key is not None:
            holders = [
                each for each in after.jobs.values() if each.get("unique_key") == key and status_of(each) != DEAD
            ]
            if len(holders) > 1:
                raise Violation(4, f"{len(holders)} live jobs have the {key}", version=after)

    def _check_change(self, job_id: str, old: Fields, new: Fields, before: Version, after: Version) -> None:
        grown = attempt_of(new) - attempt_of(old)
        old_status, new_status = status_of(old), status_of(new)
        if grown < 0:
            raise Violation(4, f"the attempt of {job_id} fell from {attempt_of(old)}", version=after)
        if grown > 1 or (grown == 1 and new_status != IN_PROGRESS):
            raise Violation(4, f"{job_id} was claimed more than once in one version", version=after)
        for name in NEVER_CHANGED:
            if old.get(name) != new.get(name):
                raise Violation(1, f"the {name} of {job_id} changed", version=after)
        if old_status == IN_PROGRESS:
            if new_status != IN_PROGRESS or grown:
                self._check_claim_end(job_id, old, new, grown, after)
            elif old.get("heartbeat_at") != new.get("heartbeat_at"):
                self._check_beat(Claim(job_id, attempt_of(new)), after)
        elif old_status == DEAD:
            if not self.calls.may_act("redrive", after.at):
                raise Violation(1, f"{job_id} was dead, and nobody had asked for it to be redriven", version=after)
        elif new_status == DEAD:
            raise Violation(1, f"{job_id} was queued, and is dead", version=after)

    def _check_claim_end(self, job_id: str, old: Fields, new: Fields, grown: int, after: Version) -> None:
        """A claim ended without an ack: by its holder's nack, handed back, or stale."""
        claim, error = Claim(job_id, attempt_of(old)), new.get("error")
        self.ended[claim] = after
        if error is not None and error not in (old.get("error"), STALE_ERROR):
            call = self.calls.by_tag.get(error)
            if call is None or claim not in call.claims:
                raise Violation(5, f"{claim} was ended by a nack of another claim", version=after)
            self.nacked[error].append((claim, after))
        elif failures_of(new) - grown < failures_of(old):
            dequeue = self.calls.by_tag.get(old.get("claim_timeout"))
            told = dequeue.result if dequeue is not None and dequeue.succeeded else ()
            if any(job.claim == claim for job in told):
                raise Violation(6, f"{claim} was handed back, and its holder had been told of it", version=after)
        else:
            self._check_revocation(claim, old, after)

    def _check_revocation(self, claim: Claim, old: Fields, after: Version) -> None:
        timeout = old.get("claim_timeout")
        stood = after.at - self._moved_at.get(claim, 0.0)
        if timeout is not None and stood < timeout and not self.calls.may_act("requeue_stale", after.at):
            raise Violation(6, f"{claim} was revoked after {stood:.3f} of its {timeout:.3f} s", version=after)

    def _check_beat(self, claim: Claim, after: Version) -> None:
        self._moved_at[claim] = after.at
        self.beaten[claim].append(after)
        if not any(call.started <= after.at for call in self.calls.beating.get(claim, ())):
            raise Violation(5, f"the heartbeat of {claim} moved, and its holder had not beaten", version=after)

    def _check_claim(self, job_id: str, job: Fields, before: Version, after: Version) -> None:
        claim, tag = Claim(job_id, attempt_of(job)), job.get("claim_timeout")
        call = self.calls.by_tag.get(tag)
        if call is None or call.process != after.by:
            raise Violation(4, f"{claim} was made, and {after.by} had not asked for it", version=after)
        if claim in self.claimed:
            raise Violation(4, f"{claim} was made a second time", version=after)
        self.claimed[claim] = after
        self.made[tag].append(claim)
        self._moved_at[claim] = after.at
        own = (job.get("priority", 0), job.get("sequence", 0))
        for other_id, other in after.jobs.items():
            if before.jobs.get(other_id) is other and is_ready(other, call.entrypoint):
                first = other.get("priority", 0), other.get("sequence", 0)
                if first < own and other.get("sequence"):
                    raise Violation(0, f"{job_id} was claimed before {other_id}, whose turn it was", version=after)


def may_act(call: Call, at: float) -> bool:
    """Whether a call may have taken effect at that time."""
    if call.started > at or call.certainly_not_done:
        return False
    return not call.succeeded or at <= call.ended
