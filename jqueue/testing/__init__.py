"""Tools for your own tests: a runner for workers, and contracts that a storage and a queue on it must keep.

Importing this package loads no test tool; using a contract does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jqueue.testing.assertions import assert_enqueued, assert_not_enqueued, enqueued
    from jqueue.testing.fake_clock import FakeClock, LongestWaits
    from jqueue.testing.objects_contract import ObjectsContract
    from jqueue.testing.queue_contract import QueueContract, QueueFactory
    from jqueue.testing.storage_contract import StorageContract, StorageFactory
    from jqueue.testing.tuning import Numbers, tune
    from jqueue.testing.work_report import Ran, RecordedError, RunawayError, WorkReport
    from jqueue.testing.worker_testing import WorkerTester

__all__ = [
    "FakeClock",
    "LongestWaits",
    "Numbers",
    "ObjectsContract",
    "QueueContract",
    "QueueFactory",
    "Ran",
    "RecordedError",
    "RunawayError",
    "StorageContract",
    "StorageFactory",
    "WorkReport",
    "WorkerTester",
    "assert_enqueued",
    "assert_not_enqueued",
    "enqueued",
    "tune",
]

_HOMES = {
    "FakeClock": "jqueue.testing.fake_clock",
    "LongestWaits": "jqueue.testing.fake_clock",
    "Numbers": "jqueue.testing.tuning",
    "ObjectsContract": "jqueue.testing.objects_contract",
    "QueueContract": "jqueue.testing.queue_contract",
    "QueueFactory": "jqueue.testing.queue_contract",
    "Ran": "jqueue.testing.work_report",
    "RecordedError": "jqueue.testing.work_report",
    "RunawayError": "jqueue.testing.work_report",
    "StorageContract": "jqueue.testing.storage_contract",
    "StorageFactory": "jqueue.testing.storage_contract",
    "WorkReport": "jqueue.testing.work_report",
    "WorkerTester": "jqueue.testing.worker_testing",
    "assert_enqueued": "jqueue.testing.assertions",
    "assert_not_enqueued": "jqueue.testing.assertions",
    "enqueued": "jqueue.testing.assertions",
    "tune": "jqueue.testing.tuning",
}

_TOOLS = ("pytest", "pytest_asyncio", "rich")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in _TOOLS:
            raise
        raise ImportError(f'{name} of jqueue.testing needs {error.name}: pip install "jqueue[testing]"') from error


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
