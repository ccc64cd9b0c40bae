"""A worker keeps the worker contract on both queues, in memory, on a file, on a real server and on an older format."""

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.store import VsqsFolder
from jqueue.testing.virtual_time import VirtualClock
from tests.contract.places import InMemory, OnAFile, OnAServer, OnTwoMethods, on, without_waiting
from tests.contract.worker_contract import HeartbeatsContract, WorkerContract


@without_waiting
class InVirtualTime(InMemory, WorkerContract, HeartbeatsContract):
    """The contract in memory, in virtual time."""


class TestDirectQueueInMemory(InVirtualTime):
    kind = DirectQueue


class TestBrokerQueueInMemory(InVirtualTime):
    kind = BrokerQueue


class TestAWorkerOnThreeQueues(InVirtualTime):
    kind = BrokerQueue

    def others(self):
        return [
            kind(InMemoryStorage(clock=VirtualClock()), clock=VirtualClock()) for kind in (DirectQueue, BrokerQueue)
        ]


@pytest.mark.wide
class TestBrokerQueueOnTwoMethods(OnTwoMethods, InVirtualTime):
    kind = BrokerQueue


@pytest.mark.wide
class TestBrokerQueueOnAFile(OnAFile, WorkerContract):
    kind = BrokerQueue


@on("seaweedfs")
@pytest.mark.wide
class TestBrokerQueueOnSeaweedFS(OnAServer, WorkerContract):
    kind = BrokerQueue


class TestVsqs(WorkerContract):
    """A format of older programs, which has few of the features of a queue."""

    @pytest.fixture
    def make_queue(self, tmp_path):
        def make(clock=None, **options):
            return StoreQueue(VsqsFolder(tmp_path / "queue"), **options)

        return make
