"""A worker keeps the worker contract on both queues, in memory, on a file and on a real server."""

import pytest

from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from tests.contract.places import InMemory, OnAFile, OnAServer, OnTwoMethods, on, without_waiting
from tests.contract.worker_contract import WorkerContract


@without_waiting
class InVirtualTime(InMemory, WorkerContract):
    """The contract in memory, in virtual time."""


class TestDirectQueueInMemory(InVirtualTime):
    kind = DirectQueue


class TestBrokerQueueInMemory(InVirtualTime):
    kind = BrokerQueue


@pytest.mark.wide
class TestBrokerQueueOnTwoMethods(OnTwoMethods, InVirtualTime):
    kind = BrokerQueue


@pytest.mark.wide
class TestDirectQueueOnAFile(OnAFile, WorkerContract):
    kind = DirectQueue


class TestBrokerQueueOnAFile(OnAFile, WorkerContract):
    kind = BrokerQueue


@on("seaweedfs")
@pytest.mark.wide
class TestBrokerQueueOnSeaweedFS(OnAServer, WorkerContract):
    kind = BrokerQueue
