"""Checks the whole chain of versions against the safety rules, and reports the rule and the version that breaks it.

It knows nothing of the queue's code, only the versions that the store has held and the calls with their outcomes.
`tests.simulation.answer_audit` compares the two.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from jqueue.domain.models import Claim
from tests.simulation.calls import Calls, Violation, may_carry
from tests.simulation.chain import (
    COMPLETED,
    DEAD,
    IN_PROGRESS,
    NOTHING,
    QUEUED,
    Fields,
    Version,
    attempt_of,
    failures_of,
    status_of,
)
from tests.simulation.counters_audit import CountersAudit
from tests.simulation.cron_audit import CronAudit, is_of_cron
from tests.simulation.history import Call
from tests.simulation.history_audit import HistoryAudit
from tests.simulation.limits_audit import LimitsAudit
from tests.simulation.overseer_audit import OverseerAudit
from tests.simulation.people import OLD_PROGRAM
from tests.simulation.results_audit import ResultsAudit
from tests.simulation.serving_order import comes_first, is_free, seconds
from tests.simulation.staged_audit import StagedAudit

STALE_ERROR = "stale: no heartbeat within the claim's timeout"
"""Error text of a revoked job. It is repeated here on purpose, so that a change in the queue is noticed."""

SET_ASIDE = "an object beside the queue could not be read"
"""A part of the error text of a job whose payload could not be loaded by the call that claimed it."""

NEVER_CHANGED = (
    "entrypoint",
    "payload",
    "max_attempts",
    "unique_key",
    "unique_for",
    "headers",
    "note",
    "concurrency_key",
    "concurrency_limit",
    "keep_result",
)
ORDERED = {"priority": "reprioritise", "run_at": "reschedule"}
"""Fields that may change while a job is queued, each with the verb that changes it."""

CLAIM_FIELDS = frozenset({"attempt", "heartbeat_at", "claim_timeout", "holder", "claimed_at"})
UNSAID = {"priority": 0}
"""Values of fields that are left out."""


class Auditor:
    """Checks every step from one version to the next, and records where each effect took place.

    Args:
        versions: the chain.
        calls: the history.
        tells_time: True if the store tells its time.

    Attributes:
        added: versions that added each job id.
        made: claims that each dequeue made, by its tag.
        claimed: version that made each claim.
        removed: versions that may carry the ack of each claim.
        nacked: claims that each nack ended, by its tag, with the version.
        beaten: versions that moved the heartbeat of each claim.
        ended: version that ended each claim, in any way.
        by_hand: ids of jobs that a person or jqueue 1.0.0 has changed.
        doubtful: claims that were acked in a version that may also have removed their job in another way.
        limits, cron, results, staged, counters, history, overseer: auditors of limits, cron entries, results, staged
            jobs with holders, counters, the history, and orders under guards.
    """

    def __init__(self, versions: list[Version], calls: Calls, *, tells_time: bool = True) -> None:
        self.versions = versions
        self._tells_time = tells_time
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
        self._last = 0
        self.by_hand: set[str] = set()
        self.doubtful: set[Claim] = set()
        self.limits, self.cron, self.results = LimitsAudit(calls), CronAudit(calls), ResultsAudit(calls)
        self.staged, self.counters = StagedAudit(calls), CountersAudit()
        self.history, self.overseer = HistoryAudit(), OverseerAudit(versions, calls, self.by_hand)

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

    def modern_events(self) -> Counter[str]:
        """Return the number of events that need limits, cron entries, results or staged jobs."""
        return +Counter(
            {
                "cron entry fired": len(self.cron.added),
                **self.results.seen,
                **self.staged.seen,
                **self.counters.seen,
                **self.history.seen,
                **self.overseer.seen,
            }
        )

    # Steps

    def _note_edit(self, before: Version, after: Version) -> None:
        self.counters.note_edit(after)
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
        if before.queue and after.queue != before.queue:
            raise Violation(7, "it became another queue", version=after)
        if after.forgotten < before.forgotten or after.floor < before.floor:
            raise Violation(4, "evicted_through or attempt_floor fell", version=after)
        self._last = max((job.get("sequence", 0) for job in old_jobs.values()), default=0)
        for job_id in old_jobs.keys() - new_jobs.keys():
            self._check_removal(job_id, old_jobs[job_id], before, after)
        claimed: list[tuple[str, Fields]] = []
        for job_id, job in new_jobs.items():
            old = old_jobs.get(job_id)
            if old is job or old == job:
                continue
            if old is not None and self._came_back(job_id, old, job, after):
                self._check_removal(job_id, old, before, after)
                old = None
            if old is None:
                self._check_addition(job_id, job, before, after)
            else:
                self._check_change(job_id, old, job, before, after)
            if status_of(job) == IN_PROGRESS and (old is None or attempt_of(old) < attempt_of(job)):
                claimed.append((job_id, job))
            self._attempts[job_id] = attempt_of(job)
            if (old is None or not old.get("sequence")) and job.get("sequence", 0) <= self._last:
                raise Violation(0, f"{job_id} was not put behind all others", version=after)
        places = [job["sequence"] for job in new_jobs.values() if job.get("sequence")]
        if len(set(places)) < len(places):
            raise Violation(0, "two jobs have one place", version=after)
        for job_id, job in claimed:
            self._check_claim(job_id, job, before, after)
        for audit in (self.limits, self.cron, self.results, self.staged, self.counters, self.history):
            audit.check_step(before, after, claimed)

    def _came_back(self, job_id: str, old: Fields, new: Fields, after: Version) -> bool:
        """True if a job was removed and enqueued again in one commit: its time of creation tells, or else its place."""
        if "created_at" in old and old["created_at"] != new["created_at"]:
            return True
        moved = status_of(old) == QUEUED and old.get("sequence") and new.get("sequence", 0) > self._last
        return bool(moved) and any(may_carry(after, call) for call in self.calls.adding[job_id])

    def _check_removal(self, job_id: str, job: Fields, before: Version, after: Version) -> None:
        calls, status, claim = self.calls, status_of(job), Claim(job_id, attempt_of(job))
        if status == COMPLETED:
            self.results.check_removal(job_id, job, after)
            return
        if status == DEAD and self.results.is_retired(job, before, after):
            return
        untold = status == IN_PROGRESS and self._nobody_was_told(claim, job)
        stale = self._stood(claim, after) >= (job.get("claim_timeout") or 0.0)
        states = calls.states_in(job_id, job, after, untold=untold)
        swept = calls.states_in(job_id, job, after, untold=untold, stale=stale)
        without_ack = DEAD in states and self._is_purged(job_id, job, before, after)
        without_ack |= QUEUED in states and self._leaves_the_line(job_id, job, before, after)
        without_ack |= QUEUED in swept and status != DEAD and _is_over(job.get("expires_at"), after)
        if status == IN_PROGRESS and len(swept) > 1:
            without_ack |= bool(job.get("cancel_requested")) or self.overseer.stops(job_id, before, after)
        if status == IN_PROGRESS:
            self.ended[claim] = after
            acks = [*calls.ending.get(claim, ()), *calls.acking_by_id.get(job_id, ())]
            if any(may_carry(after, call) for call in acks):
                self.removed[claim].append(after)
                if not without_ack:
                    self.results.check_hold(job_id, job, after)
                    self.results.check_loss(job_id, job, after)
                else:
                    self.doubtful.add(claim)
                return
        if not without_ack:
            raise Violation(1, f"{job_id} vanished while it was {status}, and nobody had ended it", version=after)

    def _leaves_the_line(self, job_id: str, job: Fields, before: Version, after: Version) -> bool:
        """True if a version may carry a call that removes a queued job."""
        return (
            any(self.calls.replaces(key, after) for key in self.overseer.unique_keys(job_id, job, after))
            or bool(self.overseer.carried("cancel", job_id, before, after))
            or self._is_too_old(job_id, job, before, after)
        )

    def _is_purged(self, job_id: str, job: Fields, before: Version, after: Version) -> bool:
        """True if a version may carry a purge of a dead job."""
        by_id = self.overseer.carried("purge_job", job_id, before, after)
        return bool(by_id) or self.calls.purges(after, job["entrypoint"], DEAD)

    def _is_too_old(self, job_id: str, job: Fields, before: Version, after: Version) -> bool:
        """True if a version may carry a purge of queued jobs of this age.

        A job in a segment is at least as old as the segment, whatever the clock said that dated the job. If the store
        does not tell the time, the clock of the process that named the segment decides.
        """
        purges = [call for call in self.calls.carried("purge", after) if call.given["status"] == QUEUED]
        if purges and not self._tells_time:
            return True
        created = seconds(job["created_at"]) if "created_at" in job else before.clock  # dated by the last commit
        if job_id in before.rows:
            created = min(created, before.segments[before.rows[job_id][0]].get("at") or created)
        age = after.clock + 0.001 - created
        return any(call.given["older_than"] <= age for call in purges)

    def _check_addition(self, job_id: str, job: Fields, before: Version, after: Version) -> None:
        self.added[job_id].append(after)
        if status_of(job) in (DEAD, COMPLETED):
            raise Violation(4, f"{job_id} appeared as {status_of(job)}", version=after)
        callers = [*self.calls.adding[job_id], *self.staged.asking(job)]
        if is_of_cron(job_id):
            self.cron.note_addition(job_id, job, after)
        elif self.overseer.is_run(job_id, job):
            self.overseer.note_run(job_id, job, before, after)
        elif not any(call.process == after.by and call.started <= after.at and not call.certain for call in callers):
            raise Violation(9, f"{job_id} appeared, and nobody had asked for it", version=after)
        if attempt_of(job) < self._attempts.get(job_id, 0):
            raise Violation(4, f"the attempt of {job_id} fell to {attempt_of(job)} as it came back", version=after)
        self._check_key(job, after)
        hold = before.holds.get(job.get("unique_key", ""))
        now = max(seconds(job["created_at"]), after.clock)  # staged jobs were dated before
        if hold is not None and hold[1] > now and not any(call.replaces for call in callers):
            raise Violation(4, f"{job_id} was added, and its key was kept for {hold[0]}", version=after)
        if len(callers) == 1:
            for name, value in callers[0].given.items():
                reordered = name in ORDERED and self.calls.touches(ORDERED[name], job_id, after)
                if job.get(name, UNSAID.get(name)) != value and not reordered:
                    raise Violation(2, f"{job_id} was added with another {name}", call=callers[0], version=after)
            wrong = callers[0].delayed not in (None, job.get("run_at") is not None)
            if wrong and not self.calls.touches("reschedule", job_id, after):
                raise Violation(2, f"{job_id} was added, and its delay is not what was asked", version=after)

    def _check_key(self, job: Fields, after: Version) -> None:
        key = job.get("unique_key")
        if key is not None:
            holders = [
                each
                for each in after.jobs.values()
                if each.get("unique_key") == key and status_of(each) not in (DEAD, COMPLETED)
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
        if old_status == COMPLETED:
            raise Violation(12, f"{job_id} was finished and has changed", version=after)
        if new_status == COMPLETED and old_status == IN_PROGRESS:
            self.results.check_completion(job_id, old, new, after)
            claim = Claim(job_id, attempt_of(old))
            self.ended[claim] = after
            self.removed[claim].append(after)
            self.results.check_hold(job_id, old, after)
            return
        edited = self.overseer.edit_of(job_id, old, new, before, after)
        for name in set(NEVER_CHANGED) - edited:
            if old.get(name, UNSAID.get(name)) != new.get(name, UNSAID.get(name)):
                raise Violation(1, f"the {name} of {job_id} changed", version=after)
        changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
        if not old.get("sequence"):  # made by hand or by jqueue 1.0.0: a commit fills in the missing fields
            changed -= {
                "sequence",
                "created_at",
                "priority",
                "status",
                "attempt",
                "failures",
                "id",
                *(name for name in old if old[name] is None),
            }
        allowed: set[str] = {name for name, verb in ORDERED.items() if self.calls.touches(verb, job_id, after)}
        allowed |= edited
        if edited:
            self._check_key(new, after)
        if old_status == IN_PROGRESS:
            if new_status != IN_PROGRESS or grown:
                self._check_claim_end(job_id, old, new, grown, after, in_range=job_id in before.ranged)
                return
            if old.get("heartbeat_at") != new.get("heartbeat_at"):
                self._check_beat(Claim(job_id, attempt_of(new)), after)
            allowed = {"heartbeat_at"}
            if new.get("cancel_requested") and self.overseer.stops(job_id, before, after):
                allowed.add("cancel_requested")
        elif old_status == DEAD:
            if new_status != DEAD and not self.calls.may_carry("redrive", after, old["entrypoint"]):
                raise Violation(1, f"{job_id} was dead, and nobody had asked for it to be redriven", version=after)
            if new_status != DEAD:
                self._check_key(new, after)
                if failures_of(new) != grown or new.get("expires_at") is not None:
                    raise Violation(1, f"{job_id} was redriven, and its failures or expiry were kept", version=after)
                allowed |= {
                    *CLAIM_FIELDS,
                    "status",
                    "failures",
                    "dead_at",
                    "run_at",
                    "expires_at",
                    "sequence",
                    "queued_at",
                }
        elif new_status in (DEAD, COMPLETED):
            raise Violation(1, f"{job_id} was queued, and is {new_status}", version=after)
        elif grown:
            if failures_of(new) != old.get("failures", 0) + 1:
                raise Violation(1, f"{job_id} was claimed, and that is not counted", version=after)
            allowed |= {*CLAIM_FIELDS, "status", "failures", "queued_at"}
        if changed - allowed:
            raise Violation(1, f"the {', '.join(sorted(changed - allowed))} of {job_id} changed", version=after)

    def _check_claim_end(
        self, job_id: str, old: Fields, new: Fields, grown: int, after: Version, *, in_range: bool
    ) -> None:
        """Check a claim that ended without an ack: by its holder's nack, handed back, or stale."""
        claim, error = Claim(job_id, attempt_of(old)), new.get("error")
        self.ended[claim] = after
        if old.get("cancel_requested"):
            raise Violation(1, f"{claim} ended, and its job was to be stopped and is {status_of(new)}", version=after)
        if SET_ASIDE in (error or "") and new.get("run_at"):
            if failures_of(new) - grown != failures_of(old) - 1:
                raise Violation(1, f"{claim} was set aside, and its failures are counted wrong", version=after)
            return
        if error is not None and error not in (old.get("error"), STALE_ERROR):
            call = self.calls.by_tag.get(error)
            if call is None or claim not in call.claims or call.process != after.by:
                raise Violation(5, f"{claim} was ended by a nack of another claim", version=after)
            self.nacked[error].append((claim, after))
            self._check_end_state(claim, old, new, grown, after, call)
        elif failures_of(new) - grown < failures_of(old):
            ends = self.calls.carried("end_range", after) if in_range else []
            is_unsure = job_id in after.unsure  # the end of a range gives back what can no longer be read
            if any(is_unsure or (claim in call.claims and job_id in call.job_ids) for call in ends):
                return
            if not self._nobody_was_told(claim, old):
                raise Violation(6, f"{claim} was handed back, and its holder had been told of it", version=after)
        else:
            self._check_revocation(claim, old, after)
            if in_range and status_of(new) != DEAD:
                self._check_whole(claim, old, new, after)
            else:
                self._check_end_state(claim, old, new, grown, after, None)

    def _check_whole(self, claim: Claim, old: Fields, new: Fields, after: Version) -> None:
        """Check a job whose range became stale: it waits again in its place, unless it is out of attempts."""
        spent = old.get("max_attempts") is not None and failures_of(old) >= old["max_attempts"]
        if spent and not self.calls.may_carry("redrive", after, old["entrypoint"]):
            raise Violation(1, f"{claim} ended, and its job is {status_of(new)}", version=after)

    def _stood(self, claim: Claim, after: Version) -> float:
        """Return the seconds since a claim was made or its heartbeat moved."""
        return after.at - self._moved_at.get(claim, 0.0)

    def _nobody_was_told(self, claim: Claim, job: Fields) -> bool:
        """True if the claim on a job may be handed back, since the dequeue that made it did not return it."""
        dequeue = self.calls.by_tag.get(job.get("claim_timeout"))
        return dequeue is None or not dequeue.succeeded or all(told.claim != claim for told in dequeue.result)

    def _check_end_state(
        self, claim: Claim, old: Fields, new: Fields, grown: int, after: Version, nack: Call | None
    ) -> None:
        """Check the job: dead if given up or out of attempts, else queued: last if charged, otherwise in place."""
        charged = nack is None or nack.given["charge"]
        spent = old.get("max_attempts") is not None and failures_of(old) >= old["max_attempts"]
        doomed = charged and (spent or (nack is not None and nack.given["dead"]))
        if doomed and self.calls.may_carry("redrive", after, old["entrypoint"]):
            return  # dead for a moment
        if doomed != (status_of(new) == DEAD):
            raise Violation(1, f"{claim} ended, and its job is {status_of(new)}", version=after)
        if failures_of(new) - grown != failures_of(old) - (not charged):
            raise Violation(1, f"{claim} ended, and its failures are counted wrong", version=after)
        if not doomed and old.get("sequence") and charged != (new["sequence"] > self._last):
            raise Violation(0, f"{claim} ended, and its job is in the wrong place", version=after)
        if doomed and new["sequence"] != old.get("sequence", new["sequence"]):
            raise Violation(0, f"{claim} ended, and its job is in the wrong place", version=after)
        if not doomed and nack is not None and not self.calls.touches("reschedule", claim.job_id, after):
            self._check_delay(claim, old, new, after, nack)

    def _check_delay(self, claim: Claim, old: Fields, new: Fields, after: Version, nack: Call) -> None:
        """Check that a job given back waits as asked. With aging, a charged job also records the time of its return."""
        aging = after.settings.get("aging") is not None or self.calls.may_carry("configure", after)
        if nack.delayed:
            right = new.get("run_at") is not None
        elif nack.given["charge"]:
            right = new.get("run_at") is None or aging
        else:
            right = new.get("run_at") == old.get("run_at")
        if not right:
            raise Violation(2, f"{claim} was given back, and its delay is not what was asked", call=nack, version=after)

    def _check_revocation(self, claim: Claim, old: Fields, after: Version) -> None:
        timeout = old.get("claim_timeout")
        stood = after.at - self._moved_at.get(claim, 0.0)
        beat = seconds(old["heartbeat_at"]) if old.get("heartbeat_at") else 0.0
        orders = [call for call in self.calls.by_verb["requeue_stale"] if may_carry(after, call)]
        ordered = any(beat + call.timeout <= after.clock + 0.001 for call in orders)
        if timeout is not None and stood < timeout and not ordered:
            raise Violation(6, f"{claim} was revoked after {stood:.3f} of its {timeout:.3f} s", version=after)

    def _check_beat(self, claim: Claim, after: Version) -> None:
        self._moved_at[claim] = after.at
        self.beaten[claim].append(after)
        if not any(may_carry(after, call) for call in self.calls.beating.get(claim, ())):
            raise Violation(5, f"the heartbeat of {claim} moved, and its holder had not beaten", version=after)

    def _check_claim(self, job_id: str, job: Fields, before: Version, after: Version) -> None:
        claim, tag = Claim(job_id, attempt_of(job)), job.get("claim_timeout")
        call = self.calls.by_tag.get(tag)
        if call is None or call.process != after.by:
            raise Violation(4, f"{claim} was made, and {after.by} had not asked for it", version=after)
        if claim in self.claimed:
            raise Violation(4, f"{claim} was made a second time", version=after)
        if call.entrypoint not in (None, job["entrypoint"]):
            raise Violation(4, f"{claim} is of {job['entrypoint']}, which was not asked for", call=call, version=after)
        at = seconds(job["heartbeat_at"])
        early = job.get("run_at") is not None and seconds(job["run_at"]) > at
        if early and not (
            job_id in after.ranged and not self._tells_time
        ):  # due by the clock that moved it to a segment
            raise Violation(0, f"{claim} was made before its time", call=call, version=after)
        if job.get("expires_at") is not None and seconds(job["expires_at"]) <= at:
            raise Violation(0, f"{claim} was made after its job had expired", call=call, version=after)
        if len(self.made[tag]) >= call.batch:
            raise Violation(4, f"{claim} was made, and only {call.batch} were asked for", call=call, version=after)
        self.claimed[claim] = after
        self.made[tag].append(claim)
        self._moved_at[claim] = after.at
        if job_id in after.ranged and job_id not in after.leading:
            return  # it follows the first of its range, and is claimed with it
        for other_id, other in after.jobs.items():
            if (
                0 < other.get("sequence", 0) <= call.through
                and comes_first(other, job, after)
                and is_free(other, after, call.entrypoint)
                and before.jobs.get(other_id) == other
                and other_id not in (before.unsure | after.unsure)
            ):
                raise Violation(0, f"{job_id} was claimed before {other_id}, whose turn it was", version=after)


def _is_over(expires_at: str | None, version: Version) -> bool:
    """True if the time had passed by the time of writing that the version records."""
    return expires_at is not None and seconds(expires_at) <= version.clock + 0.001
