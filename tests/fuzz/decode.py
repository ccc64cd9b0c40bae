"""The target `decode`: bytes read as a blob, or as two blobs, one read after the other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from jqueue.core.blob import codec
from jqueue.core.blob.content import Blob
from jqueue.domain.commits import CommitId, next_header
from jqueue.domain.errors import InvalidBlobError, JQueueError
from jqueue.domain.limits import Limits
from jqueue.domain.models import LARGEST, Claim, Job
from jqueue.domain.operations import (
    Ack,
    Cancel,
    Dequeue,
    Enqueue,
    HandBack,
    Heartbeat,
    JobReference,
    Nack,
    Operation,
    Preparation,
    Purge,
    Redrive,
    RequeueStale,
    Sweep,
    perform,
)
from tests.fuzz import oracles
from tests.fuzz.choices import Choices
from tests.fuzz.edits import edit
from tests.fuzz.seeds import NOW, SEPARATOR

MOMENTS = (NOW, datetime(1900, 1, 1, tzinfo=UTC), datetime(9800, 1, 1, tzinfo=UTC))
"""Times at which the blob is read: a clock may be wrong by centuries."""


def decode_target(data: bytes) -> None:
    """Read the bytes, and check the result against every promise.

    Raises:
        Finding: a promise was broken. Any other exception is a finding too.
    """
    first, separator, second = data.partition(SEPARATOR)
    state = oracles.check_blob(first)
    if state is not None and first:
        check_operations(first, MOMENTS[len(first) % len(MOMENTS)])
    if separator and second and state is not None and first and oracles.check_blob(second) is not None:
        check_second(first, second)


def mutated(data: bytes, choices: Choices) -> bytes:
    """Return a neighbour of an input: one of its blobs edited, or an edited copy appended."""
    first, separator, second = data.partition(SEPARATOR)
    if not separator and choices.one_in(4):
        return first + SEPARATOR + edit(first, choices)
    if separator and choices.one_in(2):
        return first + SEPARATOR + edit(second, choices)
    return edit(first, choices) + separator + second


def check_second(first: bytes, second: bytes) -> None:
    """Reading a second blob over a first gives the same as reading it alone, also after a commit that was undone."""
    fresh = oracles.adopted(second).draft.freeze()
    oracles.check_same(oracles.adopted(first, second).draft.freeze(), fresh, "read over another blob", placed=False)
    blob = oracles.adopted(first)
    _perform_all(blob, NOW)
    blob.encode(blob.draft.freeze())
    blob.draft.rollback()
    blob.adopt(codec.parse_blob(second), len(second))
    oracles.check_same(blob.draft.freeze(), fresh, "read over a commit that was taken back", placed=False)
    again = oracles.read_written(blob.encode(blob.draft.freeze()))
    oracles.check_same(blob.draft.freeze(), again, "written after two readings")


def check_operations(content: bytes, now: datetime) -> None:
    """Every operation returns a result or raises our own error, and our commits can be read back."""
    blob = oracles.adopted(content)
    before = blob.draft.freeze()
    for number in range(1, 3):
        _perform_all(blob, now)
        try:
            header = next_header(blob.draft, CommitId("writer", number, blob.draft.header.version), "queue", now, 0.1)
        except InvalidBlobError:
            oracles.require(blob.draft.header.version == LARGEST, "a commit is refused")
            return
        written = blob.encode(header)
        blob.settle(header, len(written))
        again = oracles.read_written(written)
        oracles.check_same(blob.draft.freeze(), again, "committed and read back")
        oracles.check_kept(before, again)
        now += timedelta(days=1)


def _perform_all(blob: Blob, now: datetime) -> None:
    """Perform each operation once or twice on the blob."""
    draft = blob.draft
    _perform(Enqueue("mail", b"new"), blob, now)
    _perform(Enqueue("mail", b"new", job_id="job-1", unique_key="mail:eve", on_conflict="replace"), blob, now)
    _perform(Enqueue("mail", b"new", job_id="new", unique_key="mail:bob", unique_for=5), blob, now)
    claims = [draft.jobs[name] for name in draft.jobs.claimed]
    _perform(Sweep(tuple((job.claim, job.heartbeat_at) for job in claims)), blob, now)
    _perform(Redrive(), blob, now)
    claimed: list[Job] = _perform(Dequeue(batch_size=10_000), blob, now) or []
    _perform(Heartbeat(tuple(claimed), tolerant=True), blob, now)
    for number, job in enumerate(claimed):
        endings: tuple[Operation, ...] = (
            Ack(job),
            Nack(job, delay=60, error="boom"),
            Nack(job, dead=True),
            Nack(job, charge=False),
            HandBack((job.claim,)),
        )
        _perform(endings[number % len(endings)], blob, now)
    _perform(RequeueStale(0), blob, now)
    _perform(Purge(older_than=3600), blob, now)
    for name in list(draft.jobs)[:1]:
        _perform(Cancel(name), blob, now)
        _perform(Redrive(name), blob, now)


def _perform(operation: Operation, blob: Blob, now: datetime) -> Any:
    """Return the result, or None if the operation was refused with our own error."""

    def claim(reference: JobReference) -> Claim:
        assert isinstance(reference, Job)
        return reference.claim

    ids = f"id-{len(blob.draft.jobs)}-{blob.draft.next_sequence()}"
    try:
        prepared = operation.prepared(Preparation(Limits(), 300.0, lambda: ids, claim))
        result = perform(prepared, blob.draft, now)
    except JQueueError as error:
        oracles.check_message(error)
        return None
    if isinstance(result, JQueueError):
        oracles.check_message(result)
        if result.__cause__ is not None:
            raise oracles.Finding(f"{type(operation).__name__} failed inside") from result.__cause__
        return None
    return result
