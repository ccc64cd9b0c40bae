"""Compares the answers to calls about limits, cron entries and single jobs with the versions that the store held."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from jqueue.domain.errors import JobCancelledError, JobStateError, ResultTimeoutError
from jqueue.domain.models import Claim, JobStatus
from tests.simulation.auditor import Auditor
from tests.simulation.calls import Violation, may_carry
from tests.simulation.chain import (
    COMPLETED,
    DEAD,
    IN_PROGRESS,
    QUEUED,
    Fields,
    Timeline,
    Version,
    attempt_of,
    status_of,
)
from tests.simulation.cron_audit import LATE, is_due
from tests.simulation.history import Call
from tests.simulation.punctuality import Exits

EARLY = 0.001
PLACES = {"limit": ("max_running", "rate", "per"), "pause": ("paused",), "resume": ("paused",)}
SETTING = ("limit", "pause", "resume")


class OrderAnswerAudit:
    """Checks the calls that give orders.

    Args:
        auditor: the auditor, which has checked the chain of versions.
        timeline: the chain.
        exits: times at which each process left.
    """

    def __init__(self, auditor: Auditor, timeline: Timeline, exits: Exits) -> None:
        self._exits = exits
        self.auditor = auditor
        self.calls = auditor.calls
        self._timeline = timeline

    def checks(self) -> dict[str, Callable[[Call], None]]:
        """Return the check for each verb."""
        return {
            "limit": self.check_rules,
            "pause": self.check_rules,
            "resume": self.check_rules,
            "configure": self.check_configure,
            "schedule": self.check_schedule,
            "unschedule": self.check_schedule,
            "schedules": self.check_schedules,
            "reschedule": self.check_order,
            "reprioritise": self.check_order,
            "result": self.check_result,
        }

    def check_rules(self, call: Call) -> None:
        """Check that limits and pauses held during the call, unless another call changed them at the same time."""
        if not call.succeeded:
            return
        seen, others = self._during(call), [other for verb in SETTING for other in self.calls.by_verb[verb]]
        wanted = {"pause": {"paused": True}, "resume": {}}.get(call.verb, call.given)
        fields = PLACES[call.verb]
        for version in seen:
            rules = version.rules.get(call.entrypoint or "", {})
            if [rules.get(field) for field in fields] == [wanted.get(field) for field in fields]:
                return
        if not any(o is not call and o.entrypoint == call.entrypoint and self._meets(o, seen) for o in others):
            raise Violation(2, "returned, and that did not hold", call=call)

    def check_configure(self, call: Call) -> None:
        """Check that the settings held during the call, unless another call changed them at the same time."""
        if not call.succeeded:
            return
        seen = self._during(call)
        if any(all(v.settings.get(name) == value for name, value in call.given.items()) for v in seen):
            return
        if not any(other is not call and self._meets(other, seen) for other in self.calls.by_verb["configure"]):
            raise Violation(2, "returned, and that did not hold", call=call)

    def check_schedule(self, call: Call) -> None:
        """Check that the entry was there, or was gone, during the call."""
        if not call.succeeded:
            return
        seen, name = self._during(call), call.name or ""
        others = [o for verb in ("schedule", "unschedule") for o in self.calls.by_verb[verb] if o.name == name]
        if call.verb == "unschedule":
            done = any(name not in version.schedules for version in seen)
        else:
            entries: list[Fields] = [version.schedules.get(name, {}) for version in seen]
            done = any(all(entry.get(field) == value for field, value in call.given.items()) for entry in entries)
            told = call.result.next_at.timestamp()
            if done and call.earliest is not None and told < call.earliest - LATE:
                overdue = any(is_due(entry, told) for entry in entries if entry)
                if not overdue:  # setting an equal entry leaves an overdue one as it is
                    raise Violation(11, f"was told that {name} is due at a time in the past", call=call)
        if not done and not any(other is not call and self._meets(other, seen) for other in others):
            raise Violation(2, "returned, and that did not hold", call=call)

    def check_schedules(self, call: Call) -> None:
        """Check that the list is that of a version current during the call."""
        if call.succeeded:
            told = {entry.name: entry.cron for entry in call.result}
            shown = [{name: entry["cron"] for name, entry in v.schedules.items()} for v in self._during(call)]
            if told not in shown:
                raise Violation(3, "showed cron entries that were not there", call=call)

    def check_order(self, call: Call) -> None:
        """Check that a job has the time or priority asked for, unless it was claimed or gone at the same time."""
        [job_id] = call.job_ids
        jobs = [version.jobs.get(job_id, {}) for version in self._during(call)]
        if isinstance(call.error, JobStateError) and not any(status_of(job) != QUEUED for job in jobs if job):
            raise Violation(3, f"{job_id} was called claimed, dead or finished, and was not", call=call)
        if not call.succeeded or not all(jobs) or job_id in self.auditor.by_hand:
            return
        orders = (*self.calls.by_verb[call.verb], *self.calls.by_verb["edit"])
        again = [other for other in orders if other is not call and job_id in other.job_ids]
        if again or self.auditor.added.get(job_id, [])[1:]:
            return
        if call.verb == "reprioritise":
            if not any(job["priority"] == call.given["priority"] for job in jobs):
                raise Violation(2, f"returned, and {job_id} did not have that priority", call=call)
            return
        moved = None if call.result.run_at is None else call.result.run_at.isoformat()
        if not any(job.get("run_at") == moved for job in jobs) and all(status_of(job) == QUEUED for job in jobs):
            raise Violation(2, f"returned, and {job_id} was not due then", call=call)

    def check_stop(self, call: Call) -> None:
        """Check that a job in progress was marked, or that its claim ended at the same time."""
        [job_id] = call.job_ids
        if isinstance(call.error, JobStateError) and call.running:
            seen = self._during(call)
            states = {status_of(version.jobs.get(job_id, {})) for version in seen}
            for before, after in pairwise(seen):
                if job_id in before.jobs:
                    states |= self.calls.states_in(job_id, before.jobs[job_id], after)
            if DEAD not in states and COMPLETED not in states:
                raise Violation(3, f"{job_id} was called dead or finished, and was not", call=call)
        if not call.succeeded or call.result.status is not JobStatus.IN_PROGRESS:
            return
        claim = Claim(job_id, call.result.attempt)
        if not call.running:
            raise Violation(2, f"{job_id} was in progress, and was not to be stopped", call=call)
        ended = self.auditor.ended.get(claim)
        ended_then = ended is not None and call.started <= ended.at <= call.ended
        if not ended_then and not any(_is_stopped(version, claim) for version in self._during(call)):
            raise Violation(2, f"returned, and the holder of {claim} was not told to stop", call=call)

    def check_told_to_stop(self, call: Call, error: JobCancelledError) -> None:
        """Check that a holder that was told to stop holds a job that was cancelled."""
        claim = Claim(error.job_id, error.attempt or 0)
        stops = [each for each in self.calls.by_verb["cancel"] if each.running and claim.job_id in each.job_ids]
        at_once = any(may_carry(version, each) for each in stops for version in self._during(call))
        if not at_once and not any(_is_stopped(version, claim) for version in self._during(call)):
            raise Violation(3, f"{claim} was told to stop, and nobody had asked for that", call=call)

    def check_beats(self, call: Call, lost: set[Claim]) -> None:
        """Check that a heartbeat tells the holder of a cancelled job to stop."""
        for claim in call.claims:
            if claim not in lost and all(_is_stopped(version, claim) for version in self._during(call)):
                raise Violation(3, f"the holder of {claim} was to stop, and was not told", call=call)

    def check_result(self, call: Call) -> None:
        """Check that no caller is told too early that a result has not come. `ResultsAudit` checks other answers."""
        took, timeout = call.ended - call.started, call.given["timeout"]
        left = call.process in self._exits and self._exits[call.process][0] <= call.ended
        if isinstance(call.error, ResultTimeoutError) and took < timeout - EARLY and not left:
            raise Violation(0, f"gave up after {took:.1f} s of {timeout:.1f} s", call=call)

    def _meets(self, other: Call, seen: list[Version]) -> bool:
        return any(may_carry(version, other) for version in seen)

    def _during(self, call: Call) -> list[Version]:
        return self._timeline.between(call.started, call.ended)


def is_there(job_id: str, version: Version, verb: str) -> bool:
    """True if a call of this verb must find the job. Some verbs need not find a job that may be over."""
    job = version.jobs.get(job_id)
    may_be_over = job is not None and (status_of(job) in (DEAD, COMPLETED) or "expires_at" in job)
    return job is not None and not (may_be_over and verb in ("reschedule", "reprioritise", "edit"))


def _is_stopped(version: Version, claim: Claim) -> bool:
    job = version.jobs.get(claim.job_id, {})
    held = status_of(job) == IN_PROGRESS and attempt_of(job) == claim.attempt
    return held and bool(job.get("cancel_requested"))
