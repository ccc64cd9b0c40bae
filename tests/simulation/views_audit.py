"""Checks views of the whole queue, wherever its jobs are: iterations over all jobs, and statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from jqueue.domain.errors import JobsUnreadableError
from jqueue.domain.stats import EntrypointStats
from jqueue.testing.virtual_time import EPOCH
from tests.simulation.chain import (
    COMPLETED,
    DEAD,
    IN_PROGRESS,
    QUEUED,
    Fields,
    Version,
    attempt_of,
    seconds,
    status_of,
)
from tests.simulation.history import Call, Evidence, Violation
from tests.simulation.stored_segments import FOLDER
from tests.simulation.workload import READ_FOR

ROUNDED = 0.01
"""Seconds by which two readings of one moment may differ."""


class ViewsAudit:
    """Checks the calls that show the whole queue.

    Args:
        evidence: of the seed.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._seed = evidence

    def checks(self) -> dict[str, Callable[[Call], None]]:
        """Return the check for each verb."""
        return {
            "iterate": self.check_iteration,
            "stats": self.check_stats,
            "read_state": self.check_state,
            "schedules": self.check_schedules,
        }

    def check_state(self, call: Call) -> None:
        """Check that the jobs in the blob are those of the version that is shown."""
        if call.succeeded:
            seen = [v for v in self._seed.timeline.between(call.started, call.ended) if v.number == call.result.version]
            told = {job.id: (str(job.status), job.attempt) for job in call.result.jobs}
            if told not in [{i: (status_of(v.jobs[i]), attempt_of(v.jobs[i])) for i in v.hot} for v in seen]:
                raise Violation(3, f"showed version {call.result.version} with other jobs", call=call)

    def check_schedules(self, call: Call) -> None:
        """Check that the list is that of a version current during the call."""
        if call.succeeded:
            told = {entry.name: entry.cron for entry in call.result}
            seen = self._seed.timeline.between(call.started, call.ended)
            if told not in [{name: entry["cron"] for name, entry in v.schedules.items()} for v in seen]:
                raise Violation(3, "showed cron entries that were not there", call=call)

    def check_iteration(self, call: Call) -> None:
        """Check that an iteration has shown the jobs of one version, each once."""
        if isinstance(call.error, JobsUnreadableError):
            unread = {suffix.removeprefix(FOLDER) for suffix in call.error.segments}
            if self._seed.tells_time and not unread & self._seed.damaged and call.ended - call.started < READ_FOR:
                raise Violation(3, f"could not read {', '.join(sorted(unread))}, which were whole", call=call)
        if not call.succeeded:
            return
        told = Counter((job.id, str(job.status), job.attempt) for job in call.result)
        seen = self._seed.timeline.between(call.started, call.ended)
        if all(told != Counter((i, status_of(job), attempt_of(job)) for i, job in v.jobs.items()) for v in seen):
            raise Violation(3, "showed jobs that no version had", call=call)

    def check_stats(self, call: Call) -> None:
        """Check that statistics count the jobs of the version that they name."""
        if not call.succeeded:
            return
        seen = [v for v in self._seed.timeline.between(call.started, call.ended) if v.number == call.result.version]
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
        if not there[QUEUED] - expiring <= told.ready + told.scheduled <= there[QUEUED]:
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


def _ready(jobs: list[Fields], now: float) -> list[float]:
    """Return the times since which the ready jobs are ready."""
    queued = [job for job in jobs if status_of(job) == QUEUED]
    ready = [job for job in queued if not job.get("run_at") or seconds(job["run_at"]) <= now]
    return [seconds(job.get("run_at") or job["created_at"]) for job in ready]
