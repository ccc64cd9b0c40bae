"""Checks cron entries from the chain of versions alone: each occurrence is enqueued once, and none is lost.

All clocks are believed equally. An entry records in `fired` which occurrences are done. An occurrence added there must
have been fired in that version, or have passed by a clock that met the entry for the first time. A process that
dequeues fires the occurrences due by its own clock. So a process with a right clock fires within a period, whatever
the other processes did.

The times of an expression are not taken from the library that the queue uses. The expressions of the simulation are
due at fixed intervals, which `CRONS` lists.
"""

from __future__ import annotations

import math
from collections import defaultdict

from tests.simulation.calls import Calls, Violation
from tests.simulation.chain import Fields, Timeline, Version
from tests.simulation.history import Call
from tests.simulation.serving_order import seconds
from tests.simulation.workload import CRONS

CRON = 11
"""Number of the rule: each occurrence of a cron entry is enqueued once, in the version that records it as fired."""

SPANS = 8
"""Largest number of spans in `fired`. At this number, occurrences between the earliest two spans may be given up."""

LATE = 1.0
"""Seconds by which two readings of a clock for the same event may differ."""

ROUNDED = 0.001
"""Largest number of seconds by which the time of a commit, as the blob has it, is above the time in its jobs."""

PATIENCE = 7.5
"""Seconds within which a waiting dequeue has looked again."""

OF_THE_JOB = (
    "entrypoint",
    "payload",
    "priority",
    "max_attempts",
    "unique_key",
    "keep_result",
    "concurrency_key",
    "concurrency_limit",
)
UNSAID = {"priority": 0, "payload": ""}


def is_of_cron(job_id: str) -> bool:
    """True if a cron entry enqueued the job."""
    return job_id.startswith("cron:")


def named(job_id: str) -> tuple[str, str]:
    """Return the name of a job's cron entry, and the occurrence."""
    _, name, occurrence = job_id.split(":", 2)
    return name, occurrence


class CronAudit:
    """Checks the cron entries and their jobs in every step.

    Args:
        calls: the history.

    Attributes:
        added: index of the version that enqueued the job of each occurrence.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.added: dict[str, int] = {}
        self._set: dict[str, list[int]] = defaultdict(list)
        self._fired: dict[str, tuple[str, Fields]] = {}

    def note_addition(self, job_id: str, job: Fields, after: Version) -> None:
        """Check that no version has added this job of a cron entry since the entry was last set, and record the job."""
        name, occurrence = named(job_id)
        if name in self._fired:
            raise Violation(CRON, f"{name} has enqueued two jobs at once", version=after)
        first = self.added.get(job_id)
        if first is not None and not any(first < index < after.index for index in self._set[name]):
            raise Violation(CRON, f"{job_id} was enqueued a second time", version=after)
        self.added[job_id] = after.index
        self._fired[name] = (occurrence, job)

    def check_step(self, before: Version, after: Version, claimed: list[tuple[str, Fields]]) -> None:
        """Check one step, after its additions were recorded.

        Args:
            before: the version before.
            after: the version after.
            claimed: jobs that were claimed in it.
        """
        fired, self._fired = self._fired, {}
        for name in before.schedules.keys() | after.schedules.keys() | fired.keys():
            old, new = before.schedules.get(name), after.schedules.get(name)
            if name in fired:
                self._check_firing(name, *fired[name], old, new, after)
            elif old != new:
                self._check_entry(name, old, new, after)
        # a damaged segment may hold the job of an entry, also if the step takes its last rows
        for job_id, job in () if before.unsure or after.unsure else claimed:
            for name, entry in after.schedules.items():
                if is_due(entry, seconds(job["heartbeat_at"])):
                    raise Violation(0, f"{job_id} was claimed, and {name} was due and did not fire", version=after)

    def _check_firing(
        self, name: str, occurrence: str, job: Fields, old: Fields | None, new: Fields | None, after: Version
    ) -> None:
        if old is None or new is None or any(old.get(field) != new.get(field) for field in ("cron", "timezone")):
            raise Violation(CRON, f"{name} has fired, and is no entry, or another one by then", version=after)
        if definition(old) != definition(new):  # changed in the same commit, when it was due already
            self._check_entry(name, old, new, after, fires=True)
        at, now = seconds(occurrence), seconds(job["created_at"])
        if not is_due(old, now):
            raise Violation(CRON, f"{name} has fired for {occurrence}, and was not due", version=after)
        if at != _last(old, now):
            raise Violation(CRON, f"{name} has fired for {occurrence}, which was not the last one due", version=after)
        self._check_record(name, old, new, after, at)
        for field in OF_THE_JOB:
            if job.get(field, UNSAID.get(field)) != new.get(field, UNSAID.get(field)):
                raise Violation(CRON, f"{name} has fired, and the job has another {field}", version=after)
        if job.get("headers", {}).get("jqueue-scheduled-for") != occurrence:
            raise Violation(CRON, f"{name} has fired, and its job does not say for when", version=after)

    def _check_entry(
        self, name: str, old: Fields | None, new: Fields | None, after: Version, *, fires: bool = False
    ) -> None:
        """Check a changed entry: it was set or removed, its job was there already, or a clock behind was recorded."""
        setting = [call for call in self.calls.carried("schedule", after) if call.name == name]
        removing = [call for call in self.calls.carried("unschedule", after) if call.name == name]
        if new is None:
            if not removing:
                raise Violation(CRON, f"{name} is gone, and nobody had asked for that", version=after)
            return
        asked = any(all(new.get(field) == value for field, value in call.given.items()) for call in setting)
        if setting and (old is None or (removing and asked) or definition(old) != definition(new)):
            if not asked:
                raise Violation(CRON, f"{name} was set to what nobody had asked for", version=after)
            if old is None or any(old.get(field) != new.get(field) for field in ("cron", "timezone")):
                self._check_beginning(name, new, after)
            elif not fires:
                self._check_kept(name, old, new, after, may_begin=bool(removing))
            return
        if old is None or definition(old) != definition(new):
            raise Violation(CRON, f"{name} is another entry, and nobody had asked for that", version=after)
        self._check_kept(name, old, new, after, may_begin=len(setting) > 1 or bool(setting and removing))

    def _check_kept(self, name: str, old: Fields, new: Fields, after: Version, *, may_begin: bool) -> None:
        """Check that an entry keeps its times. It may skip an occurrence whose job exists, or begin if `may_begin`."""
        try:
            self._check_record(name, old, new, after, self._skipped(name, old, new, after))
        except Violation:
            if not may_begin:
                raise
            self._check_beginning(name, new, after)

    def _skipped(self, name: str, old: Fields, new: Fields, after: Version) -> float | None:
        """Return the occurrence that a version skips because its job exists. The time of a commit is rounded."""
        for clock in (after.clock, after.clock - ROUNDED):
            at = _last(old, clock)
            entries = (old, new)  # the entry may be set to another unique key in the same commit
            if is_due(old, clock) and covers(new, at) and any(self._was_there(name, e, at, after) for e in entries):
                return at
        return None

    def _check_beginning(self, name: str, new: Fields, after: Version) -> None:
        """Check an entry that was set anew: occurrences that had passed by its writer's clock must not fire."""
        self._set[name].append(after.index)
        spans = spans_of(new)
        if len(spans) != 1 or abs(after.clock - spans[0][1]) > 1 + LATE:
            raise Violation(CRON, f"{name} was set, and begins at another time", version=after)
        self._check_next(name, new, after)

    def _check_record(self, name: str, old: Fields, new: Fields, after: Version, fired: float | None = None) -> None:
        """Check that an occurrence now done was done before, was fired, or had passed by a clock behind all before."""
        self._check_next(name, new, after)
        before, now = spans_of(old), spans_of(new)
        given_up = len(now) == SPANS
        began = now[0][0] if now[0][0] < before[0][0] else None
        if began is not None and abs(after.clock - began) > 1 + LATE:
            raise Violation(CRON, f"{name} goes by a clock that nobody has", version=after)
        known = [*before, *((at, at) for at in (fired, began) if at is not None)]
        if fired is not None and (covers(old, fired) or not covers(new, fired)):
            raise Violation(CRON, f"{name} was fired, and it was noted before, or is not noted", version=after)
        counts = _count(new, now), _count(new, known)
        if counts[0] < counts[1]:
            raise Violation(CRON, f"{name} has forgotten what it has fired", version=after)
        if counts[0] > counts[1] and not given_up:
            raise Violation(CRON, f"{name} takes for fired what was not", version=after)

    def _check_next(self, name: str, entry: Fields, after: Version) -> None:
        if seconds(entry["next_at"]) != _following(entry, spans_of(entry)[-1][1]):
            raise Violation(CRON, f"{name} is due next at {entry['next_at']}", version=after)

    def _was_there(self, name: str, entry: Fields, due: float, after: Version) -> bool:
        """True if the job of an entry, or a job with its unique key, was there already."""
        key = entry.get("unique_key")
        if key is not None and (key in after.holds or any(j.get("unique_key") == key for j in after.jobs.values())):
            return True
        known = [named(job_id) for job_id in self.added]
        return any(of == name and seconds(occurrence) == due for of, occurrence in known)

    def check_calls(self, timeline: Timeline, *, calm: bool) -> None:
        """Check that a dequeue fires the entries that are due, for any entrypoint, and even if it found no job."""
        for call in self.calls.by_verb["dequeue"]:
            if call.succeeded and call.earliest is not None:
                seen = timeline.between(call.started, call.ended)
                self._check_fired(call, seen, call.earliest - LATE, call.latest)
                long = call.ended - call.started - PATIENCE
                if calm and call.wait and long > 0:
                    waited = timeline.between(call.started + long, call.ended)
                    waited = waited[:-1] if call.result else waited
                    self._check_fired(call, waited, call.earliest + long - LATE, call.latest)

    def _check_fired(self, call: Call, seen: list[Version], earliest: float, latest: float) -> None:
        if any(version.schedules for version in seen) and not any(version.unsure for version in seen):
            due = [{name for name, e in v.schedules.items() if is_surely_due(e, earliest, latest)} for v in seen]
            if always := set.intersection(*due):
                raise Violation(0, f"returned, and {min(always)} was due all the time", call=call)


def spans_of(entry: Fields) -> list[tuple[float, float]]:
    """Return the spans of time whose occurrences are done."""
    return [(seconds(first), seconds(last)) for first, last in entry["fired"]]


def is_due(entry: Fields, now: float) -> bool:
    """True if, by a clock that shows `now`, an occurrence has passed after all that are done by that clock."""
    begun = [last for first, last in spans_of(entry) if first <= now]
    return bool(begun) and _following(entry, begun[-1]) <= now


def is_surely_due(entry: Fields, earliest: float, latest: float) -> bool:
    """True if an entry is due by every clock that shows a time between the two."""
    begins = [first for first, _ in spans_of(entry)]
    return is_due(entry, earliest) and not any(earliest < first <= latest for first in begins)


def covers(entry: Fields, at: float) -> bool:
    """True if an occurrence is recorded as done."""
    return any(first <= at <= last for first, last in spans_of(entry))


def _following(entry: Fields, at: float) -> float:
    """Return the first occurrence after a moment."""
    period, offset = CRONS[entry["cron"]]
    return at - (at - offset) % period + period


def _last(entry: Fields, at: float) -> float:
    """Return the last occurrence up to a moment."""
    return _following(entry, at) - CRONS[entry["cron"]][0]


def _count(entry: Fields, spans: list[tuple[float, float]]) -> int:
    """Return the number of occurrences in some spans, each counted once."""
    period, offset = CRONS[entry["cron"]]
    count, through = 0, -math.inf
    for first, last in sorted(spans):
        begin = math.ceil((max(first, through) - offset) / period)
        end = math.floor((last - offset) / period)
        if first <= through and begin * period + offset == through:
            begin += 1
        count += max(0, end - begin + 1)
        through = max(through, last)
    return count


def definition(entry: Fields) -> Fields:
    """Return the fields set by the caller, without those added by the queue."""
    return {name: value for name, value in entry.items() if name not in ("next_at", "fired")}
