"""The wire format: a queue's state is encoded as one JSON object that people and tools can read, and decoded again.

    {"format":2,"version":17,"queue":"…",…,"jobs":{
    "<job id>":{…one job, one line…},
    "<job id>":{…}
    }}

With one line for each job, `jqueue.core.blob.codec` can keep the lines that did not change. The shape of jqueue 1.0.0
(`jobs` an array) and any other layout of the same JSON can be read, too. Only the shape above is written. A line that
cannot be read as a job is set aside and written back as it was.

The content of a blob depends on its bytes alone, and on nothing that its reader has seen before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import msgspec

from jqueue.core.blob.lines import (
    EDGES,
    NO_MEMBER,
    SEVERAL,
    WHITESPACE,
    dump_json,
    encode_asides,
    encode_job,
    encode_json,
    load_json,
    raw_line,
    read_line,
    set_duplicates_aside,
    splitting_lines,
)
from jqueue.domain.draft import Draft, number_unnumbered
from jqueue.domain.errors import InvalidBlobError, shown
from jqueue.domain.fields import Entry
from jqueue.domain.groups import GROUPS
from jqueue.domain.header import (
    FORMAT,
    BrokerSeat,
    ClientRecord,
    CommitRecord,
    GroupRecord,
    Header,
    SetAside,
    Table,
    WorkerRecord,
)
from jqueue.domain.history import HistoryHeader, numbers_of
from jqueue.domain.job import ENCODINGS, OBJECTS, STEPS, JobRecord, JobStatus
from jqueue.domain.models import QueueState, header_of, job_of, record_of, state_of
from jqueue.domain.parents import PARENTS
from jqueue.domain.printable import counted
from jqueue.domain.rules import CRON_PAUSE, HISTORY, KEY_RATES, LIMITS, EntrypointRules, QueueSettings, Schedule
from jqueue.domain.segments import SEGMENTS, Segment
from jqueue.domain.slices import LINES_PER_SLICE, Slices, exhaust
from jqueue.ports.log import Logger, logger_of

KNOWN_CRITICAL: frozenset[str] = frozenset(
    {LIMITS, KEY_RATES, OBJECTS, STEPS, HISTORY, SEGMENTS, GROUPS, PARENTS, CRON_PAUSE, ENCODINGS}
)
"""The critical features that this version knows. It refuses a blob that names another."""

SEPARATOR = b",\n"
JOBS_OPEN, JOBS_CLOSE = b'"jobs":{', b"}}"
NEWLINE = ord("\n")
JOBS_HERE = "jobs, one on each line"
"""Replaces the key of the jobs while a header is read: no other member of it may be called "jobs"."""

CREATED = b'"created_at"'
"""The name of the time of an enqueue, as it stands in the line of nearly every job."""

_TABLES: Mapping[str, type[Entry]] = {
    "commits": CommitRecord,
    "clients": ClientRecord,
    "entrypoints": EntrypointRules,
    "schedules": Schedule,
    "groups": GroupRecord,
    "workers": WorkerRecord,
    "segments": Segment,
}
"""The tables whose rows keep fields that this version does not know."""

_FIELDS: Mapping[str, type[Entry]] = {"settings": QueueSettings, "history": HistoryHeader, "broker": BrokerSeat}
"""The fields of the header that do."""

_decode = msgspec.json.Decoder(Header).decode


@dataclass(slots=True)
class ParsedBlob:
    """A blob split into its header and the lines of its jobs, which are not yet read.

    Attributes:
        header: the state without its jobs.
        jobs: jobs that were read already, if the blob has the shape of jqueue 1.0.0.
        set_aside: lines known to be unreadable.
        legacy: True if it has the shape of jqueue 1.0.0.
        header_bytes: number of bytes before its lines; 0 if it was read as a whole.
        data: the blob itself, if its lines can be cut out of it; otherwise empty.
        first: offset of the first line in `data`.
        end: offset of the end of the last line in `data`.
        may_be_whole: True if it may have another layout, although it can be cut into lines.
        raw_lines: the lines, if the blob was read as a whole.
    """

    header: Header
    jobs: list[JobRecord] = field(default_factory=list)
    set_aside: list[SetAside] = field(default_factory=list)
    legacy: bool = False
    header_bytes: int = 0
    data: bytes = field(default=b"", repr=False)
    first: int = 0
    end: int = 0
    may_be_whole: bool = False
    raw_lines: list[bytes] = field(default_factory=list, repr=False)

    @property
    def lines(self) -> list[bytes]:
        """The text of each job, without the comma behind it."""
        return list(splitting_lines(self.text))

    @property
    def text(self) -> bytes:
        """The lines of all jobs, joined."""
        return self.data[self.first : self.end] if self.data else SEPARATOR.join(self.raw_lines)


@dataclass(slots=True)
class Contents:
    """The content of a blob's lines.

    Attributes:
        lines: the lines of the jobs, by id, in order.
        jobs: the jobs on lines that were not known.
        set_aside: the lines that are not jobs, and the second lines of ids that occur twice.
        undated: ids of jobs without `created_at`. They must be written with the time that they were given.
    """

    lines: dict[str, bytes] = field(default_factory=dict, repr=False)
    jobs: dict[str, JobRecord] = field(default_factory=dict, repr=False)
    set_aside: list[SetAside] = field(default_factory=list)
    undated: list[str] = field(default_factory=list)


def encode(state: QueueState) -> bytes:
    """Encode a state as the bytes of a blob."""
    lines = [encode_job(record_of(job)) for job in state.jobs]
    return join_blob(encode_header(header_of(state)), [*lines, *encode_asides(state.set_aside)])


def decode(data: bytes) -> QueueState:
    """Decode the state of a blob. No bytes at all are an empty queue.

    Raises:
        InvalidBlobError: the bytes are not a queue that this version can read.
    """
    if not data:
        return QueueState()
    parsed = parse_blob(data)
    jobs, set_aside = exhaust(Blob().looking(parsed))
    return state_of(parsed.header, tuple(map(job_of, jobs.values())), set_aside)


def encode_header(header: Header) -> bytes:
    """Encode a header as the blob's first line, which is open at its end."""
    small = msgspec.structs.replace(header, holds={}, finished={})
    text = encode_json(small)
    if _has_extra(header):
        tables = {name: {key: _raw(row) for key, row in getattr(header, name).items()} for name in _TABLES}
        fields = {name: _raw(getattr(header, name)) for name in _FIELDS}
        text = _with_extra(msgspec.structs.replace(small, **tables, **fields))
    pieces = [text[:-1]]
    for name, table in ((b"holds", header.holds), (b"finished", header.finished)):
        if table:
            pieces += [b',"%b":' % name, *(table.text() if isinstance(table, Table) else [encode_json(table)])]
    return b"".join([*pieces, b",", JOBS_OPEN])


def _has_extra(header: Header) -> bool:
    """Return True if a header has unknown fields. A search in its text would take longer than encoding it."""
    if header.extra is not None:
        return True
    for name in _FIELDS:
        record = getattr(header, name)
        if record is not None and record.extra is not None:
            return True
    for name in _TABLES:
        for row in getattr(header, name).values():
            if row.extra is not None:
                return True
    return False


def _raw(record: Entry | None) -> Entry | msgspec.Raw | None:
    """Return a record whose unknown fields stand with the others once it is encoded."""
    return record if record is None or record.extra is None else msgspec.Raw(_with_extra(record))


def _with_extra(record: Entry | Header) -> bytes:
    """Encode a record, with its unknown fields behind the others."""
    known_json = encode_json(msgspec.structs.replace(record, extra=None))
    if not record.extra:
        return known_json
    return b"%b%b%b" % (known_json[:-1], b"," if len(known_json) > len(b"{}") else b"", encode_json(record.extra)[1:])


def join_blob(header: bytes, lines: Iterable[bytes]) -> bytes:
    """Join a whole blob from its header and its lines, in one step: each copy of a large blob takes new memory."""
    joined = [*lines] or [b""]
    joined[0] = b"%b\n%b" % (header, joined[0])
    joined[-1] = b"%b\n%b\n" % (joined[-1], JOBS_CLOSE)
    return SEPARATOR.join(joined)


def parse_blob(data: bytes) -> ParsedBlob:
    """Split a blob into its header and its lines. If it has our own layout, the jobs are not read.

    Raises:
        InvalidBlobError: the bytes are not a queue that this version can read.
    """
    first = data.find(b"\n") + 1
    head = data[:first].rstrip()
    header, opening, end = _read_ours(head), head.rfind(b'"jobs"'), _end_of_lines(data, first)
    if end < 0 or b"".join(head[opening:].split()) != JOBS_OPEN:
        return _parse_whole(data)
    parsed = ParsedBlob(header or Header(), header_bytes=first, data=data, first=first, end=end, may_be_whole=True)
    if header is not None and header.queue:
        return parsed
    try:
        before = head[:opening].rstrip().removesuffix(b",")
        content = load_json(b'%b,"%b":{}}' % (before, JOBS_HERE.encode()))
    except (ValueError, RecursionError):
        return _parse_whole(data)
    if content.pop(JOBS_HERE, None) != {} or "jobs" in content:
        return _parse_whole(data)
    # without "queue", the rest of the header may follow the jobs
    if "queue" in content or not any(take_whole(parsed, read_line(line)) for line in parsed.lines):
        parsed.header = _read_header(content)
    return parsed


def _read_ours(head: bytes) -> Header | None:
    """Return the header of a first line that this version would write; None for any other line."""
    if not head.endswith(JOBS_OPEN):
        return None
    try:
        header = _decode(head[: -len(JOBS_OPEN) - 1] + b"}")
        return header if encode_header(header) == head and _fault(header) is None else None
    except (ValueError, RecursionError):
        return None


def _end_of_lines(data: bytes, first: int) -> int:
    """Return the offset of the end of the last line; -1 if the jobs are not closed on a line of their own."""
    closing = len(data)
    while closing > first and data[closing - 1] in WHITESPACE:
        closing -= 1
    closing -= len(JOBS_CLOSE)
    if closing < first or not data.startswith(JOBS_CLOSE, closing):
        return -1
    end = closing
    while end > first and data[end - 1] in WHITESPACE and data[end - 1] != NEWLINE:
        end -= 1
    if end > first and data[end - 1] != NEWLINE:  # a job with headers ends in }} too
        return -1
    while end > first and data[end - 1] in EDGES:
        end -= 1
    return end


def salvaged(data: bytes) -> tuple[bytes, int] | None:
    """Return a whole queue from the header and the lines of a queue that is cut off, and the number of these lines.

    Its version is one higher, as its content differs. None: the header cannot be read.
    """
    first = data.find(b"\n") + 1
    header = _read_ours(data[:first].rstrip())
    if header is None:
        return None
    lines = [line.rstrip(SEPARATOR.rstrip()) for line in data[first : data.rfind(b"\n") + 1].split(b"\n")]
    entries = [line for line in lines if line.rstrip() not in (b"", JOBS_CLOSE)]
    return join_blob(encode_header(msgspec.structs.replace(header, version=header.version + 1)), entries), len(entries)


def take_whole(parsed: ParsedBlob, record: JobRecord | SetAside) -> bool:
    """Read a blob as a whole, in place, if one of its lines alone is not a job, but the whole blob is JSON.

    Returns:
        True if it did. Then the header and the lines of `parsed` were replaced.

    Raises:
        InvalidBlobError: it is JSON, but not a queue that this version can read.
    """
    if not parsed.may_be_whole or isinstance(record, JobRecord) or record.reason not in (NO_MEMBER, SEVERAL):
        return False
    data, parsed.may_be_whole = parsed.data, False
    if b",\n," in data or b"{\n," in data:  # by `encode_asides`: a line, and so the whole, is not JSON
        return False
    try:
        whole = _parse_content(load_json(data), data)
    except (ValueError, RecursionError):
        return False
    parsed.header, parsed.raw_lines, parsed.data, parsed.header_bytes = whole.header, whole.raw_lines, b"", 0
    return True


def reading_lines(
    parsed: ParsedBlob, ids_by_line: Mapping[bytes, str], unreadable: Mapping[bytes, SetAside]
) -> Slices[Contents]:
    """Read the lines of a blob, in slices.

    Args:
        parsed: the blob. It is read as a whole, in place, if its lines turn out not to be jobs.
        ids_by_line: job ids by known lines. These lines are not parsed.
        unreadable: known lines that are not jobs.
    """
    read = Contents(set_aside=list(parsed.set_aside))
    twins: list[tuple[str, bytes]] = []
    undated = _last_commit(parsed.header)
    for count, line in enumerate(splitting_lines(parsed.text), 1):
        if count % LINES_PER_SLICE == 0:
            yield
        job_id = ids_by_line.get(line)
        if job_id is None:
            record: JobRecord | SetAside = unreadable.get(line) or read_line(line, undated)
            if isinstance(record, SetAside):
                if take_whole(parsed, record):
                    return (yield from reading_lines(parsed, ids_by_line, unreadable))
                read.set_aside.append(record)
                continue
            job_id = record.id
            if job_id not in read.lines:
                read.jobs[job_id] = record
                if CREATED not in line:
                    read.undated.append(job_id)
        if job_id in read.lines:
            twins.append((job_id, line))
        else:
            read.lines[job_id] = line
    if twins:
        every_id = {*read.lines, *(job.id for job in parsed.jobs)}
        read.set_aside += set_duplicates_aside(twins, every_id, read.set_aside)
    return read


def _last_commit(header: Header) -> datetime | None:
    """Return the time of the last commit; None if there is none.

    A line without `created_at` was added by hand after it. All readers of these bytes give its job this time.
    """
    try:
        return max((datetime.fromtimestamp(record.at, UTC) for record in header.commits.values()), default=None)
    except (ValueError, OverflowError, OSError):  # a header edited by hand
        return None


def _parse_whole(data: bytes) -> ParsedBlob:
    """Read a blob of any layout: pretty-printed, edited by hand, or written by jqueue 1.0.0."""
    try:
        return _parse_content(load_json(data), data)
    except RecursionError:
        raise InvalidBlobError(_unreadable(data, "it is nested too deep")) from None
    except ValueError as error:
        where = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidBlobError(_unreadable(data, f"it is not JSON{where}")) from None


def _parse_content(content: Any, data: bytes) -> ParsedBlob:
    """Split the JSON of a blob into its header and its lines."""
    if not isinstance(content, dict) or not isinstance(content.get("jobs"), dict | list):
        raise InvalidBlobError(_unreadable(data, 'it is JSON, but has no "jobs"'))
    jobs = content.pop("jobs")
    if isinstance(jobs, list):
        return _parse_legacy(content, jobs)
    return ParsedBlob(_read_header(content), raw_lines=[raw_line(key, fields) for key, fields in jobs.items()])


def _parse_legacy(header: dict[str, Any], entries: list[Any]) -> ParsedBlob:
    """Parse the shape of jqueue 1.0.0. It could store a job twice; such copies become one job."""
    if "format" in header:
        raise InvalidBlobError(
            f'the queue\'s object has format {shown(header["format"])}, but its "jobs" is an array, as in 1.0.0: '
            "restore the object, or check that it is the right one"
        )
    parsed = ParsedBlob(_read_header({"format": FORMAT, **header}), legacy=True)
    jobs: dict[str, JobRecord] = {}
    twins = []
    for number, fields in enumerate(entries):
        key = fields.get("id") if isinstance(fields, dict) else None
        key = key if isinstance(key, str) and key else f"unreadable-{number}"
        line = raw_line(key, fields)
        job = read_line(line)
        twin = jobs.get(key)
        if isinstance(job, SetAside):
            parsed.set_aside.append(job)
        elif twin is None or (twin.status is JobStatus.QUEUED and _same_work(twin, job)):
            jobs[key] = job
        elif not _same_work(twin, job):
            twins.append((key, line))
    parsed.set_aside += set_duplicates_aside(twins, jobs, parsed.set_aside)
    parsed.jobs = number_unnumbered(list(jobs.values()))
    return parsed


def _same_work(one: JobRecord, other: JobRecord) -> bool:
    return (one.entrypoint, one.payload) == (other.entrypoint, other.payload)


def _read_header(content: Mapping[str, Any]) -> Header:
    """Read a header that this version would write otherwise: it keeps unknown fields, and says what is wrong."""
    if content.get("format") != FORMAT or isinstance(content.get("format"), bool):
        raise InvalidBlobError(
            f"the queue's object has format {shown(content.get('format'))}, and this version of jqueue reads only "
            f"format {FORMAT} and that of jqueue 1.0.0: upgrade jqueue, or check that this is the right object"
        )
    fields = {name: value for name, value in content.items() if name not in ("format", "jobs")}
    for name, record in _FIELDS.items():
        if name in fields:
            fields[name] = _with_extra_apart(fields[name], record)
    for name, record in _TABLES.items():
        if isinstance(rows := fields.get(name), dict):
            fields[name] = {key: _with_extra_apart(row, record) for key, row in rows.items()}
    if isinstance(schedules := fields.get("schedules"), dict):
        named = {name: {**row, "name": name} if isinstance(row, dict) else row for name, row in schedules.items()}
        fields["schedules"] = named
    try:
        header = _decode(dump_json({"format": FORMAT, **_with_extra_apart(fields, Header)}))
    except msgspec.ValidationError as error:
        where = _place_of(fields, f"{error}")
        raise InvalidBlobError(f"the queue's object has a field that cannot be read: {where}") from None
    except (ValueError, RecursionError):
        raise InvalidBlobError(
            "the queue's object has a header with a number or a text that JSON cannot hold, or that is nested too deep"
        ) from None
    if fault := _fault(header):
        raise InvalidBlobError(fault)
    return header


def _place_of(fields: Mapping[str, Any], error: str) -> str:
    """Return what is wrong with a header, with the name of the row that has it."""
    match = re.search(r"\$\.(\w+)\[\.\.\.\]", error)
    name = "" if match is None else match[1]
    for key, row in fields[name].items() if name else ():
        try:
            _decode(dump_json({"format": FORMAT, name: {key: row}}))
        except msgspec.ValidationError as one:
            return f"{one}".replace("[...]", f"[{shown(key)}]", 1)
    return error


def _with_extra_apart(fields: Any, record: type[msgspec.Struct]) -> Any:
    """Return the JSON of a record with its unknown fields apart, where the record keeps them."""
    if not isinstance(fields, dict):
        return fields
    field_names = [name for name in record.__struct_encode_fields__ if name]
    extra = {name: value for name, value in fields.items() if name not in field_names}
    return {**{name: fields[name] for name in fields if name in field_names}, "": extra} if extra else fields


def _fault(header: Header) -> str | None:
    """Return what is wrong with a header whose fields are right; None if nothing is."""
    if unknown := sorted(set(header.critical) - KNOWN_CRITICAL):
        names = shown(", ".join(unknown))
        return f"the queue uses features that this version of jqueue does not know ({names}): upgrade jqueue"
    taken = (segment.extra.keys() & {"next", "tried"} for segment in header.segments.values() if segment.extra)
    if any(taken) or "ranges" in (header.extra or ()):  # kept as unknown, their rows would be lost or claimed twice
        return "the queue's object is of a prerelease of jqueue 2.0.0: its claims on segments cannot be read"
    for name, schedule in header.schedules.items():
        if schedule.name != name:
            return f"the queue's object has a cron entry {shown(name)} with another name"
    try:
        for batch in () if header.history is None else header.history.batches:
            numbers_of(batch)
    except ValueError:
        return "the queue's object has a history with a batch that cannot be read"
    return None


def _unreadable(data: bytes, what: str) -> str:
    if not data.strip():
        return f"the queue's object is empty ({len(data)} bytes): remove it to start anew, or restore it"
    end = b"}}" if data.startswith(b'{"format"') else b"}"
    if data.lstrip().startswith(b"{") and not data.rstrip().endswith(end):
        what += " and seems to be cut off"
    return f"the queue's object ({len(data)} bytes) is not a queue: {what}. It was left as it is"


logger: Logger = logger_of("jqueue")

WARNINGS = 5
"""Maximum number of unreadable lines that are named in the log; the others are counted."""


class Blob:
    """A draft and its lines, kept in step.

    Long work is a generator that yields between slices, so that the event loop gets a turn.

    Attributes:
        draft: the state, open for change.
        lines: the line of each job as it is in the store, or was in a write that did not land, in order.
    """

    def __init__(self) -> None:
        self.draft: Draft = Draft()
        self.lines: dict[str, bytes] = {}
        self._header_bytes = 0

    def adopt(self, parsed: ParsedBlob, size: int) -> None:
        """Set the draft to the content of a blob of this size in bytes. It must have been rolled back or settled."""
        exhaust(self.adopting(parsed, size))

    def adopting(self, parsed: ParsedBlob, size: int) -> Slices[None]:
        """Run `adopt` in slices. If it does not run to its end, the draft is unusable."""
        draft = self.draft
        unreadable = {aside.line for aside in draft.set_aside}
        read = yield from self._reading(parsed)
        present = read.lines.keys() | {job.id for job in parsed.jobs}
        hot = draft.jobs.keys() - draft.jobs.rows.of.keys()
        self.lines = read.lines
        draft.jobs.dirty = dict.fromkeys(read.jobs)  # until all are in the draft, a look must parse their lines itself
        draft.take_header(parsed.header)
        draft.load(parsed.jobs, [job_id for job_id in list(draft.jobs) if job_id in hot and job_id not in present])
        unplaced: list[JobRecord] = []
        for number, job in enumerate(read.jobs.values(), 1):
            if job.sequence:
                draft.jobs.put(job)
            else:
                unplaced.append(job)
            if number % LINES_PER_SLICE == 0:
                yield
        for job_id in draft.jobs.rows.of.keys() & read.jobs.keys() if draft.jobs.rows.of else ():
            draft.jobs.rows.release(job_id)  # an operator has copied the row into the blob
        placed = [job.evolve(sequence=draft.jobs.last_sequence + place) for place, job in enumerate(unplaced, 1)]
        draft.load(placed)
        renumbered = draft.renumber()
        draft.set_lines_aside(tuple(read.set_aside))
        draft.measure(size, parsed.header_bytes)
        draft.jobs.dirty = {job.id: None for job in (*placed, *renumbered, *parsed.jobs)} | dict.fromkeys(read.undated)
        self._warn(unreadable)

    def encode(self, header: Header) -> bytes:
        """Return the bytes of the draft under a new header."""
        return exhaust(self.encoding(header))

    def encoding(self, header: Header) -> Slices[bytes]:
        """Run `encode` in slices."""
        draft, lines, jobs, rows = self.draft, self.lines, self.draft.jobs, self.draft.jobs.rows.of
        for number, job_id in enumerate(jobs.dirty, 1):
            job = jobs.get(job_id)
            if job is None or job_id in rows:
                lines.pop(job_id, None)
            else:
                lines[job_id] = encode_job(job)
            if number % LINES_PER_SLICE == 0:
                yield
        jobs.dirty.clear()
        first = encode_header(header)
        self._header_bytes = len(first)
        asides = encode_asides(draft.set_aside) if draft.set_aside else ()
        return join_blob(first, chain(lines.values(), asides))

    def looking(self, parsed: ParsedBlob) -> Slices[tuple[dict[str, JobRecord], tuple[SetAside, ...]]]:
        """Return the jobs of a blob and its lines that are set aside, in slices.

        The draft stays as it is, and may change meanwhile.
        """
        draft_jobs = dict(self.draft.jobs)
        read = yield from self._reading(parsed)
        jobs_by_id = {job.id: job for job in parsed.jobs}
        jobs_by_id |= {job_id: read.jobs.get(job_id) or draft_jobs[job_id] for job_id in read.lines}
        if (placed := number_unnumbered(jobs := list(jobs_by_id.values()))) is not jobs:
            jobs_by_id = {job.id: job for job in placed}
        return jobs_by_id, tuple(read.set_aside)

    def settle(self, header: Header, size: int) -> None:
        """Note that the draft was committed under this header, as a blob of this size in bytes."""
        self.draft.take_header(header)
        self.draft.measure(size, self._header_bytes)

    def _reading(self, parsed: ParsedBlob) -> Slices[Contents]:
        """Read a blob. Lines that the draft's jobs were read from, or written to, are not parsed again."""
        dirty = self.draft.jobs.dirty
        ids_by_line = {line: job_id for job_id, line in self.lines.items() if job_id not in dirty}
        read = yield from reading_lines(parsed, ids_by_line, {aside.line: aside for aside in self.draft.set_aside})
        return read

    def _warn(self, before: Container[bytes]) -> None:
        new_asides = [aside for aside in self.draft.set_aside if aside.line not in before]
        for aside in new_asides[:WARNINGS]:
            logger.warning(
                "job %s cannot be read and is set aside: %s. Mend or remove its line in the queue's object",
                shown(aside.key),
                aside.reason,
            )
        if len(new_asides) > WARNINGS:
            more = counted(
                len(new_asides) - WARNINGS,
                "more line cannot be read as a job and is set aside",
                "more lines cannot be read as jobs and are set aside",
            )
            logger.warning("%s", more)
