"""The report of a worker on its calls: a line before each, one with its answer, and one with the outcome that
`resolve()` finds for an unknown one.

A line is one write, shorter than a pipe takes whole, so a killed worker leaves no half line. No line holds a payload,
as the payload follows from the job's id.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import NamedTuple

LONGEST_PAYLOAD = 600


class Verb(StrEnum):
    """The calls that workers make."""

    ENQUEUE = "enqueue"
    DEQUEUE = "dequeue"
    ACK = "ack"
    NACK = "nack"
    HEARTBEAT = "heartbeat"
    APPLY = "apply"
    CANCEL = "cancel"
    CLAIM_RANGE = "claim range"
    END_RANGE = "end range"
    LEAVE = "leave"
    """Close the queue."""


class Kind(StrEnum):
    """Kind of a line: the start of a call, or its outcome."""

    INTENT = "intent"
    DONE = "done"
    REFUSED = "refused"
    """An error that promises that nothing was done."""
    UNKNOWN = "unknown"
    """An UnknownOutcomeError."""
    LANDED = "landed"
    """The outcome was unknown, and resolve() returned that the call was done."""
    NOT_DONE = "not done"
    """The outcome was unknown, and resolve() raised that the call was not done."""
    STILL_UNKNOWN = "still unknown"
    BROKEN = "broken"
    """An outcome that must never occur."""


class JobAt(NamedTuple):
    """A job, and the attempt of its claim: 0 without a claim."""

    id: str
    attempt: int = 0


class Line(NamedTuple):
    """One line.

    Attributes:
        call: the number of the call within its worker.
        kind: the start of the call, or its outcome.
        verb: the verb that was called.
        jobs: the jobs of the call. The job that an apply enqueues is the last. The range that ends is the first, before
            those of its jobs that are done.
        seconds: seconds that the call took, or its resolve().
        allowed: seconds that it might take.
        note: the name of an error, or another hint for a reader.
    """

    call: int
    kind: Kind
    verb: Verb
    jobs: tuple[JobAt, ...] = ()
    seconds: float = 0.0
    allowed: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        jobs = ", ".join(f"{job.id}/{job.attempt}" for job in self.jobs)
        took = f" after {self.seconds:.2f} s" if self.seconds else ""
        return f"call {self.call} {self.verb} {jobs}: {self.kind}{took} {self.note}".rstrip()


def encode(line: Line) -> bytes:
    """Return a line as bytes, with its line end."""
    return json.dumps(list(line)).encode() + b"\n"


def decode(data: bytes) -> Line:
    """Return the line in these bytes."""
    call, kind, verb, jobs, *rest = json.loads(data)
    return Line(call, Kind(kind), Verb(verb), tuple(JobAt(*job) for job in jobs), *rest)


def payload_of(job_id: str) -> bytes:
    """Return the payload that the job with this id must have: of any length, and different for each."""
    digest = hashlib.sha256(job_id.encode()).digest()
    length = int.from_bytes(digest[:4], "big") % LONGEST_PAYLOAD
    return (digest * (LONGEST_PAYLOAD // len(digest) + 1))[:length]
