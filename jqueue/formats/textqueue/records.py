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
from typing import Any

from jqueue.domain.fields import COUNT_MAX
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.formats.port import microseconds

QUEUED, PROCESSED, FAILED, COMMENT = b"-=!#"

_CONTROLS = frozenset(b"-=!#")
_ALIVE = frozenset(b"-!")
_END = rb"(?:\r\n|\n|\r|\Z)"
_RECORD = re.compile(rb"([^\r\n])([^\r\n]*)" + _END + rb"((?: [^\r\n]*" + _END + rb")*)((?:\\[^\r\n]*" + _END + rb")*)")
_NOTE = b"jq {"
_HASHED = 24


class Record:
    """A message, or a comment, which may have been a message before.

    Attributes:
        control: its first byte.
        offset: offset of the first byte.
        end: offset behind the last line that is not a variable.
        id: id of the job.
        base: the id without the suffix that makes it unique: the id of the note, or the hash of the text.
        note: note that jqueue wrote before the message; None if jqueue did not write the message.
        variables: lines of the variables, without their first byte.
        seen_at: last change of the file before the message was first seen, in microseconds since 1970.
        kept: cache of the reader of the records: the last job made of this record, and the values it depends on.
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
    """The content of a file, and the records in it.

    Attributes:
        data: content of the file.
        by_id: messages, and comments that are neither notes nor directly behind a note, by id.
        alive: messages that are queued or have failed, by id.
        finished: processed messages that jqueue wrote, by id.
        commented: ids of messages that jqueue wrote and that are comments now.
        last: last record; None if there is none, or if a note or an ignored line follows it.
        open_note: True if the file ends with a note whose message is missing.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.data = bytearray()
        self.by_id: dict[str, Record] = {}
        self.alive: dict[str, Record] = {}
        self.finished: dict[str, Record] = {}
        self.commented: set[str] = set()
        self.last: Record | None = None
        self.open_note = False
        self._counts: dict[str, int] = {}
        self._tail = 0
        self._end = 0

    @property
    def ended(self) -> bool:
        """True if a blank line follows the last record, so that an appended line cannot belong to it."""
        return self._end < len(self.data) or not self.data

    @property
    def ends_a_line(self) -> bool:
        """True if the last line ends with a line break."""
        return not self.data or self.data[-1] in b"\r\n"

    def update(self, data: bytearray, now: int) -> None:
        """Take over the present content of the file. Only appended lines are parsed by themselves.

        Args:
            data: the whole content.
            now: time of the change, in microseconds since 1970.
        """
        if not data.startswith(self.data):
            self.clear()
        elif len(data) == len(self.data):
            return
        self.data = data
        self._parse(now)

    def flip(self, record: Record, control: int) -> bool:
        """Take over a new first byte of a record. Returns False if the whole file has to be parsed again instead."""
        if record.note is not None and COMMENT in (record.control, control):
            return False  # the note of a comment does not count, so ids of other records may change
        self.data[record.offset] = record.control = control
        self._file_under(record)
        return True

    def text(self, record: Record) -> bytes:
        """Return the text of a message, with LF between its lines."""
        head, *more = bytes(self.data[record.offset + 1 : record.end]).splitlines() or [b""]
        return b"\n".join([head, *(line[1:] for line in more)])

    def payload(self, record: Record) -> bytes:
        """Return the payload of a message."""
        text = self.text(record)
        if record.note is not None and record.note.get("enc") == "b64":
            try:
                return base64.b64decode(text, validate=True)
            except binascii.Error:
                return text  # a person or a program has edited it
        return text

    def is_torn(self, record: Record) -> bool:
        """Return True if jqueue has not written the message to its end: its writer is at it, or has died."""
        if record is not self.last or record.note is None or self.ended:
            return False
        length = record.note.get("n")
        return isinstance(length, int) and len(self.text(record)) < length

    # Parsing

    def _parse(self, now: int) -> None:
        """Parse from the last record on, as appended lines may belong to it."""
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
            self.last, note = record, None
        self._tail, self._end = begin, end
        self.open_note = note is not None and note[0] == end

    @staticmethod
    def _note(match: re.Match[bytes]) -> dict[str, Any] | None:
        """Return the content of a comment if it is a note of jqueue, else None."""
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
        if record.id:
            self._counts[record.base] -= 1
            for table in (self.by_id, self.alive, self.finished):
                table.pop(record.id, None)


def plain_values(record: Record, entrypoint: str) -> dict[str, Any]:
    """Return the fields of a record's job, except for its state, its place and its time.

    Values of the note are checked, as people may edit them.

    Args:
        record: the message.
        entrypoint: entrypoint of messages that name none.
    """
    said = record.note or {}
    named, most, headers = said.get("ep"), said.get("max"), said.get("h")
    if not isinstance(headers, dict) or not all(map(_is_name, headers)) or not all(map(_is_text, headers.values())):
        headers = None
    return {
        "id": record.id,
        "payload": b"",
        "entrypoint": named if isinstance(named, str) and _is_name(named) else entrypoint,
        "max_attempts": most if type(most) is int and 1 <= most <= COUNT_MAX else None,
        "headers": headers,
    }


def created_at(record: Record) -> int:
    """Return when a message was written, in microseconds since 1970; without such a note, when it was first seen."""
    said = (record.note or {}).get("t")
    return said if type(said) is int and 0 <= said < 2**57 else record.seen_at


def written(job: JobRecord) -> bytes:
    """Encode a new job as text to append: a comment with the note, and the message, which ends with a blank line."""
    text, note = job.payload, {"id": job.id, "ep": job.entrypoint, "t": microseconds(job.created_at)}
    if b"\r" in text or not _is_utf8(text):
        text = base64.b64encode(text)
        note["enc"] = "b64"
    note["n"] = len(text)
    if job.headers:
        note["h"] = dict(job.headers)
    if job.max_attempts is not None:
        note["max"] = job.max_attempts
    control = FAILED if job.status is JobStatus.DEAD else QUEUED
    comment = json.dumps(note, separators=(",", ":")).encode("ascii")
    return b"#jq %b\n%c%b\n\n" % (comment, control, text.replace(b"\n", b"\n "))


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
