"""The chain of versions that the store has held, as plain JSON: the evidence for the auditor.

It is parsed here without the queue's own codec, so that a bug in the codec shows.
"""

from __future__ import annotations

import json
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from jqueue.testing.simulation.network import Landing

Fields = dict[str, Any]

QUEUED, IN_PROGRESS, DEAD, COMPLETED = "queued", "in_progress", "dead", "completed"
TABLES = frozenset(
    (
        *("format", "version", "queue", "critical", "commits", "evicted_through", "finished", "holds"),
        *("attempt_floor", "last_sequence", "settings", "entrypoints", "recent", "schedules", "transactions"),
        *("counters", "history"),
    )
)

NO_OBJECTS: Mapping[str, tuple[float, bytes]] = {}

DEFAULTS: Fields = {"priority": 0, "attempt": 0, "failures": 0}
"""Values of fields that a job leaves out. A person may write them all the same, and the next commit leaves them out."""


@dataclass(slots=True)
class Version:
    """One version of the queue.

    Attributes:
        index: place in the chain.
        at: time at which it landed, in seconds of the simulation.
        by: name of the process that wrote it; None for a person.
        number: version number that it states.
        jobs: fields of each job, by id.
        broken: entries among the jobs that cannot be read as jobs, by id.
        notes: fields of the header that the queue does not know.
        forgotten: commits up to this version can no longer be recognised.
        queue: id of the queue.
        floor: attempt at which a reused job id continues.
        holds: unique keys kept after an ack, each with its job's id and the end of the hold.
        settings: settings of the whole queue.
        rules: limits and pauses of each entrypoint, by its name.
        schedules: cron entries, by name.
        transactions: last version of each application that adds jobs in transactions.
        counters: counters of each entrypoint.
        history: the outbox of the history, and where it is moved to.
        twins: ids that occur twice.
        clock: time of writing by the writer's clock, in seconds since 1970.
        old: True if it has the format of jqueue 1.0.0.
    """

    index: int = -1
    at: float = 0.0
    by: str | None = None
    number: int = 0
    jobs: dict[str, Fields] = field(default_factory=dict)
    broken: dict[str, Any] = field(default_factory=dict)
    notes: Fields = field(default_factory=dict)
    forgotten: int = 0
    old: bool = False
    queue: str = ""
    floor: int = 0
    holds: Fields = field(default_factory=dict)
    settings: Fields = field(default_factory=dict)
    rules: dict[str, Fields] = field(default_factory=dict)
    schedules: dict[str, Fields] = field(default_factory=dict)
    transactions: Fields = field(default_factory=dict)
    counters: Fields = field(default_factory=dict)
    history: Fields = field(default_factory=dict)
    twins: frozenset[str] = frozenset()
    clock: float = 0.0

    def total(self, entrypoint: str, kind: int) -> int:
        """Return one counter of an entrypoint."""
        counters = self.counters.get(entrypoint)
        count: int = counters[0][kind] if counters else 0
        return count


NOTHING = Version()
"""The state before the first version."""


class Timeline:
    """The chain, searchable by time.

    Args:
        versions: the chain.
    """

    def __init__(self, versions: list[Version]) -> None:
        self.versions = versions
        self._times = [version.at for version in versions]

    def at(self, moment: float) -> Version:
        """Return the version that was current at a moment."""
        place = bisect_right(self._times, moment)
        return self.versions[place - 1] if place else NOTHING

    def between(self, start: float, end: float) -> list[Version]:
        """Return the versions that were current at any moment between two."""
        first = bisect_right(self._times, start) - 1
        last = bisect_right(self._times, end)
        return [NOTHING, *self.versions[:last]] if first < 0 else self.versions[first:last]


def read_chain(landings: Iterable[Landing], payloads: Mapping[str, tuple[float, bytes]] = NO_OBJECTS) -> list[Version]:
    """Parse every version. Each distinct line is parsed only once.

    Args:
        landings: the versions.
        payloads: creation and content of the objects of large payloads and results. A job is shown with them in its
            line.
    """
    lines: dict[bytes, tuple[str, Any]] = {}
    versions = [_read(index, landing, lines) for index, landing in enumerate(landings)]
    for version in versions:
        for job in version.jobs.values():
            stored = job.pop("payload_object", None)
            if stored is not None and stored[0] in payloads:
                job["payload"] = b64encode(payloads[stored[0]][1]).decode()
            stored = job.pop("result_object", None)
            if stored is not None and stored[0] in payloads:
                job["result"] = from_json(payloads[stored[0]][1])
    return versions


def _read(index: int, landing: Landing, lines: dict[bytes, tuple[str, Any]]) -> Version:
    header, _, body = landing.content.partition(b"\n")
    entries: dict[str, Any]
    twins: set[str] = set()
    if header.endswith(b'"jobs": {') and body.endswith(b"}}\n"):
        content = from_json(header + b"}}")
        entries = {}
        for line in body[:-3].split(b"\n"):
            if line:
                known = lines.get(line)
                if known is None:
                    ((key, job),) = from_json(b"{" + line.removesuffix(b",") + b"}").items()
                    known = lines[line] = key, _fields_of(job)
                if known[0] in entries:
                    twins.add(known[0])
                entries[known[0]] = known[1]
    else:
        content = json.loads(landing.content)
        jobs = content["jobs"]
        entries = jobs if isinstance(jobs, dict) else {job["id"]: job for job in reversed(jobs)}
        entries = {key: _fields_of(job) for key, job in entries.items()}
    version = Version(index, landing.at, landing.by, content["version"], entries)
    version.forgotten = content.get("evicted_through", 0)
    version.old = isinstance(content["jobs"], list)
    version.queue, version.floor = content.get("queue", ""), content.get("attempt_floor", 0)
    version.holds = content.get("holds", {})
    version.settings, version.rules = content.get("settings", {}), content.get("entrypoints", {})
    version.transactions, version.twins = content.get("transactions", {}), frozenset(twins)
    version.schedules, version.counters = content.get("schedules", {}), content.get("counters", {})
    version.history = content.get("history", {})
    version.clock = max(
        (record[2] for record in content.get("commits", {}).values() if record[1] == version.number), default=0.0
    )
    if any(not isinstance(job["entrypoint"], str) for job in entries.values()):
        version.broken = {key: job for key, job in entries.items() if not isinstance(job["entrypoint"], str)}
        version.jobs = {key: job for key, job in entries.items() if key not in version.broken}
    if not content.keys() <= TABLES | {"jobs"}:
        version.notes = {name: value for name, value in content.items() if name not in TABLES and name != "jobs"}
    return version


def _fields_of(job: Any) -> Fields:
    """Return the fields of a job, with defaults. An unreadable line gets no entrypoint, and is kept under `line`."""
    if not isinstance(job, dict):
        return {**DEFAULTS, "entrypoint": None, "line": job}
    fields = {**DEFAULTS, **job}
    if status_of(fields) == IN_PROGRESS and "holder" in fields:
        fields.setdefault("claimed_at", fields.get("heartbeat_at"))
    return fields


def status_of(job: Fields) -> str:
    """Return the status of a job."""
    status: str = job.get("status", QUEUED)
    return status


def attempt_of(job: Fields) -> int:
    """Return the attempt of a job. A claim of jqueue 1.0.0 counts as the first."""
    attempt: int = job.get("attempt", 0)
    return max(attempt, 1) if status_of(job) == IN_PROGRESS else attempt


def failures_of(job: Fields) -> int:
    """Return the failures charged to a job. A claim of jqueue 1.0.0 counts as one."""
    failures: int = job.get("failures", 0)
    return max(failures, 1) if status_of(job) == IN_PROGRESS else failures


def is_ready(job: Fields, entrypoint: str | None = None) -> bool:
    """True if a dequeue of the entrypoint can claim the job at any time: it is queued, without delay or expiry."""
    return (
        status_of(job) == QUEUED
        and job.get("run_at") is None
        and job.get("expires_at") is None
        and entrypoint in (None, job["entrypoint"])
    )
