"""What an operation asks of a queue that not every queue can do: the names of its capabilities."""

from __future__ import annotations

from collections.abc import Iterator

from jqueue.domain.models import JobStatus
from jqueue.domain.operations import (
    Ack,
    Cancel,
    Configure,
    Dequeue,
    Heartbeat,
    Nack,
    Operation,
    Pause,
    Purge,
    Redrive,
    Reprioritise,
    Reschedule,
    Resume,
    SetLimits,
    SetSchedule,
    Unschedule,
)
from jqueue.domain.operations.holdings import HeldBy, LastSequence
from jqueue.domain.operations.jobs import NewJob
from jqueue.domain.operations.rules import Unchanged
from jqueue.domain.operations.staged import EnqueueStaged, LastTransaction
from jqueue.domain.operations.waiting import AwaitResult

_ALWAYS: dict[type[Operation], str] = {
    Heartbeat: "heartbeat",
    Redrive: "dead_letters",
    Reschedule: "reschedule",
    Reprioritise: "reschedule",
    Pause: "limits",
    Resume: "limits",
    SetLimits: "limits",
    SetSchedule: "schedules",
    Unschedule: "schedules",
    AwaitResult: "results",
    EnqueueStaged: "staged",
    LastTransaction: "staged",
    HeldBy: "holders",
    LastSequence: "holders",
}

_OF_NEW_JOBS = tuple(
    {
        "priority": "priority",
        "run_at": "delay",
        "expires_at": "expiry",
        "headers": "headers",
        "unique_key": "unique_keys",
        "max_attempts": "dead_letters",
        "concurrency_key": "limits",
        "keep_result": "results",
    }.items()
)


def needs(operation: Operation, claim_timeout: float) -> Iterator[str]:
    """The capabilities without which a prepared operation means nothing.

    Args:
        operation: the operation.
        claim_timeout: that of the queue, which needs no capability.
    """
    if operation.__class__ in _ALWAYS:
        yield _ALWAYS[operation.__class__]
    match operation:
        case NewJob():
            values = operation.values
            yield from [need for name, need in _OF_NEW_JOBS if values[name]]
            if operation.values["keep_result"] is not None:
                yield "results"
            if operation.delay is not None:
                yield "delay"
            if operation.id_given:
                yield "job_ids"
        case Dequeue():
            if operation.claim_timeout != claim_timeout:
                yield "claim_timeout"
            if operation.holder is not None or operation.through is not None:
                yield "holders"
        case Ack() if operation.result is not None or operation.keep_result is not None:
            yield "results"
        case Nack():
            asked = {
                "delay": bool(operation.delay),
                "errors": operation.error is not None,
                "dead_letters": operation.dead,
                "uncharged": not operation.charge,
            }
            yield from (need for need, wanted in asked.items() if wanted)
        case Cancel() if operation.running:
            yield "cancel_running"
        case Purge():
            if operation.status is JobStatus.DEAD:
                yield "dead_letters"
            elif operation.status is JobStatus.COMPLETED:
                yield "results"
        case Configure():
            if not isinstance(operation.aging, Unchanged):
                yield "limits"
            if not isinstance(operation.dead_retention, Unchanged):
                yield "retention"
            if not isinstance(operation.blob_bytes, Unchanged):
                yield "size_limit"
