"""Audits of limits and cron entries in each version of a queue. They share no code with the queue."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise

from tests.worker_processes.claim_history import attempt_of, changes, is_held
from tests.worker_processes.history import Fields, Version

ROUNDED = 2e-6
"""Seconds by which rounding may shorten an interval: times of claims are written in microseconds."""


class LimitsAudit:
    """Find the versions and claims that break a limit.

    Args:
        running: number of jobs of an entrypoint that may be in progress at once.
        keys: number of jobs of a concurrency key that may be in progress at once.
        rates: number of claims of an entrypoint that are allowed within any interval, and its length in seconds.

    Attributes:
        faults: a description of each broken limit.
        most: largest number of jobs in progress at once, by entrypoint and by key.
        held_back: number of versions in which jobs of a paused entrypoint waited, by entrypoint.
    """

    def __init__(self, running: dict[str, int], keys: dict[str, int], rates: dict[str, tuple[int, float]]) -> None:
        self._running = running
        self._keys = keys
        self._rates = rates
        self.faults: list[str] = []
        self.most: Counter[str] = Counter()
        self.held_back: Counter[str] = Counter()
        self._claims: dict[str, list[float]] = defaultdict(list)

    def see(self, before: Version, after: Version) -> None:
        """Audit the claims that a version makes, and all jobs in it."""
        paused = {name for name, rules in after.header.get("entrypoints", {}).items() if rules.get("paused")}
        for job_id, job in _claimed(before, after):
            self._claims[job["entrypoint"]].append(_claimed_at(job))
            if job["entrypoint"] in paused:
                self.faults.append(f"version {after.number}: {job_id} was claimed, and {job['entrypoint']} is paused")
        held = [job for job in after.jobs.values() if is_held(job)]
        self._count(after, Counter(job["entrypoint"] for job in held), self._running)
        self._count(after, Counter(job["concurrency_key"] for job in held if "concurrency_key" in job), self._keys)
        waiting = {job["entrypoint"] for job in after.jobs.values() if not is_held(job)}
        self.held_back.update(paused & waiting)

    def _count(self, after: Version, counts: Counter[str], limits: dict[str, int]) -> None:
        for name, limit in limits.items():
            self.most[name] = max(self.most[name], counts[name])
            if counts[name] > limit:
                self.faults.append(f"version {after.number}: {counts[name]} jobs of {name} at once, limit {limit}")

    def end(self) -> None:
        """Audit the claims of each entrypoint with a rate: no interval may hold too many."""
        for name, (rate, per) in self._rates.items():
            times = sorted(self._claims[name])
            for first, last in zip(times, times[rate:], strict=False):
                if last - first < per - ROUNDED:
                    self.faults.append(f"{name}: {rate + 1} claims within {last - first:.6f} s from {first:.6f}")
            ends = (sum(first <= time < first + per for time in times) for first in times)
            self.most[name] = max(ends, default=0)


class CronAudit:
    """Audit the jobs that cron entries enqueue.

    Args:
        periods: seconds between two occurrences of each entry.

    Attributes:
        faults: a description of each wrong or missing occurrence.
        fired: the occurrences of each entry, in seconds since 1970, in the order of versions.
        skipped: occurrences that did not fire, because no job was claimed before the next one was due.
    """

    def __init__(self, periods: dict[str, int]) -> None:
        self._periods = periods
        self.faults: list[str] = []
        self.fired: dict[str, list[int]] = {name: [] for name in periods}
        self.skipped: list[str] = []
        self._due: dict[str, int] = {}

    def see(self, before: Version, after: Version) -> None:
        """Record the occurrences that fired, and check that they were due and that their entries advanced."""
        looked = max((_claimed_at(job) for _, job in _claimed(before, after)), default=0.0)
        for name, row in after.header.get("schedules", {}).items():
            self._due.setdefault(name, _seconds(row["next_at"]))
            if _seconds(row["next_at"]) <= looked:
                self.faults.append(f"version {after.number} claims jobs, and {name} did not fire for {row['next_at']}")
        for job_id, old, new in changes(before, after):
            if old is None and new is not None and job_id.startswith("cron:"):
                self._fire(job_id, new, before, after)

    def _fire(self, job_id: str, job: Fields, before: Version, after: Version) -> None:
        _, name, moment = job_id.split(":", 2)
        at, period = _seconds(moment), self._periods[name]
        due = before.header.get("schedules", {}).get(name, {}).get("next_at")
        next_at = _seconds(after.header["schedules"][name]["next_at"])
        where = f"version {after.number}: {job_id}"
        self.fired[name].append(at)
        if job["headers"].get("jqueue-scheduled-for") != moment or job["entrypoint"] != name:
            self.faults.append(f"{where} has a wrong entrypoint or jqueue-scheduled-for header")
        if due is None or not _seconds(due) <= at <= after.at or at % period:
            self.faults.append(f"{where} was not due at {after.at:.3f}, but at {due}")
        if next_at <= at or next_at % period:
            self.faults.append(f"{where} is due again at {next_at}")

    def end(self, until: float) -> None:
        """Check that all occurrences until a time fired once and in order."""
        for name, period in self._periods.items():
            fired = self.fired[name]
            for earlier, later in pairwise(fired):
                if later <= earlier:
                    self.faults.append(f"{name} fired for {later} after it fired for {earlier}")
            for at in range(self._due[name], int(until) // period * period, period):
                if at not in fired:
                    self.skipped.append(f"{name} at {at}")


def _claimed(before: Version, after: Version) -> Iterator[tuple[str, Fields]]:
    """The jobs that a version claims."""
    for job_id, old, new in changes(before, after):
        if is_held(new) and attempt_of(new) != attempt_of(old):
            yield job_id, new


def _claimed_at(job: Fields) -> float:
    """Time of the claim of a job just claimed, by the clock of the queue."""
    return datetime.fromisoformat(job["heartbeat_at"]).timestamp()


def _seconds(moment: str) -> int:
    """A moment in whole seconds since 1970; -1, at which no entry is due, for one with a fraction of a second."""
    seconds = datetime.fromisoformat(moment).timestamp()
    return int(seconds) if seconds.is_integer() else -1
