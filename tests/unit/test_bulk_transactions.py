"""A bulk enqueue through segments takes a transaction, and is done once however often it is repeated."""

from datetime import timedelta

from jqueue import DirectQueue, InMemoryStorage, Limits
from jqueue.domain.operations import BulkAdded, EnqueueSegments, LastTransaction, StagedReceipt
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time


def operation(queue, *, version, jobs=0):
    now = queue._engine.now()
    return EnqueueSegments(jobs, now, (), (), now + timedelta(minutes=1), transaction=("app", version))


@in_virtual_time
async def test_a_transaction_is_recorded_with_the_segments_and_refuses_a_repetition():
    async with DirectQueue(InMemoryStorage(), clock=VirtualClock(), limits=Limits(hot_bytes=1)) as queue:
        [first, last] = await queue.apply(operation(queue, version=2, jobs=3), LastTransaction("app"))
        assert isinstance(first, BulkAdded)
        assert (None, 2) == (first.version, last)
        [second] = await queue.apply(operation(queue, version=3, jobs=3))
        assert 2 == second.version
        before = (await queue.read_state()).last_sequence
        for version in (1, 3):
            [again] = await queue.apply(operation(queue, version=version, jobs=3))
            assert StagedReceipt(repeated=True, version=3) == again
        assert before == (await queue.read_state()).last_sequence
