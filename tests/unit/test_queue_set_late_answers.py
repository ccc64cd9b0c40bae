"""A set with a queue that answers late: its jobs are found, and no other queue is taken for it."""

import asyncio

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.sets_of_queues import blob, set_of
from tests.virtual_world import in_virtual_time, now


class Late(InMemoryStorage):
    """Storage that answers every read `seconds` late."""

    def __init__(self, seconds):
        super().__init__(clock=VirtualClock())
        self.seconds = seconds

    async def read(self):
        await asyncio.sleep(self.seconds)
        return await super().read()


def late(seconds):
    return DirectQueue(Late(seconds), clock=VirtualClock())


@pytest.mark.parametrize("wait", [None, 1, 60])
@in_virtual_time
async def test_a_job_of_a_queue_that_answers_late_is_found_if_the_others_are_empty(wait):
    slow, empty = late(5), blob()
    job = await slow.enqueue("work", b"")
    queues = set_of(empty, DirectQueue(slow.storage, clock=VirtualClock()))
    before = now()
    assert [job.id] == [found.id for found in await queues.dequeue(wait=wait)]
    assert now() - before < 12, "it was claimed only when the wait was over"


@in_virtual_time
async def test_an_empty_answer_waits_for_all_queues_until_the_deadline():
    queues = set_of(blob(), late(5))
    before = now()
    assert [] == await queues.dequeue()
    assert 5 <= now() - before < 6
    hung = set_of(blob(), late(500))
    before = now()
    with pytest.raises(TimeoutError):
        await hung.dequeue(deadline=10)
    assert 10 <= now() - before < 11


@in_virtual_time
async def test_removing_a_queue_during_a_search_does_not_misdirect_the_call():
    first, second, third = late(3), blob(), blob()
    job = await third.enqueue("work", b"", job_id="one")
    queues = set_of(first, second, third)
    for call in (queues.cancel, queues.ack):
        await third.enqueue("work", b"", job_id="one")
        if call == queues.ack:
            [job] = await third.dequeue()
        doing = asyncio.create_task(call("one" if call == queues.cancel else job))
        await asyncio.sleep(1)
        queues.remove(second)
        await doing
        await queues.add(second)
    assert 0 == (await third.stats()).depth + (await third.stats()).in_progress
