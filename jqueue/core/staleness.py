"""Detects stale claims without trusting any single clock.

A claim is stale when this process has seen it unchanged for the claim's own timeout. That time is measured on its
monotonic clock, and counts only between successful reads. A process that was not watching may also use the store's
time, with an allowance for clocks that disagree. A fresh process revokes nothing in its first moments.

A process that stood still has watched nothing meanwhile. All processes may have stood still together, as in a paused
container or a closed laptop, and the holders need time for their next heartbeats.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import datetime

from jqueue.domain.draft import Draft
from jqueue.domain.header import WORKER_AGE, WORKERS_KEPT
from jqueue.domain.job import Claim
from jqueue.domain.limits import CLOCK_ALLOWANCE, LONGEST_GRACE

ORPHANS_EVERY = 1.0
"""Least number of seconds between two looks for processes that have ended."""

SeenClaim = tuple[int, datetime | None]
"""A claim as it was seen: its attempt and its last heartbeat. While both stay the same, its worker has not confirmed
it."""


class StaleWatch:
    """Watches the claims of one queue through one process's reads and commits."""

    def __init__(self, default_timeout: float, allowance: float = CLOCK_ALLOWANCE) -> None:
        self._default_timeout = default_timeout
        self._allowance = allowance
        self._watched = 0.0
        self._fresh_since = self._stood_still = 0.0
        self._last_success: float | None = None
        self._unbroken = False
        self._saw_all = True
        self._seen: dict[str, tuple[SeenClaim, float]] = {}
        self._leases: set[str] = set()
        self._due: list[tuple[float, str]] = []

    def missed_changes(self) -> None:
        """Note that the next draft does not record its changes since the last one.

        Claims missing from it have ended.
        """
        self._saw_all = False

    def failed(self) -> None:
        """Note that a read or a write failed: the time until the next success does not count."""
        self._unbroken = False

    def observed(self, draft: Draft, monotonic: float, store_time: datetime | None, stood_still: float = 0.0) -> None:
        """Note the claims that have moved in a draft that was current a moment ago.

        Args:
            draft: the state, without uncommitted changes.
            monotonic: this process's monotonic clock, in seconds.
            store_time: the time by a clock that all users of the store share; None if there is no such clock.
            stood_still: seconds for which this process has stood still so far.
        """
        fresh = self._last_success is None
        still, self._stood_still = stood_still - self._stood_still, stood_still
        gap = 0.0 if self._last_success is None else max(0.0, monotonic - self._last_success - still)
        if self._unbroken:
            self._watched += gap
        if still:
            self._fresh_since = self._watched
        self._last_success, self._unbroken = monotonic, True
        if not self._saw_all:
            self._saw_all = True
            current = draft.jobs.claimed.keys() | draft.jobs.rows.manifest.leases().keys()
            self._seen = {job_id: seen for job_id, seen in self._seen.items() if job_id in current}
        late = fresh, gap, store_time
        claimed, jobs, seen, forget = draft.jobs.claimed, draft.jobs, self._seen, self._seen.pop
        dues: dict[float | None, float | None] = {}
        for job_id in draft.jobs.claims_moved:
            if job_id not in claimed:
                forget(job_id, None)
                continue
            job = jobs[job_id]
            claim, claim_timeout = (job.attempt, job.heartbeat_at), job.claim_timeout
            if claim_timeout not in dues:
                timeout = self._timeout(claim_timeout)
                dues[claim_timeout] = None if fresh or gap > timeout else self._due_later(timeout)
            due = dues[claim_timeout]
            if due is None or job_id in seen:
                self._watch(job_id, claim, claim_timeout, *late)
            else:
                seen[job_id] = claim, due
                heapq.heappush(self._due, (due, job_id))
        draft.jobs.claims_moved.clear()
        if self._leases or draft.header.segments:
            leases = draft.jobs.rows.manifest.leases()
            for lease in self._leases - leases.keys():
                self._seen.pop(lease, None)
            self._leases = set(leases)
            for lease, held in leases.items():
                self._watch(lease, (held.claims, held.heartbeat_at), held.claim_timeout, *late)
        if len(self._due) > 64 + 2 * len(self._seen):
            self._due = [entry for entry in self._due if self._is_current(entry)]
            heapq.heapify(self._due)

    def _watch(
        self,
        name: str,
        claim: SeenClaim,
        claim_timeout: float | None,
        fresh: bool,
        gap: float,
        store_time: datetime | None,
    ) -> None:
        """Note a claim of a job or of a lease, as it is now."""
        seen = self._seen.get(name)
        if seen is not None and seen[0] == claim:
            return
        timeout = self._timeout(claim_timeout)
        due = self._due_later(timeout)
        if (fresh or gap > timeout) and store_time is not None:
            old = self._watched + self._until_old(claim[1], timeout, store_time)
            due = max(min(due, old), self._fresh_since + _grace(timeout))
        self._seen[name] = claim, due
        heapq.heappush(self._due, (due, name))

    def _due_later(self, timeout: float) -> float:
        """Return the time at which a claim is stale if it stands still from now on."""
        return max(self._watched + timeout, self._fresh_since + _grace(timeout))

    def suspects(self) -> tuple[tuple[Claim, datetime | None], ...]:
        """Return the claims that are stale by now, each with its last heartbeat."""
        if not self._due or self._due[0][0] > self._watched:
            return ()
        due: set[tuple[float, str]] = set()
        while self._due and self._due[0][0] <= self._watched:
            entry = heapq.heappop(self._due)
            if self._is_current(entry):
                due.add(entry)
        for entry in due:  # they stay due until they are seen to be revoked
            heapq.heappush(self._due, entry)
        stale = [(job_id, self._seen[job_id][0]) for _, job_id in sorted(due)]
        return tuple((Claim(job_id, attempt), heartbeat_at) for job_id, (attempt, heartbeat_at) in stale)

    def _timeout(self, claim_timeout: float | None) -> float:
        return self._default_timeout if claim_timeout is None else claim_timeout

    def _until_old(self, heartbeat_at: datetime | None, timeout: float, store_time: datetime) -> float:
        if heartbeat_at is None:
            return 0.0
        return max(0.0, timeout + self._allowance - (store_time - heartbeat_at).total_seconds())

    def _is_current(self, entry: tuple[float, str]) -> bool:
        due, job_id = entry
        return job_id in self._seen and self._seen[job_id][1] == due


def orphans(
    draft: Draft, is_gone: Callable[[int, str], bool], now: datetime
) -> tuple[tuple[Claim, datetime | None], ...]:
    """Return the claims of workers whose processes have certainly ended, each with its last heartbeat.

    A claim names the worker, host and process id of its holder, which containers may share. It counts if each worker of
    this name has ended. A worker that commits its own claims shows itself in the same commits. A claim that another
    process has made for a worker names that worker as a client.

    Args:
        draft: the queue.
        is_gone: see `SupportsProcesses`.
        now: the present time.
    """
    if len(draft.header.workers) >= WORKERS_KEPT:  # others may have been dropped
        return ()
    ended: dict[str, set[str]] = {}  # by holder: the names as clients
    alive: set[str] = set()
    for record in draft.header.workers.values():
        if is_gone(record.pid, record.mark):
            ended.setdefault(record.holder, set()).add(record.client)
        else:
            alive.add(record.holder)
    claims = []
    for job in map(draft.jobs.__getitem__, draft.jobs.claimed if ended.keys() - alive else ()):
        if job.holder in ended and job.holder not in alive and job.heartbeat_at is not None:
            client = (job.claim_call or "").rpartition("/")[0]
            is_recent = (now - job.heartbeat_at).total_seconds() < WORKER_AGE / 2  # the record of a holder is there
            if client in ended[job.holder] if client else is_recent:
                claims.append((job.claim, job.heartbeat_at))
    return tuple(claims)


def _grace(timeout: float) -> float:
    """Return the seconds for which a process that is fresh, or stood still, does not revoke a claim."""
    return min(LONGEST_GRACE, timeout / 3)
