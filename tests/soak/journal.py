"""The report of a worker of the soak on its calls: a line before each, one with its answer, and one with the outcome
that `resolve()` found for an unknown one.

A line is one write into a pipe, shorter than a pipe takes whole, so a killed worker leaves no half line. Times are
those of the monotonic clock, which all processes of one machine share.
"""

from __future__ import annotations

import json
import os
from enum import StrEnum
from typing import NamedTuple

from tests.kill.journal import JobAt


class Verb(StrEnum):
    """The calls that workers make."""

    ENQUEUE = "enqueue"
    DEQUEUE = "dequeue"
    ACK = "ack"
    NACK = "nack"
    HEARTBEAT = "heartbeat"
    APPLY = "apply"
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


class Line(NamedTuple):
    """One line.

    Attributes:
        call: the number of the call within its worker.
        kind: the start of the call, or its outcome.
        verb: the verb that was called.
        jobs: the jobs of the call; the job that an apply enqueues is the last.
        at: time when the line was written.
        seconds: seconds that the call took, or its resolve().
        allowed: seconds that it might take.
        note: the name of an error, or another hint for a reader.
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
    """Return a line as bytes, with its line end."""
    return json.dumps(list(line)).encode() + b"\n"


def decode(data: bytes) -> Line:
    """Return the line in these bytes."""
    call, kind, verb, jobs, *rest = json.loads(data)
    return Line(call, Kind(kind), Verb(verb), tuple(JobAt(*job) for job in jobs), *rest)


def say(descriptor: int, line: Line) -> None:
    """Write a line at once and as a whole."""
    os.write(descriptor, encode(line))
