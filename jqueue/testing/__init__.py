"""What users test their own parts with: the contracts that a storage adapter and a queue must keep.

Importing this package loads no test tool; using a contract does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jqueue.testing.queue_contract import QueueContract, QueueFactory
    from jqueue.testing.storage_contract import StorageContract, StorageFactory

__all__ = ["QueueContract", "QueueFactory", "StorageContract", "StorageFactory"]

_HOMES = {
    "QueueContract": "jqueue.testing.queue_contract",
    "QueueFactory": "jqueue.testing.queue_contract",
    "StorageContract": "jqueue.testing.storage_contract",
    "StorageFactory": "jqueue.testing.storage_contract",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
