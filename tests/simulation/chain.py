"""The chain of versions that the store has held, as plain JSON: the evidence for the auditor.

A version has the jobs in the blob and the waiting rows of its segments. They are parsed here without the queue's own
codec, so that a bug in the codec shows.
"""

from __future__ import annotations

import json
from base64 import b64encode
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic_core import from_json

from tests.simulation.network import Landing, Network
from tests.simulation.stored_segments import FOLDER, StoredSegment

Fields = dict[str, Any]

QUEUED, IN_PROGRESS, DEAD, COMPLETED = "queued", "in_progress", "dead", "completed"
HEADER = {
    *("queue", "evicted_through", "attempt_floor", "last_sequence", "holds", "finished", "recent"),
    *("turns", "fair", "recent_keys"),
    *("finished_minutes", "transactions", "cancelled"),
    *("settings", "entrypoints", "schedules", "counters", "history", "segments", "retired"),
    *("broker", "clients", "clients_evicted", "workers", "groups"),
}
"""The fields of a header that a version has as they are."""

Created = Mapping[str, tuple[float, bytes]]
"""Time of creation and content of objects, by suffix."""

Place = tuple[str, int]
"""A segment, and the number of a row in it."""

NO_OBJECTS: Created = {}

ROWS = 8
"""The column of an event in which it names the rows of its jobs, if it names any."""

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
        jobs: fields of each job, by id, wherever it is.
        rows: the place of each job that is the waiting row of a segment, by its id.
        leased: the place of each job that is the leased row of a segment, by its id.
        broken: entries among the jobs that cannot be read as jobs, by id.
        notes: fields of the header that the queue does not know.
        evicted_through: commits up to this version can no longer be recognised.
        queue: id of the queue.
        attempt_floor: attempt at which a reused job id continues.
        holds: unique keys kept after an ack, each with its job's id and the end of the hold.
        settings: settings of the whole queue.
        entrypoints: limits and pauses of each entrypoint, by its name.
        schedules: cron entries, by name.
        transactions: last version of each application that adds jobs in transactions.
        broker: the broker's seat.
        counters: counters of each entrypoint.
        history: the outbox of the history, and where it is moved to.
        segments: the manifest: an entry for each segment, by its name.
        retired: times at which segments left the manifest, by name.
        stored: the segments of the manifest, as the store has them. One that is missing or cannot be read is left out.
        passing: segments that the manifest does not have, and events in the outbox name. One that was named and
            purged in the same commit is in no manifest.
        doubles: ids of jobs that are in two places.
        unsure: ids of jobs in segments that were damaged at some time. They need not be served.
        twins: ids that occur twice in the blob.
        clock: time of writing by the writer's clock, in seconds since 1970.
        last_clock: the latest time of writing among those that it knows.
        commit: writer and token of the write that made it; None if no commit did.
        finished: attempts of the jobs that were acked a short while ago, by id.
        finished_minutes: the minutes of their ends, with the number of each.
        cancelled: the ids of the last cancelled jobs.
        last_sequence: last sequence number that was given to a job.
        recent: claims that count for rate limits.
        recent_keys: claims that count for rates of keys.
        turns, fair: see `plain_queue.PlainQueue`.
        clients: the last batch of each client of a broker.
        writers: the time of the last commit of each writer, in seconds since 1970.
        clients_evicted: batches up to this version can no longer be recognised.
        workers: the records of workers, by the id of their run.
        groups: the counters of groups, by their ids.
    """

    index: int = -1
    at: float = 0.0
    by: str | None = None
    number: int = 0
    jobs: dict[str, Fields] = field(default_factory=dict)
    broken: dict[str, Any] = field(default_factory=dict)
    notes: Fields = field(default_factory=dict)
    evicted_through: int = 0
    queue: str = ""
    attempt_floor: int = 0
    holds: Fields = field(default_factory=dict)
    settings: Fields = field(default_factory=dict)
    entrypoints: dict[str, Fields] = field(default_factory=dict)
    schedules: dict[str, Fields] = field(default_factory=dict)
    transactions: Fields = field(default_factory=dict)
    broker: Fields = field(default_factory=dict)
    counters: Fields = field(default_factory=dict)
    history: Fields = field(default_factory=dict)
    rows: dict[str, Place] = field(default_factory=dict)
    leased: dict[str, Place] = field(default_factory=dict)
    segments: dict[str, Fields] = field(default_factory=dict)
    retired: dict[str, float] = field(default_factory=dict)
    stored: dict[str, StoredSegment] = field(default_factory=dict)
    passing: dict[str, StoredSegment] = field(default_factory=dict)
    doubles: frozenset[str] = frozenset()
    unsure: frozenset[str] = frozenset()
    twins: frozenset[str] = frozenset()
    clock: float = 0.0
    last_clock: float = 0.0
    commit: tuple[str, str] | None = None
    finished: dict[str, int] = field(default_factory=dict)
    finished_minutes: tuple[tuple[int, int], ...] = ()
    cancelled: tuple[str, ...] = ()
    last_sequence: int = 0
    recent: Fields = field(default_factory=dict)
    recent_keys: dict[str, Fields] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    fair: dict[str, dict[str, int]] = field(default_factory=dict)
    clients: dict[str, Fields] = field(default_factory=dict)
    writers: dict[str, float] = field(default_factory=dict)
    clients_evicted: int = 0
    workers: dict[str, Fields] = field(default_factory=dict)
    groups: dict[str, Fields] = field(default_factory=dict)

    @property
    def hot(self) -> set[str]:
        """The ids of the jobs in the blob."""
        return self.jobs.keys() - self.rows.keys() - self.leased.keys()

    @property
    def leases(self) -> dict[str, Fields]:
        """The entries of the manifest that are leased, by name."""
        return {name: entry for name, entry in self.segments.items() if "claimed_at" in entry}


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


def read_chain(landings: Iterable[Landing], objects: Created = NO_OBJECTS) -> list[Version]:
    """Parse every version. Each distinct line, and each segment, is parsed only once.

    Args:
        landings: the versions.
        objects: the objects beside the queue's. A job is shown with its large payload or result in its line.
    """
    reader = _ChainReader(objects)
    return [reader.read(index, landing) for index, landing in enumerate(landings)]


def last_version(network: Network) -> Version:
    """Return the present version."""
    return next(iter(read_chain(network.landings[-1:], network.created)), NOTHING)


@dataclass(slots=True)
class _Waiting:
    """The rows of a segment that wait by one entry of a manifest, as jobs and as places."""

    entry: Fields
    jobs: dict[str, Fields]
    places: dict[str, Place]


class _ChainReader:
    """Parses versions, and remembers what it has parsed.

    Args:
        objects: the objects beside the queue's.
    """

    def __init__(self, objects: Created) -> None:
        self._objects = objects
        self._lines: dict[bytes, tuple[str, Fields]] = {}
        self._segments: dict[str, StoredSegment | None] = {}
        self._waiting: dict[str, _Waiting] = {}

    def read(self, index: int, landing: Landing) -> Version:
        """Return one version."""
        header, _, body = landing.content.partition(b"\n")
        if header.endswith(b'"jobs":{') and body.endswith(b"}}\n"):
            content = from_json(header + b"}}")
            jobs = [self._read_line(line.removesuffix(b",")) for line in body[:-3].split(b"\n") if line]
        else:
            content = json.loads(landing.content)
            found = content["jobs"]
            listed = [(job["id"], job) for job in found] if isinstance(found, list) else found.items()
            jobs = [(job_id, self._fields_of(job)) for job_id, job in listed]
        version = Version(index, landing.at, landing.by, content["version"])
        for job_id, job in jobs:
            (version.jobs if isinstance(job["entrypoint"], str) else version.broken).setdefault(job_id, job)
        if len(jobs) > len(version.jobs) + len(version.broken):
            version.twins = frozenset(
                job_id for job_id, times in Counter(each for each, _ in jobs).items() if times > 1
            )
        _read_header(version, content)
        if version.segments:
            self._add_rows(version)
        for name in _named_by_events(version.history) - version.stored.keys():
            if (segment := self.segment(name)) is not None:
                version.passing[name] = segment
        return version

    def _read_line(self, line: bytes) -> tuple[str, Fields]:
        known = self._lines.get(line)
        if known is None:
            ((key, job),) = from_json(b"{" + line + b"}").items()
            known = self._lines[line] = key, self._fields_of(job)
        return known

    def _fields_of(self, job: Any) -> Fields:
        fields = _fields_of(job)
        stored = fields.pop("payload_object", None)
        if stored is not None and stored[0] in self._objects:
            fields["payload"] = b64encode(self._objects[stored[0]][1]).decode()
        stored = fields.pop("result_object", None)
        if stored is not None and stored[0] in self._objects:
            fields["result"] = from_json(self._objects[stored[0]][1])
        if "steps" in fields:
            fields["steps"] = [
                (*step[:3], step[3] if step[4] is None else from_json(self._objects[step[4][0]][1]))
                for step in fields["steps"]
            ]
        return fields

    def _add_rows(self, version: Version) -> None:
        doubles: set[str] = set()
        for name, entry in version.segments.items():
            segment = self.segment(object_of(name))
            if segment is None:
                continue
            version.stored[object_of(name)] = segment
            there = self._waiting.get(name)
            if there is None or there.entry != entry:
                there = self._waiting[name] = _rows_of(name, segment, entry)
            doubles |= version.jobs.keys() & there.jobs.keys()
            version.jobs.update(there.jobs)
            (version.leased if "claimed_at" in entry else version.rows).update(there.places)
        version.doubles = frozenset(doubles)

    def segment(self, name: str) -> StoredSegment | None:
        """Return a segment as the store has it; None if it is missing or cannot be read."""
        if name not in self._segments:
            _, content = self._objects.get(FOLDER + name, (0.0, b""))
            try:
                self._segments[name] = StoredSegment(content, self._fields_of)
            except (ValueError, LookupError, TypeError):
                self._segments[name] = None
        return self._segments[name]


def _named_by_events(history: Fields) -> set[str]:
    """Return the names of the segments that the events in the outbox name."""
    events = [event for batch in history.get("batches", ()) for event in batch[4]]
    return {name for event in events if len(event) > ROWS for name, _ in event[ROWS]}


def object_of(name: str) -> str:
    """Return the name of the segment that an entry is for."""
    return name.split("~")[0]


def _rows_of(name: str, segment: StoredSegment, entry: Fields) -> _Waiting:
    rows = segment.waiting(entry)
    jobs = {row.job_id: row.named_by(entry) for row in rows.values()}
    more: Fields = {}
    if "claimed_at" in entry:
        more = {"status": IN_PROGRESS, "heartbeat_at": _moment(entry["heartbeat_at"])}
        more["claim_timeout"] = entry["claim_timeout"]
        if entry.get("holder") is not None:
            more |= {"holder": entry["holder"], "claimed_at": _moment(entry["claimed_at"])}
    if "claims" in entry:
        for job_id, job in jobs.items():
            numbers = {name: job[name] + entry.get(more_of, 0) for name, more_of in ADDED.items()}
            jobs[job_id] = {**job, **numbers, **more}
    return _Waiting(entry, jobs, {row.job_id: (name, number) for number, row in rows.items()})


ADDED = {"attempt": "claims", "failures": "failures"}
"""The fields of an entry that are added to those of its jobs."""


def jobs_of_lease(name: str, entry: Fields, objects: Created) -> list[tuple[str, int]]:
    """Return the id and the attempt of each job of a lease.

    Args:
        name: of its entry in the manifest.
        entry: this entry, as it was claimed.
        objects: the objects beside the queue's.
    """
    segment = _ChainReader(objects).segment(object_of(name))
    rows = {} if segment is None else segment.waiting(entry)
    return [(row.job_id, row.job["attempt"] + entry.get("floor", 0) + entry["claims"]) for row in rows.values()]


def read_segments(objects: Created) -> Callable[[str], StoredSegment | None]:
    """Return a function that returns a segment by its name, as it was created; None if it was not."""
    return _ChainReader(objects).segment


def _moment(text: str) -> str:
    """Return a time of the header in the form that it has in a job."""
    return datetime.fromisoformat(text).isoformat()


def _read_header(version: Version, content: Fields) -> None:
    for name in HEADER & content.keys():
        setattr(version, name, content[name])
    records = content.get("commits", {})
    made = {writer: record for writer, record in records.items() if record["version"] == version.number}
    version.commit = next((writer, record["token"]) for writer, record in made.items()) if len(made) == 1 else None
    version.writers = {writer: record["at"] for writer, record in records.items()}
    version.clock = max((record["at"] for record in made.values()), default=0.0)
    version.last_clock = max((record["at"] for record in records.values()), default=0.0)
    known = HEADER | {"format", "version", "critical", "commits", "jobs"}
    version.notes = {name: value for name, value in content.items() if name not in known}


def _fields_of(job: Any) -> Fields:
    """Return the fields of a job, with defaults. An unreadable line gets no entrypoint, and is kept under `line`."""
    if not isinstance(job, dict):
        return {**DEFAULTS, "entrypoint": None, "line": job}
    return {**DEFAULTS, **job}


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


def seconds(moment: str) -> float:
    """Return a time of the blob as seconds since 1970."""
    return datetime.fromisoformat(moment).timestamp()
