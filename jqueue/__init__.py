"""jqueue: a job queue on any store with conditional writes. No broker, no database, no daemon."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jqueue._version import __version__
from jqueue.connect import connect, open_storage

if TYPE_CHECKING:
    from jqueue.adapters.storage.azure import AzureBlobStorage as AzureBlobStorage
    from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
    from jqueue.adapters.storage.gcs import GCSStorage as GCSStorage
    from jqueue.adapters.storage.memory import InMemoryStorage
    from jqueue.adapters.storage.s3 import S3Storage as S3Storage
    from jqueue.core.broker import BrokerQueue
    from jqueue.core.direct import DirectQueue
    from jqueue.core.heartbeat import HeartbeatManager
    from jqueue.core.migration import migrate
    from jqueue.core.queue_set import QueueSet
    from jqueue.domain.errors import (
        BlobMissingError,
        CASConflictError,
        ClaimLostError,
        DeadlineExceededError,
        DuplicateJobError,
        HistoryDamagedError,
        InvalidBlobError,
        InvalidJobError,
        InvalidURLError,
        JobCancelledError,
        JobFailedError,
        JobNotFoundError,
        JobStateError,
        JobsUnreadableError,
        JQueueError,
        MissingFolderError,
        NotLoadedError,
        ObjectDamagedError,
        ObjectMissingError,
        QueueClosedError,
        QueueFullError,
        QueueMissingError,
        ResultNotKeptError,
        ResultTimeoutError,
        SegmentDamagedError,
        StorageError,
        StorageFatalError,
        StorageThrottledError,
        UnknownOutcomeError,
        WorkerNotFoundError,
    )
    from jqueue.domain.limits import Limits
    from jqueue.domain.models import Claim, Job, JobStatus, QueueState
    from jqueue.operations import (
        Ack,
        Cancel,
        ClaimRange,
        Configure,
        Dequeue,
        EndRange,
        Enqueue,
        Heartbeat,
        Nack,
        Pause,
        Purge,
        Redrive,
        Reprioritise,
        RequeueStale,
        Reschedule,
        Resume,
        SetLimits,
        SetSchedule,
        StopWorker,
        Unschedule,
    )
    from jqueue.ports.queue import JobQueue
    from jqueue.ports.storage import ObjectStoragePort
    from jqueue.sync import SyncQueue
    from jqueue.worker import BatchContext, Context, Discard, Exponential, Rate, Retry, Router, Snooze, Worker

__all__ = [
    "Ack",
    "BatchContext",
    "BlobMissingError",
    "BrokerQueue",
    "CASConflictError",
    "Cancel",
    "Claim",
    "ClaimLostError",
    "ClaimRange",
    "Configure",
    "Context",
    "DeadlineExceededError",
    "Dequeue",
    "DirectQueue",
    "Discard",
    "DuplicateJobError",
    "EndRange",
    "Enqueue",
    "Exponential",
    "Heartbeat",
    "HeartbeatManager",
    "HistoryDamagedError",
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
    "JobsUnreadableError",
    "Limits",
    "LocalFileSystemStorage",
    "MissingFolderError",
    "Nack",
    "NotLoadedError",
    "ObjectDamagedError",
    "ObjectMissingError",
    "ObjectStoragePort",
    "Pause",
    "Purge",
    "QueueClosedError",
    "QueueFullError",
    "QueueMissingError",
    "QueueSet",
    "QueueState",
    "Rate",
    "Redrive",
    "Reprioritise",
    "RequeueStale",
    "Reschedule",
    "ResultNotKeptError",
    "ResultTimeoutError",
    "Resume",
    "Retry",
    "Router",
    "SegmentDamagedError",
    "SetLimits",
    "SetSchedule",
    "Snooze",
    "StopWorker",
    "StorageError",
    "StorageFatalError",
    "StorageThrottledError",
    "SyncQueue",
    "UnknownOutcomeError",
    "Unschedule",
    "Worker",
    "WorkerNotFoundError",
    "__version__",
    "connect",
    "migrate",
    "open_storage",
]

_HOMES = {
    name: module
    for module, names in {
        "jqueue.adapters.storage.filesystem": "LocalFileSystemStorage",
        "jqueue.adapters.storage.memory": "InMemoryStorage",
        "jqueue.core.broker": "BrokerQueue",
        "jqueue.core.direct": "DirectQueue",
        "jqueue.core.heartbeat": "HeartbeatManager",
        "jqueue.core.migration": "migrate",
        "jqueue.core.queue_set": "QueueSet",
        "jqueue.domain.errors": """
            BlobMissingError CASConflictError ClaimLostError DeadlineExceededError DuplicateJobError HistoryDamagedError
            InvalidBlobError InvalidJobError InvalidURLError JQueueError JobCancelledError JobFailedError
            JobNotFoundError JobStateError JobsUnreadableError MissingFolderError NotLoadedError ObjectDamagedError
            ObjectMissingError QueueClosedError QueueFullError QueueMissingError ResultNotKeptError ResultTimeoutError
            SegmentDamagedError StorageError StorageFatalError StorageThrottledError UnknownOutcomeError
            WorkerNotFoundError
        """,
        "jqueue.domain.limits": "Limits",
        "jqueue.domain.models": "Claim Job JobStatus QueueState",
        "jqueue.operations": """
            Ack Cancel ClaimRange Configure Dequeue EndRange Enqueue Heartbeat Nack Pause Purge Redrive
            Reprioritise RequeueStale Reschedule Resume SetLimits SetSchedule StopWorker Unschedule
        """,
        "jqueue.ports.queue": "JobQueue",
        "jqueue.ports.storage": "ObjectStoragePort",
        "jqueue.sync": "SyncQueue",
        "jqueue.worker": "BatchContext Context Discard Exponential Rate Retry Router Snooze Worker",
    }.items()
    for name in names.split()
}
"""The module of each name that is imported at its first use, so that `import jqueue` is quick."""

_CLIENTS = {
    "AzureBlobStorage": "jqueue.adapters.storage.azure",
    "GCSStorage": "jqueue.adapters.storage.gcs",
    "S3Storage": "jqueue.adapters.storage.s3",
}
"""The same for storages whose clients are optional."""

_PACKAGES = ("adapters", "core", "domain", "formats", "ports", "runtime")
"""Packages that need no import of their own: `import jqueue` is enough for `jqueue.domain.errors.JQueueError`."""

_ELSEWHERE = (
    "operations",
    *("domain.errors", "domain.events", "domain.rules", "domain.stats", "ports.queue"),
    *("core.group_commit", "core.migration", "formats.queue", "worker", "sync"),
)
"""Modules with further public names, which the AttributeError for such a name suggests."""


def __getattr__(name: str) -> Any:
    """Import a name at its first use. For an unknown name, raise an AttributeError that says which module has it."""
    if home := _HOMES.get(name) or _CLIENTS.get(name):
        value = globals()[name] = getattr(import_module(home), name)
        return value
    if name in _PACKAGES:
        return import_module(f"jqueue.{name}")
    homes = () if name.startswith("_") else (import_module(f"jqueue.{module}") for module in _ELSEWHERE)
    advice = next((f": use `from {home.__name__} import {name}`" for home in homes if hasattr(home, name)), "")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
