"""The simulated network keeps the promises of objects, and does to their requests what it does to all others."""

import asyncio

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.errors import CASConflictError, ObjectMissingError, StorageError
from jqueue.ports.storage import SupportsObjects
from jqueue.testing.objects_contract import pieces_of
from jqueue.testing.virtual_time import run
from tests.simulation.network import LONGEST_DELAY, FaultKind, HonestStore, Network
from tests.simulation.schedule import Schedule

NOT_DONE = {FaultKind.LOST_REQUEST, FaultKind.SILENT_REQUEST, FaultKind.THROTTLED, FaultKind.DOWN}


@pytest.fixture(params=[HonestStore, InMemoryStorage])
def store(request):
    return request.param()


def client_of(store, kinds=()):
    network = Network(store, Schedule(7), 1.0 if kinds else 0.0, tuple(kinds))
    return network, network.client("process", 0.01, abilities=3)


def test_objects_are_created_once_read_listed_and_removed(store):
    async def main():
        _, storage = client_of(store)
        assert isinstance(client_of(store)[1], SupportsObjects)
        await storage.create_object(".history/1", b"0123456789")
        assert 4 == await storage.create_object_from(".history/2", pieces_of(b"0123", [1]))
        with pytest.raises(CASConflictError):
            await storage.create_object(".history/1", b"another")
        assert b"234" == await storage.read_object(".history/1", 2, 5)
        assert [(".history/1", 10), (".history/2", 4)] == [
            (each.suffix, each.size) for each in await storage.list_beside(".h")
        ]
        await storage.remove_object(".history/1")
        with pytest.raises(ObjectMissingError, match="history/1"):
            await storage.read_object(".history/1")
        assert (b"", None) == await storage.read()

    run(main())


@pytest.mark.parametrize("kind", FaultKind)
def test_a_creation_meets_each_fault_of_the_network(store, kind):
    async def main():
        network, storage = client_of(store, [kind])
        outcome = None
        for _ in range(20):  # a store that is down is so only now and then
            try:
                async with asyncio.timeout(60):
                    await storage.create_object(".history/1", b"content")
            except (StorageError, CASConflictError, TimeoutError) as error:
                outcome = error
            if network.fired[kind.name]:
                break
            await storage.remove_object(".history/1")
        assert network.fired[kind.name]
        network.rate, network.down_until = 0.0, 0.0
        await asyncio.sleep(LONGEST_DELAY)
        there = [each.suffix for each in await storage.list_beside(".")]
        assert [".history/1"] * (kind not in NOT_DONE) == there
        quiet = {FaultKind.OVERTAKEN, FaultKind.DELAYED, FaultKind.LATE_ANSWER, FaultKind.DUPLICATED}
        assert (outcome is None) == (kind in quiet)

    run(main())
