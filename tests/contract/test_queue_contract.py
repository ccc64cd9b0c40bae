"""Both queues keep the queue contract on every storage that needs no server, and the contract finds what is broken."""

import dataclasses
import inspect

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.ports.queue import Capabilities, JobQueue
from jqueue.testing.queue_contract import QueueContract
from jqueue.testing.virtual_time import VirtualClock
from tests.two_methods import TwoMethods
from tests.virtual_world import in_virtual_time


def without_waiting(contract):
    """The same tests, each in virtual time: nothing in them depends on a real clock."""
    for name, test in inspect.getmembers(contract, inspect.iscoroutinefunction):
        if name.startswith("test_"):
            setattr(contract, name, in_virtual_time(test))
    return contract


@without_waiting
@pytest.mark.filterwarnings("ignore:The test .* is marked with '@pytest.mark.asyncio'")
class InVirtualTime(QueueContract):
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


class TestDirectQueueOnTwoMethods(InVirtualTime):
    kind = DirectQueue

    def open_storage(self):
        return TwoMethods()


class TestBrokerQueueOnTwoMethods(InVirtualTime):
    kind = BrokerQueue

    def open_storage(self):
        return TwoMethods()


class TestDirectQueueOnAFile(QueueContract):
    kind = DirectQueue

    @pytest.fixture
    def make_storage(self, tmp_path):
        return lambda: LocalFileSystemStorage(tmp_path / "queue.json", lock_timeout=60)


class TestBrokerQueueOnAFile(QueueContract):
    kind = BrokerQueue

    @pytest.fixture
    def make_storage(self, tmp_path):
        return lambda: LocalFileSystemStorage(tmp_path / "queue.json", lock_timeout=60)


class PlainQueue(DirectQueue):
    """As a queue on a foreign format would be: first in, first out, and little else."""

    capabilities = Capabilities(
        priority=False,
        delay=False,
        expiry=False,
        headers=False,
        job_ids=False,
        unique_keys=False,
        dead_letters=False,
        errors=False,
        uncharged=False,
        heartbeat=False,
        claim_timeout=False,
        transactions=False,
        wait=False,
        size_limit=False,
    )

    async def enqueue(self, entrypoint, payload, priority=0, **options):
        asked = {
            "priority": priority,
            "delay": options.get("delay") or options.get("run_at"),
            "expiry": options.get("expires_at"),
            "dead_letters": options.get("max_attempts"),
            "headers": options.get("headers"),
            "job_ids": options.get("job_id"),
            "unique_keys": options.get("unique_key"),
        }
        self.capabilities.require(*(name for name, value in asked.items() if value))
        return await super().enqueue(entrypoint, payload, priority, **options)

    async def dequeue(self, entrypoint=None, *, wait=None, claim_timeout=None, **options):
        asked = {"wait": wait, "claim_timeout": claim_timeout}
        self.capabilities.require(*(name for name, value in asked.items() if value))
        return await super().dequeue(entrypoint, wait=wait, claim_timeout=claim_timeout, **options)

    async def nack(self, job_id, *, delay=None, error=None, dead=False, charge=True, deadline=None):
        asked = {"delay": delay, "errors": error, "dead_letters": dead, "uncharged": not charge}
        self.capabilities.require(*(name for name, value in asked.items() if value))
        await super().nack(job_id, delay=delay, error=error, dead=dead, charge=charge, deadline=deadline)

    async def heartbeat(self, job_id, *, deadline=None):
        self.capabilities.require("heartbeat")

    async def heartbeat_many(self, jobs, *, deadline=None):
        self.capabilities.require("heartbeat")

    async def redrive(self, job_id=None, *, entrypoint=None, deadline=None):
        self.capabilities.require("dead_letters")

    async def purge(self, **options):
        self.capabilities.require("dead_letters")

    async def enqueue_many(self, jobs, *, deadline=None):
        self.capabilities.require("transactions")

    async def apply(self, *operations, deadline=None):
        self.capabilities.require("transactions")


class TestAPlainQueue(InVirtualTime):
    kind = PlainQueue


def test_both_queues_are_queues_and_can_do_everything():
    for kind in (DirectQueue, BrokerQueue):
        queue = kind(InMemoryStorage())
        assert isinstance(queue, JobQueue)
        assert () == queue.capabilities.missing


def test_every_capability_has_a_test_of_its_refusal():
    from jqueue.testing._queue_contract.refusals import USES  # the contract has to be imported before its parts

    names = {field.name for field in dataclasses.fields(Capabilities)}
    assert names - {"fencing", "size_limit"} == set(USES)


def _typed(queue: DirectQueue | BrokerQueue) -> JobQueue:
    """Never called: the type checker compares every signature of the queues with the protocol's."""
    return queue
