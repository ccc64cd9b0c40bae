"""What a worker of the soak says about its calls: a line before each, a line with its answer, and one with what became
of an answer that was not certain.

A line is one write into a pipe and shorter than what a pipe takes whole, so a killed worker leaves no half line. Times
are of the monotonic clock, which all processes of one machine share.
"""

from __future__ import annotations

import json
import os
from enum import StrEnum
from typing import NamedTuple

from tests.kill.journal import JobAt


class Verb(StrEnum):
    """What workers do."""

    ENQUEUE = "enqueue"
    DEQUEUE = "dequeue"
    ACK = "ack"
    NACK = "nack"
    HEARTBEAT = "heartbeat"
    APPLY = "apply"
    LEAVE = "leave"
    """Close the queue."""


class Kind(StrEnum):
    """What a line tells about a call."""

    INTENT = "intent"
    DONE = "done"
    REFUSED = "refused"
    """An error that promises that nothing was done."""
    UNKNOWN = "unknown"
    """UnknownOutcomeError."""
    LANDED = "landed"
    """The outcome was unknown, and resolve() says that it was done."""
    NOT_DONE = "not done"
    """The outcome was unknown, and resolve() says that it was not done."""
    STILL_UNKNOWN = "still unknown"
    BROKEN = "broken"
    """Something that may never happen."""


class Line(NamedTuple):
    """One line.

    Attributes:
        call: the number of the call among those of its worker.
        kind: whether the call begins, or how it ended.
        verb: which call.
        jobs: what it is about; the job that an apply enqueues is the last.
        at: when the line was written.
        seconds: how long the call took, or its resolve().
        allowed: how long it might take.
        note: the name of an error, or what else a reader should know.
    """

    call: int
    kind: Kind
    verb: Verb
    jobs: tuple[JobAt, ...] = ()
    at: float = 0.0
    seconds: float = 0.0
    allowed: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        jobs = ", ".join(f"{job.id}/{job.attempt}" for job in self.jobs)
        took = f" after {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.at:.3f} call {self.call} {self.verb} {jobs}: {self.kind}{took} {self.note}".rstrip()


def encode(line: Line) -> bytes:
    """A line as bytes, its end included."""
    return json.dumps(list(line)).encode() + b"\n"


def decode(data: bytes) -> Line:
    """Bytes as a line."""
    call, kind, verb, jobs, *rest = json.loads(data)
    return Line(call, Kind(kind), Verb(verb), tuple(JobAt(*job) for job in jobs), *rest)


def say(descriptor: int, line: Line) -> None:
    """Write a line at once and whole."""
    os.write(descriptor, encode(line))
