"""The events of a history: made from the transitions of a commit as JSON text, and read again."""

from __future__ import annotations

import json
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from jqueue.domain.history import time_text
from jqueue.domain.limits import cut_error
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.sequence_numbers import PlacedJobs
from jqueue.domain.tallies import ready_since
from jqueue.domain.transitions import Move, Verb

PAYLOAD_BYTES = 64 << 10
"""Size of the largest payload that an event keeps."""

ERROR_BYTES = 256
"""Size of the largest error text that an event keeps."""

_quote = json.encoder.encode_basestring_ascii
_VERBS = {verb: f'"{verb}"' for verb in Verb}
_STATUSES = {status: f'"{status}"' for status in JobStatus}
_WITH_ERROR = frozenset((Verb.NACK, Verb.REVOKE))
_ENDS_CLAIM = frozenset((Verb.ACK, Verb.NACK, Verb.HAND_BACK, Verb.REVOKE, Verb.DEPART))


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One event in the history of a queue. Times are aware and in UTC.

    Attributes:
        number: grows by one with every event of the queue.
        at: time of the commit.
        verb: what happened: a `Verb` such as "enqueue", "dequeue", "ack" or "stale". "start" is no transition: the
            history was switched on.
        job_id: id of the job; None for jobs of a bulk enqueue, and for "start".
        entrypoint: of the job.
        before: status before the event; None if the job was not in the queue.
        after: status after it; None if the job has left.
        attempt: the attempt of the job after the event; if it has left, before it.
        holder: holder of the claim that the event made or ended.
        wait_seconds: of a claim, the time for which the job was ready.
        run_seconds: of the end of a claim, the time for which it lasted.
        created_at: of an event by which a job leaves, the time of its enqueue.
        error: of a failure, the error, cut at 256 bytes. It begins with the class if it was an exception.
        payload: of an enqueue, if the history keeps payloads. Not shown by `repr`.
        jobs: number of jobs; more than 1 only for a bulk enqueue.
    """

    number: int
    at: datetime
    verb: str
    job_id: str | None = None
    entrypoint: str | None = None
    before: JobStatus | None = None
    after: JobStatus | None = None
    attempt: int = 0
    holder: str | None = None
    wait_seconds: float | None = None
    run_seconds: float | None = None
    created_at: datetime | None = None
    error: str | None = None
    payload: bytes | None = field(default=None, repr=False)
    jobs: int = 1


def event_of(text: str) -> HistoryEvent:
    """Read an event.

    Raises:
        ValueError: the text is not an event.
    """
    try:
        row = json.loads(text)
        number, job_id, entrypoint, verb, before, after, attempt, holder, at = row[:9]
        seconds, created, error, payload, jobs = (*row[9:14], *(None,) * (14 - len(row)))[:5]
        claims = verb == Verb.CLAIM
        return HistoryEvent(
            number=int(number),
            at=datetime.fromtimestamp(at, UTC),
            verb=verb,
            job_id=job_id,
            entrypoint=entrypoint,
            before=None if before is None else JobStatus(before),
            after=None if after is None else JobStatus(after),
            attempt=attempt,
            holder=holder,
            wait_seconds=seconds if claims else None,
            run_seconds=None if claims else seconds,
            created_at=None if created is None else datetime.fromtimestamp(created, UTC),
            error=error,
            payload=None if payload is None else a2b_base64(payload),
            jobs=1 if jobs is None else jobs,
        )
    except (TypeError, OverflowError, OSError) as error:
        raise ValueError(f"it is not an event of a history: {type(error).__name__}") from None


def events_of(
    moves: Iterable[Move], placed: Sequence[PlacedJobs], number: int, now: datetime, *, payloads: bool
) -> list[str]:
    """Return the texts of the events of a commit. A heartbeat is no event.

    Args:
        moves: its transitions.
        placed: the jobs that it adds as encoded lines. All jobs of one block and entrypoint are one event.
        number: the number of the first event.
        now: its time.
        payloads: True if the events of enqueued jobs keep the payload.
    """
    texts, at, rest = [], time_text(now), _Rest(now, payloads=payloads)
    quoted: dict[str | None, str] = {None: "null"}  # entrypoints and holders, which are few
    for block in placed:
        time = time_text(block.now)
        for entrypoint, jobs in block.encoded.entrypoints.items():
            texts.append(
                f"[{number}, null, {_quote(entrypoint)}, {_VERBS[Verb.ENQUEUE]}, null, "
                f"{_STATUSES[JobStatus.QUEUED]}, 0, null, {time}, null, null, null, null, {jobs}]"
            )
            number += 1
    for verb, before, after in moves:
        if verb is Verb.HEARTBEAT:
            continue
        job = after or before
        assert job is not None
        fields = job.__dict__  # quicker than the attributes of a model
        old, new = "null", "null"
        name, holder = fields["entrypoint"], fields["holder"]
        if after is not None:
            new = _STATUSES[fields["status"]]
        if before is not None:
            old = _STATUSES[before.status]
            if verb is not Verb.CLAIM:
                holder = before.holder
        if name not in quoted:
            quoted[name] = _quote(name)
        if holder is not None and holder not in quoted:
            quoted[holder] = _quote(holder)
        texts.append(
            f"[{number}, {_quote(fields['id'])}, {quoted[name]}, {_VERBS[verb]}, {old}, {new}, {fields['attempt']}, "
            f"{quoted[holder]}, {at}{rest.text(verb, before, after)}]"
        )
        number += 1
    return texts


class _Rest:
    """The last columns of the events of a commit: seconds, time of creation, error and payload.

    Many jobs of a commit were created, or claimed, at the same moment. Its text is made once.
    """

    __slots__ = ("_created", "_created_text", "_now", "_payloads", "_seconds_text", "_since")

    def __init__(self, now: datetime, *, payloads: bool) -> None:
        self._now = now
        self._payloads = payloads
        self._since: datetime | None = None
        self._created: datetime | None = None
        self._seconds_text = self._created_text = ""

    def text(self, verb: Verb, before: Job | None, after: Job | None) -> str:
        """Return the columns. Those at the end without a value are left out.

        The seconds are the wait of a claimed job, or the length of a claim that ends. The time of creation is kept
        with the event by which a job leaves.
        """
        if before is None:
            if self._payloads and verb is Verb.ENQUEUE and after is not None and _is_kept(after):
                return f', null, null, null, "{b2a_base64(after.payload, newline=False).decode("ascii")}"'
            return ""
        if verb is Verb.CLAIM:
            return f", {self._seconds(ready_since(before))}"
        claimed = before.claimed_at if verb in _ENDS_CLAIM else None
        seconds = "null" if claimed is None else self._seconds(claimed)
        if after is None:
            created = before.created_at
            if created is not self._created:
                self._created, self._created_text = created, time_text(created)
            return f", {seconds}, {self._created_text}"
        if verb in _WITH_ERROR and (error := _error(before, after)):
            return f", {seconds}, null, {_quote(error)}"
        return "" if claimed is None else f", {seconds}"

    def _seconds(self, since: datetime) -> str:
        if since is not self._since:
            self._since, self._seconds_text = since, f"{(self._now - since).total_seconds():.3f}"
        return self._seconds_text


def _is_kept(job: Job) -> bool:
    """Return True if an event keeps the payload of a job. One that is in an object of its own is too large."""
    return job.payload_object is None and len(job.payload) <= PAYLOAD_BYTES


def _error(before: Job, after: Job) -> str | None:
    """Return the error with which an attempt ended. It begins with the class if it was given as an exception."""
    if after.errors and after.errors[-1].attempt == before.attempt:
        return after.errors[-1].text
    return None if after.error is None or after.error == before.error else cut_error(after.error, ERROR_BYTES)
