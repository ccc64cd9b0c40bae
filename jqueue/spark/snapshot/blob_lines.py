"""What a snapshot ships of a blob: one line for each job, of which every line can be read alone, anywhere.

Some of what a blob says is a matter of the blob as a whole: an id that stands twice, a job that has no place yet, a
layout that is not line by line. So whoever has the whole blob settles that, once. A blob as we write it needs no more
than a look at how its lines begin, or, with headers and the like, a parse in one piece: its lines go out as they stand.
Any other is read by the codec, and its jobs are written again, as our next commit would do it.
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
from jqueue.core.engine.slices import exhaust
from jqueue.domain.models import JobStatus
from jqueue.domain.places import PLACES

BETWEEN_LINES = b'},\n"'

_TEXT = rb'([^"\\\x00-\x1f]+)'
_OUR_LINE = re.compile(
    rb'^"%b": \{"entrypoint": "%b", "payload": "[A-Za-z0-9+/=]*", "status": "([a-z_]+)", "sequence": [1-9][0-9]{0,14}, '
    % (_TEXT, _TEXT),
    re.MULTILINE,
)
"""How the line of a job begins as we write it, if its names need no escapes. The place is one that it may keep."""


@dataclass(frozen=True)
class Wanted:
    """Which jobs are asked for; None stands for any.

    Attributes:
        entrypoints: of these.
        statuses: in these.
    """

    entrypoints: Collection[str] | None = None
    statuses: Collection[str] | None = None

    @property
    def everything(self) -> bool:
        """Whether all are."""
        return self.entrypoints is None and self.statuses is None

    def fits(self, fields: Mapping[str, Any]) -> bool:
        """Whether the job with these fields, as they stand in its line, is one of them if it is a job at all."""
        if self.entrypoints is not None and fields.get("entrypoint") not in self.entrypoints:
            return False
        return self.statuses is None or fields.get("status", JobStatus.QUEUED) in self.statuses


@dataclass(frozen=True)
class JobLines:
    """The jobs of one version of a queue.

    Attributes:
        text: their lines, joined as in the blob.
        set_aside: how many lines are known to be unreadable. There may be more in the text.
    """

    text: bytes
    set_aside: int = 0


def job_lines(data: bytes, wanted: Wanted) -> JobLines:
    """The lines of the jobs in a blob.

    Raises:
        InvalidBlobError: the bytes are not a queue that this version can read.
    """
    parsed = parse_blob(data)
    text = _as_they_stand(parsed, wanted)
    if text is not None:
        return JobLines(text)
    state = exhaust(reading_state(parsed))
    lines = [encode_job(job) for job in state.jobs if wanted.fits(vars(job))]
    return JobLines(SEPARATOR.join(lines), len(state.set_aside))


def members(text: bytes) -> dict[str, Any]:
    """The members that lines are, by key, parsed as one object, as `read_line` parses each.

    Raises:
        ValueError: together, they are no JSON.
    """
    collecting = gc.isenabled()
    gc.disable()  # it would go through all the objects that are made here, again and again
    try:
        found: dict[str, Any] = from_json(b"{" + text + b"}", allow_inf_nan=False)
        return found
    finally:
        if collecting:
            gc.enable()


def _as_they_stand(parsed: ParsedBlob, wanted: Wanted) -> bytes | None:
    """The lines of a blob in our own layout; None if it is another, or the lines depend on each other."""
    text = parsed.data[parsed.first : parsed.end]
    if not parsed.data or not text:
        return text if parsed.data else None
    count = text.count(b"\n") + 1
    if not (text.startswith(b'"') and text.endswith(b"}") and text.count(BETWEEN_LINES) == count - 1):
        return None
    if text.count(b"{") == text.count(b"}") == count:  # one object in each line: with our beginning, it is the job
        found = _OUR_LINE.findall(text)
        if len(found) == count == len({job_id for job_id, _, _ in found}):
            return text if wanted.everything else _some_of(text, found, wanted)
    try:
        entries = list(members(text).values())
    except ValueError:
        return None
    if len(entries) != count or set(map(type, entries)) != {dict} or not _placed(entries):
        return None
    if not _one_in_a_line(text, entries):
        return None
    if wanted.everything:
        return text
    lines = zip(text.split(SEPARATOR), entries, strict=True)
    return SEPARATOR.join(line for line, fields in lines if wanted.fits(fields))


def _some_of(text: bytes, beginnings: Iterable[tuple[bytes, bytes, bytes]], wanted: Wanted) -> bytes:
    fields = (
        {"entrypoint": entrypoint.decode(errors="replace"), "status": status.decode()}
        for _, entrypoint, status in beginnings
    )
    return SEPARATOR.join(line for line, said in zip(text.split(SEPARATOR), fields, strict=True) if wanted.fits(said))


def _placed(entries: list[dict[str, Any]]) -> bool:
    """Whether all jobs have places that they may keep."""
    places: list[Any] = [fields.get("sequence") for fields in entries]
    return set(map(type, places)) == {int} and min(places) > 0 and max(places) <= PLACES


def _one_in_a_line(text: bytes, entries: list[dict[str, Any]]) -> bool:
    """Whether each line is a member of the object that they are together: JSON by itself, and one job.

    There are as many lines as members, the lines begin with a quote and end with a brace, and JSON has no line breaks
    within a text. So that brace closes something, and what it closes is a member if there are no other objects, or if
    each line closes what it has opened.
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
    """How many objects there are in a value."""
    if isinstance(value, dict):
        return 1 + sum(map(_objects, value.values()))
    return sum(map(_objects, value)) if isinstance(value, list) else 0


def _is_one(line: bytes) -> bool:
    try:
        return len(members(line)) == 1
    except ValueError:
        return False
