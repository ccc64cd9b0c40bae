"""Adds the transitions of a commit to the counters of the queue.

The counters stand in the header of the blob, and each commit adds its own transitions. So they are exact over all
processes. A commit whose answer was lost counts once: its counters landed with it, or it did not land.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

from jqueue.domain.counters import (
    CANCELLED,
    CLAIMED,
    DEAD,
    DONE,
    EMPTY,
    ENQUEUED,
    EXPIRED,
    FAILED,
    KINDS,
    OTHERS,
    RECOVERED,
    REMOVED,
    RETRIED,
    Counters,
    merged,
    windows_after,
    with_durations,
)
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.models import AnyJob
from jqueue.domain.transitions import ACK, CLAIM, ENQUEUE, HEARTBEAT, BulkMove, Move, Verb

ENTRYPOINTS_COUNTED = 64
"""Number of entrypoints with counters of their own. The counters of others are added up under `OTHERS`."""

IDLE = 30 * 86400.0
"""Seconds without a transition after which the counters of an entrypoint are added to `OTHERS`."""


class _Sums:
    """The counters of an entrypoint while a commit adds to them.

    Attributes:
        known: the counters before the commit.
        totals: the numbers by kind.
        ready: time since which each claimed job was ready.
        claimed: time of the claim of each job whose run has ended.
        waits: further waits in seconds, and the number of each.
        runs: further runs in seconds, and the number of each.
    """

    __slots__ = ("claimed", "known", "ready", "runs", "totals", "waits")

    def __init__(self, known: Counters) -> None:
        self.known = known
        self.totals = list(known.totals)
        if len(self.totals) < len(KINDS):
            self.totals += [0] * (len(KINDS) - len(self.totals))
        self.ready: list[datetime] = []
        self.claimed: list[datetime] = []
        self.waits: list[tuple[float, int]] = []
        self.runs: list[tuple[float, int]] = []

    def counters(self, now: datetime, at: float) -> Counters:
        """Return the counters after the commit, whose time is given twice: `at` is in seconds since 1970, rounded."""
        known = self.known
        waits, runs = [*self.waits, *_until(now, self.ready)], [*self.runs, *_until(now, self.claimed)]
        return Counters(
            tuple(self.totals),
            with_durations(known.waits, waits) if waits else known.waits,
            with_durations(known.runs, runs) if runs else known.runs,
            windows_after(known, at),
            at if at > known.at else known.at,
        )


def with_moves(
    counters: Mapping[str, Counters],
    moves: Iterable[Move],
    now: datetime,
    bulk: Iterable[BulkMove] = (),
) -> Mapping[str, Counters]:
    """Return the counters after a commit.

    Args:
        counters: the counters before it.
        moves: its transitions.
        now: its time.
        bulk: its transitions of many jobs at once.
    """
    changed: dict[str, _Sums] = {}

    def sums_of(entrypoint: str) -> _Sums:
        sums = changed.get(entrypoint)
        if sums is None:
            sums = changed[entrypoint] = _Sums(counters.get(entrypoint, EMPTY))
        return sums

    for verb, before, after in moves:
        if verb is HEARTBEAT:
            continue
        job = before or after
        assert job is not None
        sums = sums_of(job.entrypoint)
        if verb is ENQUEUE:
            sums.totals[ENQUEUED] += 1
        elif verb is CLAIM:
            sums.totals[CLAIMED] += 1
            sums.ready.append(ready_since(job))
        elif verb is ACK:
            sums.totals[DONE] += 1
            if job.claimed_at is not None:
                sums.claimed.append(job.claimed_at)
        else:
            _count(verb, job, before, after, sums)
    for rows in bulk:
        _count_rows(rows, sums_of(rows.entrypoint))
    if not changed:
        return counters
    at, result = round(now.timestamp(), 3), dict(counters)
    for name, sums in changed.items():
        result.pop(name, None)  # the last to change stands last
        result[name] = sums.counters(now, at)
    return _folded(result, at) if len(result) > ENTRYPOINTS_COUNTED or _first_is_idle(result, at) else result


def _until(now: datetime, moments: list[datetime]) -> list[tuple[float, int]]:
    """Return the seconds since each of these moments, and its number. The jobs of one commit share their moments."""
    return [((now - moment).total_seconds(), number) for moment, number in Counter(moments).items()] if moments else []


def _count(verb: Verb, job: JobRecord, before: JobRecord | None, after: JobRecord | None, sums: _Sums) -> None:
    """Count one of the rarer transitions."""
    totals = sums.totals
    if verb is Verb.ARRIVE:
        totals[ENQUEUED] += 1
    elif verb in (Verb.NACK, Verb.REVOKE):
        totals[FAILED] += 1
        totals[RECOVERED] += verb is Verb.REVOKE
        totals[CANCELLED if after is None else DEAD if after.status is JobStatus.DEAD else RETRIED] += 1
        if verb is Verb.NACK and job.claimed_at is not None:
            sums.claimed.append(job.claimed_at)
    elif verb in (Verb.CANCEL, Verb.HAND_BACK):
        totals[CANCELLED] += after is None
    elif verb is Verb.EXPIRE and job.status is JobStatus.QUEUED:
        totals[EXPIRED] += 1
    elif verb in (Verb.EXPIRE, Verb.PURGE, Verb.DEPART) and job.status is not JobStatus.COMPLETED:
        totals[REMOVED] += 1


def _count_rows(move: BulkMove, sums: _Sums) -> None:
    """Count a transition of many jobs at once."""
    if move.verb is Verb.ENQUEUE:
        sums.totals[ENQUEUED] += move.jobs
    elif move.verb is Verb.CLAIM:
        sums.totals[CLAIMED] += move.jobs
        sums.waits += move.seconds
    elif move.verb is Verb.ACK:
        sums.totals[DONE] += move.jobs
        sums.runs += move.seconds
    elif move.verb is Verb.REVOKE:
        for kind in (FAILED, RECOVERED):
            sums.totals[kind] += move.jobs
        sums.totals[RETRIED] += move.jobs - move.cancelled
    elif move.verb is Verb.PURGE:
        sums.totals[REMOVED] += move.jobs
    elif move.verb is Verb.CANCEL:
        sums.totals[CANCELLED] += move.jobs


def ready_since(job: AnyJob) -> datetime:
    """Return the time since which a queued job could be claimed."""
    since = job.created_at if job.queued_at is None else job.queued_at
    return since if job.run_at is None or job.run_at < since else job.run_at


def _first_is_idle(counters: Mapping[str, Counters], at: float) -> bool:
    name = next(iter(counters))
    return name != OTHERS and counters[name].at + IDLE < at


def _folded(counters: dict[str, Counters], at: float) -> dict[str, Counters]:
    """Add up the counters of idle entrypoints and, if there are too many, of the least recently changed ones."""
    by_age = sorted((name for name in counters if name != OTHERS), key=lambda name: counters[name].at)
    surplus = len(by_age) + 1 - ENTRYPOINTS_COUNTED
    folded = [name for place, name in enumerate(by_age) if place < surplus or counters[name].at + IDLE < at]
    gone = {OTHERS, *folded}
    kept = {name: each for name, each in counters.items() if name not in gone}
    return {OTHERS: merged([counters.get(OTHERS, EMPTY), *(counters[name] for name in folded)]), **kept}
