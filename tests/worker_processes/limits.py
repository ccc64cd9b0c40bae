"""What limits forbid, looked for in each version of the queue. Nothing of the code that keeps them is used."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise

from tests.worker_processes.claim_history import attempt_of, changes, is_held
from tests.worker_processes.history import Fields, Version

ROUNDED = 2e-6
"""Times of claims are written in microseconds."""


class LimitsAudit:
    """Looks at each version.

    Args:
        running: how many jobs of an entrypoint may be in progress at once.
        keys: how many of a concurrency key.
        rates: how many claims of an entrypoint may be made within any so many seconds.

    Attributes:
        faults: what was wrong, in words.
        most: the most jobs that were in progress at once, by entrypoint and by key.
        held_back: how many versions had jobs of each paused entrypoint waiting.
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
        """Look at what a version changed, and at all that it holds."""
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
        """Look at the claims of each entrypoint with a rate: no window may hold too many."""
        for name, (rate, per) in self._rates.items():
            times = sorted(self._claims[name])
            for first, last in zip(times, times[rate:], strict=False):
                if last - first < per - ROUNDED:
                    self.faults.append(f"{name}: {rate + 1} claims within {last - first:.6f} s from {first:.6f}")
            ends = (sum(first <= time < first + per for time in times) for first in times)
            self.most[name] = max(ends, default=0)


class CronAudit:
    """Looks at what cron entries enqueue.

    Args:
        periods: the seconds between two occurrences of each entry.

    Attributes:
        faults: what was wrong, in words.
        fired: the occurrences of each entry, in seconds since 1970, in the order of versions.
        skipped: occurrences that did not fire, since nobody claimed anything while they were the last.
    """

    def __init__(self, periods: dict[str, int]) -> None:
        self._periods = periods
        self.faults: list[str] = []
        self.fired: dict[str, list[int]] = {name: [] for name in periods}
        self.skipped: list[str] = []
        self._due: dict[str, int] = {}

    def see(self, before: Version, after: Version) -> None:
        """Note what fired, and look whether it was due and its entry has moved."""
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
            self.faults.append(f"{where} does not say what it is")
        if due is None or not _seconds(due) <= at <= after.at or at % period:
            self.faults.append(f"{where} was not due at {after.at:.3f}, but at {due}")
        if next_at <= at or next_at % period:
            self.faults.append(f"{where} is due again at {next_at}")

    def end(self, until: float) -> None:
        """Look whether all fired, each once, and in their order, until a time."""
        for name, period in self._periods.items():
            fired = self.fired[name]
            for earlier, later in pairwise(fired):
                if later <= earlier:
                    self.faults.append(f"{name} fired for {later} after it fired for {earlier}")
            for at in range(self._due[name], int(until) // period * period, period):
                if at not in fired:
                    self.skipped.append(f"{name} at {at}")


def _claimed(before: Version, after: Version) -> Iterator[tuple[str, Fields]]:
    """The jobs that a version has claimed."""
    for job_id, old, new in changes(before, after):
        if is_held(new) and attempt_of(new) != attempt_of(old):
            yield job_id, new


def _claimed_at(job: Fields) -> float:
    """When a job was claimed, by the clock that the queue goes by, if it was claimed just now."""
    return datetime.fromisoformat(job["heartbeat_at"]).timestamp()


def _seconds(moment: str) -> int:
    """A whole second as a number. A fraction makes it one that no entry here is due at."""
    seconds = datetime.fromisoformat(moment).timestamp()
    return int(seconds) if seconds.is_integer() else -1
