"""jqueue: a job queue on any store with conditional writes. No broker, no database, no daemon."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jqueue._version import __version__
from jqueue.connect import connect, connect_queue

if TYPE_CHECKING:
    from jqueue.adapters.storage.azure import AzureBlobStorage as AzureBlobStorage
    from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
    from jqueue.adapters.storage.gcs import GCSStorage as GCSStorage
    from jqueue.adapters.storage.memory import InMemoryStorage
    from jqueue.adapters.storage.s3 import S3Storage as S3Storage
    from jqueue.connect.replay import replay
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
        JobsUnreadableError,
        JQueueError,
        QueueClosedError,
        QueueFullError,
        ResultTimeoutError,
        SegmentDamagedError,
        StorageError,
        UnknownOutcomeError,
    )
    from jqueue.domain.limits import Limits
    from jqueue.domain.models import Claim, Job, JobStatus, QueueState
    from jqueue.ports.queue import JobQueue
    from jqueue.ports.storage import ObjectStoragePort

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
    "JobsUnreadableError",
    "Limits",
    "LocalFileSystemStorage",
    "ObjectStoragePort",
    "QueueClosedError",
    "QueueFullError",
    "QueueSet",
    "QueueState",
    "ResultTimeoutError",
    "SegmentDamagedError",
    "StorageError",
    "UnknownOutcomeError",
    "__version__",
    "connect",
    "connect_queue",
    "migrate",
    "replay",
]

_HOMES = {
    "BrokerQueue": "jqueue.core.broker",
    "CASConflictError": "jqueue.domain.errors",
    "Claim": "jqueue.domain.models",
    "ClaimLostError": "jqueue.domain.errors",
    "DeadlineExceededError": "jqueue.domain.errors",
    "DirectQueue": "jqueue.core.direct",
    "DuplicateJobError": "jqueue.domain.errors",
    "HeartbeatManager": "jqueue.core.heartbeat",
    "InMemoryStorage": "jqueue.adapters.storage.memory",
    "InvalidJobError": "jqueue.domain.errors",
    "JQueueError": "jqueue.domain.errors",
    "Job": "jqueue.domain.models",
    "JobCancelledError": "jqueue.domain.errors",
    "JobFailedError": "jqueue.domain.errors",
    "JobNotFoundError": "jqueue.domain.errors",
    "JobQueue": "jqueue.ports.queue",
    "JobStateError": "jqueue.domain.errors",
    "JobStatus": "jqueue.domain.models",
    "JobsUnreadableError": "jqueue.domain.errors",
    "Limits": "jqueue.domain.limits",
    "LocalFileSystemStorage": "jqueue.adapters.storage.filesystem",
    "ObjectStoragePort": "jqueue.ports.storage",
    "QueueClosedError": "jqueue.domain.errors",
    "QueueFullError": "jqueue.domain.errors",
    "QueueSet": "jqueue.core.sets.queue_set",
    "QueueState": "jqueue.domain.models",
    "ResultTimeoutError": "jqueue.domain.errors",
    "SegmentDamagedError": "jqueue.domain.errors",
    "StorageError": "jqueue.domain.errors",
    "UnknownOutcomeError": "jqueue.domain.errors",
    "migrate": "jqueue.core.migration.mover",
    "replay": "jqueue.connect.replay",
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
    *("domain.errors", "domain.events", "domain.replay", "domain.rules", "domain.stats", "ports.queue"),
    *("core.group_commit", "core.migration.mover", "formats.queue"),
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
