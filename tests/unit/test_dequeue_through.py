"""A dequeue with a bound takes only jobs up to a sequence number, and leaves later jobs as they were."""

import asyncio

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, InvalidJobError
from jqueue.operations import Dequeue
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time

both = pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])


@both
@pytest.mark.parametrize("names", [None, ("a",), ("a", "b")])
@in_virtual_time
async def test_later_jobs_are_passed_over_at_any_priority_and_served_in_order_afterwards(kind, names):
    async with kind(InMemoryStorage(), clock=VirtualClock()) as queue:

        async def claimed(count, through):
            [jobs] = await queue.apply(Dequeue(names, batch_size=count, through=through))
            return [job.id for job in jobs]

        for number in range(20):
            await queue.enqueue("a", b"", number % 3, job_id=f"{number}")
        assert [] == await claimed(8, 0)
        assert ["0", "3", "6", "9", "1", "4", "7", "2"] == await claimed(8, 10)
        assert [["5", "8"], []] == [await claimed(8, 10), await claimed(8, 10)]
        assert ["12", "15", "18", "10", "13"] == await claimed(5, None)
        for wrong in (-1, "3", 1.5, True, 2**63):
            with pytest.raises(InvalidJobError, match="through"):
                await claimed(1, wrong)


@both
@in_virtual_time
async def test_a_bounded_dequeue_neither_bounds_nor_answers_others_of_its_commit(kind):
    """Dequeues with equal arguments share an empty answer; the bound is one of the arguments."""
    async with kind(InMemoryStorage(), clock=VirtualClock()) as queue:
        for job_id in "abcd":
            await queue.enqueue("x", job_id=job_id)
        operations = [Dequeue("x", batch_size=9, through=bound) for bound in (2, None)]
        bounded, more = await queue.apply(*operations)
        assert ["ab", "cd"] == ["".join(job.id for job in jobs) for jobs in (bounded, more)]
        await queue.enqueue("x", job_id="e")
        calls = [queue.apply(Dequeue("x", batch_size=9, through=bound)) for bound in (0, 5, 5)]
        assert ["", "e", ""] == ["".join(job.id for job in jobs) for [jobs] in await asyncio.gather(*calls)]
