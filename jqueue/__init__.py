"""jqueue: a job queue on any store with conditional writes. No broker, no database, no daemon."""

from jqueue._version import __version__
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.core.group_commit import GroupCommitLoop
from jqueue.core.heartbeat import HeartbeatManager
from jqueue.domain.errors import (
    BlobMissingError,
    CASConflictError,
    ClaimLostError,
    DeadlineExceededError,
    DuplicateJobError,
    InvalidBlobError,
    InvalidJobError,
    JobNotFoundError,
    JobStateError,
    JQueueError,
    QueueClosedError,
    QueueFullError,
    StorageError,
    StorageFatalError,
    StorageThrottledError,
    UnknownOutcomeError,
)
from jqueue.domain.limits import Limits
from jqueue.domain.models import Claim, Job, JobStatus, QueueState
from jqueue.domain.operations import (
    Ack,
    Cancel,
    Dequeue,
    Enqueue,
    Heartbeat,
    Nack,
    Operation,
    Purge,
    Redrive,
    RequeueStale,
)
from jqueue.domain.stats import EntrypointStats, QueueStats
from jqueue.ports.storage import ObjectStoragePort

__all__ = [
    "Ack",
    "BlobMissingError",
    "BrokerQueue",
    "CASConflictError",
    "Cancel",
    "Claim",
    "ClaimLostError",
    "DeadlineExceededError",
    "Dequeue",
    "DirectQueue",
    "DuplicateJobError",
    "Enqueue",
    "EntrypointStats",
    "GroupCommitLoop",
    "Heartbeat",
    "HeartbeatManager",
    "InMemoryStorage",
    "InvalidBlobError",
    "InvalidJobError",
    "JQueueError",
    "Job",
    "JobNotFoundError",
    "JobStateError",
    "JobStatus",
    "Limits",
    "LocalFileSystemStorage",
    "Nack",
    "ObjectStoragePort",
    "Operation",
    "Purge",
    "QueueClosedError",
    "QueueFullError",
    "QueueState",
    "QueueStats",
    "Redrive",
    "RequeueStale",
    "StorageError",
    "StorageFatalError",
    "StorageThrottledError",
    "UnknownOutcomeError",
    "__version__",
]
