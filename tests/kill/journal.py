"""What a worker says about its calls: a line before each call, and a line with its answer.

A line is one write into a pipe and shorter than what a pipe takes whole, so a killed worker leaves no half line. A job
is named by its id and an attempt; 0 where there is no claim. Nothing holds a payload: it follows from the job's id.
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


class Kind(StrEnum):
    """What a line tells about a call."""

    INTENT = "intent"
    DONE = "done"
    REFUSED = "refused"
    """An error that promises that nothing was done."""
    UNKNOWN = "unknown"
    """An error that promises nothing."""
    BROKEN = "broken"
    """Something that may never happen: a blob that cannot be read, a payload that is not the job's."""


class JobAt(NamedTuple):
    """A job, and the attempt by which it is claimed."""

    id: str
    attempt: int = 0


class Line(NamedTuple):
    """One line.

    Attributes:
        call: the number of the call among those of its worker.
        kind: whether the call begins, or how it ended.
        verb: which call.
        jobs: what it is about; the job that an apply enqueues is the last.
        note: the name of an error, or what else a reader should know.
    """

    call: int
    kind: Kind
    verb: Verb
    jobs: tuple[JobAt, ...] = ()
    note: str = ""


def encode(line: Line) -> bytes:
    """A line as bytes, its end included."""
    return json.dumps([line.call, line.kind, line.verb, line.jobs, line.note]).encode() + b"\n"


def decode(data: bytes) -> Line:
    """Bytes as a line."""
    call, kind, verb, jobs, note = json.loads(data)
    return Line(call, Kind(kind), Verb(verb), tuple(JobAt(*job) for job in jobs), note)


def say(descriptor: int, line: Line) -> None:
    """Write a line at once and whole."""
    os.write(descriptor, encode(line))


def payload_of(job_id: str) -> bytes:
    """The payload that the job of this id must have: of any length, and different for each."""
    digest = hashlib.sha256(job_id.encode()).digest()
    length = int.from_bytes(digest[:4], "big") % LONGEST_PAYLOAD
    return (digest * (LONGEST_PAYLOAD // len(digest) + 1))[:length]
