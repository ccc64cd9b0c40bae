"""A bulk enqueue that is under way when its queue is closed ends, and stores nothing more."""

import asyncio

from jqueue import DirectQueue, InMemoryStorage, QueueClosedError
from jqueue.domain.limits import Limits
from jqueue.operations import Enqueue


class SlowToRead(InMemoryStorage):
    """A store that answers the first read only after a signal, and counts objects."""

    def __init__(self):
        super().__init__()
        self.asked, self.answer, self.created = asyncio.Event(), asyncio.Event(), 0

    async def read(self):
        self.asked.set()
        await self.answer.wait()
        return await super().read()

    async def create_object(self, suffix, content):
        self.created += 1
        await super().create_object(suffix, content)


async def test_no_segment_is_stored_after_the_queue_was_closed():
    storage = SlowToRead()
    queue = DirectQueue(storage, limits=Limits(hot_bytes=1, batch_size=20))

    async def close():
        await storage.asked.wait()
        asyncio.get_running_loop().call_soon(storage.answer.set)
        await queue.aclose()

    jobs = [Enqueue("a") for _ in range(300)]
    answer, _ = await asyncio.gather(queue.enqueue_many(jobs), close(), return_exceptions=True)
    assert isinstance(answer, QueueClosedError)
    assert 0 == storage.created
