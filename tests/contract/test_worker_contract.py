"""A worker keeps the worker contract on both queues, in memory, on a file and on a real server."""

import inspect

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.testing.virtual_time import VirtualClock
from jqueue.testing.worker_contract import WorkerContract
from tests.contract.test_queue_contract import PlainQueue
from tests.object_stores import store_of
from tests.two_methods import TwoMethods
from tests.virtual_world import in_virtual_time


def without_waiting(contract):
    """Run each test of a contract in virtual time: no test depends on a real clock."""
    for name, test in inspect.getmembers(contract, inspect.iscoroutinefunction):
        if name.startswith("test_"):
            setattr(contract, name, in_virtual_time(test))
    return contract


@without_waiting
@pytest.mark.filterwarnings("ignore:The test .* is marked with '@pytest.mark.asyncio'")
class InVirtualTime(WorkerContract):
    """A queue in memory, in virtual time."""

    @pytest.fixture
    def make_queue(self):
        storage = self.open_storage()
        return lambda **options: type(self).kind(storage, **{"clock": VirtualClock(), **options})

    def open_storage(self):
        return InMemoryStorage(clock=VirtualClock())


class TestDirectQueueInMemory(InVirtualTime):
    kind = DirectQueue


class TestBrokerQueueInMemory(InVirtualTime):
    kind = BrokerQueue


@pytest.mark.wide
class TestBrokerQueueOnTwoMethods(InVirtualTime):
    kind = BrokerQueue

    def open_storage(self):
        return TwoMethods()


@pytest.mark.wide
class TestAPlainQueue(InVirtualTime):
    kind = PlainQueue


class OnAFile(WorkerContract):
    @pytest.fixture
    def make_storage(self, tmp_path):
        return lambda: LocalFileSystemStorage(tmp_path / "queue.json", lock_timeout=60)


class TestDirectQueueOnAFile(OnAFile):
    kind = DirectQueue


class TestBrokerQueueOnAFile(OnAFile):
    kind = BrokerQueue


@pytest.mark.usefixtures("seaweedfs")
class TestBrokerQueueOnSeaweedFS(WorkerContract):
    kind = BrokerQueue

    @pytest.fixture
    def make_storage(self, request):
        store = store_of(request, "seaweedfs")
        key = store.new_key()
        return lambda: store.open(key, timeout=60)
