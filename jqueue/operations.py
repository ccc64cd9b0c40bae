"""The operations for `apply` and `enqueue_many`, such as `Enqueue("mail", data)` and `Ack(job)`, and their results."""

from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.bulk import EnqueuedJobs
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.ends import Ack, Heartbeat, Nack, RecordStep, RequeueStale
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.groups import CancelGroup, CloseGroup, GroupStatus, OpenGroup
from jqueue.domain.operations.leases import ClaimLease, EndLease
from jqueue.domain.operations.operator import Cancel, Purge, Redrive, Redriven, Reprioritise, Reschedule, StopWorker
from jqueue.domain.operations.rules import (
    Configure,
    Pause,
    PauseSchedule,
    Reset,
    Resume,
    SetLimits,
    SetSchedule,
    Unschedule,
)
from jqueue.domain.segments import JobFailure, Lease

__all__ = [
    "Ack",
    "Cancel",
    "CancelGroup",
    "ClaimLease",
    "CloseGroup",
    "Configure",
    "Dequeue",
    "EndLease",
    "Enqueue",
    "EnqueuedJobs",
    "GroupStatus",
    "Heartbeat",
    "JobFailure",
    "Lease",
    "Nack",
    "OpenGroup",
    "Operation",
    "Pause",
    "PauseSchedule",
    "Purge",
    "RecordStep",
    "Redrive",
    "Redriven",
    "Reprioritise",
    "RequeueStale",
    "Reschedule",
    "Reset",
    "Resume",
    "SetLimits",
    "SetSchedule",
    "StopWorker",
    "Unschedule",
]
