"""The outcome of one job of a batch, as plain values: from the process of its handler to a task, and on to the driver.

No object that a handler made is pickled on the way. So a value that cannot be read back is found where it was made, and
costs that job alone. The driver turns outcomes into operations, which end the claims.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import to_builtins
from msgspec.structs import replace

from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import InvalidBlobError, InvalidJobError
from jqueue.domain.job import Claim
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import AllOrNothing, decode_operation, encode_operation
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.segments import RangeFailure
from jqueue.worker.retries import CANCELLED

OutcomeKind = Literal["done", "retried", "dead", "snoozed", "cancelled", "handed_back", "killed", "overdue"]
"""The kind of an outcome. After `killed` and `overdue`, the driver decides by the options of the handler."""

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
        added: the jobs to enqueue in the commit of its ack, each as the arguments of an `Enqueue`.
    """

    job_id: str
    attempt: int
    kind: OutcomeKind
    result: Any = None
    keep_result: float | None = None
    delay: float | None = None
    error: str | None = None
    added: tuple[dict[str, Any], ...] = ()

    @property
    def claim(self) -> Claim:
        """The claim that it ends."""
        return Claim(self.job_id, self.attempt)

    def for_queue(self) -> Outcome:
        """Return it without a result that the queue does not keep."""
        return replace(self, result=None, keep_result=None) if self.keep_result == NOT_KEPT else self

    @property
    def failure(self) -> RangeFailure:
        """The failure of a job of a range."""
        return RangeFailure(
            self.error, self.delay, dead=self.kind == "dead", charge=self.kind not in ("snoozed", "handed_back")
        )

    def operation(self) -> Operation:
        """Return the operation that tells it to the queue.

        Raises:
            ValueError: the process of the job ended, so that its handler's options decide.
        """
        if self.kind == "done":
            ack = Ack(self.claim, self.result, self.keep_result)
            return AllOrNothing((*map(enqueue_of_plain, self.added), ack)) if self.added else ack
        if self.kind in ("retried", "dead", "cancelled"):
            return Nack(self.claim, self.delay, self.error, dead=self.kind == "dead")
        if self.kind in ("snoozed", "handed_back"):
            return Nack(self.claim, self.delay, self.error, charge=False)
        raise ValueError(f"the outcome of a job that was {self.kind} depends on the options of its handler")


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
    for other in others:
        if not isinstance(other, Enqueue):
            raise InvalidJobError(f"in a batch on Spark, on_ack takes only Enqueue(...), got {type(other).__name__}")
        if not isinstance(other.payload, bytes | bytearray | memoryview):
            raise InvalidJobError("in a batch on Spark, on_ack takes only payloads given as bytes")
    if isinstance(last, Ack):
        added = tuple(plain_of_enqueue(other) for other in others if isinstance(other, Enqueue))
        kept = None if last.keep_result is None else to_seconds("keep_result", last.keep_result)
        return Outcome(*last.job, "done", result=last.result, keep_result=kept, added=added)
    delay = None if last.delay is None else to_seconds("delay", last.delay)
    return Outcome(*last.job, _kind_of(last), delay=delay, error=None if last.error is None else str(last.error))


def _kind_of(nack: Nack) -> OutcomeKind:
    if nack.dead:
        return "dead"
    if nack.error == CANCELLED.error:
        return "cancelled"
    if nack.charge:
        return "retried"
    return "handed_back" if nack.delay is None else "snoozed"


def plain_of_enqueue(enqueue: Enqueue) -> dict[str, Any]:
    """Return the arguments of an `Enqueue` as JSON values. They must have been checked before."""
    assert isinstance(enqueue.payload, bytes | bytearray | memoryview)
    headers = dict(enqueue.headers) if enqueue.headers else None
    given = {name: getattr(enqueue, name) for name in ("delay", "unique_for", "keep_result")}
    seconds: dict[str, Any] = {name: to_seconds(name, each) for name, each in given.items() if each is not None}
    whole = replace(enqueue, payload=bytes(enqueue.payload), headers=headers, **seconds)
    plain: dict[str, Any] = json.loads(encode_operation(whole))
    return plain


def enqueue_of_plain(plain: dict[str, Any]) -> Operation:
    """Return the `Enqueue` from the values that `plain_of_enqueue` made."""
    return decode_operation(json.dumps(plain).encode())


def encode_outcomes(outcomes: Iterable[Outcome]) -> bytes:
    """Return outcomes as a staged object: a line of JSON for each, and a last line with their number."""
    lines = [json.dumps(to_builtins(outcome), ensure_ascii=False, separators=(",", ":")) for outcome in outcomes]
    return "".join(f"{line}\n" for line in [*lines, json.dumps({"outcomes": len(lines)})]).encode()


def decode_outcomes(content: bytes) -> list[Outcome]:
    """Return the outcomes from a staged object.

    Raises:
        InvalidBlobError: the object is damaged, or cut short.
    """
    try:
        *lines, last, _ = content.split(b"\n")
        if json.loads(last) != {"outcomes": len(lines)}:
            raise ValueError("not all of it")
        return [msgspec.convert(json.loads(line), Outcome) for line in lines]
    except ValueError:
        raise InvalidBlobError("an object with the outcomes of a partition is damaged or incomplete") from None
