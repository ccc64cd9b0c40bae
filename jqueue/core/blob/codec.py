"""The wire format: a queue's state is encoded as one JSON object that people and tools can read, and decoded again.

    {"format": 2, "version": 17, "queue": "…", …, "jobs": {
    "<job id>": {…one job, one line…},
    "<job id>": {…}
    }}

With one line for each job, `jqueue.core.blob.content` can keep the lines that did not change. The shape of jqueue 1.0.0
(`jobs` an array) and any other layout of the same JSON can be read, too. Only the shape above is written. A line that
cannot be read as a job is set aside and written back as it was.

The content of a blob depends on its bytes alone, and on nothing that its reader has seen before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from jqueue.core.blob.history_text import history_pieces, with_batch_texts
from jqueue.core.blob.lines import (
    EDGES,
    NO_MEMBER,
    SEVERAL,
    WHITESPACE,
    dump_ascii,
    encode_asides,
    encode_job,
    encode_json,
    first_of,
    load_json,
    raw_line,
    read_line,
    set_duplicates_aside,
    splitting_lines,
)
from jqueue.domain.counters import Counters, Durations, Window
from jqueue.domain.errors import InvalidBlobError, shown
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.models import LARGEST, CommitRecord, QueueState, SetAside, job_of, record_of
from jqueue.domain.rules import HISTORY, LIMITS, QueueSettings, Schedule
from jqueue.domain.segments import SEGMENTS
from jqueue.domain.sequence_numbers import number_unnumbered
from jqueue.domain.slices import LINES_PER_SLICE, Slices, exhaust
from jqueue.domain.stored_object import OBJECTS
from jqueue.domain.workers import WorkerRecord

Row = TypeVar("Row")

FORMAT = 2
KNOWN_CRITICAL: frozenset[str] = frozenset({LIMITS, OBJECTS, HISTORY, SEGMENTS})
"""The critical features that this version knows. It refuses a blob that names another."""

SEPARATOR = b",\n"
JOBS_OPEN, JOBS_CLOSE = b'"jobs": {', b"}}"
NEWLINE = ord("\n")
JOBS_HERE = "jobs, one on each line"
"""Replaces the key of the jobs while a header is read: no other member of it may be called "jobs"."""

CREATED = b'"created_at"'
"""The name of the time of an enqueue, as it stands in the line of nearly every job."""

_quote_ascii = json.encoder.encode_basestring_ascii
_TABLES = (
    *(
        "version",
        "queue",
        "critical",
        "commits",
        "evicted_through",
        "finished",
        "holds",
        "attempt_floor",
        "last_sequence",
    ),
    *("settings", "entrypoints", "recent", "schedules", "transactions", "counters", "workers", "history"),
    *("segments", "retired", "ranges"),
)


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

    header: QueueState
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
    return join_blob(encode_header(state), [*lines, *encode_asides(state.set_aside)])


def decode(data: bytes) -> QueueState:
    """Decode the state of a blob. No bytes at all are an empty queue.

    Raises:
        InvalidBlobError: the bytes are not a queue that this version can read.
    """
    if not data:
        return QueueState()
    parsed = parse_blob(data)
    read = exhaust(reading_lines(parsed, {}, {}))
    records = number_unnumbered([*{**{job.id: job for job in parsed.jobs}, **read.jobs}.values()])
    jobs = tuple(map(job_of, records))
    return parsed.header.model_copy(update={"jobs": jobs, "set_aside": tuple(read.set_aside)})


class TableTexts(Generic[Row]):
    """A table of the header as text. It encodes a row only if it is another object than at the last time.

    Args:
        encode_row: encodes a row as JSON.
    """

    def __init__(self, encode_row: Callable[[Row], str]) -> None:
        self._encode_row = encode_row
        self._texts: dict[str, tuple[Row, str]] = {}

    def encode(self, table: Mapping[str, Row]) -> str:
        """Return the table as a JSON object."""
        known = self._texts
        texts: dict[str, tuple[Row, str]] = {}
        for name, row in table.items():
            found = known.get(name)
            if found is None or found[0] is not row:
                found = row, f"{_quote_ascii(name)}: {self._encode_row(row)}"
            texts[name] = found
        self._texts = texts
        return f"{{{', '.join([text for _, text in texts.values()])}}}"


class HeaderTexts:
    """The parts of the header that most commits leave as they are, or change a little, as text."""

    def __init__(self) -> None:
        self.commits = TableTexts(_commit_text)
        self.entrypoints = TableTexts(_row_text)
        self.schedules = TableTexts(_schedule_text)
        self.counters = TableTexts(_counters_text)
        self.workers = TableTexts(_worker_text)
        self.segments = TableTexts(_row_text)
        self.ranges = TableTexts(_row_text)
        self._settings: QueueSettings | None = None
        self._settings_text = ""

    def settings(self, settings: QueueSettings) -> str:
        """Return the settings of the queue as text. They are encoded only if they are another object."""
        if settings is not self._settings:
            self._settings, self._settings_text = settings, _row_text(settings)
        return self._settings_text


def _commit_text(record: CommitRecord) -> str:
    sequence, version, at, cycle, more = record
    return dump_ascii([*record[:4], *more]) if more else f"[{sequence}, {version}, {at!r}, {cycle!r}]"


def _counters_text(counters: Counters) -> str:
    totals, waits, runs, windows, at = counters
    return f"[{list(totals)}, {_durations_text(waits)}, {_durations_text(runs)}, {_windows_text(windows)}, {at!r}]"


def _durations_text(durations: Durations) -> str:
    seconds, first, counts = durations
    return f"[{seconds!r}, {first}, {list(counts)}]"


@lru_cache(maxsize=256)
def _windows_text(windows: tuple[Window, ...]) -> str:
    return repr([[window.number, list(window.start), list(window.earlier)] for window in windows])


def _worker_text(worker: WorkerRecord) -> str:
    fields = {**worker.__dict__, **(worker.__pydantic_extra__ or {})}
    del fields["busy"], fields["lost"]
    return dump_ascii(fields)


def _row_text(row: BaseModel, *but: str) -> str:
    """Encode the fields of a row that differ from their defaults, without the named ones."""
    return dump_ascii(row.model_dump(mode="json", exclude_defaults=True, exclude=set(but)))


def _schedule_text(schedule: Schedule) -> str:
    return _row_text(schedule, "name")


def _short(table: Collection[Any], empty: str) -> str:
    """Encode a table that is empty in most queues."""
    return dump_ascii(table) if table else empty


def encode_header(state: QueueState, texts: HeaderTexts | None = None) -> list[bytes]:
    """Encode everything but the jobs as the blob's first line, which is open at its end. Return it in pieces.

    Args:
        state: its jobs are ignored.
        texts: the texts kept from the last header.
    """
    texts = HeaderTexts() if texts is None else texts
    fields = [
        f'{{"format": {FORMAT}, "version": {state.version}, "queue": {_quote_ascii(state.queue)}, '
        f'"critical": {_short(state.critical, "[]")}, "evicted_through": {state.evicted_through}, '
        f'"attempt_floor": {state.attempt_floor}, "last_sequence": {state.last_sequence}, '
        f'"commits": {texts.commits.encode(state.commits)}, "holds": {_short(state.holds, "{}")}'
    ]
    settings = texts.settings(state.settings)
    if settings != "{}":  # they are not all the defaults
        fields.append(f'"settings": {settings}')
    if state.entrypoints:
        fields.append(f'"entrypoints": {texts.entrypoints.encode(state.entrypoints)}')
    if state.recent:
        fields.append(f'"recent": {dump_ascii(state.recent)}')
    if state.schedules:
        fields.append(f'"schedules": {texts.schedules.encode(state.schedules)}')
    if state.transactions:
        fields.append(f'"transactions": {dump_ascii(state.transactions)}')
    if state.retired:
        fields.append(f'"retired": {dump_ascii(state.retired)}')
    if state.extra:
        fields.append(dump_ascii(state.extra)[1:-1])
    if state.counters:
        fields.append(f'"counters": {texts.counters.encode(state.counters)}')
    if state.workers:
        fields.append(f'"workers": {texts.workers.encode(state.workers)}')
    if state.segments:
        fields.append(f'"segments": {texts.segments.encode(state.segments)}')
    if state.ranges:
        fields.append(f'"ranges": {texts.ranges.encode(state.ranges)}')
    pieces = [", ".join(fields).encode()]
    if state.history is not None:
        opening, events, closing = history_pieces(state.history)
        pieces += (f', "history": {opening}'.encode(), events.encode(), closing.encode())
    pieces += (b', "finished": ', encode_json(state.finished), b", ", JOBS_OPEN)
    return pieces


def join_blob(header: Iterable[bytes], lines: Iterable[bytes]) -> bytes:
    """Join a whole blob from the pieces of its header and its lines, or from runs of lines that are joined already."""
    pieces = [*header, b"\n"]
    before = b""
    for line in lines:
        pieces += (before, line)
        before = SEPARATOR
    pieces += (b"\n", JOBS_CLOSE, b"\n")
    return b"".join(pieces)  # in one step, as the runs and the table of finished jobs are long


def parse_blob(data: bytes) -> ParsedBlob:
    """Split a blob into its header and its lines. If it has our own layout, the jobs are not read.

    Raises:
        InvalidBlobError: the bytes are not a queue that this version can read.
    """
    end_of_header = data.find(b"\n")
    head = data[:end_of_header].rstrip()
    end = _end_of_lines(data, end_of_header + 1)
    if end_of_header < 0 or not head.endswith(JOBS_OPEN) or end < 0:
        return _parse_whole(data)
    try:
        header = from_json(head.removesuffix(JOBS_OPEN) + f'"{JOBS_HERE}": {{}}}}'.encode(), allow_inf_nan=False)
    except ValueError:
        return _parse_whole(data)
    if header.pop(JOBS_HERE, None) != {} or "jobs" in header:
        return _parse_whole(data)
    first = end_of_header + 1
    parsed = ParsedBlob(QueueState(), header_bytes=first, data=data, first=first, end=end, may_be_whole=True)
    written_by_us = "queue" in header  # otherwise the rest of the header may follow the jobs
    if written_by_us or not any(take_whole(parsed, read_line(line)) for line in parsed.lines):
        parsed.header = _read_header(header, head)
    return parsed


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


def take_whole(parsed: ParsedBlob, found: JobRecord | SetAside) -> bool:
    """Read a blob as a whole, in place, if one of its lines alone is not a job, but the whole blob is JSON.

    Returns:
        True if it did. Then the header and the lines of `parsed` were replaced.

    Raises:
        InvalidBlobError: it is JSON, but not a queue that this version can read.
    """
    if not parsed.may_be_whole or isinstance(found, JobRecord) or found.reason not in (NO_MEMBER, SEVERAL):
        return False
    data, parsed.may_be_whole = parsed.data, False
    if b",\n," in data or JOBS_OPEN + b"\n," in data:  # by `encode_asides`: a line, and so the whole, is not JSON
        return False
    try:
        whole = _parse_content(load_json(data), data)
    except (ValueError, RecursionError):
        return False
    parsed.header, parsed.raw_lines, parsed.data, parsed.header_bytes = whole.header, whole.raw_lines, b"", 0
    return True


def reading_lines(
    parsed: ParsedBlob, known: Mapping[bytes, str], unreadable: Mapping[bytes, SetAside]
) -> Slices[Contents]:
    """Read the lines of a blob, in slices.

    Args:
        parsed: the blob. It is read as a whole, in place, if its lines turn out not to be jobs.
        known: job ids by known lines. These lines are not parsed.
        unreadable: known lines that are not jobs.
    """
    read = Contents(set_aside=list(parsed.set_aside))
    twins: list[tuple[str, bytes]] = []
    undated = _last_commit(parsed.header)
    for count, line in enumerate(splitting_lines(parsed.text), 1):
        if count % LINES_PER_SLICE == 0:
            yield
        job_id = known.get(line)
        if job_id is None:
            found: JobRecord | SetAside = unreadable.get(line) or read_line(line, undated)
            if isinstance(found, SetAside):
                if take_whole(parsed, found):
                    return (yield from reading_lines(parsed, known, unreadable))
                read.set_aside.append(found)
                continue
            job_id = found.id
            if job_id not in read.lines:
                read.jobs[job_id] = found
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


def _last_commit(header: QueueState) -> datetime | None:
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
    try:
        content = from_json(dump_ascii(content), allow_inf_nan=False)  # refuses values that other parsers cannot read
    except ValueError:
        what = "its header holds a number or a text that JSON cannot hold, or is nested too deep"
        raise InvalidBlobError(_unreadable(data, what)) from None
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


def _read_header(content: Mapping[str, Any], head: bytes = b"") -> QueueState:
    if content.get("format") != FORMAT or isinstance(content.get("format"), bool):
        raise InvalidBlobError(
            f"the queue's object has format {shown(content.get('format'))}, and this version of jqueue reads only "
            f"format {FORMAT} and that of jqueue 1.0.0: upgrade jqueue, or check that this is the right object"
        )
    tables = {name: content[name] for name in _TABLES if name in content}
    if isinstance(schedules := tables.get("schedules"), dict):
        named = {name: {**row, "name": name} if isinstance(row, dict) else row for name, row in schedules.items()}
        tables["schedules"] = named
    if "history" in tables:
        tables["history"] = with_batch_texts(tables["history"], head)
    extra = {name: value for name, value in content.items() if name not in _TABLES and name not in ("format", "jobs")}
    try:
        state = QueueState.model_validate({**tables, "extra": extra})
    except ValidationError as error:
        raise InvalidBlobError(f"the queue's object has a field that cannot be read: {first_of(error)}") from None
    if state.version > LARGEST:
        raise InvalidBlobError(f"the queue's object has version {state.version}; the largest is {LARGEST}: restore it")
    if extra or any(record.more for record in state.commits.values()):
        try:
            dump_ascii(content)
        except ValueError:
            raise InvalidBlobError("the queue's object has a number in its header that is out of range") from None
    unknown = sorted(set(state.critical) - KNOWN_CRITICAL)
    if unknown:
        raise InvalidBlobError(
            "the queue uses features that this version of jqueue does not know "
            f"({shown(', '.join(unknown))}): upgrade jqueue"
        )
    return _without_lost_ranges(state) if state.ranges else state


def _without_lost_ranges(state: QueueState) -> QueueState:
    """Return a state without the ranges of segments that an operator has given up."""
    kept = {name: each for name, each in state.ranges.items() if each.segment in state.segments}
    for name, each in kept.items():
        if not each.first < each.last <= state.segments[each.segment].rows:
            raise InvalidBlobError(f"the queue's object has a range {shown(name)} with rows that its segment lacks")
    return state.model_copy(update={"ranges": kept})


def _unreadable(data: bytes, what: str) -> str:
    if not data.strip():
        return f"the queue's object is empty ({len(data)} bytes): remove it to start anew, or restore it"
    end = b"}}" if data.startswith(b'{"format"') else b"}"
    if data.lstrip().startswith(b"{") and not data.rstrip().endswith(end):
        what += " and seems to be cut off"
    return f"the queue's object ({len(data)} bytes) is not a queue: {what}. It was left as it is"
