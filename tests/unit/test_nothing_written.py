"""A store that is certain that nothing was written: the operation is not done, and its outcome is never unknown."""

import pytest

from jqueue import BrokerQueue, DeadlineExceededError, DirectQueue, InMemoryStorage, StorageError, UnknownOutcomeError
from jqueue.domain.errors import StorageFatalError
from jqueue.testing.faults import Fault, FaultyStorage
from tests.virtual_world import in_virtual_time


def certainly(kind):
    def error():
        failure = kind("the disk is full")
        failure.nothing_written = True
        return failure

    return error


@pytest.fixture(params=[DirectQueue, BrokerQueue])
def kind(request):
    return request.param


@in_virtual_time
async def test_an_operation_is_retried_until_its_deadline_and_then_certainly_not_done(kind):
    storage = FaultyStorage(InMemoryStorage(), error=certainly(StorageError))
    async with kind(storage) as queue:
        storage.on_write(*[Fault.LOST_REQUEST] * 10_000)
        with pytest.raises(DeadlineExceededError, match=r"nothing was done .*the disk is full"):
            await queue.enqueue("work", b"1", deadline=5)
        assert storage.writes > 1
        assert [] == queue._engine.open_writes.writes
        storage._write_faults.clear()
        await queue.enqueue("work", b"2")
        assert [b"2"] == [job.payload for job in (await queue.read_state()).jobs]


@in_virtual_time
async def test_a_refusal_for_good_ends_the_call_at_once_without_a_read(kind):
    storage = FaultyStorage(InMemoryStorage(), error=certainly(StorageFatalError))
    async with kind(storage) as queue:
        await queue.enqueue("work", b"1")
        storage.on_write(Fault.LOST_REQUEST)
        reads = storage.reads
        with pytest.raises(StorageFatalError, match="the disk is full"):
            await queue.enqueue("work", b"2")
        assert reads == storage.reads


@in_virtual_time
async def test_an_earlier_write_of_unknown_fate_stays_unknown(kind):
    storage = FaultyStorage(InMemoryStorage(), delay=60)
    async with kind(storage) as queue:
        await queue.enqueue("work", b"1")
        storage.on_write(Fault.LANDS_LATER, *[Fault.LOST_REQUEST] * 10_000)
        errors = iter([StorageError("the connection was reset")])
        storage.error = lambda: next(errors, None) or certainly(StorageError)()
        with pytest.raises(UnknownOutcomeError):
            await queue.enqueue("work", b"2", deadline=5)
