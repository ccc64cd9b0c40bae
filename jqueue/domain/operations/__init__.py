"""Everything that can be done to a queue, as values: each says what it wants, and how it changes a state.

Direct and broker differ only in how many of these go into one commit.
"""

from jqueue.domain.operations.base import Operation, Preparation, perform
from jqueue.domain.operations.claims import Ack, HandBack, Heartbeat, JobReference, Nack
from jqueue.domain.operations.jobs import Dequeue, Enqueue, NewJob, OnConflict, new_job
from jqueue.domain.operations.operator import Cancel, Fence, Purge, Redrive, RequeueStale, Sweep

__all__ = [
    "Ack",
    "Cancel",
    "Dequeue",
    "Enqueue",
    "Fence",
    "HandBack",
    "Heartbeat",
    "JobReference",
    "Nack",
    "NewJob",
    "OnConflict",
    "Operation",
    "Preparation",
    "Purge",
    "Redrive",
    "RequeueStale",
    "Sweep",
    "new_job",
    "perform",
]
