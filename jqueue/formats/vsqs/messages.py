"""Messages of vsqs: the names of their files, their notes, and the jobs that they are.

    1795313466137003                     ready
    1795313466137003.new                 being written
    1795313466137003.1795313467140262    claimed, or put off, until that time

vsqs 0.3 writes microseconds since 1970; its documentation says milliseconds. Both are read: the size of a number tells
its unit.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from jqueue.domain.draft import LARGEST_SEQUENCE
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.models import Job, record_of
from jqueue.formats.port import microseconds
from jqueue.formats.port import moment as from_microseconds

DEAD = ".jqueue-dead"
NOTES = ".jqueue-notes"
WRITING = ".new"

MILLISECONDS_BELOW = 10**14
"""Smaller numbers are milliseconds (until the year 5138), others microseconds (from 1973 on)."""

LARGEST_TIME = LARGEST_SEQUENCE
"""Largest number that is a time (the year 2112). Larger numbers are served last, and new ones do not go behind them."""

VISIBILITY_TIMEOUT = 10.0
"""Seconds for which vsqs hides a claimed message by default; assumed for claims whose length is not known."""

_NOTED = ("id", "entrypoint", "attempt", "failures", "max_attempts", "headers", "error")
_NOTED_TIMES = {"created_at": "created", "run_at": "run_at", "dead_at": "dead_at"}
"""Fields of a job that its note has, and the names of its times there."""

_NAME = re.compile(rf"(?:{DEAD}/)?(0|[1-9][0-9]*)(?:\.([0-9]+)(?:\.[0-9]+)?)?", re.ASCII)


class Name(NamedTuple):
    """Name of a message.

    Attributes:
        number: time when the message was published. It identifies the message and gives its order.
        until: time until which the message is hidden; None if it is ready.
    """

    number: int
    until: int | None = None

    def __str__(self) -> str:
        return str(self.number) if self.until is None else f"{self.number}.{self.until}"

    def is_noted(self, note: dict[str, Any]) -> bool:
        """Return True if the note describes the claim or delay that the name shows, or if the name shows none.

        If it does not, the claim is one of vsqs, or one of jqueue whose note is about to be written.
        """
        return self.until is None or self.until in (note.get("until"), note.get("next"), note.get("due"))


def parse(place: str) -> Name | None:
    """Parse the name of a file in the folder, or in that of the dead jobs; None if it is not the name of a message.

    vsqs 0.3 may write the end of a claim with a fraction (`5.123.0`), which is ignored. Other names that its `int`
    accepts, such as `+7` and `007`, are not messages: vsqs counts them, but cannot deliver them.
    """
    match = _NAME.fullmatch(place)
    return None if match is None else Name(int(match[1]), None if match[2] is None else int(match[2]))


def name_of(place: str) -> Name:
    """Return the name of a message."""
    name = parse(place)
    assert name is not None
    return name


def key_of(place: str) -> str:
    """Return the key of a message's note."""
    return str(name_of(place).number)


def _moment(number: int) -> datetime:
    return from_microseconds(number * 1000 if number < MILLISECONDS_BELOW else number)


def job_of(place: str, note: dict[str, Any], entrypoint: str) -> JobRecord:
    """Return the job of a message, without its payload. A note that a person has made wrong is ignored.

    Args:
        place: path of the message's file in the folder.
        note: note of the message; may be empty.
        entrypoint: entrypoint of the job if the note has none.
    """
    (number, until), dead = name_of(place), place.startswith(DEAD)
    values: dict[str, Any] = {
        "id": str(number),
        "entrypoint": entrypoint,
        "payload": b"",
        "created_at": _moment(number),
        "sequence": min(number, LARGEST_TIME),
    }
    values |= {field: note[field] for field in _NOTED if field in note}
    values |= {field: from_microseconds(note[entry]) for field, entry in _NOTED_TIMES.items() if entry in note}
    if dead:
        values |= {"status": JobStatus.DEAD, "dead_at": values.get("dead_at", values["created_at"])}
    elif until is not None and note.get("due") == until:
        values.setdefault("run_at", _moment(until))
    elif until is not None:
        ours = Name(number, until).is_noted(note)
        timeout = float(note.get("timeout", VISIBILITY_TIMEOUT)) if ours else VISIBILITY_TIMEOUT
        attempt = values.get("attempt", 0)
        values |= {
            "status": JobStatus.IN_PROGRESS,
            "attempt": max(1, attempt) if ours else attempt + 1,
            "heartbeat_at": _moment(until) - timedelta(seconds=timeout),
            "claim_timeout": timeout,
        }
    if not dead:
        values["dead_at"] = None
    if not note:
        return JobRecord(status=values.pop("status", JobStatus.QUEUED), **values)
    try:
        return record_of(Job(**values))
    except ValueError:
        return job_of(place, {}, entrypoint)


def note_of(job: JobRecord, before: dict[str, Any], **values: Any) -> dict[str, Any]:
    """Return the note of a job: the note before, with the fields of the job that the format cannot hold."""
    times = {entry: getattr(job, field) for field, entry in _NOTED_TIMES.items()}
    return {
        **before,
        **{field: getattr(job, field) for field in _NOTED},
        **{entry: None if time is None else microseconds(time) for entry, time in times.items()},
        **values,
    }
