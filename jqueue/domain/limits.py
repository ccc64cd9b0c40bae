"""The size limits of a queue, and the checks that refuse values that could not be read back from the blob."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any

import msgspec
from pydantic_core import from_json

from jqueue.domain.errors import InvalidJobError, shown
from jqueue.domain.fields import LARGEST, PRIORITY_MAX, PRIORITY_MIN, FrozenHeaders
from jqueue.domain.header import GroupRecord, Header, KeyHold, large
from jqueue.domain.job import JobRecord, Progress
from jqueue.domain.rules import Schedule

ERROR_BYTES = 2048
"""Number of bytes, as written in the blob, at which a stored error is cut."""

SHORT_ERROR_BYTES = 120
"""Number of bytes at which an error is cut if the blob has no room for it. If that does not fit, it is dropped."""

TRACEBACK_BYTES = 1024
"""Number of bytes, as written in the blob, at which the frames kept with an error are cut."""

ENQUEUE_SHARE = 0.9
"""Share of the size limit up to which enqueue fills the blob. Claims, results and errors make the lines longer."""

CLOCK_ALLOWANCE = 60.0
"""Seconds by which clocks may disagree."""

LONGEST_GRACE = 10.0
"""Seconds for which a fresh process revokes nothing, unless a third of the claim's timeout is shorter."""

FINISHED_KEPT = 1000
"""Number of acked ids that the blob remembers whatever their age. Of a lease, no more are noted at its end."""

FINISHED_MINUTES = 60
"""Minutes for which the blob remembers the ids of all acked jobs, if they take few enough bytes."""

FINISHED_BYTES, FINISHED_SHARE = 256 << 10, 1 / 32
"""Number of bytes that these ids may take, and share of the size limit, whichever is less. Above it, the oldest quarter
is forgotten."""

HOLDS_SHARE = 1 / 8
"""Share of enqueue's limit that the unique keys kept after their jobs may take, and those that will be."""

WRITERS_KEPT = 256
"""Largest number of writers whose last commits the blob remembers."""

CLIENTS_KEPT = 1024
"""Largest number of a broker's clients whose last batches the blob remembers. Beyond it, the oldest is forgotten: if
its answer was lost just then, its calls raise UnknownOutcomeError."""

WRITER_AGE = 600.0
"""Seconds after which a writer's last commit may be forgotten: longer than any deadline."""

STEPS_KEPT = 1000
"""Largest number of steps of a job."""

STEPS_BYTES = 1 << 20
"""Largest number of bytes that the steps of a job take in the blob."""

STEP_BYTES = 4 << 10
"""Bytes above which the result of a step gets an object of its own, if the store can keep one and `object_bytes` is not
smaller. The line of a job with steps is written anew with each of them."""

ENTRYPOINTS_KEPT = 1000
"""Largest number of entrypoints with limits or pauses."""

TRANSACTIONS_KEPT = 256
"""Largest number of applications whose last transactions the blob remembers."""

END_BYTES = 120
"""About how many bytes the line of a waiting job grows until it has ended and its result is kept, besides the result.
They are reserved when it is enqueued: no claim and no end is refused for size."""

HOLD_BYTES = 24
"""About how many bytes a held key takes in the blob besides its text and the id of its job."""

SCHEDULE_BYTES = 160
"""About how many bytes a cron entry takes in the blob besides its texts and its payload."""

SPAN_BYTES = 50
"""About how many bytes each of a cron entry's fired spans takes in the blob."""

VERSIONS_KEPT = 128
"""Number of latest versions whose writers are not forgotten for their age, because clocks may be hours apart."""


PAYLOAD_BYTES = 1 << 20
"""Bytes of the largest payload in the blob, if `Limits.payload_bytes` is None."""

LARGE_PAYLOAD_BYTES = 64 << 20
"""Bytes of the largest payload in an object of its own that is given or handed out as bytes, in the same case."""

RESULT_BYTES = 64 << 10
"""Bytes of the largest result in the blob if `Limits.result_bytes` is None."""

BYTES_LIKE = (bytes, bytearray, memoryview)
"""The types of a payload that is given as a whole."""

ADDRESS_INSTEAD = "Store the data elsewhere and enqueue its address,"

_quote = json.encoder.encode_basestring


@dataclass(frozen=True)
class Limits:
    """The size limits of a queue. Each is a positive integer; four may be None.

    Attributes:
        payload_bytes: bytes of the largest payload that is given or handed out as bytes. None: 64 MiB if large payloads
            get objects of their own, or else 1 MiB. A payload from a file or an async iterable may be larger.
        blob_bytes: size limit of the blob. Enqueue stops when the jobs, the keys held for jobs that are gone, and the
            cron entries would take more than 90% of it. Results and errors are kept up to 100% of it. No operation but
            enqueue is refused for size. If the queue has a limit of its own, by `configure(blob_bytes=...)`, that one
            holds.
        batch_size: largest number of jobs in one dequeue, and of operations in one call.
        header_bytes: largest number of bytes that a job's headers may take together, names and texts, in UTF-8.
        name_bytes: bytes of the longest entrypoint, id, key or header name, in UTF-8.
        result_bytes: bytes of the largest result that is kept, as JSON. None: `payload_bytes`, or 1 MiB, if large
            results get objects of their own, or else 64 KiB.
        object_bytes: bytes above which a payload or a result gets an object of its own beside the queue, if the store
            can keep one. None: none does, and the limits above hold for all.
        hot_bytes: bytes of waiting jobs in the blob above which the last of them move to segments beside the queue, if
            the store can keep objects. None: all jobs stay in the blob.
    """

    payload_bytes: int | None = None
    blob_bytes: int = 64 << 20
    batch_size: int = 10_000
    header_bytes: int = 16 << 10
    name_bytes: int = 512
    result_bytes: int | None = None
    object_bytes: int | None = 64 << 10
    hot_bytes: int | None = 256 << 10

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name in ("payload_bytes", "result_bytes", "object_bytes", "hot_bytes"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidJobError(f"limit {field.name} must be a positive integer, got {shown(value)}")

    def most_payload(self, *, objects: bool) -> int:
        """Return the number of bytes of the largest payload that is given or handed out as bytes.

        Args:
            objects: True if a large payload gets an object of its own.
        """
        if self.payload_bytes is not None:
            return self.payload_bytes
        return LARGE_PAYLOAD_BYTES if objects else PAYLOAD_BYTES

    @cached_property
    def enqueue_bytes(self) -> int:
        """Number of bytes up to which enqueue fills the blob."""
        return int(self.blob_bytes * ENQUEUE_SHARE)


def written_bytes(text: str) -> int:
    """Return the number of bytes that a text takes in the blob, with its quotes and its escapes."""
    quoted = _quote(text)
    return len(quoted) if quoted.isascii() else len(quoted.encode())


exact: Callable[[str], str] = str.__str__
"""Returns a text as a `str` itself. The encoder of the queue takes no object of a class derived from it."""


def check_name(what: str, value: object, limits: Limits) -> str:
    """Return a name that people can read: a printable text, not empty, and within the limit.

    Raises:
        InvalidJobError: the value is not such a name.
    """
    if not isinstance(value, str):
        raise InvalidJobError(f"{what} must be a str, got {type(value).__name__}")
    value = exact(value)
    if not value or not value.isprintable():
        raise InvalidJobError(f"{what} must be printable and not empty, got {shown(value)}")
    if len(value.encode()) > limits.name_bytes:
        raise InvalidJobError(
            f"{what} is {len(value.encode())} bytes long; the limit is {limits.name_bytes}. Shorten it, or set "
            "Limits(name_bytes=...)"
        )
    return value


def check_payload(value: object, limits: Limits, *, objects: bool = False) -> bytes:
    """Return a bytes-like payload as bytes. Text is refused, because it would be taken for base64.

    Args:
        value: the payload.
        limits: of the queue object.
        objects: True if a large payload gets an object of its own. A larger one may then come from a file, as the error
            says.

    Raises:
        InvalidJobError: it is not bytes-like, or larger than the limit. The error does not show the payload.
    """
    if not isinstance(value, BYTES_LIKE):
        raise InvalidJobError(f"payload must be bytes, got {type(value).__name__}: {_encoding_advice(value)}")
    payload, most = bytes(value), limits.most_payload(objects=objects)
    if len(payload) > most:
        advice = "Enqueue it from a file, with a pathlib.Path," if objects else ADDRESS_INSTEAD
        raise InvalidJobError(
            f"payload is {len(payload)} bytes; the limit is {most}. {advice} or set Limits(payload_bytes=...)"
        )
    return payload


def _encoding_advice(value: object) -> str:
    """Return advice on how to write a payload that is not bytes."""
    if value is None:
        return "leave the payload out if the job has none"
    plain = "text.encode()" if isinstance(value, str) else "json.dumps(value).encode()"
    return f"write {plain}, or let its handler encode it, as in `handler.using(queue).enqueue(value)`"


def check_integer(what: str, value: object, low: int, high: int) -> int:
    """Return a whole number within [low, high].

    Raises:
        InvalidJobError: the value is not such a number.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidJobError(f"{what} must be an int, got {type(value).__name__}")
    value = int(value)
    if not low <= value <= high:
        raise InvalidJobError(f"{what} must be from {low} to {high}, got {shown(value)}")
    return value


check_priority: Callable[[object], int] = partial(check_integer, "priority", low=PRIORITY_MIN, high=PRIORITY_MAX)
"""Returns a priority: a signed 32-bit integer. Errors are as for `check_integer`."""


def check_headers(value: Mapping[str, str] | None, limits: Limits) -> FrozenHeaders:
    """Return headers: a mapping of printable names to texts that UTF-8 can write.

    Raises:
        InvalidJobError: the value is no such mapping, or too large. The error does not show the texts.
    """
    if value is None:
        return FrozenHeaders()
    if not isinstance(value, Mapping):
        raise InvalidJobError(f"headers must be a mapping of str to str, got {type(value).__name__}")
    size, headers = 0, dict[str, str]()
    for name, text in value.items():
        name = check_name("a header's name", name, limits)
        if not isinstance(text, str):
            raise InvalidJobError(f"header {name!r} must be a str, got {type(text).__name__}")
        headers[name] = text = exact(text)
        try:
            size += len(name.encode()) + len(text.encode())
        except UnicodeEncodeError:
            raise InvalidJobError(f"header {name!r} holds a lone surrogate, which UTF-8 cannot write") from None
    if size > limits.header_bytes:
        raise InvalidJobError(
            f"headers take {size} bytes; the limit is {limits.header_bytes}. Put large texts into the payload, or set "
            "Limits(header_bytes=...)"
        )
    return FrozenHeaders(headers)


def check_result(
    value: object, limits: Limits, object_bytes: int | None = None, what: str = "result", depth: int = 0
) -> tuple[Any, bytes]:
    """Return a result as it will be read back (tuples as lists, names as texts), and its JSON.

    Args:
        value: the result.
        limits: of the queue object.
        object_bytes: number of bytes above which a result gets an object of its own; None: none does.
        what: its description, for the error.
        depth: number of lists in which the job has it.

    Raises:
        InvalidJobError: it cannot be written as JSON, or is too large. The error does not show it.
    """
    if value is None:
        return None, b""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        lists = b"[" * depth, text, b"]" * depth
        json_value = from_json(b'{"job": {"result": %b%b%b}}' % lists, allow_inf_nan=False)["job"]["result"]
    except (TypeError, ValueError, RecursionError):
        raise InvalidJobError(
            f"a {what} must be JSON: text, finite numbers, true, false, null, or lists and objects of them; "
            f"got {type(value).__name__}"
        ) from None
    for _ in range(depth):
        json_value = json_value[0]
    most = limits.result_bytes
    if most is None:
        most = RESULT_BYTES if object_bytes is None else max(RESULT_BYTES, limits.most_payload(objects=False))
    if len(text) > most:
        raise InvalidJobError(
            f"the {what} is {len(text)} bytes as JSON; the limit is {most}. Store it elsewhere and "
            "return its address, or set Limits(result_bytes=...)"
        )
    return json_value, text


def check_progress(done: object, total: object, text: object) -> Progress:
    """Return a report of progress.

    Raises:
        InvalidJobError: the numbers are no whole numbers, negative, or more is done than there is.
    """
    done = check_integer("progress", done, 0, LARGEST)
    whole = None if total is None else check_integer("the total of progress", total, 0, LARGEST)
    if whole is not None and done > whole:
        raise InvalidJobError(f"progress is {done} of {whole}: no more can be done than there is")
    return Progress(done, whole, cut_error(text, SHORT_ERROR_BYTES))


def cut_error(error: object, size: int = ERROR_BYTES) -> str:
    """Return an error as text, cut at `size` bytes in the blob. Characters that UTF-8 cannot write are replaced."""
    try:
        text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    except Exception:  # a number of more than 4300 digits, or a class of the caller's
        text = f"<{type(error).__name__}>"
    text = text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")
    most = size + len('""')
    if written_bytes(text) <= most:
        return text
    return text[: bisect_right(range(len(text)), most, key=lambda length: written_bytes(text[:length])) - 1]


def schedule_bytes(schedule: Schedule) -> int:
    """Return about how many bytes a cron entry takes in the blob."""
    size = SCHEDULE_BYTES + len(schedule.payload) * 4 // 3 + SPAN_BYTES * len(schedule.fired)
    size += sum(written_bytes(text) for text in (schedule.name, schedule.entrypoint, schedule.cron))
    size += 0 if schedule.declared is None else schedule_bytes(schedule.declared)
    return size + sum(written_bytes(name) + written_bytes(text) + 4 for name, text in schedule.headers.items())


def finished_limit(blob_bytes: int) -> int:
    """Return the number of bytes that the ids of ended jobs may take in a blob with this size limit."""
    return int(min(FINISHED_BYTES, blob_bytes * FINISHED_SHARE))


def bytes_taken(job_bytes: int, header: Header, queued: int) -> int:
    """Return the bytes that count against enqueue's limit.

    These are the lines of jobs, the growth of those of waiting jobs, keys held for gone jobs, cron entries and groups.
    """
    taken = job_bytes + END_BYTES * queued + sum(map(schedule_bytes, header.schedules.values()))
    if header.holds:
        taken += held_bytes(header.holds)
    return taken + groups_bytes(header.groups) if header.groups else taken


def groups_bytes(groups: Mapping[str, GroupRecord]) -> int:
    """Return the number of bytes that the counters of groups take in the blob."""
    return len(msgspec.json.encode(groups))


def held_bytes(holds: Mapping[str, KeyHold]) -> int:
    """Return the number of bytes of the unique keys that are kept after their jobs."""
    return large(holds).size


def hold_bytes(job: JobRecord) -> int:
    """Return about how many bytes the unique key of a job will take after it; 0 if it is not kept."""
    if job.unique_key is None or not job.unique_for:
        return 0
    return HOLD_BYTES + written_bytes(job.unique_key) + written_bytes(job.id)
