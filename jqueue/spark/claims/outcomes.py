"""Outcomes of jobs as plain values: from handlers and functions of `foreachBatch` to the commit that ends them.

No object that a handler made is pickled on the way. So a value that cannot be read back is found where it was made, and
costs that job alone. `Staged` is the one format in which outcomes wait in an object beside the queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import InvalidBlobError, InvalidJobError
from jqueue.domain.job import Claim
from jqueue.domain.limits import Limits, cut_error
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import decode_operation, encode_operation, receiving
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.segments import JobFailure
from jqueue.worker.retries import Decision, OutcomeKind


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of one job.

    Attributes:
        job_id: the id of the job.
        attempt: the number of its claim.
        kind: the kind of outcome.
        result: the JSON value that the handler returned, if it is kept.
        keep_result: seconds to keep the result of a job that was enqueued without `keep_result`.
        withheld: True if the job has a result that is not kept.
        delay: seconds until the next try.
        error: the error it failed with, cut.
        traceback: frames of the error's traceback.
        added: the enqueues of the commit of its ack, each encoded.
        killed: True if its handler has ended its process, or did not stop.
    """

    job_id: str
    attempt: int
    kind: OutcomeKind
    result: Any = None
    keep_result: float | None = None
    withheld: bool = False
    delay: float | None = None
    error: str | None = None
    traceback: str | None = None
    added: tuple[msgspec.Raw, ...] = ()
    killed: bool = False

    @property
    def claim(self) -> Claim:
        """The claim that it ends."""
        return Claim(self.job_id, self.attempt)

    @classmethod
    def decided(cls, claim: Claim, decision: Decision, *, killed: bool = False) -> Outcome:
        """Return the outcome of a job about which a worker's handler, or its options, have decided."""
        error = None if decision.error is None else cut_error(decision.error)
        return cls(
            *claim, decision.kind, delay=decision.delay, error=error, traceback=decision.traceback, killed=killed
        )

    @classmethod
    def of_failure(cls, claim: Claim, failure: JobFailure) -> Outcome:
        """Return the outcome of a job that is not done."""
        delay = None if failure.delay is None else to_seconds("delay", failure.delay)
        kind: OutcomeKind = "dead" if failure.dead else "failed"
        if not failure.dead and not failure.charge:
            kind = "handed_back" if delay is None else "snoozed"
        error = None if failure.error is None else cut_error(failure.error)
        return cls(*claim, kind, delay=delay, error=error, traceback=failure.traceback)

    @property
    def failure(self) -> JobFailure:
        """The failure of a job that is not done."""
        charge = self.kind not in ("snoozed", "handed_back")
        return JobFailure(self.error, self.delay, self.kind == "dead", charge, self.traceback)

    @property
    def enqueues(self) -> list[Operation]:
        """The enqueues of the commit of its ack."""
        return [decode_operation(bytes(each)) for each in self.added]


def encoded_enqueues(companions: Iterable[Operation]) -> tuple[msgspec.Raw, ...]:
    """Return the operations of the commit of an ack, checked but for their sizes, and each encoded.

    Raises:
        InvalidJobError: one of them does not enqueue a job, or has a wrong argument.
    """
    added = []
    for other in companions:
        if not isinstance(other, Enqueue) or not isinstance(other.payload, bytes | bytearray | memoryview):
            raise InvalidJobError("in a batch on Spark, on_ack takes only Enqueue(...), with a payload given as bytes")
        added.append(msgspec.Raw(encode_operation(other.prepared(receiving(Limits(), 0.0)))))
    return tuple(added)


class Staged(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a staged object: the outcomes of a partition of a batch, or those of a batch of a stream.

    Attributes:
        outcomes: of single jobs; and of those jobs of leases that are not simply done.
        lease_id: id of the lease, if the partition is one.
        done: number of jobs of the lease that are done, without those of `outcomes`.
        left: number of jobs at the end of the lease that nobody worked on. They wait again.
        unread: the segments that could not be read, with the reasons.
        withheld: True if jobs of the lease have results that are not kept.
    """

    outcomes: tuple[Outcome, ...] = ()
    lease_id: str | None = None
    done: int = 0
    left: int = 0
    unread: dict[str, str] = {}
    withheld: bool = False

    @property
    def all_done(self) -> int:
        """Number of all done jobs, also of jobs that enqueue others."""
        return self.done + sum(outcome.kind == "succeeded" for outcome in self.outcomes)

    @property
    def is_final(self) -> bool:
        """True if a task may end the lease, as the queue can refuse none of its outcomes."""
        return not any(outcome.added for outcome in self.outcomes)

    def encode(self) -> bytes:
        """Return it as a staged object."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, content: bytes | None) -> Staged:
        """Return the content of a staged object; None stands for an object that does not exist.

        Raises:
            InvalidBlobError: the object is damaged, or cut short.
        """
        try:
            return cls() if content is None else msgspec.json.decode(content, type=cls)
        except (msgspec.MsgspecError, UnicodeError):
            raise InvalidBlobError("an object with the outcomes of a batch is damaged or incomplete") from None
