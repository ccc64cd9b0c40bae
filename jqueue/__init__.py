"""jqueue: a job queue on any store with conditional writes. No broker, no database, no daemon."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jqueue._version import __version__
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.connect import connect, connect_queue
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.core.heartbeat import HeartbeatManager
from jqueue.core.migration.mover import migrate
from jqueue.core.sets.queue_set import QueueSet
from jqueue.domain.errors import (
    CASConflictError,
    ClaimLostError,
    DeadlineExceededError,
    DuplicateJobError,
    InvalidJobError,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    JQueueError,
    QueueClosedError,
    QueueFullError,
    ResultTimeoutError,
    StorageError,
    UnknownOutcomeError,
)
from jqueue.domain.limits import Limits
from jqueue.domain.models import Claim, Job, JobStatus, QueueState
from jqueue.ports.queue import JobQueue
from jqueue.ports.storage import ObjectStoragePort

if TYPE_CHECKING:
    from jqueue.adapters.storage.azure import AzureBlobStorage as AzureBlobStorage
    from jqueue.adapters.storage.gcs import GCSStorage as GCSStorage
    from jqueue.adapters.storage.s3 import S3Storage as S3Storage

__all__ = [
    "BrokerQueue",
    "CASConflictError",
    "Claim",
    "ClaimLostError",
    "DeadlineExceededError",
    "DirectQueue",
    "DuplicateJobError",
    "HeartbeatManager",
    "InMemoryStorage",
    "InvalidJobError",
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
    "ObjectStoragePort",
    "QueueClosedError",
    "QueueFullError",
    "QueueSet",
    "QueueState",
    "ResultTimeoutError",
    "StorageError",
    "UnknownOutcomeError",
    "__version__",
    "connect",
    "connect_queue",
    "migrate",
]

_LATER = {"S3Storage": "s3", "GCSStorage": "gcs", "AzureBlobStorage": "azure"}
"""Storages whose clients are optional and slow to import. Each is imported at its first use."""

_ELSEWHERE = (
    "operations",
    *("domain.errors", "domain.rules", "domain.stats", "ports.queue"),
    *("core.group_commit", "core.migration.mover", "formats.queue"),
)
"""Modules with further public names, which the AttributeError for such a name suggests."""


def __getattr__(name: str) -> Any:
    """Return a storage of `_LATER`. For any other name, raise an AttributeError that says which module has it."""
    if name in _LATER:
        return getattr(import_module(f"jqueue.adapters.storage.{_LATER[name]}"), name)
    homes = () if name.startswith("_") else (import_module(f"jqueue.{module}") for module in _ELSEWHERE)
    advice = next((f": use `from {home.__name__} import {name}`" for home in homes if hasattr(home, name)), "")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")
