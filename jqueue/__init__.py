"""jqueue: a job queue on any store with conditional writes. No broker, no database, no daemon."""

from typing import TYPE_CHECKING, Any

from jqueue._version import __version__
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.connect import connect, connect_queue
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.core.group_commit import GroupCommitLoop
from jqueue.core.heartbeat import HeartbeatManager
from jqueue.core.migration.mover import MigrationReport, migrate
from jqueue.core.sets.queue_set import QueueSet
from jqueue.domain.errors import (
    BlobMissingError,
    CASConflictError,
    ClaimLostError,
    DeadlineExceededError,
    DuplicateJobError,
    InvalidBlobError,
    InvalidJobError,
    InvalidURLError,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    JQueueError,
    MissingFolderError,
    QueueClosedError,
    QueueFullError,
    ResultNotKeptError,
    ResultTimeoutError,
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
from jqueue.domain.rules import EntrypointRules, QueueSettings, Schedule
from jqueue.domain.stats import EntrypointStats, QueueStats
from jqueue.formats.queue import StoreQueue
from jqueue.ports.queue import Capabilities, JobQueue
from jqueue.ports.storage import ObjectStoragePort

if TYPE_CHECKING:
    from jqueue.adapters.storage.azure import AzureBlobStorage as AzureBlobStorage
    from jqueue.adapters.storage.gcs import GCSStorage as GCSStorage
    from jqueue.adapters.storage.s3 import S3Storage as S3Storage

__all__ = [
    "Ack",
    "BlobMissingError",
    "BrokerQueue",
    "CASConflictError",
    "Cancel",
    "Capabilities",
    "Claim",
    "ClaimLostError",
    "Configure",
    "DeadlineExceededError",
    "Dequeue",
    "DirectQueue",
    "DuplicateJobError",
    "Enqueue",
    "EntrypointRules",
    "EntrypointStats",
    "GroupCommitLoop",
    "Heartbeat",
    "HeartbeatManager",
    "InMemoryStorage",
    "InvalidBlobError",
    "InvalidJobError",
    "InvalidURLError",
    "JQueueError",
    "Job",
    "JobCancelledError",
    "JobFailedError",
    "JobNotFoundError",
    "JobQueue",
    "JobStateError",
    "JobStatus",
    "Limits",
    "LocalFileSystemStorage",
    "MigrationReport",
    "MissingFolderError",
    "Nack",
    "ObjectStoragePort",
    "Operation",
    "Pause",
    "Purge",
    "QueueClosedError",
    "QueueFullError",
    "QueueSet",
    "QueueSettings",
    "QueueState",
    "QueueStats",
    "Redrive",
    "Reprioritise",
    "RequeueStale",
    "Reschedule",
    "ResultNotKeptError",
    "ResultTimeoutError",
    "Resume",
    "Schedule",
    "SetLimits",
    "SetSchedule",
    "StorageError",
    "StorageFatalError",
    "StorageThrottledError",
    "StoreQueue",
    "UnknownOutcomeError",
    "Unschedule",
    "__version__",
    "connect",
    "connect_queue",
    "migrate",
]

_LATER = {"S3Storage": "s3", "GCSStorage": "gcs", "AzureBlobStorage": "azure"}


def __getattr__(name: str) -> Any:
    """Storages whose clients are optional, and slow to import, come when they are asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"jqueue.adapters.storage.{_LATER[name]}"), name)
