"""Both queues keep the queue contract on every storage that needs no server; a plain queue refuses what it lacks."""

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.ports.queue import Capabilities, JobQueue
from jqueue.testing.queue_contract import QueueContract
from tests.contract.places import (
    InMemory,
    OnAFile,
    OnTwoMethods,
    ThroughABroker,
    ThroughASeat,
    WithoutAStore,
    without,
    without_waiting,
)
from tests.contract.whole_contract import WholeQueueContract


@without_waiting
class InVirtualTime(InMemory, WholeQueueContract):
    """The whole contract in memory, in virtual time."""


class TestDirectQueueInMemory(InVirtualTime):
    kind = DirectQueue


class TestBrokerQueueInMemory(InVirtualTime):
    kind = BrokerQueue


@without_waiting
@pytest.mark.wide
class TestBrokerQueueThroughABroker(ThroughABroker, WholeQueueContract):
    """The whole contract, with a broker that commits for all queue objects of a test."""

    kind = BrokerQueue


@without_waiting
class TestDirectQueueThroughABroker(ThroughABroker, QueueContract):
    kind = DirectQueue


@without_waiting
@without("test_a_blob_that_is_cut_off_is_refused_and_left_alone")  # no broker takes its seat
class TestBrokerQueueThroughASeat(ThroughASeat, WholeQueueContract):
    """The whole contract, with a broker that is found by the header of the queue."""

    kind = BrokerQueue


@without_waiting
@without(  # they write to the store
    "test_a_blob_that_is_cut_off_is_refused_and_left_alone",
    "test_a_job_that_cannot_be_read_is_set_aside_and_served_once_mended",
)
class TestBrokerQueueWithoutAStore(WithoutAStore, QueueContract):
    kind = BrokerQueue


@without_waiting
class TestBrokerQueueOnTwoMethods(OnTwoMethods, QueueContract):
    kind = BrokerQueue


class TestBrokerQueueOnAFile(OnAFile, QueueContract):
    kind = BrokerQueue


def test_both_queues_are_job_queues_with_all_capabilities():
    for kind in (DirectQueue, BrokerQueue):
        queue = kind(InMemoryStorage())
        assert isinstance(queue, JobQueue)
        assert () == queue.capabilities.missing


def test_every_capability_has_a_test_of_its_refusal():
    from tests.contract.queue.wrong_calls import USES

    names = set(Capabilities.__struct_fields__)
    through_apply = {"staged", "holders"}  # operations, which only `apply` takes: `transactions` has its refusal
    assert names - {"fencing"} - through_apply == set(USES)


def _typed(queue: DirectQueue | BrokerQueue) -> JobQueue:
    """Let the type checker compare every signature of the queues with the protocol's; never called."""
    return queue
