"""The lines of a blob that a snapshot ships: one for each job, and each can be read alone, anywhere.

Some facts concern the blob as a whole: an id that stands twice, a job that has no place yet, a layout that is not line
by line. So the process that has the whole blob settles them, once. For a blob as we write it, it is enough to look at
the beginnings of its lines, or, with headers and the like, to parse them in one piece. Its lines are shipped unchanged.
The codec reads any other blob, and its jobs are written again, as our next commit would do it.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from jqueue.core.blob.codec import ParsedBlob, parse_blob, reading_state
from jqueue.core.blob.lines import encode_job
from jqueue.core.blob.pages import SEPARATOR
from jqueue.domain.models import JobStatus
from jqueue.domain.sequence_numbers import LARGEST_SEQUENCE
from jqueue.domain.slices import exhaust

BATCH_BYTES = 1 << 21
"""Bytes of lines that become one batch of rows: about ten thousand jobs with small payloads."""

BETWEEN_LINES = b'},\n"'

_TEXT = rb'([^"\\\x00-\x1f]+)'
_OUR_LINE = re.compile(
    rb'^"%b": \{"entrypoint": "%b", "payload": "[A-Za-z0-9+/=]*", "status": "([a-z_]+)", "sequence": [1-9][0-9]{0,14}, '
    rb'"created_at": ' % (_TEXT, _TEXT),
    re.MULTILINE,
)
"""Beginning of the line of a job as we write it, if its names need no escapes. The job may keep this place."""


@dataclass(frozen=True)
class JobFilter:
    """The jobs that a reader asks for.

    Attributes:
        entrypoints: the wanted entrypoints; None for any.
        statuses: the wanted statuses; None for any.
    """

    entrypoints: Collection[str] | None = None
    statuses: Collection[str] | None = None

    @property
    def takes_all(self) -> bool:
        """True if all jobs are wanted."""
        return self.entrypoints is None and self.statuses is None

    def matches(self, fields: Mapping[str, Any]) -> bool:
        """Return True if a job with these fields, as in its line, is wanted. They need not form a valid job."""
        if self.entrypoints is not None and fields.get("entrypoint") not in self.entrypoints:
            return False
        return self.statuses is None or fields.get("status", JobStatus.QUEUED) in self.statuses


@dataclass(frozen=True)
class JobLines:
    """The jobs of one version of a queue.

    Attributes:
        text: their lines, joined as in the blob.
        set_aside: number of lines known to be unreadable. There may be more in the text.
    """

    text: bytes
    set_aside: int = 0


def job_lines(data: bytes, job_filter: JobFilter) -> JobLines:
    """Return the lines of the jobs in a blob.

    Raises:
        InvalidBlobError: the bytes are not a queue that this version can read.
    """
    parsed = parse_blob(data)
    text = _unchanged_lines(parsed, job_filter)
    if text is not None:
        return JobLines(text)
    state = exhaust(reading_state(parsed))
    lines = [encode_job(job) for job in state.jobs if job_filter.matches(vars(job))]
    return JobLines(SEPARATOR.join(lines), len(state.set_aside))


def members(text: bytes) -> dict[str, Any]:
    """Return the members in the lines, by key. They are parsed as one object, as `read_line` parses each.

    Raises:
        ValueError: the lines together are not valid JSON.
    """
    collecting = gc.isenabled()
    gc.disable()  # or it would scan all the new objects again and again
    try:
        found: dict[str, Any] = from_json(b"{" + text + b"}", allow_inf_nan=False)
        return found
    finally:
        if collecting:
            gc.enable()


def _unchanged_lines(parsed: ParsedBlob, job_filter: JobFilter) -> bytes | None:
    """Return the lines of a blob in our own layout; None if the layout differs, or the lines depend on each other."""
    text = parsed.data[parsed.first : parsed.end]
    if not parsed.data or not text:
        return text if parsed.data else None
    count = text.count(b"\n") + 1
    if not (text.startswith(b'"') and text.endswith(b"}") and text.count(BETWEEN_LINES) == count - 1):
        return None
    if text.count(b"{") == text.count(b"}") == count:  # one object a line: the job, by its beginning
        found = _OUR_LINE.findall(text)
        if len(found) == count == len({job_id for job_id, _, _ in found}):
            return text if job_filter.takes_all else _some_of(text, found, job_filter)
    try:
        entries = list(members(text).values())
    except ValueError:
        return None
    if len(entries) != count or set(map(type, entries)) != {dict} or not _placed(entries):
        return None
    if not _one_in_a_line(text, entries):
        return None
    if job_filter.takes_all:
        return text
    lines = zip(text.split(SEPARATOR), entries, strict=True)
    return SEPARATOR.join(line for line, fields in lines if job_filter.matches(fields))


def _some_of(text: bytes, beginnings: Iterable[tuple[bytes, bytes, bytes]], job_filter: JobFilter) -> bytes:
    fields = (
        {"entrypoint": entrypoint.decode(errors="replace"), "status": status.decode()}
        for _, entrypoint, status in beginnings
    )
    return SEPARATOR.join(
        line for line, said in zip(text.split(SEPARATOR), fields, strict=True) if job_filter.matches(said)
    )


def _placed(entries: list[dict[str, Any]]) -> bool:
    """Return True if all jobs have times, and places that they may keep."""
    places: list[Any] = [fields.get("sequence") for fields in entries]
    are_dated = all("created_at" in fields for fields in entries)
    return are_dated and set(map(type, places)) == {int} and min(places) > 0 and max(places) <= LARGEST_SEQUENCE


def _one_in_a_line(text: bytes, entries: list[dict[str, Any]]) -> bool:
    """Return True if each line is one member of the common object: valid JSON by itself, and one job.

    There are as many lines as members, the lines begin with a quote and end with a brace, and JSON has no line breaks
    within a text. So the brace at the end of a line closes an object. That object is a member if there are no
    other objects, or if each line closes every object that it opens.
    """
    opened = text.count(b"{")
    if opened == len(entries):
        return True
    inner = sum(_objects(fields.get("headers")) + _objects(fields.get("result")) for fields in entries)
    lines = text.split(SEPARATOR)
    if opened == text.count(b"}") == len(entries) + inner:
        return all(line.count(b"{") == line.count(b"}") for line in lines)
    return all(map(_is_one, lines))


def _objects(value: Any) -> int:
    """Return the number of objects in a value."""
    if isinstance(value, dict):
        return 1 + sum(map(_objects, value.values()))
    return sum(map(_objects, value)) if isinstance(value, list) else 0


def _is_one(line: bytes) -> bool:
    try:
        return len(members(line)) == 1
    except ValueError:
        return False
