r"""Parser of a TextQueue file: messages with their notes and variables.

    #jq {"id":"…","ep":"mail","t":1795313466137003,"n":9}     a note of ours: a comment directly before its message
    -line one                                                 a message; - queued, = processed, ! failed for good
     line two                                                 second line of that message
    \state=new                                                a variable of that message

Offsets are in bytes. Lines end with LF, CRLF or CR, as in the original. Any other line is ignored, and stays in the
file. The id of a message that jqueue did not write is the hash of its text and the number of equal messages before it.
So it stays the same message when lines are moved or added around it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections import Counter
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec

from jqueue.domain.fields import Name, Positive
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.formats.port import microseconds

QUEUED, PROCESSED, FAILED, COMMENT = b"-=!#"

SETTLE = 200_000
"""Microseconds for which the last message of another program waits for more lines."""

UNENDED = 1_000_000
"""Microseconds after which a last line without a line break counts as complete: its writer may still be writing it."""

NOTE = b"jq {"
"""Beginning of a comment that is a note."""

_END = rb"(?:\r\n|\n|\r|\Z)"
_RECORD = re.compile(rb"([^\r\n])([^\r\n]*)" + _END + rb"((?: [^\r\n]*" + _END + rb")*)((?:\\[^\r\n]*" + _END + rb")*)")
_HASHED = 24


class Note(msgspec.Struct, frozen=True):
    """Note that jqueue writes before a message. A note that a person has made wrong is a plain comment.

    Attributes:
        id: id of the job.
        ep: its entrypoint.
        t: time when it was added, in microseconds since 1970.
        enc: encoding of the payload in the text; None if the text is the payload.
        n: length of the text in bytes.
        h: headers.
        max: `max_attempts`.
    """

    id: Name
    ep: Name | None = None
    t: Annotated[int, msgspec.Meta(ge=0, lt=2**57)] | None = None
    enc: Literal["b64"] | None = None
    n: int = 0
    h: dict[Name, str] | None = None
    max: Positive | None = None


_decode = msgspec.json.Decoder(Note).decode


class Record(msgspec.Struct, eq=False):
    """A message, or a comment, which may have been a message before.

    Attributes:
        control: its first byte.
        offset: offset of the first byte.
        end: offset behind the last line that is not a variable.
        seen_at: last change of the file before the message was first seen, in microseconds since 1970.
        note: note that jqueue wrote before the message; None if jqueue did not write the message.
        variables: lines of the variables, without their first byte.
        id: id of the job.
        base: the id without the suffix that makes it unique: the id of the note, or the hash of the text.
        job: cache of the reader of the records: the values on which the last job made of this record depends, and it.
    """

    control: int
    offset: int
    end: int
    seen_at: int
    note: Note | None
    variables: tuple[bytes, ...]
    id: str = ""
    base: str = ""
    job: Any = (None, None)


class Records:
    """The content of a file, and the records in it.

    Attributes:
        data: content of the file.
        by_id: messages and comments by id, without notes.
        last: last record; None if there is none, or if a note or an ignored line follows it.
        ends_with_note: True if the file ends with a note whose message is missing.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.data: bytearray = bytearray()
        self.by_id: dict[str, Record] = {}
        self.last: Record | None = None
        self.ends_with_note: bool = False
        self._counts = Counter[str]()
        self._tail = self._end = 0  # the begin of the last record with its note, and the end of that record

    @property
    def ends_a_line(self) -> bool:
        """True if the last line ends with a line break."""
        return not self.data or self.data[-1] in b"\r\n"

    def update(self, data: bytearray, now: int) -> None:
        """Take over the present content of the file. If lines were appended, only these are parsed.

        Args:
            data: the whole content.
            now: time of the change, in microseconds since 1970.
        """
        if not data.startswith(self.data):
            self._clear()
        if len(data) == len(self.data):
            return
        if self.last is not None and self.by_id.get(self.last.id) is self.last:  # appended lines may belong to it
            del self.by_id[self.last.id]
            self._counts[self.last.base] -= 1
        self.data, self.last = data, None
        begin = end = self._tail
        note: Note | None = None
        for match in _RECORD.finditer(data, begin):
            if note is None or match.start() != end:
                begin, note = match.start(), None
            end, control = match.end(), data[match.start()]
            self.last = None
            if control not in b"-=!#":
                note = None
            elif (here := _note(match)) is not None:
                begin, note = match.start(), here
            else:
                lines = tuple(line[1:] for line in match[4].splitlines())
                self.last = Record(control, match.start(), match.end(3), now, note, lines)
                self._identify(self.last)
                note = None
        self._tail, self._end = begin, end
        self.ends_with_note = note is not None and end == len(data)

    def _identify(self, record: Record) -> None:
        is_comment = record.control == COMMENT
        if record.note is not None and is_comment:  # its id may be used again
            record.id = record.note.id
            self.by_id.setdefault(record.id, record)
            return
        record.base = hashlib.sha256(self.text(record)).hexdigest()[:_HASHED] if record.note is None else record.note.id
        count = self._counts[record.base]
        self._counts[record.base] += 1
        record.id = record.base if record.note is not None and not count else f"{record.base}-{count}"
        while self.has_message(record.id):
            record.id += "+"
        self.by_id[record.id] = record

    def has_message(self, job_id: str) -> bool:
        """Return True if a record has this id. A message of jqueue that is a comment now no longer needs its id."""
        record = self.by_id.get(job_id)
        return record is not None and (record.note is None or record.control != COMMENT)

    def text(self, record: Record) -> bytes:
        """Return the text of a message, with LF between its lines."""
        head, *more = bytes(self.data[record.offset + 1 : record.end]).splitlines() or [b""]
        return b"\n".join([head, *(line[1:] for line in more)])

    def payload(self, record: Record) -> bytes:
        """Return the payload of a message."""
        text = self.text(record)
        if record.note is not None and record.note.enc is not None:
            with suppress(binascii.Error):  # a person or a program has edited it
                return base64.b64decode(text, validate=True)
        return text

    def is_torn(self, record: Record) -> bool:
        """Return True if jqueue has not written the message to its end: its writer is at it, or has died."""
        if record is not self.last or record.note is None or self._end < len(self.data):
            return False
        return len(self.text(record)) < record.note.n

    def settles_at(self, record: Record) -> int | None:
        """Return when a message counts as complete, in microseconds since 1970; None if it certainly is complete.

        Only the last message of the file can be incomplete: its writer may still be appending lines to it.
        """
        if record is not self.last or self._end < len(self.data) or (record.note is not None and self.ends_a_line):
            return None
        return record.seen_at + (SETTLE if self.ends_a_line else UNENDED)


def _note(match: re.Match[bytes]) -> Note | None:
    """Return the content of a comment if it is a note of jqueue, else None."""
    if match[1] != b"#" or not match[2].startswith(NOTE) or match[3] or match[4]:
        return None
    try:
        note = _decode(match[2][3:])
    except (ValueError, RecursionError):
        return None
    return note if all(name.isprintable() for name in (note.id, note.ep or "", *(note.h or ()))) else None


def written(job: JobRecord) -> bytes:
    """Encode a new job as text to append: a comment with the note, and the message, which ends with a blank line."""
    text = job.payload
    note: dict[str, Any] = {"id": job.id, "ep": job.entrypoint, "t": microseconds(job.created_at)}
    try:
        is_text = b"\r" not in text and text.decode("utf-8") is not None
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        text = base64.b64encode(text)
        note["enc"] = "b64"
    note["n"] = len(text)
    if job.headers:
        note["h"] = job.headers
    if job.max_attempts is not None:
        note["max"] = job.max_attempts
    control = FAILED if job.status is JobStatus.DEAD else QUEUED
    comment = json.dumps(note, separators=(",", ":")).encode("ascii")
    return b"#jq %b\n%c%b\n\n" % (comment, control, text.replace(b"\n", b"\n "))
