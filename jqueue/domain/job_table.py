"""The table of jobs by id. Jobs that have not changed lately are packed, and take a third of the memory.

A `Job` is a model with a dictionary of its own. A packed job is a tuple of texts, bytes, numbers and times only. It is
small, and Python's garbage collector skips it; it would look at unpacked jobs again and again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, MutableMapping
from datetime import datetime
from typing import Any

from jqueue.domain.models import PLAIN_FIELDS, Job, JobStatus, trusted_job
from jqueue.domain.stored_object import StoredObject

KEPT_WHOLE = 2048
"""Number of jobs that are not packed: the last to be added or changed."""

NAMES_KEPT = 1024
"""Number of entrypoint names that packed jobs share, instead of a text for each job."""

Packed = tuple[Any, ...]
"""Entrypoint, payload, status, priority, creation, sequence, attempt, failures, other set fields, unknown fields."""

_FIRST = ("entrypoint", "payload", "status", "priority", "created_at", "sequence", "attempt", "failures")
_OTHERS = {name: field.get_default() for name, field in Job.model_fields.items() if name not in (*_FIRST, "id")}
_STATUSES = {str(status): status for status in JobStatus}


def packed(job: Job, names: dict[str, str]) -> Packed:
    """Return a job in its packed form.

    Args:
        job: the job. The packed form does not have its id.
        names: entrypoints seen before. Packed jobs share these texts.
    """
    values = job.__dict__
    entrypoint = names.setdefault(job.entrypoint, job.entrypoint)
    others = tuple((name, values[name]) for name, default in _OTHERS.items() if values[name] != default)
    extra = tuple((job.__pydantic_extra__ or {}).items())
    first = (job.payload, str(job.status.value), job.priority, job.created_at, job.sequence, job.attempt, job.failures)
    return (entrypoint, *first, others, extra)


def packed_waiting(entrypoint: str, payload: bytes, created_at: datetime, sequence: int) -> Packed:
    """Return the packed form of a queued job with no other fields set, without making a `Job`."""
    return (entrypoint, payload, "queued", 0, created_at, sequence, 0, 0, (), ())


def unpacked(job_id: str, entry: Job | Packed) -> Job:
    """Return the job of an entry of the table, packed or not."""
    if type(entry) is not tuple:
        return entry  # type: ignore[return-value]
    entrypoint, payload, status, priority, created_at, sequence, attempt, failures, others, extra = entry
    values = {
        "id": job_id,
        "entrypoint": entrypoint,
        "payload": payload,
        "status": _STATUSES[status],
        "priority": priority,
        "created_at": created_at,
        "sequence": sequence,
        "attempt": attempt,
        "failures": failures,
        **_OTHERS,
    }
    if others:
        values.update(others)
    elif not extra:
        return trusted_job(values, None, PLAIN_FIELDS)
    return trusted_job(values, dict(extra) if extra else None)


def place_of(packed: Packed) -> tuple[int, int, str] | None:
    """Return the priority, the sequence and the entrypoint of a packed job that waits only for its turn.

    None if it is not queued, or has other fields set: then it must be unpacked.
    """
    entrypoint, _, status, priority, _, sequence, _, _, others, _ = packed
    return None if others or status != JobStatus.QUEUED else (priority, sequence, entrypoint)


def split_waiting(
    entries: Iterable[tuple[str, Job | Packed]],
) -> tuple[dict[str, tuple[int, datetime]], list[tuple[str, Job | Packed]]]:
    """Return the jobs that wait only for their turn as numbers, and all other entries as they are.

    Args:
        entries: ids and entries of a table.

    Returns:
        Number of packed jobs that only wait and the earliest time of their creation, by entrypoint; the other entries.
    """
    waiting: dict[str, list[Any]] = {}
    others = []
    for pair in entries:
        entry = pair[1]
        if entry.__class__ is not tuple or entry[8] or entry[2] != "queued":
            others.append(pair)
            continue
        known = waiting.get(entry[0])
        if known is None:
            waiting[entry[0]] = [1, entry[4]]
            continue
        known[0] += 1
        if entry[4] < known[1]:
            known[1] = entry[4]
    return {entrypoint: (number, oldest) for entrypoint, (number, oldest) in waiting.items()}, others


def waits_only(packed: Packed) -> bool:
    """Return True if a packed job is queued and has no other fields set: it waits only for its turn."""
    return not packed[8] and packed[2] == "queued"


def created_at_of(entry: Job | Packed) -> datetime:
    """Return the time at which a job, packed or not, was enqueued."""
    created_at: datetime = entry[4] if entry.__class__ is tuple else entry.created_at  # type: ignore[union-attr]
    return created_at


def status_of(entry: Job | Packed) -> str:
    """Return the status of a job, packed or not. It equals its `JobStatus`."""
    status: str = entry[2] if entry.__class__ is tuple else entry.status  # type: ignore[union-attr]
    return status


def entrypoint_of(entry: Job | Packed) -> str:
    """Return the entrypoint of a job, packed or not."""
    entrypoint: str = entry[0] if entry.__class__ is tuple else entry.entrypoint  # type: ignore[union-attr]
    return entrypoint


def objects_of(entry: Job | Packed) -> list[StoredObject]:
    """Return the objects that a job, packed or not, names."""
    if isinstance(entry, tuple):
        if not entry[8]:
            return []
        values = dict(entry[8])
    else:
        values = entry.__dict__
    stored = values.get("payload_object"), values.get("result_object")
    return [each for each in stored if each is not None]


def attempt_of(entry: Job | Packed) -> int:
    """Return the attempt of a job, packed or not."""
    attempt: int = entry[6] if entry.__class__ is tuple else entry.attempt  # type: ignore[union-attr]
    return attempt


def was_claimed(packed: Packed) -> bool:
    """Return True if a packed job has ever been claimed."""
    return bool(packed[6] or packed[7])


class JobTable(MutableMapping[str, Job]):
    """Jobs by id, in the order in which they were added.

    Attributes:
        entries: the underlying table of jobs and packed jobs. Fast code reads it directly, with `unpacked`.
    """

    __slots__ = ("_names", "_whole", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Job | Packed] = {}
        self._whole: deque[str] = deque()
        self._names: dict[str, str] = {}

    def __getitem__(self, job_id: str) -> Job:
        return unpacked(job_id, self.entries[job_id])

    def __setitem__(self, job_id: str, job: Job) -> None:
        self.entries[job_id] = job
        self._whole.append(job_id)

    def __delitem__(self, job_id: str) -> None:
        del self.entries[job_id]

    def __contains__(self, job_id: object) -> bool:
        return job_id in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def queued(self, entrypoint: str | None, before: datetime | None) -> list[Job]:
        """Return the queued jobs of one entrypoint, or of all, created before a time. Others are not unpacked."""
        found = []
        for job_id, entry in self.entries.items():
            if entry.__class__ is tuple:
                fits = entry[2] == "queued" and entrypoint in (None, entry[0])
            else:
                fits = entry.status is JobStatus.QUEUED and entrypoint in (None, entry.entrypoint)  # type: ignore[union-attr]
            if fits and (before is None or created_at_of(entry) < before):
                found.append(unpacked(job_id, entry))
        return found

    def pack(self) -> None:
        """Pack the jobs that have not changed for longest, if there are many. Jobs in progress are never packed."""
        whole, entries = self._whole, self.entries
        while len(whole) > KEPT_WHOLE:
            job_id = whole.popleft()
            entry = entries.get(job_id)
            if entry is None or entry.__class__ is tuple:
                continue  # not asked with isinstance, which is slow for anything but a model
            assert isinstance(entry, Job)
            if entry.status is not JobStatus.IN_PROGRESS:
                if len(self._names) >= NAMES_KEPT:
                    self._names.clear()
                entries[job_id] = packed(entry, self._names)
