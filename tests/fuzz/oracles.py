"""Checks that hold for any blob and any state, of any writer. All targets share them."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from jqueue.core.blob import codec
from jqueue.domain.errors import InvalidBlobError, JQueueError
from jqueue.domain.models import Job, QueueState

MESSAGE_BYTES = 20_000
"""Largest size of an error message in bytes. An error is for people to read, so it must not grow with the blob."""

CUTS = 4
"""Number of places at which cutting a blob is tried."""

LINE_ENDS = re.compile(rb",\n|\n}}\n\Z")
"""End of each line of a blob that we wrote, but the first and the last."""

ROUGHLY_NOW = timedelta(minutes=10)


class Finding(AssertionError):
    """A promise was broken."""


class Members(list[tuple[str, Any]]):
    """Members of a JSON object, in the order of the text."""


def require(true: object, said: str) -> None:
    """Raise a Finding that says `said` if a promise was broken.

    Raises:
        Finding: the promise was broken.
    """
    if not true:
        raise Finding(said)


def read(content: bytes) -> QueueState | None:
    """Return the state in a blob; None if it is refused with an error that can be printed."""
    try:
        return codec.decode(content)
    except InvalidBlobError as error:
        check_message(error)
        return None


def read_written(content: bytes) -> QueueState:
    """Return the state in a blob that we wrote, which must be readable."""
    try:
        return codec.decode(content)
    except JQueueError as error:
        raise Finding(f"what was written cannot be read: {ascii(str(error))[:200]}") from error


def check_message(error: BaseException) -> None:
    """Check that an error can be printed, and that its text is not too long."""
    try:
        size = len(str(error).encode())
    except UnicodeEncodeError:
        raise Finding("the message of an error cannot be printed") from error
    require(size <= MESSAGE_BYTES, f"the message of an error is {size} bytes long")


def check_same(ours: QueueState, theirs: QueueState, what: str, *, placed: bool = True) -> None:
    """Check that two states agree on header, jobs by id, and lines set aside.

    Args:
        ours: one state.
        theirs: the other state.
        what: description of the comparison, for the finding.
        placed: True if the jobs must have kept their sequence numbers; False if only their order.
    """
    require(_header(ours) == _header(theirs), f"{what}: the headers differ")
    one, two = (_by_id(state.jobs, placed=placed) for state in (ours, theirs))
    for job_id in one.keys() | two.keys():
        require(one.get(job_id) == two.get(job_id), f"{what}: a job differs")
    order = [[job.id for job in sorted(state.jobs, key=_place)] for state in (ours, theirs)]
    require(order[0] == order[1], f"{what}: the order of the jobs differs")
    require(asides(ours) == asides(theirs), f"{what}: the lines set aside differ")


def check_normal(state: QueueState) -> bytes:
    """Check the normal form: a written state is JSON, is read back the same, and is written the same again."""
    written = codec.encode(state)
    again = read_written(written)
    check_same(state, again, "written and read back")
    require(codec.encode(again) == written, "written, read and written again: the bytes differ")
    if not state.set_aside:
        check_json(written)
    return written


def check_cuts(written: bytes) -> None:
    """Check that a blob of ours is refused without its end, even if it is cut after a line that ends like a blob."""
    ends = [written.index(b"\n"), *(found.start() for found in LINE_ENDS.finditer(written))]
    ends.sort(key=lambda end: not written.endswith(codec.JOBS_CLOSE, 0, end))
    for end in ends[:CUTS]:
        require(read(written[:end]) is None, "a part of what was written is taken for a queue")


def check_json(content: bytes) -> None:
    """Check that other programs can read the blob: strict JSON in UTF-8."""
    try:
        json.loads(content.decode(), parse_constant=_no_constant)
    except ValueError as error:
        raise Finding(f"what was written is not JSON: {str(error)[:80]}") from error


def check_layout(content: bytes, state: QueueState) -> None:
    """Check that the same JSON in another layout is read as the same state."""
    try:
        whole = json.loads(content.decode("utf-8"), object_pairs_hook=_pairs)
        if not isinstance(whole, dict) or not isinstance(whole.get("jobs"), dict):
            return
        other = json.dumps(whole, allow_nan=False, sort_keys=False).encode()
    except (ValueError, RecursionError):
        return
    if _deep_or_odd(whole):
        return
    try:
        same = codec.decode(other)
    except InvalidBlobError as error:
        raise Finding(f"in another layout the same JSON is refused: {str(error)[:120]}") from error
    require(_header(same) == _header(state), "in another layout the header differs")
    one, two = _by_id(state.jobs, placed=False), _by_id(same.jobs, placed=False)
    require(one == two, "in another layout the jobs differ")


def check_all_there(content: bytes, state: QueueState) -> None:
    """Check that every job in the text is a job or a line set aside, even if a name occurs twice."""
    try:
        whole = json.loads(content.decode("utf-8"), object_pairs_hook=Members)
    except (ValueError, RecursionError):
        return
    members = [value for name, value in whole if name == "jobs"] if isinstance(whole, Members) else []
    seen = sum(len(value) for value in members if isinstance(value, Members))
    known = len(state.jobs) + sum(_members(aside.line) for aside in state.set_aside)
    require(seen <= known, f"of {seen} jobs in the text, {seen - known} are neither jobs nor set aside")


def _members(line: bytes) -> int:
    """Number of members of an object on a line; 1 if the line is not JSON."""
    try:
        return len(json.loads(b"{" + line + b"}", object_pairs_hook=Members))
    except (ValueError, RecursionError):
        return 1


def check_blob(content: bytes) -> QueueState | None:
    """Check everything that holds for any bytes. Returns the state, or None if they are not a queue."""
    state = read(content)
    if state is not None and content:
        check_cuts(check_normal(state))
        check_layout(content, state)
        check_all_there(content, state)
    return state


def asides(state: QueueState) -> Counter[bytes]:
    """Return the lines set aside, without the white space of the layout around them."""
    return Counter(aside.line.strip() for aside in state.set_aside)


def check_kept(before: QueueState, after: QueueState) -> None:
    """Check that every line set aside is still there, byte by byte."""
    missing = asides(before) - asides(after)
    require(not missing, "a line that was set aside is gone")


def _header(state: QueueState) -> dict[str, Any]:
    """Return all of the state but the jobs and the lines set aside."""
    header = {name: getattr(state, name) for name in QueueState.model_fields if name not in ("jobs", "set_aside")}
    return header | {"order": [list(header[name]) for name in ("commits", "finished", "holds", "extra")]}


def _by_id(jobs: Iterable[Job], *, placed: bool) -> dict[str, Job]:
    """Return the jobs for a comparison. A job without a date got the date of its reading, which is left out."""
    found = {}
    for job in jobs:
        changes: dict[str, Any] = {} if placed else {"sequence": 0}
        if abs(datetime.now(UTC) - job.created_at) < ROUGHLY_NOW:
            changes["created_at"] = datetime.min.replace(tzinfo=UTC)
        found[job.id] = job.evolve(**changes)
    return found


def _place(job: Job) -> tuple[int, str]:
    return job.sequence, job.id


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name stands twice")
    return dict(pairs)


def _deep_or_odd(value: Any, depth: int = 0) -> bool:
    """True if parsers may disagree on the value: too deep for some, or a text that is not Unicode."""
    if depth > 100:
        return True
    if isinstance(value, dict):
        return any(_deep_or_odd(name) or _deep_or_odd(inner, depth + 1) for name, inner in value.items())
    if isinstance(value, list):
        return any(_deep_or_odd(inner, depth + 1) for inner in value)
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value)
