"""Places where the contracts run: memory in virtual time, a file, and real servers.

Each class gives a contract its stores: `class TestHere(OnAFile, QueueContract)`.
"""

import asyncio
import inspect
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.operations.operator import CreateQueue
from jqueue.testing.virtual_time import VirtualClock
from tests.object_stores import store_of
from tests.shared_memory import BrokerOnly, NetworkMemory, SharedMemory, serving
from tests.two_methods import TwoMethods
from tests.virtual_world import in_virtual_time

URL = "http://broker.example:8470"


def without_waiting(contract):
    """Run each test of a contract in virtual time: no test depends on a real clock."""
    for name, test in inspect.getmembers(contract, inspect.iscoroutinefunction):
        if name.startswith("test_"):
            setattr(contract, name, in_virtual_time(test))
    return contract


@pytest.mark.filterwarnings("ignore:The test .* is marked with '@pytest.mark.asyncio'")
class InMemory:
    """A queue in memory, for a contract `without_waiting`."""

    kind: Any

    @pytest.fixture
    def make_queue(self):
        storage = self.open_storage()
        return lambda **options: type(self).kind(storage, **{"clock": VirtualClock(), **options})

    def open_storage(self) -> Any:
        return InMemoryStorage(clock=VirtualClock())


class ThroughABroker(InMemory):
    """Queues that send their calls to the broker of another queue object."""

    def open_storage(self):
        self.storage = SharedMemory(clock=VirtualClock())
        return self.storage

    @asynccontextmanager
    async def queues(self, make_queue, count=1, needs=(), **options):
        async with (
            serving(self.storage, **options),
            super().queues(make_queue, count, needs, **options) as opened,  # type: ignore[misc]
        ):
            yield opened


class ThroughASeat(InMemory):
    """Queues that send their calls to the broker whose URL stands in the header of the queue."""

    def open_storage(self):
        self.storage = NetworkMemory(clock=VirtualClock())
        return self.storage

    @asynccontextmanager
    async def queues(self, make_queue, count=1, needs=(), **options):
        async with BrokerQueue(self.storage, **{"clock": VirtualClock(), **options}) as broker:
            with suppress(InvalidJobError):  # a test may have made it
                await broker.apply(CreateQueue())
            self.storage.brokers[URL] = broker.service().handle
            broker.offer(URL)
            while (await broker.read_state()).broker is None:
                await asyncio.sleep(0.01)
            async with super().queues(make_queue, count, needs, **options) as opened:  # type: ignore[misc]
                yield opened


class WithoutAStore(ThroughABroker):
    """Queues that can reach their broker, and not its store."""

    @pytest.fixture
    def make_queue(self):
        self.open_storage()
        client = BrokerOnly(self.storage)
        return lambda **options: type(self).kind(client, **{"clock": VirtualClock(), **options})


class OnTwoMethods(InMemory):
    """A queue on a storage with only the two methods that every storage has."""

    def open_storage(self):
        return TwoMethods()


class OnAFile:
    """A new file for each test."""

    @pytest.fixture
    def make_storage(self, tmp_path):
        return lambda: LocalFileSystemStorage(tmp_path / "queue.json", lock_timeout=60)


class OnAServer:
    """A new object for each test, on the server that `on` names, and a client for each handle."""

    server: str
    writers, increments = 8, 2  # a longer race is marked `full`

    @pytest.fixture
    def make_storage(self, request):
        store = store_of(request, self.server)
        key = store.new_key()

        def open_one():
            storage = store.open(key, timeout=60)
            storage.listed_at_once = 2  # so that a listing takes several answers
            return storage

        return open_one


def on(server):
    """Class decorator: run the tests of an `OnAServer` on the server of this fixture."""

    def decorate(contract):
        contract.server = server
        return pytest.mark.usefixtures(server)(contract)

    return decorate


def without(*names):
    """Class decorator: leave out tests of a contract that do not apply."""

    def decorate(contract):
        for name in names:
            assert hasattr(contract, name), f"the contract has no test {name}"
            setattr(contract, name, None)
        return contract

    return decorate
