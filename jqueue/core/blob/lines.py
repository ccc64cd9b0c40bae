"""Encodes a job as its line of the blob, decodes it, and sets aside lines that are not jobs.

A line is one member of the object of jobs, without the comma behind it: `"<job id>":{…}`. A line that the record's own
encoder would write is read by its decoder. Any other was written by a person, or by another version: one careful reader
keeps the fields that it does not know, and sets a line aside, with the reason, if it cannot be read as a job.

A line of an export is an object with the id and every other field of a job. It is ASCII, so that no line of an export
can command a terminal.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import msgspec
from pydantic import ValidationError
from pydantic_core import from_json

from jqueue.domain.errors import InvalidBlobError, InvalidJobError, shown
from jqueue.domain.fields import LARGEST
from jqueue.domain.header import SetAside
from jqueue.domain.job import JobRecord, JobStatus, objects_of
from jqueue.domain.models import Job, job_of, record_of

WHITESPACE = b" \t\r\n\v\f"
EDGES = WHITESPACE + b","
"""Bytes that may stand around a line without being a part of it."""

NO_MEMBER = "the line is not a JSON member"
SEVERAL = "the line holds more than one job"
TOO_DEEP = "it is nested too deep"
TWICE = "the id stood twice, and this was the second: give it an id of its own and take the brackets away"
_MEMBER = re.compile(rb'"\s*:')
dump_json: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
dump_ascii: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=True, allow_nan=False).encode
_dump_anything = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode
ENCODING_ERRORS = (TypeError, ValueError, OverflowError, RecursionError)
"""Errors of the encoders for values that are not JSON: half a character, or an object of an unknown class."""

encode_json: Callable[[Any], bytes] = msgspec.json.Encoder().encode
_encode: Callable[[JobRecord], bytes] = msgspec.json.Encoder().encode
_decode: Callable[[bytes], JobRecord] = msgspec.json.Decoder(JobRecord).decode
_LATER = [name for name in JobRecord.__struct_fields__ if name.endswith("_at") and name not in ("created_at", "run_at")]
_later, _NOTHING = attrgetter("errors", "steps", "progress", *_LATER), ((), (), None, *[None] * len(_LATER))


def encode_record(job: JobRecord) -> bytes:
    """Encode a job as an object: the id, the required fields, and all others that differ from their defaults."""
    if job.extra:
        return b"%b,%b" % (_encode(job.evolve(extra=None))[:-1], encode_json(job.extra)[1:])
    return _encode(job)


def encode_job(job: JobRecord) -> bytes:
    """Encode a job as its line."""
    text = encode_record(job)  # {"id":"<id>","entrypoint":…
    end = text.index(b'","')  # no text has three such bytes: a quote in it has a backslash before it
    return b"%b:{%b" % (text[6 : end + 1], text[end + 2 :])


def decode_line(line: bytes) -> JobRecord:
    """Decode a line that `encode_job` has written.

    Raises:
        ValueError: it is none.
    """
    end = line.index(b'":{"')
    return _decode(b'{"id":%b",%b' % (line[:end], line[end + 3 :]))


def read_line(line: bytes, undated: datetime | None = None) -> JobRecord | SetAside:
    """Read a line as a job, or as a line set aside, with the reason. The reason shows no value.

    Args:
        line: the line.
        undated: `created_at` of a job without one; None: the time by the own clock.
    """
    try:
        job = decode_line(line)
        if encode_job(job) == line and is_sound(job):
            return job
    except (ValueError, OverflowError, RecursionError):
        pass
    return _read_carefully(line, undated)


def is_sound(job: JobRecord) -> bool:
    """Return True if the values of a job fit together, and all of its times are in UTC."""
    if not job.id or job.created_at.tzinfo is not UTC or (job.run_at or job.created_at).tzinfo is not UTC:
        return False
    if (later := _later(job)) != _NOTHING:
        errors, steps, progress, *moments = later
        moments.append(None if progress is None else progress.at)
        moments += [at for error in errors for at in (error.at, error.claimed_at)] + [step.at for step in steps]
        if any(each is not None and each.tzinfo is not UTC for each in moments):
            return False
    if job.status is JobStatus.IN_PROGRESS:
        return job.attempt > 0
    return job.status is not JobStatus.COMPLETED or (job.keep_result is not None and job.finished_at is not None)


def _read_carefully(line: bytes, undated: datetime | None) -> JobRecord | SetAside:
    try:
        entry = from_json(b"{" + line + b"}", allow_inf_nan=False)
    except ValueError as error:
        return SetAside("", line, TOO_DEEP) if "recursion" in str(error) else _set_odd_line_aside(line)
    if len(entry) != 1:
        return SetAside("", line, SEVERAL)
    ((key, fields),) = entry.items()
    return _read_job(key, fields, line, undated)


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
    asides = []
    for job_id, line in twins:
        key = job_id
        while key in taken:
            numbers[job_id] += 1
            key = f"{job_id} ({numbers[job_id] + 1})"
        taken.add(key)
        fields = from_json(b"{" + line + b"}")[job_id]
        asides.append(SetAside(key, raw_line(key, [TWICE, fields]), TWICE))
    return asides


def raw_line(key: str, fields: object) -> bytes:
    """Encode a member of any JSON object as a line."""
    try:
        return f"{dump_json(key)}:{dump_json(fields)}".encode()
    except ValueError:  # a lone surrogate, or a number that JSON lacks: escapes keep it as it was
        return f"{_dump_anything(key)}:{_dump_anything(fields)}".encode()


def load_json(data: bytes) -> Any:
    """Parse JSON. Values that other parsers refuse are accepted, but no name may occur twice in one object.

    Raises:
        InvalidBlobError: a name occurs twice.
        ValueError: it is not JSON.
        RecursionError: it is nested too deep.
    """
    repeated: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            repeated.append(Counter(name for name, _ in pairs).most_common(1)[0][0])
        return fields

    content = json.loads(data, object_pairs_hook=members)
    if repeated:
        raise InvalidBlobError(
            f"the queue's object has the name {shown(repeated[0])} twice in one place: remove or rename one"
        )
    return content


def _read_job(key: str, fields: object, line: bytes, undated: datetime | None) -> JobRecord | SetAside:
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
        job = Job.model_validate(fields)
        if job.__pydantic_extra__:
            dump_json(job.__pydantic_extra__)
        if job.result is not None:
            dump_json(job.result)
        for step in job.steps:
            dump_json(step.result)
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
    return record_of(job)


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


def export_line(job: Job, result: Any = None) -> str:
    """Return the line of a job, without a line break. Its payload and its result must be loaded.

    Args:
        job: the job. The objects that it names are left out.
        result: its result if the job does not have it itself.
    """
    if result is not None or job.payload_object is not None or job.result_object is not None:
        result_value = job.result if result is None else result
        job = job.evolve(payload_object=None, result_object=None, result=result_value)
    ((job_id, fields),) = from_json(b"{" + encode_job(record_of(job)) + b"}").items()
    return dump_ascii({"id": job_id, **fields})


def import_line(line: bytes) -> Job:
    """Return the job on a line.

    Raises:
        InvalidJobError: the line is not a job. The message shows no value of it.
    """
    try:
        fields = from_json(line)
    except ValueError:
        raise InvalidJobError("it is not JSON") from None
    job_id = fields.pop("id", None) if isinstance(fields, dict) else None
    if not isinstance(job_id, str) or not job_id:
        raise InvalidJobError('it is not an object with an "id"')
    job = read_line(raw_line(job_id, fields))
    if isinstance(job, SetAside):
        raise InvalidJobError(f"it is not a job: {job.reason}")
    if objects_of(job):
        raise InvalidJobError("its payload or a result is in an object, and not on the line")
    return job_of(job)
