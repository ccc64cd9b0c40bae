"""Records of the workers of a queue: who they are, and when they last committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta

from jqueue.domain.fields import Count, Entry

WORKERS_KEPT = 256
"""Maximum number of workers with a record. Above it, the least recently seen are dropped."""

LOST_AFTER = 120.0
"""Seconds after its last commit at which a worker counts as lost. A live worker commits once a minute."""

WORKER_AGE = 3600.0
"""Seconds after which the record of a worker that has not committed is dropped."""

ENTRYPOINTS_SHOWN = 32
"""Number of entrypoints in the record of a worker."""


class WorkerRecord(Entry, frozen=True):
    """A worker, as it was at its last commit. An idle worker commits once a minute.

    Attributes:
        name: name of the worker.
        host: name of its machine.
        pid: process id.
        started: time of its start, in seconds since 1970 by its clock.
        at: time of its last commit, in seconds since 1970.
        slots: number of jobs that it works on at a time.
        busy: number of jobs that it holds. The blob does not store it: `stats()` counts the claims.
        lost: True if it has not committed for two minutes: it has died, or cannot reach the store. The blob does not
            store it: `stats()` compares times.
        entrypoints: its entrypoints; the first 32 of them.
        version: version of jqueue.
    """

    name: str
    host: str = ""
    pid: Count = 0
    started: float = 0.0
    at: float = 0.0
    slots: Count = 0
    busy: Count = 0
    lost: bool = False
    entrypoints: Annotated[tuple[str, ...], Meta(max_length=1000)] = ()
    version: str = ""

    @property
    def holder(self) -> str:
        """The holder that its claims name."""
        return f"{self.name}@{self.host}:{self.pid}"

    def is_lost(self, now: float) -> bool:
        """Return True if it counts as lost at a time, in seconds since 1970."""
        return now - self.at > LOST_AFTER

    @property
    def last_seen(self) -> datetime:
        """Time of its last commit."""
        return datetime.fromtimestamp(self.at, UTC)


def by_name(records: Iterable[WorkerRecord]) -> tuple[WorkerRecord, ...]:
    """Return records by name. The records of one run in several queues are added up."""
    runs: dict[tuple[str, str, int, float], WorkerRecord] = {}
    for record in records:
        run = (record.name, record.host, record.pid, record.started)
        known = runs.get(run)
        if known is not None:
            changes = {"busy": known.busy + record.busy, "lost": known.lost and record.lost}
            record = record.evolve(at=max(known.at, record.at), **changes)
        runs[run] = record
    return tuple(runs[run] for run in sorted(runs))


def with_workers(
    known: Mapping[str, WorkerRecord], own: Mapping[str, WorkerRecord | None], at: float
) -> Mapping[str, WorkerRecord]:
    """Return the records after a commit, without outdated ones.

    Args:
        known: the records before it, by the id of the worker's run.
        own: the records of workers that commit; None for a worker that has ended.
        at: time of the commit, in seconds since 1970.
    """
    if not known and not own:
        return known
    records = {run: record for run, record in known.items() if run not in own and record.at + WORKER_AGE > at}
    records |= {run: record for run, record in own.items() if record is not None}
    surplus = len(records) - WORKERS_KEPT
    for run in sorted(records, key=lambda run: records[run].at)[: max(0, surplus)]:
        del records[run]
    return records
