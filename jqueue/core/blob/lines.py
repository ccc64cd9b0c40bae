"""Encodes a job as its line of the blob, decodes it, and sets aside lines that are not jobs.

A line is one member of the object of jobs, without the comma behind it: `"<job id>": {…}`. A line that cannot be read
as a job is set aside, with the reason, and written back as it was.
"""

from __future__ import annotations

import io
import json
import re
from binascii import a2b_base64, b2a_base64
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from jqueue.domain.enqueued_jobs import SCATTER
from jqueue.domain.errors import InvalidBlobError, shown
from jqueue.domain.fields import Timestamp
from jqueue.domain.job_table import Packed, packed, packed_waiting
from jqueue.domain.models import JOB_KINDS, LARGEST, PLAIN_FIELDS, AttemptError, Job, JobStatus, SetAside
from jqueue.domain.stored_object import StoredObject

WHITESPACE = b" \t\r\n\v\f"
EDGES = WHITESPACE + b","
"""Bytes that may stand around a line without being a part of it."""

NO_MEMBER = "the line is not a JSON member"
SEVERAL = "the line holds more than one job"
TOO_DEEP = "it is nested too deep"
TWICE = "the id stood twice, and this was the second: give it an id of its own and take the brackets away"
_MEMBER = re.compile(rb'"\s*:')
_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
dump_ascii = json.JSONEncoder(ensure_ascii=True, allow_nan=False).encode
_dump_anything = json.JSONEncoder(ensure_ascii=True).encode
_quote = json.encoder.encode_basestring
_time = lru_cache(maxsize=4096)(datetime.isoformat)  # jobs of one commit have the same times
_moment: Callable[[str], datetime] = lru_cache(maxsize=4096)(TypeAdapter(Timestamp).validate_python)
_TEXT = rb'([^"\\\x00-\x1f]+)'
_WAITING = re.compile(
    rb'"%b": \{"entrypoint": "%b", "payload": "([A-Za-z0-9+/=]*)", "status": "queued", "sequence": ([1-9][0-9]{0,14}), '
    rb'"created_at": "([0-9T:.+-]+)"\}' % (_TEXT, _TEXT)
)
"""The line of a queued job that has only the required fields, as `encode_job` writes it."""
_WAITING_LINES = re.compile(b"^%b$" % _WAITING.pattern, re.MULTILINE)
_validate = Job.__pydantic_validator__.validate_python  # like `Job.model_validate`, without its handling of options


def _quoted_time(moment: datetime) -> str:
    return f'"{_time(moment)}"'


def _attempt_error(error: AttemptError) -> str:
    return f"[{error.attempt}, {_quoted_time(error.at)}, {_quote(error.text)}]"


_ALWAYS = ("id", "entrypoint", "payload", "status", "sequence", "created_at")

_WRITERS: Mapping[Any, Callable[[Any], str]] = {
    int: int.__repr__,
    float: repr,
    bool: lambda value: "true" if value else "false",
    str: _quote,
    datetime: _quoted_time,
    Mapping: _dump,
    tuple: lambda errors: f"[{', '.join([_attempt_error(error) for error in errors])}]",
    StoredObject: _dump,
    Any: _dump,
}

_OPTIONAL: tuple[tuple[str, object, Callable[[Any], str]], ...] = tuple(
    (name, field.default, _WRITERS[JOB_KINDS[name]])
    for name, field in Job.model_fields.items()
    if name not in (*_ALWAYS, "claimed_at")
)
"""The fields that are left out if they have their default value: name, default and encoder of each."""

_OFTEN = ("attempt", "failures", "heartbeat_at", "claim_timeout", "holder")
_CLAIM = ("status", *_OFTEN, "claimed_at")
_never_shared: Callable[[Mapping[str, Any]], tuple[Any, ...]] = itemgetter("id", "payload", "sequence")
_often_shared: Callable[[Mapping[str, Any]], tuple[Any, ...]] = itemgetter(
    "entrypoint", "priority", "created_at", *_CLAIM
)
_RARE = tuple((name, default) for name, default, _ in _OPTIONAL if name not in _OFTEN)
_RARE_DEFAULTS = tuple(default for _, default in _RARE)
_rare: Callable[[Mapping[str, Any]], tuple[Any, ...]] = itemgetter(*(name for name, _ in _RARE))


def encode_job(job: Job) -> bytes:
    """Encode a job as its line: the id, the required fields, and all others that differ from their defaults."""
    if job.__pydantic_fields_set__ is PLAIN_FIELDS:
        return encode_jobs((job,))[0]
    line = encode_fields(job.__dict__)
    return line[:-1] + f", {_dump(job.__pydantic_extra__)[1:-1]}}}".encode() if job.__pydantic_extra__ else line


def encode_fields(values: Mapping[str, Any]) -> bytes:
    """Encode the fields of a job as `encode_job` does."""
    return (
        f'{_quote(values["id"])}: {{"entrypoint": {_quote(values["entrypoint"])}, '
        f'"payload": "{b2a_base64(values["payload"], newline=False).decode("ascii")}", '
        f'"status": "{values["status"]._value_}", "sequence": {values["sequence"]}, '
        f'"created_at": "{_time(values["created_at"])}"{_optional_fields(values)}}}'
    ).encode()


def encode_jobs(jobs: Iterable[Job]) -> list[bytes]:
    """Encode jobs as `encode_job` does. Plain jobs that follow one another and were changed together share texts."""
    lines: list[bytes] = []
    shared: tuple[Any, ...] = ()
    first = middle = last = ""
    for job in jobs:
        if job.__pydantic_fields_set__ is not PLAIN_FIELDS:
            lines.append(encode_job(job))
            continue
        values = job.__dict__
        same = _often_shared(values)
        if same != shared:
            shared, (first, middle, last) = same, _shared_texts(*same)
        job_id, payload, sequence = _never_shared(values)
        text = b2a_base64(payload, newline=False).decode("ascii")
        lines.append(f"{_quote(job_id)}{first}{text}{middle}{sequence}{last}".encode())
    return lines


class PlainTexts(NamedTuple):
    """The parts that the lines of jobs of a bulk enqueue share, if the jobs have no option but `keep_result`.

    Attributes:
        head: stands between the first characters of the id and the payload: see `bulk_id`.
        middle: stands between the payload and the sequence number.
        last: stands behind the sequence number.
    """

    head: bytes
    middle: bytes
    last: bytes


def plain_texts(rest: str, entrypoint: str, created_at: datetime, keep_result: float | None = None) -> PlainTexts:
    """Return the texts of the lines that `encode_job` writes for such jobs.

    Args:
        rest: the end of their ids.
        entrypoint: of all jobs.
        created_at: the time of the enqueue.
        keep_result: seconds for which results are kept; None: they are not.
    """
    kept = "" if keep_result is None else f', "keep_result": {keep_result!r}'
    return PlainTexts(
        f'{_quote(rest)[1:-1]}": {{"entrypoint": {_quote(entrypoint)}, "payload": "'.encode(),
        f'", "status": "{JobStatus.QUEUED}", "sequence": '.encode(),
        f', "created_at": "{_time(created_at)}"{kept}}}'.encode(),
    )


def encode_plain_rows(numbers: Sequence[int], payloads: Sequence[bytes], texts: PlainTexts) -> list[bytes]:
    """Encode new jobs of a bulk enqueue.

    Args:
        numbers: of the jobs. They are their sequence numbers, too.
        payloads: of the jobs.
        texts: the texts of their lines, or what stands for them.
    """
    head, middle, last = texts
    return [
        b'"%08x%b%b%b%d%b'
        % (number * SCATTER & 0xFFFFFFFF, head, b2a_base64(payload, newline=False), middle, number, last)
        for number, payload in zip(numbers, payloads, strict=True)
    ]


def _optional_fields(values: Mapping[str, Any]) -> str:
    if _rare(values) == _RARE_DEFAULTS:
        text = _often_given_fields(values)
    else:
        text = ""
        for name, default, write in _OPTIONAL:
            value = values[name]
            if value is not default and value != default:
                text += f', "{name}": {write(value)}'
    return text if values["claimed_at"] is None else _with_claim_time(text, values)


@lru_cache(maxsize=1024, typed=True)  # most jobs of one commit have the same values
def _shared_texts(
    entrypoint: str,
    priority: int,
    created_at: datetime,
    status: JobStatus,
    attempt: int,
    failures: int,
    heartbeat_at: datetime | None,
    claim_timeout: float | None,
    holder: str | None,
    claimed_at: datetime | None,
) -> tuple[str, str, str]:
    """Encode the parts of the line of a plain job: before its payload, its sequence number and its end."""
    values = dict(
        zip(_CLAIM, (status, attempt, failures, heartbeat_at, claim_timeout, holder, claimed_at), strict=True)
    )
    rest = _often_given_fields(values)
    if claimed_at is not None:
        rest = _with_claim_time(rest, values)
    if priority:
        rest = f', "priority": {priority}{rest}'
    return (
        f': {{"entrypoint": {_quote(entrypoint)}, "payload": "',
        f'", "status": "{status._value_}", "sequence": ',
        f', "created_at": "{_time(created_at)}"{rest}}}',
    )


def _often_given_fields(values: Mapping[str, Any]) -> str:
    """Encode the fields of a claim. They are the only optional fields of most jobs."""
    attempt, failures = values["attempt"], values["failures"]
    if not attempt and not failures:
        counts = ""
    else:
        counts = f', "attempt": {attempt}, "failures": {failures}' if failures else f', "attempt": {attempt}'
    return counts + _claim_fields(values["heartbeat_at"], values["claim_timeout"], values["holder"])


@lru_cache(maxsize=1024, typed=True)  # the claims of one commit have the same values
def _claim_fields(heartbeat_at: datetime | None, claim_timeout: float | None, holder: str | None) -> str:
    text = "" if heartbeat_at is None else f', "heartbeat_at": "{_time(heartbeat_at)}"'
    text += "" if claim_timeout is None else f', "claim_timeout": {claim_timeout!r}'
    return text if holder is None else f'{text}, "holder": {_quote(holder)}'


def _with_claim_time(text: str, values: Mapping[str, Any]) -> str:
    """Add the time of a claim, unless it is that of its last heartbeat, as at first."""
    claimed_at = values["claimed_at"]
    if claimed_at == values["heartbeat_at"] and has_claim_time(values):
        return text
    return f'{text}, "claimed_at": {_quoted_time(claimed_at)}'


def has_claim_time(values: Mapping[str, Any]) -> bool:
    """Return True if a job without a time of its claim was claimed at the time of its last heartbeat."""
    return values.get("status") == JobStatus.IN_PROGRESS and values.get("holder") is not None


def read_line(line: bytes, undated: datetime | None = None) -> Job | SetAside:
    """Parse a line as a job, or as a line set aside, with the reason. The reason shows no value.

    Args:
        line: the line.
        undated: `created_at` of a job without one; None: the time by the own clock.
    """
    try:
        entry = from_json(b"{" + line + b"}", allow_inf_nan=False)
    except ValueError as error:
        return SetAside("", line, TOO_DEEP) if "recursion" in str(error) else _set_odd_line_aside(line)
    if len(entry) != 1:
        return SetAside("", line, SEVERAL)
    ((key, fields),) = entry.items()
    return _read_job(key, fields, line, undated)


def read_entry(line: bytes, names: dict[str, str], undated: datetime | None = None) -> tuple[str, Packed] | SetAside:
    """Parse a line as the id of a job and the packed job, or as a line set aside, as `read_line` does.

    Args:
        line: the line.
        names: entrypoints seen before; all jobs that have one share it.
        undated: see `read_line`.
    """
    waiting = _read_waiting(line, names)
    if waiting is not None:
        return waiting
    job = read_line(line, undated)
    return job if isinstance(job, SetAside) else (job.id, packed(job, names))


def _read_waiting(line: bytes, names: dict[str, str]) -> tuple[str, Packed] | None:
    """Parse a line that matches `_WAITING`, as most lines of a long queue do. This is faster than `read_line`.

    Return None for any other line, and for a line with an invalid value.
    """
    found = _WAITING.fullmatch(line)
    if found is None:
        return None
    job_id, entrypoint, payload, sequence, created_at = found.groups()
    try:
        content, moment, name = a2b_base64(payload, strict_mode=True), _moment(created_at.decode()), entrypoint.decode()
        return job_id.decode(), packed_waiting(names.setdefault(name, name), content, moment, int(sequence))
    except ValueError:
        return None


def read_waiting_lines(data: bytes, names: dict[str, str]) -> tuple[list[str], list[Packed]] | None:
    """Parse lines that all match `_WAITING`, as `read_entry` does, in less than half of its time.

    Return the job ids and the packed jobs, in two lists: pairs would be more objects for the garbage collector. Return
    None if another line is among them, or an invalid value.
    """
    if _WAITING.match(data) is None:
        return None
    found = _WAITING_LINES.findall(data)
    if len(found) != data.count(b"\n"):
        return None
    try:
        texts = {raw: names.setdefault(name := raw.decode(), name) for raw in {row[1] for row in found}}
        moments = {raw: _moment(raw.decode()) for raw in {row[4] for row in found}}
        return [job_id.decode() for job_id, *_ in found], [
            packed_waiting(texts[name], a2b_base64(payload, strict_mode=True), moments[at], int(place))
            for _, name, payload, place, at in found
        ]
    except ValueError:
        return None


def splitting_lines(part: bytes) -> Iterator[bytes]:
    """Yield the lines of a part of a blob."""
    return filter(None, (line.strip(EDGES) for line in io.BytesIO(part)))


def encode_asides(asides: Iterable[SetAside]) -> list[bytes]:
    """Encode the lines set aside, as they were.

    A line that is not exactly one JSON member gets an additional comma before it. So it can never become a member
    together with other lines, or the end of the blob. The blob is read line by line until an operator has repaired it.
    """
    return [b"," + aside.line if aside.reason in (NO_MEMBER, SEVERAL) else aside.line for aside in asides]


def set_duplicates_aside(
    twins: Iterable[tuple[str, bytes]], jobs: Iterable[str], set_aside: Iterable[SetAside]
) -> list[SetAside]:
    """Set aside the second lines of ids that occur twice, changed so that no reader takes them for jobs.

    Written back unchanged, such a line would become a job, with the claims of the old one, once the first has left.

    Args:
        twins: ids and their second lines.
        jobs: the ids of all jobs.
        set_aside: the other lines set aside.
    """
    twins = list(twins)
    taken = {*jobs, *(aside.key for aside in set_aside)} if twins else set()
    numbers: Counter[str] = Counter()
    found = []
    for job_id, line in twins:
        key = job_id
        while key in taken:
            numbers[job_id] += 1
            key = f"{job_id} ({numbers[job_id] + 1})"
        taken.add(key)
        fields = from_json(b"{" + line + b"}")[job_id]
        found.append(SetAside(key, raw_line(key, [TWICE, fields]), TWICE))
    return found


def raw_line(key: str, fields: object) -> bytes:
    """Encode a member of any JSON object as a line."""
    try:
        return f"{_dump(key)}: {_dump(fields)}".encode()
    except ValueError:  # a lone surrogate, or a number that JSON lacks: escapes keep it as it was
        return f"{_dump_anything(key)}: {_dump_anything(fields)}".encode()


def load_json(data: bytes) -> Any:
    """Parse JSON. Values that other parsers refuse are accepted, but no name may occur twice in one object.

    Raises:
        InvalidBlobError: a name occurs twice.
        ValueError: it is not JSON.
        RecursionError: it is nested too deep.
    """
    repeated: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            repeated.append(Counter(name for name, _ in pairs).most_common(1)[0][0])
        return found

    content = json.loads(data, object_pairs_hook=members)
    if repeated:
        raise InvalidBlobError(
            f"the queue's object has the name {shown(repeated[0])} twice in one place: remove or rename one"
        )
    return content


def _read_job(key: str, fields: object, line: bytes, undated: datetime | None) -> Job | SetAside:
    if not isinstance(fields, dict):
        twin = isinstance(fields, list) and fields[:1] == [TWICE]
        return SetAside(key, line, TWICE if twin else "a job must be a JSON object")
    headers = fields.get("headers")
    names = 1 + len(fields) + (len(headers) if isinstance(headers, dict) else 0)
    if len(_MEMBER.findall(line)) != names and _repeats(line):
        return SetAside(key, line, "a name occurs twice in one JSON object")
    try:
        fields["id"] = key
        if undated is not None:
            fields.setdefault("created_at", undated)
        if "claimed_at" not in fields and has_claim_time(fields):
            fields["claimed_at"] = fields.get("heartbeat_at")
        job: Job = _validate(fields)
        if job.__pydantic_extra__:
            _dump(job.__pydantic_extra__)
        if job.result is not None:
            _dump(job.result)
    except ValidationError as error:
        return SetAside(key, line, first_of(error))
    except (ValueError, OverflowError):
        return SetAside(key, line, "a value is out of range")
    if job.status is JobStatus.COMPLETED and (job.keep_result is None or job.finished_at is None):
        return SetAside(key, line, "status: a completed job is not kept without keep_result and finished_at")
    if job.attempt > LARGEST or job.failures > LARGEST:
        return SetAside(key, line, "attempt or failures: out of range")
    if job.status is JobStatus.IN_PROGRESS and job.attempt == 0:
        job = job.evolve(attempt=1, failures=max(1, job.failures))
    return job


def _set_odd_line_aside(line: bytes) -> SetAside:
    """Set aside a line that is not valid JSON, as a member with a value that JSON lacks, or as no member at all."""
    try:
        entry = json.loads("{" + line.decode("utf-8", "surrogatepass") + "}")
    except RecursionError:
        return SetAside("", line, TOO_DEEP)
    except ValueError:
        return SetAside("", line, NO_MEMBER)
    if len(entry) != 1:
        return SetAside("", line, SEVERAL)
    return SetAside(next(iter(entry)), line, "it holds a number or a text that JSON cannot hold")


def _repeats(line: bytes) -> bool:
    try:
        load_json(b"{" + line + b"}")
    except InvalidBlobError:
        return True
    except ValueError:  # a number that is too long: the validation of the fields decides
        return False
    return False


def first_of(error: ValidationError) -> str:
    """Describe the first error of a value, without the value."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(str(part) if str(part).isidentifier() else shown(part) for part in first["loc"])
    return f"{where}: {first['msg']}"
