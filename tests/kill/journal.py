"""The report of a worker on its calls: a line before each call, and a line with its answer.

A line is one write, shorter than a pipe takes whole, so a killed worker leaves no half line. A job is named by its id
and an attempt, which is 0 without a claim. No line holds a payload, as the payload follows from the job's id.
"""

from __future__ import annotations

import hashlib
import json
import os
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


class Kind(StrEnum):
    """Kind of a line: the start of a call, or its outcome."""

    INTENT = "intent"
    DONE = "done"
    REFUSED = "refused"
    """An error that promises that nothing was done."""
    UNKNOWN = "unknown"
    """An error after which the call may have been done or not."""
    BROKEN = "broken"
    """An outcome that must never occur: a blob that cannot be read, or a wrong payload."""


class JobAt(NamedTuple):
    """A job, and the attempt of its claim."""

    id: str
    attempt: int = 0


class Line(NamedTuple):
    """One line.

    Attributes:
        call: the number of the call within its worker.
        kind: the start of the call, or its outcome.
        verb: the verb that was called.
        jobs: the jobs of the call; the job that an apply enqueues is the last. The range that ends is the first, before
            those of its jobs that are done.
        note: the name of an error, or another hint for a reader.
    """

    call: int
    kind: Kind
    verb: Verb
    jobs: tuple[JobAt, ...] = ()
    note: str = ""


def encode(line: Line) -> bytes:
    """Return a line as bytes, with its line end."""
    return json.dumps([line.call, line.kind, line.verb, line.jobs, line.note]).encode() + b"\n"


def decode(data: bytes) -> Line:
    """Return the line in these bytes."""
    call, kind, verb, jobs, note = json.loads(data)
    return Line(call, Kind(kind), Verb(verb), tuple(JobAt(*job) for job in jobs), note)


def say(descriptor: int, line: Line) -> None:
    """Write a line at once and as a whole."""
    os.write(descriptor, encode(line))


def payload_of(job_id: str) -> bytes:
    """Return the payload that the job with this id must have: of any length, and different for each."""
    digest = hashlib.sha256(job_id.encode()).digest()
    length = int.from_bytes(digest[:4], "big") % LONGEST_PAYLOAD
    return (digest * (LONGEST_PAYLOAD // len(digest) + 1))[:length]
