"""The operations for `apply` and `enqueue_many`: values such as `Enqueue("mail", data)` and `Ack(job)`."""

from jqueue.domain.operations import (
    Ack,
    Cancel,
    Configure,
    Dequeue,
    Enqueue,
    Heartbeat,
    Nack,
    Operation,
    Pause,
    Purge,
    Redrive,
    Reprioritise,
    RequeueStale,
    Reschedule,
    Resume,
    SetLimits,
    SetSchedule,
    Unschedule,
)
from jqueue.domain.operations.ranges import ClaimRange, EndRange
from jqueue.domain.segments import RangeClaim, RangeFailure

__all__ = [
    "Ack",
    "Cancel",
    "ClaimRange",
    "Configure",
    "Dequeue",
    "EndRange",
    "Enqueue",
    "Heartbeat",
    "Nack",
    "Operation",
    "Pause",
    "Purge",
    "RangeClaim",
    "RangeFailure",
    "Redrive",
    "Reprioritise",
    "RequeueStale",
    "Reschedule",
    "Resume",
    "SetLimits",
    "SetSchedule",
    "Unschedule",
]
