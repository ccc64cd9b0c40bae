"""A queue file and the segments beside it, decoded without the queue's own code, and checked against each other.

Each job is in exactly one place: it is a line of the file, a row of a segment that waits, or a row of a claimed range.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any
from zlib import crc32

from jqueue import JobStatus
from tests.kill.ledger import ViolationError
from tests.simulation.stored_segments import Fields, StoredRow, StoredSegment

TRIES = 20
"""Number of times that the file is read anew because it changed while its segments were read."""


class Place(StrEnum):
    """The place of a job."""

    LINE = "line"
    ROW = "row"
    RANGE = "range"


@dataclass(frozen=True)
class PlacedJob:
    """A job, and its place.

    Attributes:
        id, entrypoint, priority, sequence, status, attempt, failures, payload, heartbeat_at: as in a job of the queue.
        place: the kind of its place.
    """

    id: str
    entrypoint: str
    priority: int
    sequence: int
    status: JobStatus
    attempt: int
    failures: int
    payload: bytes
    heartbeat_at: datetime | None
    place: Place


@dataclass(frozen=True)
class WholeQueue:
    """The queue as a file and its segments have it.

    Attributes:
        version, queue, commits, finished: as in the header.
        jobs: all jobs.
        segments: the names of the segments of the manifest.
        retired: the names of the segments that have left it lately.
        ranges: the ids of the claimed ranges.
        set_aside: nothing: a line that cannot be read is an error here.
    """

    version: int
    queue: str
    commits: Mapping[str, Any]
    finished: Mapping[str, int]
    jobs: tuple[PlacedJob, ...]
    segments: frozenset[str]
    retired: frozenset[str]
    ranges: frozenset[str]
    set_aside: tuple[Any, ...] = ()

    def queued_jobs(self) -> list[PlacedJob]:
        """Return the queued jobs in the order in which they are served, if all are ready and none is preferred."""
        queued = [job for job in self.jobs if job.status is JobStatus.QUEUED]
        return sorted(queued, key=lambda job: (job.priority, job.sequence))


def folder_of(file: Path) -> Path:
    """Return the folder with the segments of a queue file."""
    return Path(f"{file}.segments")


def read_whole(file: Path) -> WholeQueue | None:
    """Return the queue in a file, or None if there is no file.

    Raises:
        ViolationError: a part cannot be read, is missing or wrong.
    """
    for _ in range(TRIES):
        try:
            content = file.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return _decoded(content, folder_of(file))
        except ViolationError:
            if file.read_bytes() == content:
                raise
    raise ViolationError(f"the file changed {TRIES} times while its segments were read")


def _decoded(content: bytes, folder: Path) -> WholeQueue:
    try:
        blob = json.loads(content, object_pairs_hook=_without_doubles)
    except ValueError as error:
        raise ViolationError(f"the file cannot be read ({len(content)} bytes): {error}") from error
    manifest, ranges = blob.get("segments", {}), blob.get("ranges", {})
    if (manifest or ranges) and "segments" not in blob["critical"]:
        raise ViolationError("older versions are not told of the segments")
    jobs = [_placed(job_id, job, Place.LINE) for job_id, job in blob["jobs"].items()]
    by_segment: dict[str, list[tuple[str, Fields]]] = {name: [] for name in manifest}
    for range_id, held in ranges.items():
        if held["segment"] not in manifest:
            raise ViolationError(f"the range {range_id} is of segment {held['segment']}, which is not in the manifest")
        by_segment[held["segment"]].append((range_id, held))
    for name, entry in manifest.items():
        jobs += _jobs_of(name, entry, _read(folder, name), blob["queue"], by_segment[name])
    for name in blob.get("retired", {}):
        if not (folder / name).exists():
            raise ViolationError(f"the segment {name} has left the manifest lately, and is gone")
    _check_jobs(jobs, blob)
    parts = (frozenset(manifest), frozenset(blob.get("retired", {})), frozenset(ranges))
    return WholeQueue(blob["version"], blob["queue"], blob["commits"], blob.get("finished", {}), tuple(jobs), *parts)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ViolationError("an object of the file has a name twice")
    return found


def _check_jobs(jobs: Iterable[PlacedJob], blob: Fields) -> None:
    ids = Counter(job.id for job in jobs)
    if twice := [job_id for job_id, count in ids.items() if count > 1]:
        raise ViolationError(f"{min(twice)} is in two places")
    sequences = Counter(job.sequence for job in jobs)
    if any(count > 1 for count in sequences.values()):
        raise ViolationError("two jobs have the same sequence number")
    if sequences and blob.get("segments") and max(sequences) > blob["last_sequence"]:
        raise ViolationError("a job has a sequence number behind the last")


def _read(folder: Path, name: str) -> StoredSegment:
    try:
        return StoredSegment((folder / name).read_bytes(), _line)
    except FileNotFoundError:
        raise ViolationError(f"the segment {name} is in the manifest, and is missing") from None
    except (ValueError, KeyError) as error:
        raise ViolationError(f"the segment {name} is in the manifest, and cannot be read: {error}") from error


def _line(line: bytes) -> tuple[str, Fields]:
    [(job_id, job)] = json.loads(b"{" + line + b"}").items()
    return job_id, {"priority": 0, **job}


def _jobs_of(
    name: str, entry: Fields, segment: StoredSegment, queue: str, ranges: Iterable[tuple[str, Fields]]
) -> list[PlacedJob]:
    """Check a segment against its entry in the manifest. Return the jobs that wait in it or are in ranges."""
    if wrong := _wrong_in(entry, segment, queue):
        raise ViolationError(f"the segment {name} is in the manifest, and {wrong} is wrong")
    waiting, offset = segment.waiting(entry), entry.get("offset", 0)
    tried = {
        row: (claims, failures)
        for first, last, *(claims, failures) in entry.get("tried", ())
        for row in range(first, last)
    }
    if waiting and _order(entry["head"], entry) > min(_order(row.key(offset), entry) for row in waiting.values()):
        raise ViolationError(f"a row of the segment {name} comes before its head")
    jobs = [
        _placed(row.job_id, row.job, Place.ROW, offset=offset, tries=tried.get(number, (0, 0)))
        for number, row in waiting.items()
    ]
    for range_id, held in ranges:
        without = {row for first, last in held.get("without", ()) for row in range(first, last)}
        numbers = set(range(held["first"], held["last"])) - without
        if not numbers or max(numbers) >= len(segment.rows) or numbers & waiting.keys():
            raise ViolationError(f"the range {range_id} has rows that the segment {name} does not have, or that wait")
        tries = held["claims"], held["failures"]
        for number in sorted(numbers):
            row = segment.rows[number]
            fields = {**row.job, "status": "in_progress", "heartbeat_at": held["heartbeat_at"]}
            jobs.append(_placed(row.job_id, fields, Place.RANGE, offset=offset, tries=tries))
    if not jobs:
        raise ViolationError(f"the segment {name} is in the manifest, and no row of it waits or is in a range")
    return jobs


def _wrong_in(entry: Fields, segment: StoredSegment, queue: str) -> str | None:
    """Return the part of a segment, or of its entry, that is wrong; None if there is none."""
    content, rows, offset = segment.content, segment.rows, entry.get("offset", 0)
    facts = {
        "rows": len(rows),
        "bytes": len(content),
        "index": segment.index,
        "crc": crc32(content[segment.index :]),
        "entrypoint": segment.entrypoint,
        "keys": segment.said["keys"],
        "objects": len(segment.said["objects"]),
    }
    edge = entry.get("next", 0) - 1
    for first, last in entry.get("taken", ()):
        if not edge < first < last <= len(rows):
            return "the order of its spans"
        edge = last
    keys = [_order(row.key(offset), entry) for row in rows]
    if wrong := [fact for fact, value in facts.items() if entry.get(fact, 0) != value]:
        return wrong[0]
    if segment.queue != queue:
        return "its queue"
    if keys != sorted(keys):
        return "the order of its rows"
    if any(_is_foreign(row, segment) for row in rows):
        return "one of its jobs"
    return segment.fault(entry.get("chunk_rows", 256), own_ids=entry.get("own_ids", False))


def _is_foreign(row: StoredRow, segment: StoredSegment) -> bool:
    return (row.job["status"], row.job["entrypoint"]) != ("queued", segment.entrypoint)


def _order(key: Any, entry: Fields) -> tuple[float, ...]:
    priority, sequence, since = key
    if entry.get("scheduled"):
        return since, priority, sequence
    aging = entry.get("aging")
    return (priority if aging is None else priority * aging + since), sequence


def _placed(job_id: str, job: Fields, place: Place, *, offset: int = 0, tries: tuple[int, int] = (0, 0)) -> PlacedJob:
    beat = job.get("heartbeat_at")
    return PlacedJob(
        job_id,
        job["entrypoint"],
        job.get("priority", 0),
        job["sequence"] + offset,
        JobStatus(job["status"]),
        job.get("attempt", 0) + tries[0],
        job.get("failures", 0) + tries[1],
        base64.b64decode(job["payload"]),
        None if beat is None else datetime.fromisoformat(beat),
        place,
    )
