"""Each fault of a call for an object: what the caller is told, and what happens in the store."""

import asyncio

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.errors import CASConflictError, StorageError
from jqueue.testing.faults import Fault, FaultyObjects
from tests.virtual_world import in_virtual_time


@pytest.fixture
def storage():
    return FaultyObjects(InMemoryStorage(), delay=0.5)


async def _suffixes(storage):
    return [each.suffix for each in await storage.list_beside(".")]


@pytest.mark.parametrize(
    ("fault", "error", "there"),
    [
        (Fault.LOST_REQUEST, StorageError, False),
        (Fault.LOST_ANSWER, StorageError, True),
        (Fault.RESENT, CASConflictError, True),
        (Fault.LANDS_LATER, StorageError, True),
    ],
)
@in_virtual_time
async def test_a_faulty_creation_ends_with_an_error(storage, fault, error, there):
    storage.on_object(fault)
    with pytest.raises(error):
        await storage.create_object(".a", b"content")
    await asyncio.sleep(1)
    assert [".a"] * there == await _suffixes(storage)


@pytest.mark.parametrize(("fault", "there"), [(Fault.HANGS, False), (Fault.HANGS_AFTER, True)])
async def test_a_hanging_creation_ends_when_its_caller_leaves(storage, fault, there):
    storage.on_object(fault)
    creation = asyncio.ensure_future(storage.create_object(".a", b"content"))
    for _ in range(50):  # more often than a creation in memory waits
        await asyncio.sleep(0)
    assert not creation.done()
    creation.cancel()
    await asyncio.wait([creation])
    assert [".a"] * there == await _suffixes(storage)
