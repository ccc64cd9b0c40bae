"""The wire format: a queue's state as one JSON object that people and tools can read, and back.

    {"format": 2, "version": 17, "queue": "…", …, "jobs": {
    "<job id>": {…one job, one line…},
    "<job id>": {…}
    }}

One line a job lets `jqueue.core.blob` keep the lines that did not change. The shape of jqueue 1.0.0 (`jobs` an array)
is read too, and so is any other layout of the same JSON; what is written is always the shape above. A line that
cannot be read as a job is set aside and written back as it was.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.models import NO_HEADERS, Job, JobStatus, QueueState, SetAside

FORMAT = 2
KNOWN_CRITICAL: frozenset[str] = frozenset()
"""The critical features that this version knows. It refuses a blob that names another."""

LARGEST = 2**53
"""The largest count that is taken from a blob: what grows from there can still be read back."""

JOBS_OPEN, JOBS_CLOSE = b'"jobs": {', b"}}"
_TABLES = ("version", "queue", "critical", "commits", "evicted_through", "finished", "holds", "attempt_floor")
_OPTIONAL = (
    "max_attempts",
    "run_at",
    "expires_at",
    "headers",
    "unique_key",
    "unique_for",
    "heartbeat_at",
    "claim_timeout",
    "dead_at",
    "error",
)
_TIMES = frozenset({"run_at", "expires_at", "heartbeat_at", "dead_at"})
_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_dump_ascii = json.JSONEncoder(ensure_ascii=True).encode


@dataclass(slots=True)
class ParsedBlob:
    """A blob taken apart: everything but the jobs, and the lines of the jobs, not yet read.

    Attributes:
        header: the state without its jobs.
        lines: the text of each job, without the comma behind it.
        jobs: jobs read already, where the blob had to be read whole.
        set_aside: lines known to be unreadable.
        legacy: whether it has the shape of jqueue 1.0.0.
    """

    header: QueueState
    lines: list[bytes] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    set_aside: list[SetAside] = field(default_factory=list)
    legacy: bool = False


def encode(state: QueueState) -> bytes:
    """The state as the bytes of a blob."""
    lines = [encode_job(job) for job in state.jobs]
    return join_blob(encode_header(state), [*lines, *(aside.line for aside in state.set_aside)])


def decode(data: bytes) -> QueueState:
    """The state that a blob holds; no bytes at all are an empty queue.

    Raises:
        InvalidBlobError: the bytes are not a queue that this version can read.
    """
    if not data:
        return QueueState()
    return read_state(parse_blob(data), {})


def encode_job(job: Job) -> bytes:
    """One job as its line: the id, and the fields that say something."""
    fields: dict[str, Any] = {
        "entrypoint": job.entrypoint,
        "payload": b64encode(job.payload).decode("ascii"),
        "status": str(job.status),
        "priority": job.priority,
        "sequence": job.sequence,
        "attempt": job.attempt,
        "failures": job.failures,
        "created_at": job.created_at.isoformat(),
    }
    values = job.__dict__
    for name in _OPTIONAL:
        value = values[name]
        if value is not None and value is not NO_HEADERS and value != NO_HEADERS:
            fields[name] = value.isoformat() if name in _TIMES else value
    if job.__pydantic_extra__:
        fields.update(job.__pydantic_extra__)
    return f"{_dump(job.id)}: {_dump(fields)}".encode()


def encode_header(state: QueueState) -> bytes:
    """Everything but the jobs, as the blob's first line, open at the end."""
    header: dict[str, Any] = {
        "format": FORMAT,
        "version": state.version,
        "queue": state.queue,
        "critical": list(state.critical),
        "evicted_through": state.evicted_through,
        "attempt_floor": state.attempt_floor,
        "commits": {writer: [*record[:4], *record.more] for writer, record in state.commits.items()},
        "finished": state.finished,
        "holds": state.holds,
        **state.extra,
    }
    return f"{_dump_ascii(header)[:-1]}, ".encode() + JOBS_OPEN


def join_blob(header: bytes, lines: Iterable[bytes]) -> bytes:
    """The whole blob."""
    return b"".join((header, b"\n", b",\n".join(lines), b"\n", JOBS_CLOSE, b"\n"))


def parse_blob(data: bytes) -> ParsedBlob:
    """Take a blob apart, reading its header but, if it has our own layout, none of its jobs.

    Raises:
        InvalidBlobError: the bytes are not a queue that this version can read.
    """
    end_of_header = data.find(b"\n")
    head, body = data[:end_of_header].rstrip(), data[end_of_header + 1 :].rstrip()
    if end_of_header < 0 or not head.endswith(JOBS_OPEN) or not body.endswith(JOBS_CLOSE):
        return _parse_whole(data)
    try:
        header = from_json(head + JOBS_CLOSE, allow_inf_nan=False)
    except ValueError:
        return _parse_whole(data)
    lines = [line.strip().removesuffix(b",") for line in body[: -len(JOBS_CLOSE)].split(b"\n")]
    return ParsedBlob(_read_header(header), [line for line in lines if line])


def read_state(parsed: ParsedBlob, known: Mapping[bytes, Job]) -> QueueState:
    """The state of a blob that was taken apart.

    Args:
        parsed: the blob.
        known: lines read before, and what they are.
    """
    jobs, set_aside = read_jobs(parsed, known)
    return parsed.header.model_copy(update={"jobs": tuple(jobs), "set_aside": tuple(set_aside)})


def read_jobs(parsed: ParsedBlob, known: Mapping[bytes, Job]) -> tuple[list[Job], list[SetAside]]:
    """Read every line of a blob that was taken apart, but those that are known."""
    jobs, set_aside, seen = list(parsed.jobs), list(parsed.set_aside), {job.id for job in parsed.jobs}
    for line in parsed.lines:
        job = known.get(line) or read_line(line)
        if isinstance(job, Job) and job.id in seen:
            job = SetAside(job.id, line, "the id stands twice; this is the second")
        if isinstance(job, Job):
            seen.add(job.id)
            jobs.append(job)
        else:
            set_aside.append(job)
    return place_unplaced(jobs), set_aside


def read_line(line: bytes) -> Job | SetAside:
    """One line as a job, or as something set aside, with the reason. The reason shows no value."""
    try:
        entry = from_json(b"{" + line + b"}", allow_inf_nan=False)
    except ValueError:
        return SetAside("", line, "the line is not a JSON member")
    if len(entry) != 1:
        return SetAside("", line, "the line holds more than one job")
    ((key, fields),) = entry.items()
    return _read_job(key, fields, line)


def place_unplaced(jobs: list[Job]) -> list[Job]:
    """Give jobs that came without a sequence, added by hand or by 1.0.0, a place behind the others, in their order."""
    if all(job.sequence for job in jobs):
        return jobs
    last = max((job.sequence for job in jobs), default=0)
    placed = []
    for job in jobs:
        if not job.sequence:
            last += 1
        placed.append(job if job.sequence else job.evolve(sequence=last))
    return placed


def _read_job(key: str, fields: object, line: bytes) -> Job | SetAside:
    if not isinstance(fields, dict):
        return SetAside(key, line, "a job must be a JSON object")
    try:
        job = Job.model_validate({**fields, "id": key})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        return SetAside(key, line, f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}")
    except (ValueError, OverflowError):
        return SetAside(key, line, "a value is out of range")
    if job.status is JobStatus.COMPLETED:
        return SetAside(key, line, "status: a completed job is not kept")
    if max(job.attempt, job.failures) > LARGEST:
        return SetAside(key, line, "attempt: out of range")
    if job.sequence > LARGEST:
        job = job.evolve(sequence=0)
    if job.status is JobStatus.IN_PROGRESS and job.attempt == 0:
        job = job.evolve(attempt=1, failures=max(1, job.failures))
    return job


def _parse_whole(data: bytes) -> ParsedBlob:
    """Read a blob of any layout: pretty-printed, mended by hand, or written by jqueue 1.0.0."""
    try:
        content = json.loads(data, object_pairs_hook=_refuse_repeats)
    except InvalidBlobError:
        raise
    except (ValueError, RecursionError) as error:
        where = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidBlobError(_unreadable(data, f"it is not JSON{where}")) from None
    if not isinstance(content, dict) or not isinstance(content.get("jobs"), dict | list):
        raise InvalidBlobError(_unreadable(data, 'it is JSON, but has no "jobs"'))
    jobs = content.pop("jobs")
    if isinstance(jobs, list):
        return _parse_legacy(content, jobs)
    header = _read_header(content)
    return ParsedBlob(header, [_raw_line(key, fields) for key, fields in jobs.items()])


def _parse_legacy(header: dict[str, Any], entries: list[Any]) -> ParsedBlob:
    """The shape of jqueue 1.0.0. It could store a job twice; copies are taken for the one job that they are."""
    if "format" in header:
        raise InvalidBlobError(f'the queue\'s object says format {header["format"]!r}, but its "jobs" is an array')
    parsed = ParsedBlob(_read_header({"format": FORMAT, **header}), legacy=True)
    jobs: dict[str, Job] = {}
    for number, fields in enumerate(entries):
        key = fields.get("id") if isinstance(fields, dict) else None
        key = key if isinstance(key, str) and key else f"unreadable-{number}"
        line = _raw_line(key, fields)
        job = read_line(line)
        twin = jobs.get(key)
        if isinstance(job, SetAside):
            parsed.set_aside.append(job)
        elif twin is None or (twin.status is JobStatus.QUEUED and _same_work(twin, job)):
            jobs[key] = job
        elif not _same_work(twin, job):
            parsed.set_aside.append(
                SetAside(f"{key}-{number}", _raw_line(f"{key}-{number}", fields), "the id stands twice")
            )
    parsed.jobs = place_unplaced(list(jobs.values()))
    return parsed


def _same_work(one: Job, other: Job) -> bool:
    return (one.entrypoint, one.payload) == (other.entrypoint, other.payload)


def _read_header(content: Mapping[str, Any]) -> QueueState:
    if content.get("format") != FORMAT or isinstance(content.get("format"), bool):
        said = content.get("format")
        raise InvalidBlobError(
            f"the queue's object has format {said!r}, and this version of jqueue reads format {FORMAT} and that of "
            "1.0.0: upgrade jqueue, or check that this is the right object"
        )
    tables = {name: content[name] for name in _TABLES if name in content}
    extra = {name: value for name, value in content.items() if name not in _TABLES and name not in ("format", "jobs")}
    try:
        state = QueueState.model_validate({**tables, "extra": extra})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidBlobError(f"the queue's object has a field that cannot be read: {where}: {first['msg']}") from None
    if state.version > LARGEST:
        raise InvalidBlobError("the queue's object has a version that is out of range")
    unknown = sorted(set(state.critical) - KNOWN_CRITICAL)
    if unknown:
        raise InvalidBlobError(
            f"the queue uses features that this version of jqueue does not know ({', '.join(unknown)}): upgrade jqueue"
        )
    return state


def _raw_line(key: str, fields: object) -> bytes:
    try:
        return f"{_dump(key)}: {_dump(fields)}".encode()
    except ValueError:  # a lone surrogate or a number that JSON has not; escapes keep it as it was
        return f"{_dump_ascii(key)}: {_dump_ascii(fields)}".encode()


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        repeated = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise InvalidBlobError(f"the queue's object has {repeated[:80]!r} twice in one place: remove or rename one")
    return members


def _unreadable(data: bytes, what: str) -> str:
    if not data.strip():
        return f"the queue's object is empty ({len(data)} bytes): remove it to start anew, or restore it"
    end = b"}}" if data.startswith(b'{"format"') else b"}"
    if data.lstrip().startswith(b"{") and not data.rstrip().endswith(end):
        what += " and seems to be cut off"
    return f"the queue's object ({len(data)} bytes) is not a queue: {what}. It was left as it is"
