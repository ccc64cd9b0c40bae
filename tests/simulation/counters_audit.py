"""Checks the counters of every version from the jobs in it and in the version before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.simulation.calls import Violation
from tests.simulation.chain import COMPLETED, IN_PROGRESS, Fields, Version, status_of

COUNTERS = 15
"""Number of the rule: the counters tell what has happened to the jobs, exactly."""

ENQUEUED, CLAIMED, DONE, _, _, _, CANCELLED, EXPIRED, _, REMOVED = range(10)
LEFT = (DONE, CANCELLED, EXPIRED, REMOVED)


class CountersAudit:
    """Checks the counters in every step.

    Attributes:
        seen: number of jobs that were counted as done.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._uncounted: Counter[str] = Counter()

    def note_edit(self, after: Version) -> None:
        """Note a version by a person or by jqueue 1.0.0, who count nothing."""
        self._uncounted = _live(after)
        self._uncounted.subtract(_balance(after))

    def check_step(self, before: Version, after: Version, claimed: Sequence[tuple[str, Fields]]) -> None:
        """Check one step.

        Args:
            before: the version before it.
            after: the version that it made.
            claimed: the jobs that it claimed.
        """
        for name, counters in before.counters.items():
            fallen = [kind for kind, count in enumerate(counters[0]) if after.total(name, kind) < count]
            if fallen:
                raise Violation(COUNTERS, f"counters {fallen} of {name} fell", version=after)
        claims = Counter(job["entrypoint"] for _, job in claimed)
        for name in after.counters.keys() | claims.keys():
            counted = after.total(name, CLAIMED) - before.total(name, CLAIMED)
            if counted != claims[name]:
                raise Violation(COUNTERS, f"{claims[name]} claims of {name} count as {counted}", version=after)
            if sum(after.counters[name][1][2]) != after.total(name, CLAIMED):
                raise Violation(COUNTERS, f"the waits of {name} are not those of its claims", version=after)
        balance = _balance(after)
        balance.update(self._uncounted)
        live = _live(after)
        for name in balance.keys() | live.keys():
            if balance[name] != live[name]:
                what = f"{live[name]} jobs of {name} are there, and {balance[name]} by the counters"
                raise Violation(COUNTERS, what, version=after)
        self._check_done(before, after)

    def _check_done(self, before: Version, after: Version) -> None:
        """Check that no more jobs count as done than left or finished, and all that finished and are kept."""
        ended: Counter[str] = Counter()
        kept: Counter[str] = Counter()
        for job_id, job in before.jobs.items():
            now = after.jobs.get(job_id)
            if status_of(job) == IN_PROGRESS and now is not job:
                finished = now is not None and status_of(now) == COMPLETED
                kept[job["entrypoint"]] += finished
                ended[job["entrypoint"]] += finished or now is None or now.get("created_at") != job.get("created_at")
        for name in after.counters:
            done = after.total(name, DONE) - before.total(name, DONE)
            if not kept[name] <= done <= ended[name]:
                raise Violation(COUNTERS, f"{done} jobs of {name} count as done, and {ended[name]} left", version=after)
            self.seen["counted as done"] += done


def _live(version: Version) -> Counter[str]:
    """Return the number of jobs that are not completed, by entrypoint."""
    return Counter(job["entrypoint"] for job in version.jobs.values() if status_of(job) != COMPLETED)


def _balance(version: Version) -> Counter[str]:
    """Return the number of jobs that are not completed, by the counters."""
    return Counter(
        {
            name: version.total(name, ENQUEUED) - sum(version.total(name, kind) for kind in LEFT)
            for name in version.counters
        }
    )
