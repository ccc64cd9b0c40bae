"""The operations on a queue, as values: each has its arguments and the rule by which it changes a state.

Direct and broker queues differ only in the number of operations in one commit.
"""

from jqueue.domain.job_options import OnConflict
from jqueue.domain.operations.base import JobReference, Operation, Preparation, perform
from jqueue.domain.operations.bulk import (
    BulkAdded,
    BulkConflicts,
    EnqueueSegments,
    NewSegment,
    StagedReceipt,
    Transaction,
)
from jqueue.domain.operations.codec import AllOrNothing, Guarded, decode_operation, encode_operation
from jqueue.domain.operations.dequeue import Dequeue, DequeueOptions
from jqueue.domain.operations.ends import Ack, HandBack, Heartbeat, Nack, RequeueStale, Sweep
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.lookups import AwaitResult, CountQueued, Find, LastTransaction, Peek
from jqueue.domain.operations.operator import (
    AMENDABLE,
    Amend,
    Cancel,
    CreateQueue,
    Fence,
    Purge,
    Redrive,
    Redriven,
    Reprioritise,
    Reschedule,
)
from jqueue.domain.operations.rules import (
    UNCHANGED,
    Configure,
    Pause,
    Resume,
    RunSchedule,
    SetLimits,
    SetSchedule,
    Unchanged,
    Unschedule,
)

__all__ = [
    "AMENDABLE",
    "UNCHANGED",
    "Ack",
    "AllOrNothing",
    "Amend",
    "AwaitResult",
    "BulkAdded",
    "BulkConflicts",
    "Cancel",
    "Configure",
    "CountQueued",
    "CreateQueue",
    "Dequeue",
    "DequeueOptions",
    "Enqueue",
    "EnqueueSegments",
    "Fence",
    "Find",
    "Guarded",
    "HandBack",
    "Heartbeat",
    "JobReference",
    "LastTransaction",
    "Nack",
    "NewSegment",
    "OnConflict",
    "Operation",
    "Pause",
    "Peek",
    "Preparation",
    "Purge",
    "Redrive",
    "Redriven",
    "Reprioritise",
    "RequeueStale",
    "Reschedule",
    "Resume",
    "RunSchedule",
    "SetLimits",
    "SetSchedule",
    "StagedReceipt",
    "Sweep",
    "Transaction",
    "Unchanged",
    "Unschedule",
    "decode_operation",
    "encode_operation",
    "perform",
]
