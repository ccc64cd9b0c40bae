"""What the object behind a storage is called, as people know it, without secrets, and safe to print."""

from __future__ import annotations

from jqueue.adapters.storage._remote import RemoteStorage
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.printable import printable as printable
from jqueue.ports.job_store import JobStorePort


def describe(storage: object) -> str:
    """The name of an object as people know it, without secrets, and safe to print."""
    if isinstance(storage, RemoteStorage):
        name = storage.url
    elif isinstance(storage, LocalFileSystemStorage):
        name = str(storage.path.absolute())
    elif isinstance(storage, InMemoryStorage):
        name = "memory"
    elif isinstance(storage, JobStorePort):
        name = storage.name
    else:
        name = repr(storage)
    return printable(name)
