"""The name of the object behind a storage, as users know it, without secrets and safe to print."""

from __future__ import annotations

from jqueue.adapters.storage._remote import RemoteStorage
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.printable import printable


def describe(storage: object) -> str:
    """Return the name of the object behind a storage, as users know it, without secrets and safe to print."""
    if isinstance(storage, RemoteStorage):
        name = storage.url
    elif isinstance(storage, LocalFileSystemStorage):
        name = str(storage.path.absolute())
    elif isinstance(storage, InMemoryStorage):
        name = "memory"
    elif isinstance(named := getattr(storage, "name", None), str):
        name = named
    else:
        name = repr(storage)
    return printable(name)
