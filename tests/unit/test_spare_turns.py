"""Work that can wait, such as merging segments, stands back while a commit is written."""

import asyncio

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.core.engine.slices import LONGEST_WAIT, SpareTurns, in_turns
from jqueue.domain.operations import Enqueue
from tests.tiny_segments import segments_of, spilled, tiny_queue
from tests.virtual_world import in_virtual_time


class Gated(InMemoryStorage):
    """A store whose next write waits until it is let through."""

    def __init__(self):
        super().__init__()
        self.begun, self.open = asyncio.Event(), asyncio.Event()

    async def write(self, content, if_match=None):
        self.begun.set()
        await self.open.wait()
        return await super().write(content, if_match)


@in_virtual_time
async def test_a_slice_waits_for_a_write_but_not_for_long():
    storage, now = Gated(), asyncio.get_running_loop().time
    queue = DirectQueue(storage)
    spare = queue._engine._spare
    enqueue = asyncio.create_task(queue.enqueue("x", b""))
    await storage.begun.wait()
    begun = now()
    await spare.next()
    assert pytest.approx(LONGEST_WAIT) == now() - begun
    begun = now()
    waiting = asyncio.create_task(spare.next())
    await asyncio.sleep(LONGEST_WAIT / 2)
    assert not waiting.done()
    storage.open.set()
    await asyncio.gather(enqueue, waiting)
    assert pytest.approx(LONGEST_WAIT / 2) == now() - begun
    begun = now()
    await spare.next()
    assert begun == now(), "nothing is written"


async def _turns(merged):
    """Return the number of turns that spills ask for, and merges if two segments are enough for one."""
    turns = 0

    async def turn():
        nonlocal turns
        turns += 1

    async with tiny_queue(InMemoryStorage(), merged=merged, bulk_jobs=100) as queue:
        segments_of(queue).writer._turn = turn
        for _ in range(3):
            await queue.enqueue_many([Enqueue("x", b"") for _ in range(3)])
            await spilled(queue)
    return turns


@in_virtual_time
async def test_merges_can_wait_and_spills_cannot():
    assert 0 == await _turns(merged=100) < await _turns(merged=2)


@in_virtual_time
async def test_a_write_of_another_loop_is_forgotten():
    spare = SpareTurns()
    written = spare.begin_write()
    spare.forget()  # as after a fork
    begun = asyncio.get_running_loop().time()
    await spare.next()
    assert begun == asyncio.get_running_loop().time()
    later = spare.begin_write()
    spare.end_write(written)
    await spare.next()
    assert begun < asyncio.get_running_loop().time()
    spare.end_write(later)

    def three():
        yield
        yield
        return 3

    assert 3 == await in_turns(three(), spare.next)
