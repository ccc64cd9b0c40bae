"""Compares the answers that callers got with the versions that the store has held."""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Callable, Iterable, Set

from jqueue.domain.errors import (
    ClaimLostError,
    DeadlineExceededError,
    DuplicateJobError,
    JobCancelledError,
    JobNotFoundError,
    JobStateError,
    ObjectMissingError,
    QueueMissingError,
    SegmentDamagedError,
    StorageFatalError,
)
from jqueue.domain.models import Claim, JobStatus
from jqueue.testing.virtual_time import EPOCH
from tests.simulation.auditor import Auditor
from tests.simulation.calls import Violation, may_carry
from tests.simulation.chain import (
    DEAD,
    IN_PROGRESS,
    QUEUED,
    Timeline,
    Version,
    attempt_of,
    status_of,
)
from tests.simulation.history import Call, is_of_the_store
from tests.simulation.order_answer_audit import OrderAnswerAudit, is_there
from tests.simulation.punctuality import Exits
from tests.simulation.results_audit import size_of
from tests.simulation.serving_order import is_free, seconds
from tests.simulation.staged_audit import VERBS
from tests.simulation.stored_segments import FOLDER
from tests.simulation.views_audit import ViewsAudit
from tests.simulation.workload import DEADLINE, OBJECT_BYTES

LOOKING_UP = (
    *("enqueue", "enqueue_many", "enqueue_staged", "resolve", "resolve_staged", "apply", "run_now"),
    *("cancel", "reschedule", "reprioritise", "edit", "purge_job", "result", "redrive", "end_range"),
)
"""Verbs that find jobs by their ids or unique keys, and fail if it cannot be told where a job is."""


class AnswerAudit:
    """Checks every call.

    Args:
        auditor: the auditor, which has checked the chain of versions.
        exits: times at which each process left.
        damaged: names of the segments that were damaged.
        tells_time: True if the store tells its time.
    """

    def __init__(
        self, auditor: Auditor, exits: Exits, damaged: Set[str] = frozenset(), *, tells_time: bool = True
    ) -> None:
        self.damaged = damaged
        self._tells_time = tells_time
        self.auditor = auditor
        self.calls = auditor.calls
        self.exits = exits
        self._timeline = Timeline(auditor.versions)
        self._orders = OrderAnswerAudit(auditor, self._timeline, exits)
        self._views = ViewsAudit(self._timeline, damaged, tells_time=tells_time)

    def check(self) -> None:
        """Check every call, and that no process left with a claim that it had not returned to a caller.

        Raises:
            Violation: a rule is broken.
        """
        checks = self._checks()
        for call in self.calls.all:
            self._check_error(call)
            check = checks[call.verb]
            if check is not None:
                check(call)
        for process, (left, gone) in self.exits.items():
            if gone - left < DEADLINE - 1.0:
                self._check_exit(process, gone)

    def _checks(self) -> dict[str, Callable[[Call], None] | None]:
        """Return the check for each verb, besides errors. None: its effect shows in the chain, or in time."""
        return {
            "enqueue": self._check_enqueue,
            "enqueue_many": self._check_enqueue_many,
            "apply": self._check_apply,
            "resolve": self._check_resolve,
            "dequeue": self._check_dequeue,
            "ack": self._check_ack,
            "ack_many": self._check_ack_many,
            "nack": self._check_nack,
            "nack_many": self._check_nack_many,
            "heartbeat": self._check_heartbeat,
            "heartbeat_many": self._check_heartbeat_many,
            "cancel": self._check_cancel,
            "apply_each": self._check_apply_each,
            **self._orders.checks(),
            "read_state": self._check_read_state,
            **self._views.checks(),
            "claim_range": self._check_range_claim,
            "end_range": self._check_range_end,
            "beat_range": self._check_range_beat,
            "read_range": None,
            **dict.fromkeys(("work", "edit", "purge_job", "run_now", "create", *VERBS)),
            "redrive": self._check_redrive,
            "purge": self._check_purge,
            "requeue_stale": None,
        }

    # Every call

    def _check_error(self, call: Call) -> None:
        error = call.error
        if call.certain and call.succeeded:
            raise Violation(8, "should have been refused", call=call)
        if error is None or not isinstance(error, Exception):
            return
        if isinstance(error, SegmentDamagedError) and self._is_damaged(error) and call.verb in LOOKING_UP:
            return
        if isinstance(error, ObjectMissingError) and call.aged:
            return
        if isinstance(error, StorageFatalError):
            raise Violation(7, f"{error!r}, although the object was there and whole", call=call)
        if isinstance(error, QueueMissingError) and self._during(call)[0].index >= 0:
            raise Violation(7, "found no queue, although there was one all the time", call=call)
        if not is_of_the_store(error) and not isinstance(error, call.expected):
            raise Violation(8, f"failed with {error!r}, which it gave no reason for", call=call)
        if isinstance(error, JobNotFoundError) and not call.bare and not call.certain:
            self._check_lost(call, error)

    def _is_damaged(self, error: SegmentDamagedError) -> bool:
        return error.suffix.removeprefix(FOLDER) in self.damaged

    def _check_lost(self, call: Call, error: JobNotFoundError) -> None:
        """Check that a lost claim, or a job not found, was seen by a read begun after the call."""
        if isinstance(error, JobCancelledError):
            self._orders.check_told_to_stop(call, error)
        elif isinstance(error, ClaimLostError) and error.attempt is not None:
            claim = Claim(error.job_id, error.attempt)
            if all(_holds(version, claim) for version in self._during(call)):
                raise Violation(3, f"{claim} was current all the time, and called lost", call=call)
            self._check_overrun(call, claim)
            acked = claim in self.auditor.removed and claim not in self.auditor.doubtful
            if acked and call.verb in ("ack", "ack_many"):
                raise Violation(5, "was refused, although this very claim had finished the job", call=call)
        elif not self._came_back(call, error.job_id) and all(
            is_there(error.job_id, version, call.verb) for version in self._during(call)
        ):
            raise Violation(3, f"{error.job_id} was there all the time, and not found", call=call)

    def _came_back(self, call: Call, job_id: str) -> bool:
        """True if a commit of the call's process removed a job and added it again: the call may come in between."""
        added = {version.index for version in self.auditor.added.get(job_id, ()) if version.by == call.process}
        return any(version.index in added for version in self._during(call)[1:])

    def _check_overrun(self, call: Call, claim: Claim) -> None:
        """Check that a heartbeat was applied before the sweep of its commit.

        Calls answered together share a commit: the last one of their process, which may be a later one than that which
        revoked the claim.
        """
        ended = self.auditor.ended.get(claim)
        if call.verb not in ("heartbeat", "heartbeat_many") or ended is None or ended.by != call.process:
            return
        if self.calls.may_carry("requeue_stale", ended):
            return
        others = [other for other in self.calls.all if other.process == call.process and other.started <= call.ended]
        dequeues = [other for other in others if other.verb == "dequeue"]
        together = any(other.ended == call.ended for other in dequeues)
        between = any(ended.at <= other.ended < call.ended for other in others)
        waiting = any(other.started <= ended.at and other.ended > call.ended for other in dequeues)
        left = any(other.error and other.ended > ended.at - DEADLINE for other in others)
        later = any(v.by == call.process and v.number > ended.number for v in self._during(call))
        if together and not (between or waiting or left or later) and call.started <= ended.at:
            raise Violation(6, f"{claim} was revoked by the commit that carried its heartbeat", call=call)

    # Calls that add

    def _check_enqueue(self, call: Call) -> None:
        [job_id] = call.job_ids
        other = call.succeeded and (call.result.id != job_id or call.result.status is JobStatus.COMPLETED)
        replaced = call.key is not None and self.calls.replacing(call.key, call.ended, by_another_than=call)
        self._check_added(call, job_id, needed=not (other or call.fleeting or replaced))
        if not (call.fleeting or replaced):
            self._check_already_there(call, job_id)

    def _check_already_there(self, call: Call, job_id: str) -> None:
        """Check that a job that was there already, or held the key, was seen by a read begun after the call."""
        error, auditor = call.error, self.auditor
        if isinstance(error, DuplicateJobError):
            holder, completed = error.job_id, False
        elif call.succeeded:
            holder, completed = call.result.id, call.result.status is JobStatus.COMPLETED
        else:
            return
        if holder in auditor.by_hand or self.calls.cancelling(holder, call.ended) or self.calls.purging(call):
            return
        acked = any(
            claim.job_id == holder and versions[0].at <= call.ended for claim, versions in auditor.removed.items()
        )
        if completed and not acked:
            raise Violation(3, f"{holder} was called completed, and nobody had acked it", call=call)
        seen = any(
            holder in v.jobs
            and (
                holder == job_id or (v.jobs[holder].get("unique_key") == call.key and status_of(v.jobs[holder]) != DEAD)
            )
            for v in self._during(call)
        )
        kept = any(v.holds.get(call.key or "", [None])[0] == holder for v in self._during(call))
        if not seen and not kept and not completed:
            raise Violation(3, f"{holder} was called there already, and was not", call=call)

    def _check_enqueue_many(self, call: Call) -> None:
        places: set[int] = set()
        for job_id in call.job_ids:
            self._check_added(call, job_id, needed=True)
            if len(self.calls.adding[job_id]) == 1:
                places.update(version.index for version in self.auditor.added.get(job_id, ()))
        if len(places) > 1:
            raise Violation(9, f"took effect in parts, in {len(places)} versions", call=call)

    def _check_added(self, call: Call, job_id: str, *, needed: bool) -> None:
        added = self.auditor.added.get(job_id, [])
        callers = self.calls.adding[job_id]
        if len(added) > len(callers):
            what = f"{job_id} was added in {len(added)} versions by {len(callers)} calls"
            raise Violation(2, what, call=call, version=added[-1])
        gone_at_once = (
            job_id in self.auditor.by_hand or self.calls.cancelling(job_id, call.ended) or self.calls.purging(call)
        )
        if call.succeeded and needed and not gone_at_once and not any(version.at <= call.ended for version in added):
            raise Violation(2, f"returned, and {job_id} was in no version by then", call=call)
        if len(callers) > 1 or not added:
            return
        if call.certainly_not_done:
            raise Violation(2, f"{job_id} was added, although the caller was told that it was not", call=call)
        landed = added[0].jobs[job_id].get("sequence")
        told = call.result.sequence if call.verb == "enqueue" and call.succeeded else landed
        if told != landed and call.result.id == job_id:
            raise Violation(2, f"the result for {job_id} is not that of the attempt that landed", call=call)

    def _check_resolve(self, call: Call) -> None:
        [job_id] = call.job_ids
        added = self.auditor.added.get(job_id, [])
        if call.succeeded and not (added or call.fleeting or self.calls.cancelling(job_id, call.ended)):
            raise Violation(2, f"resolved as done, and {job_id} was never added", call=call)
        if isinstance(call.error, DeadlineExceededError) and added and len(self.calls.adding[job_id]) == 1:
            raise Violation(2, f"resolved as not done, and {job_id} was added", call=call)

    def _check_apply(self, call: Call) -> None:
        for job_id in call.job_ids:
            self._check_added(call, job_id, needed=True)
        if call.certain:
            return
        [claim], [job_id] = call.claims, call.job_ids
        acked = {version.index for version in self.auditor.removed.get(claim, ())}
        for version in self.auditor.added.get(job_id, ()):
            others = (other for other in self.calls.adding[job_id] if other is not call)
            if version.index not in acked and not any(may_carry(version, other) for other in others):
                raise Violation(9, f"{job_id} was added without its ack", call=call, version=version)
        if call.succeeded:
            self._check_acked(call, claim)

    # Calls that claim

    def _check_dequeue(self, call: Call) -> None:
        made = self.auditor.made.get(call.tag, [])
        if call.certainly_not_done and made:
            raise Violation(2, f"claimed {made}, although the caller was told that nothing was done", call=call)
        if not call.succeeded:
            return
        if len({job.claim for job in call.result}) < len(call.result):
            raise Violation(4, "handed out one claim twice", call=call)
        for job in call.result:
            version = self.auditor.claimed.get(job.claim)
            if job.claim not in made or version is None:
                raise Violation(2, f"returned {job.claim}, which no version says", call=call)
            if version.at > call.ended:
                raise Violation(2, f"returned {job.claim} before its commit", call=call, version=version)
            fields = version.jobs[job.id]
            said = fields.get("heartbeat_at"), b64decode(fields["payload"]), fields["entrypoint"], fields["failures"]
            if said != (job.heartbeat_at.isoformat(), job.payload, job.entrypoint, job.failures):
                raise Violation(2, f"the result for {job.claim} is not that of the attempt that landed", call=call)
        during = self._during(call)
        # a commit may restore what was damaged when its dequeues were applied
        unsure = frozenset[str]().union(*(version.unsure for version in during))
        if not call.result and all(self._has_ready(version, call, unsure) for version in during):
            raise Violation(3, "found nothing, although there was a job all the time", call=call)

    # Ranges

    def _check_range_claim(self, call: Call) -> None:
        made = self.auditor.made.get(call.tag, [])
        if call.certainly_not_done and made:
            raise Violation(2, f"claimed {made}, although the caller was told that nothing was done", call=call)
        if call.succeeded and {job.claim for job in call.result} != set(made):
            raise Violation(2, "returned other jobs than the version says", call=call)
        if call.succeeded and made and self.auditor.claimed[made[0]].at > call.ended:
            raise Violation(2, "returned a range before its commit", call=call)

    def _check_range_end(self, call: Call) -> None:
        effects = self.auditor.nacked.get(call.tag, [])
        repeated = [other for other in self.calls.by_verb["end_range"] if other.tag == call.tag and other is not call]
        if call.certainly_not_done and effects and all(other.certainly_not_done for other in repeated):
            raise Violation(2, "took effect, although the caller was told that it did not", call=call)
        if len({version.index for _, version in effects}) > 1:
            raise Violation(9, f"took effect in parts, in {len(effects)} versions", call=call)
        if not call.succeeded:
            return
        for claim in call.claims:
            if claim in call.results:
                self._check_acked(call, claim)
            elif claim not in self.auditor.ended or self.auditor.ended[claim].at > call.ended:
                raise Violation(2, f"returned, and {claim} was not given back by then", call=call)

    def _check_range_beat(self, call: Call) -> None:
        if not call.succeeded:
            return
        if not any(type(error) is ClaimLostError for error in call.result):
            stopped = {error.job_id for error in call.result}
            self._orders.check_beats(call, {claim for claim in call.claims if claim.job_id in stopped})
            self._check_beaten(call, call.claims)
        elif all(_holds(version, claim) for claim in call.claims[:1] for version in self._during(call)):
            raise Violation(3, f"{call.claims[0]} was current all the time, and its range called lost", call=call)

    # Calls that end or move claims

    def _check_ack(self, call: Call) -> None:
        [claim] = call.claims
        if call.succeeded and not call.bare:
            self._check_acked(call, claim)
        if call.succeeded and call.bare:
            claims = [other for other in self.auditor.removed if other.job_id == claim.job_id]
            if not any(v.at <= call.ended for other in claims for v in self.auditor.removed[other]):
                raise Violation(2, f"returned, and {claim.job_id} was not finished by then", call=call)
        if len(self.auditor.removed.get(claim, ())) > 1:
            raise Violation(2, f"{claim} was acked in two versions", call=call)

    def _check_ack_many(self, call: Call) -> None:
        if call.succeeded:
            lost = self._check_losses(call)
            for claim in call.claims:
                if claim not in lost:
                    self._check_acked(call, claim)

    def _check_acked(self, call: Call, claim: Claim) -> None:
        if not any(version.at <= call.ended for version in self.auditor.removed.get(claim, ())):
            raise Violation(2, f"returned, and {claim} had not finished its job by then", call=call)

    def _check_not_acked(self, call: Call, claim: Claim) -> None:
        acks = [*self.calls.ending.get(claim, ()), *self.calls.acking_by_id.get(claim.job_id, ())]
        if self.auditor.removed.get(claim) and all(ack is call for ack in acks):
            raise Violation(2, f"told that {claim} was not acked, and it was", call=call)

    def _sizes_of_results(self, claim: Claim) -> set[int]:
        """Return the sizes of the results given with acks of a claim: callers of one name may share a claim."""
        acks = [*self.calls.ending.get(claim, ()), *self.calls.acking_by_id.get(claim.job_id, ())]
        return {size_of(call.results[claim]) for call in acks if claim in call.results}

    def _check_apply_each(self, call: Call) -> None:
        """Check acks and nacks that shared one commit, each on its own."""
        if not call.succeeded:
            return
        for claim, outcome in zip(call.claims, call.result, strict=True):
            if isinstance(outcome, JobNotFoundError):
                self._check_lost(call, outcome)
            elif isinstance(outcome, DeadlineExceededError) and size_of(call.results.get(claim)) > OBJECT_BYTES:
                self._check_not_acked(call, claim)  # the object of the result could not be stored
            elif outcome is not None and outcome not in self._sizes_of_results(claim):
                raise Violation(8, f"{claim} got {outcome!r}", call=call)
            elif claim in call.results:
                self._check_acked(call, claim)
            else:
                self._check_nacked(call, [claim])

    def _check_nack(self, call: Call) -> None:
        effects = self.auditor.nacked.get(call.tag, [])
        if call.succeeded:
            self._check_nacked(call, call.claims)
        if call.certainly_not_done and effects:
            raise Violation(2, "took effect, although the caller was told that it did not", call=call)
        if len({claim for claim, _ in effects}) < len(effects):
            raise Violation(2, f"took effect in {len(effects)} versions", call=call)

    def _check_nack_many(self, call: Call) -> None:
        if call.succeeded:
            lost = self._check_losses(call)
            self._check_nacked(call, [claim for claim in call.claims if claim not in lost])

    def _check_nacked(self, call: Call, claims: Iterable[Claim]) -> None:
        ended = {claim for claim, version in self.auditor.nacked.get(call.tag, ()) if version.at <= call.ended}
        for claim in claims:
            if claim not in ended and not self._left_at_once(claim, call):
                raise Violation(2, f"returned, and {claim} was not given back by then", call=call)

    def _check_heartbeat(self, call: Call) -> None:
        if call.succeeded:
            self._orders.check_beats(call, set())
            self._check_beaten(call, call.claims)

    def _check_heartbeat_many(self, call: Call) -> None:
        if call.succeeded:
            lost = self._check_losses(call)
            self._orders.check_beats(call, lost)
            self._check_beaten(call, [claim for claim in call.claims if claim not in lost])

    def _check_beaten(self, call: Call, claims: Iterable[Claim]) -> None:
        for claim in claims:
            beats = self.auditor.beaten.get(claim, ())
            beaten = any(call.started <= version.at <= call.ended for version in beats)
            if not beaten and not self._left_at_once(claim, call):
                raise Violation(2, f"returned, and the heartbeat of {claim} had not moved", call=call)

    def _check_losses(self, call: Call) -> set[Claim]:
        """Return the claims that a call for many reported as lost, after checking each."""
        for error in call.result:
            self._check_lost(call, error)
        return {Claim(error.job_id, error.attempt) for error in call.result}

    def _left_at_once(self, claim: Claim, call: Call) -> bool:
        """True if the claim ended in another way during the call, perhaps by the same commit."""
        version = self.auditor.ended.get(claim)
        return version is not None and call.started <= version.at <= call.ended

    # Other calls

    def _check_cancel(self, call: Call) -> None:
        [job_id] = call.job_ids
        self._orders.check_stop(call)
        if isinstance(call.error, JobStateError) and not any(
            status_of(version.jobs.get(job_id, {})) != QUEUED for version in self._during(call)
        ):
            raise Violation(3, f"{job_id} was called claimed or dead, and was not", call=call)
        again = any(version.at > call.started for version in self.auditor.added.get(job_id, ()))
        if (
            call.succeeded
            and call.result.status is JobStatus.QUEUED
            and job_id in self._timeline.at(call.ended).jobs
            and not again
            and job_id not in self.auditor.by_hand
        ):
            raise Violation(2, f"returned, and {job_id} was still there", call=call)

    def _check_read_state(self, call: Call) -> None:
        if not call.succeeded:
            return
        shown = [version for version in self._during(call) if version.number == call.result.version]
        if not shown:
            raise Violation(3, f"showed version {call.result.version}, which was not current then", call=call)
        told = {job.id: (str(job.status), job.attempt) for job in call.result.jobs}
        if told not in [{i: (status_of(v.jobs[i]), attempt_of(v.jobs[i])) for i in v.hot} for v in shown]:
            raise Violation(3, f"showed version {call.result.version} with other jobs", call=call)

    def _check_purge(self, call: Call) -> None:
        if call.given["status"] == DEAD:
            self._check_redrive(call)
        if not call.succeeded or call.given["status"] != QUEUED or not self._tells_time:
            return
        during, limit = self._during(call), EPOCH.timestamp() + call.started - call.given["older_than"]
        for job_id, job in during[0].jobs.items():
            created = job.get("created_at")  # another one shows that the job has left, and was enqueued again at once
            stayed = created is not None and all(
                job_id in v.jobs and status_of(v.jobs[job_id]) == QUEUED and v.jobs[job_id].get("created_at") == created
                for v in during
            )
            stayed = stayed and not any(job_id in v.unsure for v in during)
            if stayed and job_id not in self.auditor.by_hand and seconds(job["created_at"]) < limit:
                raise Violation(2, f"returned, and {job_id} waited all the time", call=call)

    def _check_redrive(self, call: Call) -> None:
        if call.succeeded:
            for job_id, job in self._timeline.at(call.started).jobs.items():
                dead = all(status_of(v.jobs.get(job_id, {})) == DEAD for v in self._during(call))
                keyed = dead and any("unique_key" in v.jobs[job_id] for v in self._during(call))  # its key may be taken
                if dead and not keyed and call.entrypoint in (None, job["entrypoint"]):
                    raise Violation(2, f"returned, and {job_id} was dead all the time", call=call)

    def _check_exit(self, process: str, gone: float) -> None:
        """Check that a process that left in peace kept no claim that it had not returned to a caller."""
        last = self._timeline.at(gone)
        for call in self.calls.by_verb["dequeue"]:
            if call.process != process:
                continue
            told = {job.claim for job in call.result} if call.succeeded else set()
            for claim in [claim for claim in self.auditor.made.get(call.tag, ()) if claim not in told]:
                made = self.auditor.claimed[claim]
                if made.at > gone or (_holds(last, claim) and made.number > last.forgotten):
                    raise Violation(2, f"{process} left, and kept {claim}, of which nobody was told", call=call)

    # Looking up

    def _during(self, call: Call) -> list[Version]:
        """Return the versions that were current at some moment of the call."""
        return self._timeline.between(call.started, call.ended)

    def _has_ready(self, version: Version, call: Call, unsure: Set[str]) -> bool:
        unseen = self.auditor.staged.added_beside(call, version) | unsure
        seen = [job for job_id, job in version.jobs.items() if job_id not in unseen]
        # A job without a sequence number, as people write them, is placed behind all others when it is read.
        jobs = [job for job in seen if (job.get("sequence") or math.inf) <= call.through]
        return any(is_free(job, version, call.entrypoint) for job in jobs)


def _holds(version: Version, claim: Claim) -> bool:
    job = version.jobs.get(claim.job_id)
    return job is not None and status_of(job) == IN_PROGRESS and attempt_of(job) == claim.attempt
