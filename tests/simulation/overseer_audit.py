"""Checks the orders of operators who act on what they have seen: edits, guarded orders, and runs of cron entries.

A guard is checked against the version before the commit. If another call of the same commit may have changed the job
first, the guard may have held for a moment that no version shows.
"""

from __future__ import annotations

from base64 import b64decode
from collections import Counter, defaultdict

from jqueue.domain.errors import ChangedMeanwhileError, DuplicateJobError, InvalidJobError, JobStateError
from tests.simulation.calls import Calls, Violation, may_carry
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
from tests.simulation.cron_audit import OF_THE_JOB, UNSAID, definition
from tests.simulation.history import Call
from tests.simulation.overseers import MARK
from tests.simulation.serving_order import seconds

ORDER = 18
"""Number of the rule: an order takes effect only if what its caller has seen still holds, and changes nothing else."""

MOVES = frozenset({"heartbeat_at", "sequence"})
"""Fields of a job that may change although an order was given for the job as its caller had seen it."""

CHANGING = ("enqueue", "cancel", "reschedule", "reprioritise", "edit")
SETTING = ("schedule", "unschedule")
SCHEDULED_FOR = "jqueue-scheduled-for"
UNSET = {"priority": 0, "payload": ""}
CLOCK = 0.002
"""Seconds by which the time of a commit is rounded."""


class OverseerAudit:
    """Checks guards, edits and runs in every step, and the answers to them.

    Args:
        versions: the chain.
        calls: the history.
        by_hand: ids of jobs that a person or jqueue 1.0.0 has changed so far. Any guard may hold for them.

    Attributes:
        seen: number of orders of each kind that took effect.
        edited: versions that carry each edit, by its tag.
        ran: version that added each job of a cron entry that was run by an order.
    """

    def __init__(self, versions: list[Version], calls: Calls, by_hand: set[str]) -> None:
        self.calls = calls
        self.seen: Counter[str] = Counter()
        self.edited: dict[object, list[Version]] = defaultdict(list)
        self.ran: dict[str, Version] = {}
        self._by_hand = by_hand
        self._served: set[Call] = set()
        self._numbered: dict[int, list[Version]] = defaultdict(list)
        for version in versions:
            self._numbered[version.number].append(version)
        self._changing: dict[str, list[Call]] = defaultdict(list)
        for verb in CHANGING:
            for call in calls.by_verb[verb]:
                for job_id in call.job_ids:
                    self._changing[job_id].append(call)

    # Guards

    def carried(self, verb: str, job_id: str, before: Version, after: Version) -> list[Call]:
        """Return the calls of a verb for a job that a version may carry, and that no guard has refused."""
        return [
            call
            for call in self.calls.by_verb[verb]
            if job_id in call.job_ids and may_carry(after, call) and self._is_allowed(call, job_id, before, after)
        ]

    def stops(self, job_id: str, before: Version, after: Version) -> bool:
        """True if a version may carry the order to stop a job in progress."""
        return any(call.running for call in self.carried("cancel", job_id, before, after))

    def unique_keys(self, job_id: str, job: Fields, after: Version) -> set[str | None]:
        """Return the unique keys that a job may have had in a step: its own, and those of edits in the same commit."""
        edits = [call for call in self._changing[job_id] if call.verb == "edit" and may_carry(after, call)]
        return {job.get("unique_key"), *(call.given["unique_key"] for call in edits if "unique_key" in call.given)}

    def _is_allowed(self, call: Call, job_id: str, before: Version, after: Version) -> bool:
        job = before.jobs.get(job_id)
        if job_id in self._by_hand or (job is not None and self._holds(call, job_id, job)):
            return True
        if any(other is not call and may_carry(after, other) for other in self._changing[job_id]):
            return True
        if call.seen is not None:  # an attempt that has ended, or begun, cannot be as it was seen
            return False
        return job is None or len(self.calls.states_in(job_id, job, after)) > 1

    def _holds(self, call: Call, job_id: str, job: Fields) -> bool:
        """True if the guard of a call allows it for a job with these fields, or if it has no guard."""
        if call.seen is not None:
            return any(_unmoved(version.jobs.get(job_id, {})) == _unmoved(job) for version in self._numbered[call.seen])
        wanted = call.matching
        return not wanted or (
            (wanted["entrypoint"], wanted["status"]) == (job["entrypoint"], status_of(job))
            and (wanted["error"] or "").casefold() in (job.get("error") or "").casefold()
        )

    # Edits

    def edit_of(self, job_id: str, old: Fields, new: Fields, before: Version, after: Version) -> set[str]:
        """Return the fields that an edit has changed in a step, after checking it; none if there was no edit."""
        tag = new.get("headers", {}).get(MARK)
        if tag is None or tag == old.get("headers", {}).get(MARK):
            return set()
        call = self.calls.by_tag.get(tag)
        if call is None or call.job_ids != (job_id,) or not may_carry(after, call):
            raise Violation(ORDER, f"{job_id} was edited, and nobody had asked for that", version=after)
        if not self._is_allowed(call, job_id, before, after):
            raise Violation(ORDER, f"{job_id} was edited, and was not as it was seen", call=call, version=after)
        if status_of(old) not in (QUEUED, DEAD):
            raise Violation(ORDER, f"{job_id} was edited while it was {status_of(old)}", call=call, version=after)
        self.edited[tag].append(after)
        self.seen["edited"] += 1
        moved = {"run_at"} if status_of(old) != status_of(new) else set()  # a redrive forgets the time
        moved |= {
            field
            for verb, field in (("reprioritise", "priority"), ("reschedule", "run_at"))
            if self.calls.touches(verb, job_id, after)
        }
        for name, value in call.given.items():
            if name not in moved and new.get(name, UNSET.get(name)) != value:
                raise Violation(ORDER, f"{job_id} was edited to another {name}", call=call, version=after)
        key = call.given.get("unique_key")
        hold = before.holds.get(key or "")
        kept = hold is not None and hold[1] > after.clock + CLOCK and key != old.get("unique_key")
        if kept and status_of(old) == QUEUED and not self.calls.replaces(key, after):
            raise Violation(ORDER, f"{job_id} was given a key that was kept for another job", call=call, version=after)
        return set(call.given)

    # Runs of cron entries

    def is_run(self, job_id: str, job: Fields) -> bool:
        """True if the job was added by an order to run a cron entry."""
        return not job_id.startswith("cron:") and SCHEDULED_FOR in job.get("headers", {})

    def note_run(self, job_id: str, job: Fields, before: Version, after: Version) -> None:
        """Check that some order asked for this job, and for no other job before it."""
        name = b64decode(job.get("payload", "")).decode()
        orders = [call for call in self.calls.by_verb["run_now"] if call.name == name and may_carry(after, call)]
        told = [call for call in orders if call.succeeded and call.result.id == job_id]
        makers = told or [call for call in orders if not call.succeeded]
        makers = [call for call in makers if call not in self._served and self._is_of(call, before, after)]
        if not makers:
            raise Violation(ORDER, f"{job_id} was added, and nobody had asked to run {name!r} once more", version=after)
        self._served.add(min(makers, key=lambda call: call.seen is None))
        self.ran[job_id] = after
        self.seen["cron entry run by an order"] += 1
        entries = [version.schedules[name] for version in (before, after) if name in version.schedules]
        entries += [call.given for call in self.calls.carried("schedule", after) if call.name == name]
        made = [job.get(field, UNSAID.get(field)) for field in OF_THE_JOB]
        if made not in [[entry.get(field, UNSAID.get(field)) for field in OF_THE_JOB] for entry in entries]:
            raise Violation(ORDER, f"{job_id} is not what {name!r} enqueues", version=after)
        if abs(seconds(job["headers"][SCHEDULED_FOR]) - seconds(job["created_at"])) > CLOCK:
            raise Violation(ORDER, f"{job_id} was added for another time than the present", version=after)

    def _is_of(self, call: Call, before: Version, after: Version) -> bool:
        """True if the cron entry was as the call has seen it, or may have been for a moment."""
        name = call.name or ""
        set_beside = any(other.name == name for verb in SETTING for other in self.calls.carried(verb, after))
        return set_beside or self._entry_holds(call, before)

    def _entry_holds(self, call: Call, version: Version) -> bool:
        entry = version.schedules.get(call.name or "")
        if entry is None or call.seen is None:
            return entry is not None
        seen = [known.schedules.get(call.name or "") for known in self._numbered[call.seen]]
        return any(known is not None and definition(known) == definition(entry) for known in seen)

    # Answers to callers

    def check_calls(self, timeline: Timeline) -> None:
        """Check the answers to every order."""
        for verb in ("cancel", "edit", "purge_job"):
            for call in self.calls.by_verb[verb]:
                during = timeline.between(call.started, call.ended)
                if call.job_ids[0] not in self._by_hand:
                    self._check_order(call, during)
        for call in self.calls.by_verb["run_now"]:
            self._check_run(call, timeline.between(call.started, call.ended))
        self._check_creations(timeline)

    def _check_creations(self, timeline: Timeline) -> None:
        calls = self.calls.by_verb["create"]
        created = [call for call in calls if call.succeeded]
        self.seen["queue created by an order"] += len(created)
        if len(created) > 1:
            raise Violation(ORDER, "created the queue, and another call did, too", call=created[1])
        for call in calls:
            was_there = [_is_queue(version) for version in timeline.between(call.started, call.ended)]
            if call.succeeded and was_there[0]:
                raise Violation(ORDER, "created a queue that was there", call=call)
            refused = isinstance(call.error, InvalidJobError)
            if (call.succeeded or refused) and not any(was_there):
                raise Violation(ORDER, "returned, and there was no queue", call=call)

    def _check_order(self, call: Call, during: list[Version]) -> None:
        [job_id], error = call.job_ids, call.error
        jobs = [version.jobs[job_id] for version in during if job_id in version.jobs]
        stayed = len(jobs) == len(during) and len({job["created_at"] for job in jobs}) == 1
        statuses = {status_of(job) for job in jobs}
        same_claims = stayed and len({attempt_of(job) for job in jobs}) == 1  # it may wait in the middle of a commit
        holds = same_claims and all(self._holds(call, job_id, job) for job in jobs)
        if isinstance(error, ChangedMeanwhileError) and holds:
            raise Violation(3, f"{job_id} was called changed, and had not changed", call=call)
        if isinstance(error, DuplicateJobError):
            self._check_taken(call, error, during)
        if call.verb == "purge_job":
            if isinstance(error, JobStateError) and statuses == {DEAD}:
                raise Violation(3, f"{job_id} was called alive, and was not", call=call)
            if call.succeeded and stayed:
                raise Violation(2, f"returned, and {job_id} was still there", call=call)
        elif call.verb == "edit":
            if isinstance(error, JobStateError) and not statuses & {IN_PROGRESS, COMPLETED}:
                raise Violation(3, f"{job_id} was called claimed or finished, and was not", call=call)
            edits = self.edited.get(call.tag, [])
            if len(edits) > 1 or (edits and call.certainly_not_done):
                raise Violation(2, f"took effect in {len(edits)} versions", call=call)
            if call.succeeded and stayed and not any(version.at <= call.ended for version in edits):
                raise Violation(2, f"returned, and {job_id} was not edited by then", call=call)

    def _check_run(self, call: Call, during: list[Version]) -> None:
        if call.succeeded and not self.calls.purging(call):
            landed = self.ran.get(call.result.id)
            if landed is None or landed.at > call.ended:
                raise Violation(2, f"returned {call.result.id}, which no version had by then", call=call)
        if isinstance(call.error, InvalidJobError) and all(call.name in version.schedules for version in during):
            raise Violation(3, f"was told that there is no {call.name!r}", call=call)
        if isinstance(call.error, ChangedMeanwhileError) and all(self._entry_holds(call, v) for v in during):
            raise Violation(3, f"was told that {call.name!r} has changed, and it had not", call=call)
        if isinstance(call.error, DuplicateJobError):
            self._check_taken(call, call.error, during)

    def _check_taken(self, call: Call, error: DuplicateJobError, during: list[Version]) -> None:
        """Check that the unique key was taken by the job that the error names."""
        key, holder = error.unique_key, error.job_id
        taken = any(version.jobs.get(holder, {}).get("unique_key") == key for version in during)
        kept = any(version.holds.get(key or "", [None])[0] == holder for version in during)
        if not (taken or kept or self.calls.cancelling(holder, call.ended)):
            raise Violation(3, f"{holder} was said to hold {key!r}, and did not", call=call)


def _unmoved(job: Fields) -> Fields:
    return {name: value for name, value in job.items() if name not in MOVES}


def _is_queue(version: Version) -> bool:
    return bool(version.number or version.jobs or version.queue)
