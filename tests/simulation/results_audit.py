"""Checks what is kept of finished jobs: results, dead jobs and unique keys, each until its time is over.

A result is kept in the very version that carries its ack. It is the one given to the ack, and waiters get the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from jqueue.domain.errors import JobFailedError, ResultNotKeptError, ResultTimeoutError
from jqueue.domain.models import Claim
from tests.simulation.calls import Calls, Violation, may_carry
from tests.simulation.chain import COMPLETED, DEAD, Fields, Timeline, Version, attempt_of, status_of
from tests.simulation.history import Call
from tests.simulation.serving_order import seconds
from tests.simulation.workload import BLOB_BYTES

RESULT = 12
"""Number of the rule: a result is kept with its ack, for as long as was asked, and returned as it was given."""

CLOCK = 0.002
"""Seconds by which the time of a commit is rounded."""

LOOKS_EVERY = 5.0
"""Largest number of seconds between two looks of a waiting caller."""

LATE = 2.5
ENDS_WITH_IT = {
    *("status", "payload", "heartbeat_at", "claim_timeout", "cancel_requested", "finished_at", "holder"),
    *("result", "result_dropped", "claimed_at"),
}


class ResultsAudit:
    """Checks results and dead jobs in every step.

    Args:
        calls: the history.

    Attributes:
        seen: number of times that something was kept, dropped, or left when its time was over.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.seen: Counter[str] = Counter()

    def check_completion(self, job_id: str, old: Fields, new: Fields, after: Version) -> None:
        """Check a job in progress that was kept as completed."""
        claim = Claim(job_id, attempt_of(old))
        self.seen["result kept"] += 1
        acks = [*self.calls.ending.get(claim, ()), *self.calls.acking_by_id.get(job_id, ())]
        said = [call.results.get(claim) for call in acks if may_carry(after, call)]
        if not said:
            raise Violation(5, f"{claim} finished its job, and its holder had not acked it", version=after)
        self._check_result(claim, new, said, after)
        changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
        if changed - ENDS_WITH_IT or attempt_of(new) != attempt_of(old):
            raise Violation(RESULT, f"{', '.join(sorted(changed - ENDS_WITH_IT))} changed with an ack", version=after)
        if old.get("keep_result") is None or new.get("payload") or new.get("finished_at") is None:
            raise Violation(RESULT, f"{claim} was acked, and what is kept is not only a result", version=after)
        if abs(seconds(new["finished_at"]) - after.clock) > CLOCK:
            raise Violation(RESULT, f"{claim} was acked, and finished at another time", version=after)

    def _check_result(self, claim: Claim, job: Fields, said: list[Any], after: Version) -> None:
        """Check that the result is the one given to the ack, or only its size if there was no room for it."""
        if not job.get("result_dropped"):
            if job.get("result") not in said:
                raise Violation(RESULT, f"the result of {claim} is not what its ack said", version=after)
            if size_of(job.get("result")) > BLOB_BYTES:
                raise Violation(RESULT, f"the result of {claim} is larger than the queue may become", version=after)
            return
        self.seen["result dropped"] += 1
        if job.get("result") is not None or job["result_dropped"] not in map(size_of, said):
            raise Violation(RESULT, f"of the result of {claim}, something else was dropped", version=after)
        if job["result_dropped"] < BLOB_BYTES:
            raise Violation(RESULT, f"the result of {claim} was dropped, and there was room for it", version=after)

    def check_hold(self, job_id: str, job: Fields, after: Version) -> None:
        """Check that an acked job keeps its unique key for as long as was asked."""
        if job.get("unique_for") and job["unique_key"] not in after.holds:
            holders = [
                each
                for each in after.jobs.values()
                if each.get("unique_key") == job["unique_key"] and status_of(each) != COMPLETED
            ]
            if not holders and not self.calls.replacing(job["unique_key"], after.at):
                raise Violation(4, f"{job_id} was acked, and its key was not kept", version=after)

    def check_loss(self, job_id: str, job: Fields, after: Version) -> None:
        """Check that an acked job that left at once had no result to keep."""
        if job.get("keep_result") is not None and not self.calls.purges(after, job["entrypoint"], COMPLETED):
            raise Violation(RESULT, f"{job_id} was acked, and its result is lost", version=after)

    def check_removal(self, job_id: str, job: Fields, after: Version) -> None:
        """Check that a completed job left because of a purge, or not before its time."""
        if self.calls.purges(after, job["entrypoint"], COMPLETED):
            return
        self.seen["result gone"] += 1
        until = seconds(job["finished_at"]) + job["keep_result"]
        if after.clock + CLOCK < until:
            raise Violation(RESULT, f"the result of {job_id} is gone {until - after.clock:.1f} s early", version=after)

    def is_retired(self, job: Fields, before: Version, after: Version) -> bool:
        """True if a dead job was kept for long enough."""
        times = [version.settings.get("dead_retention") for version in (before, after)]
        times += [call.given.get("dead_retention") for call in self.calls.carried("configure", after)]
        died = seconds(job["dead_at"]) if job.get("dead_at") else seconds(job["created_at"])
        return any(kept is not None and died + kept <= after.clock + CLOCK for kept in times)

    def check_step(self, before: Version, after: Version, claimed: list[tuple[str, Fields]]) -> None:
        """Check that a version with new claims has removed everything kept for long enough."""
        now = max((seconds(job["heartbeat_at"]) for _, job in claimed), default=None)
        if now is None:
            return
        retention = after.settings.get("dead_retention")
        for job_id, job in after.jobs.items():
            status, until = status_of(job), None
            if status == COMPLETED:
                until = seconds(job["finished_at"]) + job["keep_result"]
            elif status == DEAD and retention is not None and job.get("dead_at"):
                until = seconds(job["dead_at"]) + retention
            if until is not None and until < now - CLOCK:
                raise Violation(0, f"{job_id} is {status}, and should have left", version=after)

    # Answers to waiters

    def check_calls(self, timeline: Timeline, acked: Iterable[Claim], *, calm: bool) -> None:
        """Check every call that waited for a result."""
        finished = {claim.job_id for claim in acked}
        for call in self.calls.by_verb["result"]:
            [job_id] = call.job_ids
            seen = timeline.between(call.started, call.ended)
            jobs = [version.jobs.get(job_id, {}) for version in seen]
            kept = [job for job in jobs if status_of(job) == COMPLETED]
            told = [job.get("result") for job in kept if not job.get("result_dropped")]
            if call.succeeded and call.result not in told:
                raise Violation(RESULT, f"was told a result of {job_id} that is not the one kept", call=call)
            if isinstance(call.error, JobFailedError) and not any(status_of(job) == DEAD for job in jobs):
                raise Violation(3, f"{job_id} was called dead, and was not", call=call)
            if isinstance(call.error, ResultNotKeptError) and job_id not in finished:
                raise Violation(3, f"{job_id} was called finished, and nobody had acked it", call=call)
            over = any(seconds(job["finished_at"]) + job["keep_result"] <= call.latest for job in kept)
            dropped = any(job.get("result_dropped") for job in kept)
            if isinstance(call.error, ResultNotKeptError) and len(kept) == len(jobs) and not (over or dropped):
                raise Violation(RESULT, f"the result of {job_id} was there all the time, and not told", call=call)
            if isinstance(call.error, ResultTimeoutError) and len(kept) == len(jobs):
                raise Violation(RESULT, f"{job_id} was finished all the time, and waited for", call=call)
            if calm and call.process != "drain":
                self._check_patience(call, job_id, seen)

    def _check_patience(self, call: Call, job_id: str, seen: list[Version]) -> None:
        """Check that a waiter is told soon after the ack, if nothing is wrong with the store."""
        done = [version.at for version in seen if status_of(version.jobs.get(job_id, {})) == COMPLETED]
        told = call.succeeded or isinstance(call.error, ResultTimeoutError)
        if done and told and call.ended > max(done[0], call.started) + LOOKS_EVERY + LATE:
            raise Violation(0, f"waited, although {job_id} had finished", call=call)


def size_of(result: object) -> int:
    """Return the size of a result as JSON, in bytes."""
    return len(json.dumps(result).encode())
