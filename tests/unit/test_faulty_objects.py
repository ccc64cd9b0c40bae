"""Each fault of a call for an object: what the caller is told, and what happens in the store."""

import asyncio

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.errors import CASConflictError, StorageError
from jqueue.ports.storage import SupportsObjects
from jqueue.testing.faults import Fault, FaultyObjects, FaultyStorage
from jqueue.testing.objects_contract import pieces_of
from tests.two_methods import TwoMethods


@pytest.fixture
def storage():
    return FaultyObjects(InMemoryStorage(), delay=0)


@pytest.fixture(params=["bytes", "pieces"])
def create(request, storage):
    if request.param == "bytes":
        return lambda: storage.create_object(".a", b"content")
    return lambda: storage.create_object_from(".a", pieces_of(b"content", [3]))


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
async def test_a_faulty_creation_ends_with_an_error(storage, create, fault, error, there):
    storage.on_object(fault)
    with pytest.raises(error):
        await create()
    await asyncio.gather(*storage._later)
    assert [".a"] * there == await _suffixes(storage)


@pytest.mark.parametrize(("fault", "there"), [(Fault.HANGS, False), (Fault.HANGS_AFTER, True)])
async def test_a_hanging_creation_ends_when_its_caller_leaves(storage, create, fault, there):
    storage.on_object(fault)
    creation = asyncio.ensure_future(create())
    for _ in range(50):  # more often than a creation in memory waits
        await asyncio.sleep(0)
    assert not creation.done()
    creation.cancel()
    await asyncio.wait([creation])
    assert [".a"] * there == await _suffixes(storage)


async def test_faults_meet_the_calls_for_objects_in_order_and_no_others(storage):
    storage.on_object(Fault.NONE, Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.RESENT)
    await storage.create_object(".a", b"content")
    for call in (storage.remove_object(".a"), storage.read_object(".a")):
        with pytest.raises(StorageError, match="reset"):
            await call
    await storage.write(b"the queue")
    assert [] == await storage.list_beside(".")
    assert [
        ("create_object", ".a"),
        ("remove_object", ".a"),
        ("read_object", ".a"),
        ("list_beside", "."),
    ] == storage.object_calls


def test_only_a_storage_with_objects_has_faulty_objects():
    with pytest.raises(TypeError, match="SupportsObjects"):
        FaultyObjects(TwoMethods())
    assert not isinstance(FaultyStorage(TwoMethods()), SupportsObjects)
