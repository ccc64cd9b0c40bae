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
        QueueFullError,
        ResultTimeoutError,
        StorageError,
        UnknownOutcomeError,
    )
    from jqueue.domain.limits import Limits
    from jqueue.domain.models import Claim, Job, JobStatus, QueueState
    from jqueue.ports.storage import ObjectStoragePort
    from jqueue.sync import SyncQueue
    from jqueue.worker import Context, Depends, Discard, Exponential, Rate, Retry, Router, Snooze, Worker

__all__ = [
    "BrokerQueue",
    "CASConflictError",
    "Claim",
    "ClaimLostError",
    "Context",
    "DeadlineExceededError",
    "Depends",
    "DirectQueue",
    "Discard",
    "DuplicateJobError",
    "Exponential",
    "HeartbeatManager",
    "InMemoryStorage",
    "InvalidJobError",
    "JQueueError",
    "Job",
    "JobCancelledError",
    "JobFailedError",
    "JobNotFoundError",
    "JobStateError",
    "JobStatus",
    "Limits",
    "LocalFileSystemStorage",
    "ObjectStoragePort",
    "QueueFullError",
    "QueueSet",
    "QueueState",
    "Rate",
    "ResultTimeoutError",
    "Retry",
    "Router",
    "Snooze",
    "StorageError",
    "SyncQueue",
    "UnknownOutcomeError",
    "Worker",
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
            CASConflictError ClaimLostError DeadlineExceededError DuplicateJobError InvalidJobError JobCancelledError
            JobFailedError JobNotFoundError JobStateError JQueueError QueueFullError ResultTimeoutError StorageError
            UnknownOutcomeError
        """,
        "jqueue.domain.limits": "Limits",
        "jqueue.domain.models": "Claim Job JobStatus QueueState",
        "jqueue.ports.storage": "ObjectStoragePort",
        "jqueue.sync": "SyncQueue",
        "jqueue.worker": "Context Depends Discard Exponential Rate Retry Router Snooze Worker",
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
    *("errors", "operations", "ports", "testing", "worker", "sync"),
    *("domain.events", "domain.rules", "domain.stats", "core.group_commit", "core.migration", "formats.queue"),
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
    return sorted([*__all__, *_CLIENTS])
