r"""The lines of a TextQueue, taken apart: messages, each with what belongs to it, and whose they are.

    #jq {"id":"…","ep":"mail","t":1795313466137003,"n":9}     a note of ours: a comment directly before its message
    -line one                                                 a message; - queued, = processed, ! failed for good
     line two                                                 goes on with it
    \state=new                                                a variable of it

Offsets are in bytes, lines end with LF, CRLF or CR, as they do for the original. What is none of all this is passed
over, and stays. A message that we did not write is known by the hash of its text, and by how many equal ones stand
before it: so it stays the same message when lines are moved or added around it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any

from jqueue.domain.fields import COUNT_MAX, NO_HEADERS, FrozenHeaders
from jqueue.domain.models import Job, JobStatus
from jqueue.formats.times import microseconds

QUEUED, PROCESSED, FAILED, COMMENT = b"-=!#"

_CONTROLS = frozenset(b"-=!#")
_ALIVE = frozenset(b"-!")
_END = rb"(?:\r\n|\n|\r|\Z)"
_RECORD = re.compile(rb"([^\r\n])([^\r\n]*)" + _END + rb"((?: [^\r\n]*" + _END + rb")*)((?:\\[^\r\n]*" + _END + rb")*)")
_NOTE = b"jq {"
_BLOCK = 4096
_MOST_FLIPS = 10_000
_HASHED = 24

_quoted = json.encoder.encode_basestring_ascii


class Record:
    """A message, or a comment, which may have been one.

    Attributes:
        control: its first byte.
        offset: where that is.
        end: the offset behind its last line that is no variable.
        id: of the job that it is.
        base: what its id was made of.
        note: what we said of it when it was written; None if it is not ours.
        variables: those lines, without the first byte.
        seen_at: microseconds since 1970; when the file was changed before it was first seen.
        kept: what it was last taken for, and why; for whoever reads the records.
    """

    __slots__ = ("base", "control", "end", "id", "kept", "note", "offset", "seen_at", "variables")

    def __init__(self, control: int, offset: int, end: int, note: dict[str, Any] | None, seen_at: int) -> None:
        self.control = control
        self.offset = offset
        self.end = end
        self.note = note
        self.seen_at = seen_at
        self.id = self.base = ""
        self.variables: tuple[bytes, ...] = ()
        self.kept: Any = None


class Records:
    """The content of a file, and what it consists of.

    Attributes:
        data: the content.
        by_id: every message, and the comments that are neither notes nor behind one, by id.
        alive: those that are queued or have failed, by id.
        finished: the ids of those of ours that are processed.
        commented: the ids of those of ours that are comments.
        last: the last message; None if something else comes last, or nothing.
        open_note: whether the file ends with a note whose message is missing.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin with nothing."""
        self.data = bytearray()
        self.by_id: dict[str, Record] = {}
        self.alive: dict[str, Record] = {}
        self.finished: dict[str, Record] = {}
        self.commented: set[str] = set()
        self.last: Record | None = None
        self.open_note = False
        self._in_order: list[Record] = []
        self._counts: dict[str, int] = {}
        self._tail = 0
        self._end = 0

    @property
    def ended(self) -> bool:
        """Whether there is a blank line behind the last record: whatever is appended does not belong to it."""
        return self._end < len(self.data) or not self.data

    @property
    def ends_a_line(self) -> bool:
        """Whether the last line has an end."""
        return not self.data or self.data[-1] in b"\r\n"

    def update(self, data: bytearray, now: int) -> None:
        """Take over what the file holds now: only what differs is taken apart, as far as that can be told.

        Args:
            data: all of it.
            now: microseconds since 1970: when it was changed.
        """
        known = len(self.data)
        if not data.startswith(self.data) and not (len(data) >= known and self._take_flips(data)):
            self.clear()
        elif len(data) == known:
            return
        self.data = data
        self._parse(now)

    def grow(self, before: bytes, messages: Iterable[tuple[dict[str, Any], bytes, bytes]], now: int) -> None:
        """Take over what we have appended: as if it were taken apart again.

        Args:
            before: what ends the last line, if it has no end.
            messages: as `written` made them, none of an id that is there.
            now: microseconds since 1970.
        """
        self.data += before
        self._parse(now)
        for note, comment, lines in messages:
            self._tail = len(self.data)
            offset = self._tail + len(comment)
            self._end = offset + len(lines) - 1
            record = Record(lines[0], offset, self._end, note, now)
            self.data += comment
            self.data += lines
            self._identify(record)
            self._in_order.append(record)
            self.last, self.open_note = record, False

    def flip(self, record: Record, control: int) -> bool:
        """Take over another first byte of a record. Returns whether that is all: if not, all has to be read anew."""
        if record.note is not None and COMMENT in (record.control, control):
            return False  # a note of a comment counts for nothing, so the ids of others may be others now
        self.data[record.offset] = record.control = control
        self._file_under(record)
        return True

    def text(self, record: Record) -> bytes:
        """The text of a message, with LF between its lines."""
        head, *more = bytes(self.data[record.offset + 1 : record.end]).splitlines() or [b""]
        return b"\n".join([head, *(line[1:] for line in more)])

    def payload(self, record: Record) -> bytes:
        """What it says to whoever handles it."""
        text = self.text(record)
        if record.note is not None and record.note.get("enc") == "b64":
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error:
                return text  # somebody has written something else there
        return text

    def is_torn(self, record: Record) -> bool:
        """Whether it is one of ours that is being written, or was when its writer died: the end is missing."""
        if record is not self.last or record.note is None or self.ended:
            return False
        length = record.note.get("n")
        return isinstance(length, int) and len(self.text(record)) < length

    # Taking apart

    def _parse(self, now: int) -> None:
        """Take apart what comes from the last record on, which what was appended may belong to."""
        if self.last is not None:
            self._forget(self.last)
        self.last, self.open_note = None, False
        note: tuple[int, dict[str, Any]] | None = None
        begin = end = self._tail
        for match in _RECORD.finditer(self.data, begin):
            start, end = match.span()
            if note is None or note[0] != start:
                begin, note = start, None
            control = self.data[start]
            if control not in _CONTROLS:
                self.last, begin, note = None, start, None
                continue
            said = self._note(match) if control == COMMENT else None
            if said is not None:
                begin, note, self.last = start, (end, said), None
                continue
            record = Record(control, start, match.end(3), None if note is None else note[1], now)
            if match.end(4) > match.end(3):
                record.variables = tuple(line[1:] for line in match[4].splitlines())
            self._identify(record, None if match[3] else match[2])
            self._in_order.append(record)
            self.last, note = record, None
        self._tail, self._end = begin, end
        self.open_note = note is not None and note[0] == end

    @staticmethod
    def _note(match: re.Match[bytes]) -> dict[str, Any] | None:
        """What a comment says, if it is a note of ours."""
        text = match[2]
        if not text.startswith(_NOTE) or match[3] or match[4]:
            return None
        try:
            said = json.loads(text[3:])
        except (ValueError, RecursionError):
            return None
        return said if _is_name(said.get("id")) else None

    def _identify(self, record: Record, text: bytes | None = None) -> None:
        if record.note is not None and record.control == COMMENT:
            self.commented.add(record.note["id"])
            return
        if record.note is not None:
            record.base = record.note["id"]
        else:
            record.base = hashlib.sha256(self.text(record) if text is None else text).hexdigest()[:_HASHED]
        count = self._counts.get(record.base, 0)
        self._counts[record.base] = count + 1
        record.id = record.base if record.note is not None and not count else f"{record.base}-{count}"
        while record.id in self.by_id:
            record.id += "+"
        self.by_id[record.id] = record
        self._file_under(record)

    def _file_under(self, record: Record) -> None:
        if record.control in _ALIVE:
            self.alive[record.id] = record
        else:
            self.alive.pop(record.id, None)
        if record.control == PROCESSED and record.note is not None:
            self.finished[record.id] = record
        else:
            self.finished.pop(record.id, None)

    def _forget(self, record: Record) -> None:
        self._in_order.pop()
        if record.id:
            self._counts[record.base] -= 1
            for table in (self.by_id, self.alive, self.finished):
                table.pop(record.id, None)

    # What others have changed in place

    def _take_flips(self, data: bytearray) -> bool:
        """Take over first bytes that others have changed. Returns whether that is all that differs."""
        flips: list[Record] = []
        for offset in self._differing(data):
            record = self._at(offset)
            if record is None or data[offset] not in _CONTROLS or len(flips) > _MOST_FLIPS:
                return False
            if COMMENT in (data[offset], record.control):
                return False
            flips.append(record)
        return all(self.flip(record, data[record.offset]) for record in flips)

    def _differing(self, data: bytearray) -> Iterator[int]:
        ours = self.data
        for start in range(0, len(ours), _BLOCK):
            mine = ours[start : start + _BLOCK]
            theirs = data[start : start + len(mine)]
            if mine != theirs:
                yield from (start + index for index, byte in enumerate(mine) if theirs[index] != byte)

    def _at(self, offset: int) -> Record | None:
        index = bisect_left(self._in_order, offset, key=lambda record: record.offset)
        found = self._in_order[index] if index < len(self._in_order) else None
        return found if found is not None and found.offset == offset else None


_PLAIN = {name: field.get_default(call_default_factory=False) for name, field in Job.model_fields.items()}


def plain_values(record: Record, entrypoint: str) -> dict[str, Any]:
    """The fields of the job that a record is, but for its state, its place and its time: checked, as people write them.

    Args:
        record: the message.
        entrypoint: of messages that do not say theirs.
    """
    said = record.note or {}
    named, most, headers = said.get("ep"), said.get("max"), said.get("h")
    if not isinstance(headers, dict) or not all(map(_is_name, headers)) or not all(map(_is_text, headers.values())):
        headers = NO_HEADERS
    return {
        **_PLAIN,
        "id": record.id,
        "payload": b"",
        "entrypoint": named if isinstance(named, str) and _is_name(named) else entrypoint,
        "max_attempts": most if type(most) is int and 1 <= most <= COUNT_MAX else None,
        "headers": FrozenHeaders(headers) if headers else NO_HEADERS,
    }


def created_at(record: Record) -> int:
    """When a message was written, in microseconds since 1970; when it was seen, if it does not say."""
    said = (record.note or {}).get("t")
    return said if type(said) is int and 0 <= said < 2**57 else record.seen_at


def written(job: Job, *, single: bool) -> tuple[dict[str, Any], bytes, bytes]:
    """A job as it is appended.

    Args:
        job: what is to be done.
        single: whether a message may have no more than one line, for readers of TextQueue 1.0.

    Returns:
        The note, the line that it stands in, and those of the message, with the blank one that ends it.
    """
    text = job.payload
    created = microseconds(job.created_at)
    note: dict[str, Any] = {"id": job.id, "ep": job.entrypoint, "t": created}
    comment = f'#jq {{"id":{_quoted(job.id)},"ep":{_quoted(job.entrypoint)},"t":{created}'
    if b"\r" in text or (single and b"\n" in text) or not _is_utf8(text):
        text = base64.b64encode(text)
        note["enc"] = "b64"
        comment += ',"enc":"b64"'
    note["n"] = len(text)
    comment += f',"n":{len(text)}'
    if job.headers:
        note["h"] = dict(job.headers)
        comment += f',"h":{json.dumps(note["h"])}'
    if job.max_attempts is not None:
        note["max"] = job.max_attempts
        comment += f',"max":{job.max_attempts}'
    control = FAILED if job.status is JobStatus.DEAD else QUEUED
    return note, f"{comment}}}\n".encode("ascii"), b"%c%b\n\n" % (control, text.replace(b"\n", b"\n "))


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != "" and value.isprintable()


def _is_text(value: object) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
