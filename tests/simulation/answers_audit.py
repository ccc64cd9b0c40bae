"""Compares what callers were told with what was applied for them, and with the time at which that was so.

`tests.simulation.model_audit` has compared what was applied with the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pydantic_core import from_json

from jqueue import ClaimLostError, InvalidJobError, Job, JQueueError, StorageError
from jqueue.core.bulk import SegmentsGoneError
from jqueue.domain.errors import (
    DeadlineExceededError,
    JobsUnreadableError,
    ObjectMissingError,
    SegmentDamagedError,
    StorageFatalError,
)
from jqueue.domain.job import Claim, Step
from jqueue.domain.models import for_callers
from jqueue.domain.operations.bulk import BulkAdded, BulkConflicts, StagedReceipt
from jqueue.domain.operations.lookups import LastTransaction
from jqueue.domain.rules import QueueSettings, Schedule
from jqueue.domain.stats import EntrypointStats
from jqueue.errors import QueueMissingError
from jqueue.operations import ClaimLease, Configure, Dequeue
from jqueue.testing.virtual_time import EPOCH
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
    seconds,
    status_of,
)
from tests.simulation.history import NEVER, Call, Evidence, Violation, is_of_the_store
from tests.simulation.model_audit import LOOKS, Answer, ModelAudit, claims_told
from tests.simulation.plain_values import DIED, SPARED, STALE
from tests.simulation.stored_segments import FOLDER
from tests.simulation.workload import DEADLINE, READ_FOR

ROUNDED = 0.01
"""Seconds by which two readings of one moment may differ."""

OF_MANY_CALLS = "work"
"""Verb that stands for several calls, whose answers are not compared."""

OF_ITS_OWN = ("stats", "read_state", "iterate", "schedules", "read_lease", OF_MANY_CALLS, "resolve", "resolve_staged")
"""Verbs whose answers come from no commit."""

OF_MANY_PARTS = ("dequeue", "enqueue_many", "enqueue_staged", "result", "claim_lease", "wait_group")
"""Verbs that may commit several times."""


def check_deaths(versions: Sequence[Version], told: Mapping[str, Mapping[int, Sequence[str]]]) -> int:
    """Check that each process hears of the jobs whose last attempt died, as its commits find. Return their number.

    Args:
        versions: the chain.
        told: the ids of these jobs, by process and version, for each commit that the process knows of.

    Raises:
        Violation: a process was told of others.
    """
    number = 0
    for before, after in pairwise([NOTHING, *versions]):
        by_process = told.get(after.by or "", {})
        if after.number not in by_process:
            continue
        dead = {
            job_id: job["dead_at"] != before.jobs.get(job_id, {}).get("dead_at")
            and (job.get("error") == STALE or job.get("error") in (DIED, SPARED))
            for job_id, job in after.jobs.items()
            if status_of(job) == DEAD
        }
        found = {job_id for job_id, is_new in dead.items() if is_new}
        heard = {*by_process[after.number]}
        others = [after.jobs[job_id] for job_id in heard - found if job_id in after.jobs]  # redriven at once, or wrong
        if found - heard or any(failures_of(job) > (status_of(job) == IN_PROGRESS) for job in others):
            raise Violation(20, f"{after.by} was told that {heard} died with their holders, not {found}", version=after)
        number += len(heard)
    return number


class AnswersAudit:
    """Checks every call.

    Args:
        evidence: of the seed.
        audit: has checked the chain of versions.
        timed: False if it is not known how long each version was current.
    """

    def __init__(self, evidence: Evidence, audit: ModelAudit, *, timed: bool = True) -> None:
        self._timed = timed
        self._seed = evidence
        self._audit = audit
        self._views = {
            "iterate": self._check_iteration,
            "stats": self._check_stats,
            "read_state": self._check_state,
            "schedules": self._check_schedules,
        }
        self._until = {before.index: after.at for before, after in pairwise([NOTHING, *evidence.versions])}

    def check(self) -> None:
        """Check every call, and that no process left with a claim that it had not returned to a caller.

        Raises:
            Violation: a rule is broken.
        """
        for call in self._seed.calls.all:
            self._check_error(call)
            if call.verb in self._views:
                self._views[call.verb](call)
            elif call.verb in ("resolve", "resolve_staged"):
                self._check_resolved(call)
            elif call.verb not in OF_ITS_OWN and call.operations:
                self._check_told(call)
        for process, (left, gone) in self._seed.exits.items():
            if gone - left < DEADLINE - 1.0:
                self._check_exit(process, gone)

    def _check_error(self, call: Call) -> None:
        error = call.error
        if call.certain and call.succeeded:
            raise Violation(8, "should have been refused", call=call)
        if error is None or not isinstance(error, Exception):
            return
        if isinstance(error, SegmentDamagedError) and error.suffix.removeprefix(FOLDER) in self._seed.damaged:
            return
        if isinstance(error, ObjectMissingError | SegmentsGoneError) and call.aged:
            return
        if isinstance(error, StorageFatalError):
            raise Violation(7, f"{error!r}, although the object was there and whole", call=call)
        if isinstance(error, QueueMissingError) and self._during(call)[0].index >= 0:
            raise Violation(7, "found no queue, although there was one all the time", call=call)
        if not is_of_the_store(error) and not isinstance(error, call.expected):
            raise Violation(8, f"failed with {error!r}, which it gave no reason for", call=call)

    def _check_told(self, call: Call) -> None:
        answers = self._audit.answers.get(call, [])
        is_crowd = call.verb == "dequeue" and call.operations > 1
        if call.certainly_not_done and not is_crowd:
            for answer in answers:
                if answer.landed and has_effect(answer) and not self._was_handed_back(answer, call):
                    what = "took effect, although its caller was told that it did not"
                    raise Violation(2, what, call=call, version=answer.version)
        fresh = [answer for answer in answers if self._is_fresh(answer, call)]
        if call.succeeded:
            self._check_result(call, fresh)
        elif isinstance(call.error, JQueueError) and not _is_refused_before(call.error):
            said = Counter(_atoms(call.error))
            if not any(said <= Counter(_atoms(answer.applied.outcome)) for answer in fresh):
                raise Violation(3, f"was told {call.error!r}, and no version that was current says so", call=call)

    def _was_handed_back(self, answer: Answer, call: Call) -> bool:
        """True if a broker has claimed jobs, and the client has handed them back before it told its caller."""
        looked = self._audit.looked_for.get(getattr(answer.applied.operations[0], "call", None) or "", NEVER)
        return answer.version.at <= looked <= call.ended

    def _is_fresh(self, answer: Answer, call: Call) -> bool:
        """True if a version was made by the end of a call, or was current at some moment of it."""
        if answer.landed:
            return answer.version.at <= call.ended
        return not self._timed or self._until.get(answer.version.index, NEVER) >= call.started

    def _check_result(self, call: Call, fresh: list[Answer]) -> None:
        if call.verb == "apply_each" and all(isinstance(each, StorageError) for each in call.result):
            return  # each of its operations failed before anything was applied
        if not fresh:
            raise Violation(2, "returned, and nothing that was applied for it was current or had landed", call=call)
        outcomes = [answer.applied.outcome for answer in fresh]
        if call.verb == "result":
            results = [
                self._result_in(outcome[0][0]) for outcome in outcomes if isinstance(outcome, list) and outcome[0]
            ]
            is_right = call.result in results
        elif call.verb == "claim_lease":
            is_right = any(isinstance(outcome, list) and bool(outcome[0]) == bool(call.result) for outcome in outcomes)
        elif call.result is None:
            is_right = any(isinstance(outcome, list) for outcome in outcomes)
        elif any(isinstance(each, BulkAdded) for outcome in outcomes for each in _list(outcome)):
            is_right = True  # the model has numbered its jobs, and compared those that were there
        else:
            told = Counter(
                atom for atom in _atoms(call.result) if not (call.verb == "apply_each" and _is_of_store(atom))
            )
            several = [Counter(_atoms(outcome)) for outcome in outcomes]
            exactly = Counter(_atoms(call.result)) in several  # an object that came too late is an error of the commit
            is_right = exactly or told in several or self._was_done_before(call, outcomes)
            if call.verb in OF_MANY_PARTS and told:
                is_right = is_right or told <= sum(several, Counter[Any]())
        if not is_right:
            raise Violation(2, "was told something else than what was applied for it", call=call)

    def _was_done_before(self, call: Call, outcomes: list[Any]) -> bool:
        """True if a write was called repeated, and a look at its application's last version says so."""
        if call.transaction is None or not call.result.repeated:
            return False
        return any(
            isinstance(each, int) and each >= call.transaction[1] for outcome in outcomes for each in _list(outcome)
        )

    def _result_in(self, job: Job) -> Any:
        return job.result if job.result_object is None else from_json(self._seed.objects[job.result_object.suffix][1])

    def _check_resolved(self, call: Call) -> None:
        """Check what a caller was told later, whose call had ended with an unknown outcome."""
        verb = "enqueue" if call.verb == "resolve" else "enqueue_staged"
        before = [
            each
            for each in self._seed.calls.by_verb[verb]
            if each.process == call.process and each.job_ids == call.job_ids and each.ended <= call.started
        ]
        answers = self._audit.answers.get(before[-1], [])
        landed = [answer for answer in answers if answer.landed and answer.version.at <= call.ended]
        if call.succeeded and not landed:
            raise Violation(2, "resolved as done, and it had not landed", call=call)
        if isinstance(call.error, DeadlineExceededError) and any(map(has_effect, landed)):
            raise Violation(2, "resolved as not done, and it had landed", call=call)

    def _check_exit(self, process: str, gone: float) -> None:
        """Check that a process that left in peace kept no claim that it had not returned to a caller."""
        last = self._seed.timeline.at(gone)
        for call in self._seed.calls.by_verb["dequeue"]:
            if call.process != process:
                continue
            told = claims_told(call) if call.succeeded else set()
            for claim, made in self._audit.made.get(call, ()):
                is_kept = made.at > gone or (_holds(last, claim) and made.number > last.evicted_through)
                name = made.jobs[claim.job_id].get("claim_call")
                if name is not None and self._audit.looked_for.get(name, NEVER) <= gone:
                    continue  # a broker has claimed for a message that came late
                if claim not in told and is_kept:
                    raise Violation(2, f"{process} left, and kept {claim}, of which nobody was told", call=call)

    def _during(self, call: Call) -> list[Version]:
        """Return the versions that were current at some moment of the call."""
        return self._seed.timeline.between(call.started, call.ended)

    # Views of the whole queue, wherever its jobs are

    def _check_state(self, call: Call) -> None:
        """Check that the jobs in the blob are those of the version that is shown."""
        if call.succeeded:
            seen = [v for v in self._during(call) if v.number == call.result.version]
            told = {job.id: (str(job.status), job.attempt) for job in call.result.jobs}
            if told not in [{i: (status_of(v.jobs[i]), attempt_of(v.jobs[i])) for i in v.hot} for v in seen]:
                raise Violation(3, f"showed version {call.result.version} with other jobs", call=call)

    def _check_schedules(self, call: Call) -> None:
        """Check that the list is that of a version current during the call."""
        if call.succeeded:
            told = {entry.name: entry.cron for entry in call.result}
            seen = self._during(call)
            if told not in [{name: entry["cron"] for name, entry in v.schedules.items()} for v in seen]:
                raise Violation(3, "showed cron entries that were not there", call=call)

    def _check_iteration(self, call: Call) -> None:
        """Check that an iteration has shown the jobs of one version, each once."""
        if isinstance(call.error, JobsUnreadableError):
            unread = {suffix.removeprefix(FOLDER) for suffix in call.error.segments}
            if self._seed.tells_time and not unread & self._seed.damaged and call.ended - call.started < READ_FOR:
                raise Violation(3, f"could not read {', '.join(sorted(unread))}, which were whole", call=call)
        if not call.succeeded:
            return
        told = Counter((job.id, str(job.status), job.attempt) for job in call.result)
        seen = self._during(call)
        if all(told != Counter((i, status_of(job), attempt_of(job)) for i, job in v.jobs.items()) for v in seen):
            raise Violation(3, "showed jobs that no version had", call=call)

    def _check_stats(self, call: Call) -> None:
        """Check that statistics count the jobs of the version that they name."""
        if not call.succeeded:
            return
        seen = [v for v in self._during(call) if v.number == call.result.version]
        if not any(self._fits(call, version) for version in seen):
            raise Violation(3, f"told wrong numbers of version {call.result.version}", call=call)

    def _fits(self, call: Call, version: Version) -> bool:
        parts = call.result.entrypoints or {}
        names = {job["entrypoint"] for job in version.jobs.values()}
        return all(
            self._fits_part(call, parts.get(name, EntrypointStats()), version, name) for name in names | parts.keys()
        )

    def _fits_part(self, call: Call, told: EntrypointStats, version: Version, name: str) -> bool:
        jobs = [job for job in version.jobs.values() if job["entrypoint"] == name]
        there = Counter(status_of(job) for job in jobs)
        numbers = {IN_PROGRESS: told.in_progress, DEAD: told.dead, COMPLETED: told.completed}
        if any(there[status] != number for status, number in numbers.items()):
            return False
        expiring = sum(status_of(job) == QUEUED and "expires_at" in job for job in jobs)  # some may have expired
        if not there[QUEUED] - expiring <= told.ready + told.scheduled + told.waiting <= there[QUEUED]:
            return False
        if expiring or not version.segments or version.unsure or not self._seed.tells_time:
            return True
        if not all("created_at" in job for job in jobs):  # a person has added one
            return True
        early, late = (EPOCH.timestamp() + moment for moment in (call.started - ROUNDED, call.ended + ROUNDED))
        ready, at_end = _ready(jobs, early), _ready(jobs, late)
        if not len(ready) <= told.ready <= len(at_end):
            return False
        if not ready or told.oldest_ready_age is None:
            return not ready
        return early - min(ready) <= told.oldest_ready_age.total_seconds() <= max(0.0, late - min(at_end))


def has_effect(answer: Answer) -> bool:
    """True if operations have done something: they were not refused, and have not just looked."""
    outcome = answer.applied.outcome
    if not isinstance(outcome, list):
        return False
    return any(
        not isinstance(result, JQueueError | BulkConflicts)
        and not (isinstance(operation, (*LOOKS, LastTransaction)) or operation == Configure())
        and not (isinstance(operation, Dequeue | ClaimLease) and not result)
        for operation, result in zip(answer.applied.operations, outcome, strict=True)
    )


def _is_refused_before(error: JQueueError) -> bool:
    """True for an error that may come before anything is applied."""
    is_unknown = isinstance(error, ClaimLostError) and error.attempt is None
    return is_unknown or is_of_the_store(error) or isinstance(error, StorageError | InvalidJobError | TimeoutError)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _atoms(value: Any) -> list[Any]:
    """Return what an answer says, part by part, in a form that can be counted."""
    if value is None:
        return []
    if isinstance(value, Step):
        return [repr(value)]
    if isinstance(value, list | tuple) and not isinstance(value, StagedReceipt):
        return [atom for each in value for atom in _atoms(each)]
    value = for_callers(value)
    if isinstance(value, Job):
        return [(value.id, str(value.status), value.attempt, value.failures, str(value.heartbeat_at), value.sequence)]
    if isinstance(value, BaseException):
        return [(type(value).__name__, str(value), isinstance(value, StorageError))]
    if isinstance(value, QueueSettings | Schedule | BulkConflicts):
        return [repr(value)]
    return [value]


def _is_of_store(atom: Any) -> bool:
    return isinstance(atom, tuple) and len(atom) == len(("type", "text", "of the store")) and atom[-1] is True


def _holds(version: Version, claim: Claim) -> bool:
    job = version.jobs.get(claim.job_id)
    return job is not None and status_of(job) == IN_PROGRESS and attempt_of(job) == claim.attempt


def _ready(jobs: list[Fields], now: float) -> list[float]:
    """Return the times since which the ready jobs are ready."""
    queued = [job for job in jobs if status_of(job) == QUEUED]
    queued = [job for job in queued if not job.get("waits_for")]
    ready = [job for job in queued if not job.get("run_at") or seconds(job["run_at"]) <= now]
    return [seconds(job.get("run_at") or job["created_at"]) for job in ready]
