"""Checks cron entries from the chain of versions alone: each occurrence is enqueued once, and none is lost.

When an expression is due is not asked of the library that the queue uses: the few that the simulation has are due
every so many seconds, and `CRONS` says so.
"""

from __future__ import annotations

from collections import defaultdict

from jqueue.testing.simulation.calls import Calls, Violation
from jqueue.testing.simulation.chain import Fields, Timeline, Version
from jqueue.testing.simulation.held import seconds
from jqueue.testing.simulation.history import Call
from jqueue.testing.simulation.workload import CRONS

CRON = 11
"""The number of the rule: each occurrence of a cron entry is enqueued once, in the version that moves its next time."""

LATE = 1.0
"""Seconds by which a clock may be read later than it was asked."""

PATIENCE = 7.5
"""Seconds after which somebody who waits has looked again."""

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
    """Whether a job was enqueued by a cron entry."""
    return job_id.startswith("cron:")


def named(job_id: str) -> tuple[str, str]:
    """The entry that a job is of, and its occurrence."""
    _, name, occurrence = job_id.split(":", 2)
    return name, occurrence


class CronAudit:
    """Checks the entries and their jobs in every step.

    Args:
        calls: the history.

    Attributes:
        added: where the job of each occurrence was enqueued.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.added: dict[str, int] = {}
        self._set_to: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self._fired: dict[str, tuple[str, Fields]] = {}

    def note_addition(self, job_id: str, job: Fields, after: Version) -> None:
        """A job of a cron entry was added: no other version has added it, unless the entry was set back meanwhile."""
        name, occurrence = named(job_id)
        if name in self._fired:
            raise Violation(CRON, f"{name} has enqueued two jobs at once", version=after)
        first = self.added.get(job_id)
        set_back = [index for index, due in self._set_to[name] if due <= seconds(occurrence)]
        if first is not None and not any(first < index < after.index for index in set_back):
            raise Violation(CRON, f"{job_id} was enqueued a second time", version=after)
        self.added[job_id] = after.index
        self._fired[name] = (occurrence, job)

    def check_step(self, before: Version, after: Version, claimed: list[tuple[str, Fields]]) -> None:
        """Check one step, after its additions were noted.

        Args:
            before: the version before.
            after: the version after.
            claimed: the jobs that were claimed in it.
        """
        fired, self._fired = self._fired, {}
        for name in before.schedules.keys() | after.schedules.keys() | fired.keys():
            old, new = before.schedules.get(name), after.schedules.get(name)
            if name in fired:
                self._check_firing(name, *fired[name], old, new, after)
            elif old != new:
                self._check_entry(name, old, new, after)
        for job_id, job in claimed:
            for name, entry in after.schedules.items():
                if seconds(entry["next_at"]) <= seconds(job["heartbeat_at"]):
                    raise Violation(0, f"{job_id} was claimed, and {name} was due and did not fire", version=after)

    def _check_firing(
        self, name: str, occurrence: str, job: Fields, old: Fields | None, new: Fields | None, after: Version
    ) -> None:
        if old is None or new is None or any(old.get(field) != new.get(field) for field in ("cron", "timezone")):
            raise Violation(CRON, f"{name} has fired, and is no entry, or another one by then", version=after)
        if _definition(old) != _definition(new):  # set to enqueue something else, when it was due already
            self._check_entry(name, old, new, after)
        at, now, due = seconds(occurrence), seconds(job["created_at"]), seconds(new["next_at"])
        if not seconds(old["next_at"]) <= at <= now:
            raise Violation(CRON, f"{name} has fired for {occurrence}, which was not due", version=after)
        period, offset = CRONS[old["cron"]]
        last = now - (now - offset) % period
        if at != last:
            raise Violation(CRON, f"{name} has fired for {occurrence}, which was not the last one due", version=after)
        if due != last + period:
            raise Violation(CRON, f"{name} has fired, and is due next at {new['next_at']}", version=after)
        for field in OF_THE_JOB:
            if job.get(field, UNSAID.get(field)) != new.get(field, UNSAID.get(field)):
                raise Violation(CRON, f"{name} has fired, and the job has another {field}", version=after)
        if job.get("headers", {}).get("jqueue-scheduled-for") != occurrence:
            raise Violation(CRON, f"{name} has fired, and its job does not say for when", version=after)

    def _check_entry(self, name: str, old: Fields | None, new: Fields | None, after: Version) -> None:
        """An entry is another than before, and has not fired: somebody has set it, or its job was there already."""
        setting = [call for call in self.calls.carried("schedule", after) if call.name == name]
        removing = [call for call in self.calls.carried("unschedule", after) if call.name == name]
        if new is None:
            if not removing:
                raise Violation(CRON, f"{name} is gone, and nobody had asked for that", version=after)
            return
        if setting and (old is None or removing or _definition(old) != _definition(new)):
            self._set_to[name].append((after.index, seconds(new["next_at"])))
            if not any(all(new.get(field) == value for field, value in call.given.items()) for call in setting):
                raise Violation(CRON, f"{name} was set to what nobody had asked for", version=after)
            return
        if old is None or _definition(old) != _definition(new):
            raise Violation(CRON, f"{name} is another entry, and nobody had asked for that", version=after)
        moved = seconds(old["next_at"]), seconds(new["next_at"])
        if setting and len(setting) > 1:  # set to something else, and back
            self._set_to[name].append((after.index, moved[1]))
            return
        if moved[1] <= moved[0]:
            raise Violation(CRON, f"the next time of {name} went back", version=after)
        if not self._was_there(name, old, moved[0], after):
            raise Violation(CRON, f"the next time of {name} has moved, and no job was enqueued", version=after)

    def _was_there(self, name: str, entry: Fields, due: float, after: Version) -> bool:
        """Whether the job of an entry, or one with its unique key, was there already."""
        key = entry.get("unique_key")
        if key is not None and (key in after.holds or any(j.get("unique_key") == key for j in after.jobs.values())):
            return True
        known = [named(job_id) for job_id in self.added]
        return any(of == name and seconds(occurrence) >= due for of, occurrence in known)

    def check_calls(self, timeline: Timeline, *, calm: bool) -> None:
        """Whoever dequeues fires what is due: whatever the dequeue was for, and also if it found nothing."""
        for call in self.calls.by_verb["dequeue"]:
            if call.succeeded and call.earliest is not None:
                self._check_fired(call, timeline.between(call.started, call.ended), call.earliest)
                long = call.ended - call.started - PATIENCE
                if calm and call.wait and long > 0:
                    waited = timeline.between(call.started + long, call.ended)
                    self._check_fired(call, waited[:-1] if call.result else waited, call.earliest + long)

    def _check_fired(self, call: Call, seen: list[Version], now: float) -> None:
        if any(version.schedules for version in seen):
            due = [{n for n, each in v.schedules.items() if seconds(each["next_at"]) < now - LATE} for v in seen]
            if always := set.intersection(*due):
                raise Violation(0, f"returned, and {min(always)} was due all the time", call=call)


def _definition(entry: Fields) -> Fields:
    """What was asked for, without what the queue adds."""
    return {name: value for name, value in entry.items() if name != "next_at"}
