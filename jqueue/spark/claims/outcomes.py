"""Outcomes of jobs as plain values: from handlers and functions of `foreachBatch` to the commit that ends them.

No object that a handler made is pickled on the way. So a value that cannot be read back is found where it was made, and
costs that job alone. `Staged` is the one format in which outcomes wait in an object beside the queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import InvalidBlobError, InvalidJobError
from jqueue.domain.job import Claim, JobRecord
from jqueue.domain.limits import cut_error
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import decode_operation, encode_operation
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.segments import RangeClaim, RangeFailure
from jqueue.worker.retries import CANCELLED

OutcomeKind = Literal["done", "retried", "dead", "snoozed", "cancelled", "handed_back", "killed", "overdue"]
"""The kind of an outcome. After `killed` and `overdue`, the driver decides by the options of the handler."""

PROCESS_ENDED = ("killed", "overdue")

NOT_KEPT = 0.0
"""The `keep_result` of an outcome whose result is passed on, and not kept by the queue."""


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of one job.

    Attributes:
        job_id: the id of the job.
        attempt: the number of its claim.
        kind: the kind of outcome.
        result: the JSON value that the handler returned, if it is kept.
        keep_result: seconds to keep the result of a job that was enqueued without `keep_result`.
        delay: seconds until the next try.
        error: the error it failed with, cut.
        added: the enqueues of the commit of its ack, each encoded.
    """

    job_id: str
    attempt: int
    kind: OutcomeKind
    result: Any = None
    keep_result: float | None = None
    delay: float | None = None
    error: str | None = None
    added: tuple[msgspec.Raw, ...] = ()

    @property
    def claim(self) -> Claim:
        """The claim that it ends."""
        return Claim(self.job_id, self.attempt)

    def for_queue(self) -> Outcome:
        """Return it without a result that the queue does not keep."""
        return replace(self, result=None, keep_result=None) if self.keep_result == NOT_KEPT else self

    @classmethod
    def of_failure(cls, claim: Claim, failure: RangeFailure) -> Outcome:
        """Return the outcome of a job that is not done."""
        delay = None if failure.delay is None else to_seconds("delay", failure.delay)
        kind: OutcomeKind = "dead" if failure.dead else "retried"
        if not failure.dead and not failure.charge:
            kind = "handed_back" if delay is None else "snoozed"
        return cls(*claim, kind, delay=delay, error=None if failure.error is None else cut_error(failure.error))

    @property
    def failure(self) -> RangeFailure:
        """The failure of a job that is not done."""
        charge = self.kind not in ("snoozed", "handed_back")
        return RangeFailure(self.error, self.delay, dead=self.kind == "dead", charge=charge)

    @property
    def enqueues(self) -> list[Operation]:
        """The enqueues of the commit of its ack."""
        return [decode_operation(bytes(each)) for each in self.added]


def outcome_of(operations: Sequence[Operation]) -> Outcome:
    """Return the outcome that operations describe: the last one ends the claim of a job, the others enqueue jobs.

    Args:
        operations: prepared, so that the last one names a claim; the enqueues as they were given.

    Raises:
        InvalidJobError: they do anything else.
    """
    *others, last = operations
    if not isinstance(last, Ack | Nack) or not isinstance(last.job, Claim):
        raise InvalidJobError("the last operation must be the ack or the nack of a job")
    added = []
    for other in others:
        if not isinstance(other, Enqueue) or not isinstance(other.payload, bytes | bytearray | memoryview):
            raise InvalidJobError("in a batch on Spark, on_ack takes only Enqueue(...), with a payload given as bytes")
        added.append(encoded_enqueue(other))
    if isinstance(last, Ack):
        seconds = None if last.keep_result is None else to_seconds("keep_result", last.keep_result)
        return Outcome(*last.job, "done", result=last.result, keep_result=seconds, added=tuple(added))
    failure = RangeFailure(last.error, last.delay, dead=last.dead, charge=last.charge)
    outcome = Outcome.of_failure(last.job, failure)
    return replace(outcome, kind="cancelled") if last.error == CANCELLED.error and not last.dead else outcome


def encoded_enqueue(enqueue: Enqueue) -> msgspec.Raw:
    """Return an `Enqueue` as JSON. Its arguments must have been checked before."""
    assert isinstance(enqueue.payload, bytes | bytearray | memoryview)
    headers = dict(enqueue.headers) if enqueue.headers else None
    times = {name: getattr(enqueue, name) for name in ("delay", "unique_for", "keep_result")}
    seconds: dict[str, Any] = {name: to_seconds(name, each) for name, each in times.items() if each is not None}
    return msgspec.Raw(encode_operation(replace(enqueue, payload=bytes(enqueue.payload), headers=headers, **seconds)))


class Staged(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a staged object: the outcomes of a partition of a batch, or those of a batch of a stream.

    Attributes:
        outcomes: of single jobs; and of those jobs of ranges that are not simply done.
        range_id: id of the range, if the partition is one.
        done: number of jobs of the range that are done, without those of `outcomes`.
        left: number of jobs at the end of the range that nobody worked on. They wait again.
        jobs: the jobs, without payloads, about which the driver must decide.
        unread: the segments that could not be read, with the reasons.
    """

    outcomes: tuple[Outcome, ...] = ()
    range_id: str | None = None
    done: int = 0
    left: int = 0
    jobs: tuple[JobRecord, ...] = ()
    unread: dict[str, str] = {}

    @classmethod
    def of_range(cls, claim: RangeClaim, jobs: Sequence[JobRecord], outcomes: Mapping[str, Outcome]) -> Staged:
        """Return the outcomes of a range, given its jobs in order. Jobs without an outcome are handed back."""
        last = len(jobs)
        while last and jobs[last - 1].id not in outcomes:
            last -= 1
        known = [outcomes.get(job.id) or Outcome(*job.claim, "handed_back") for job in jobs[:last]]
        others = tuple(each for each in known if each.kind != "done" or each.added)
        ended = {each.job_id for each in others if each.kind in PROCESS_ENDED}
        open_jobs = tuple(job.evolve(payload=b"", payload_object=None) for job in jobs[:last] if job.id in ended)
        return cls(others, claim.id, last - len(others), len(jobs) - last, open_jobs)

    @property
    def all_done(self) -> int:
        """Number of all done jobs, also of jobs that enqueue others."""
        return self.done + sum(outcome.kind == "done" for outcome in self.outcomes)

    def without_done(self) -> Staged:
        """Return the outcomes without those of done jobs. Of a range with a done job, none is left."""
        if self.range_id is not None:
            return Staged() if self.all_done else self
        return replace(self, outcomes=tuple(each for each in self.outcomes if each.kind != "done"))

    @property
    def is_final(self) -> bool:
        """True if a task may end the range, as no outcome needs the driver."""
        return not self.jobs and not any(outcome.added for outcome in self.outcomes)

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
