"""A queue of ten thousand waiting jobs, all in its object, and a count of turns of the event loop."""

import asyncio

from jqueue import DirectQueue, InMemoryStorage, Limits
from jqueue.operations import Enqueue
from jqueue.testing.virtual_time import VirtualClock

DEEP = 10_000


async def deep_queue(make=DirectQueue):
    """Return a deep queue that has written a commit, and a second queue that has read that commit."""
    storage = InMemoryStorage(clock=VirtualClock())
    everything = Limits(hot_bytes=None)  # stays in the object
    queue, other = (make(storage, clock=VirtualClock(), limits=everything) for _ in range(2))
    await other.__aenter__()
    await other.enqueue_many([Enqueue("work", b"payload")] * DEEP)
    await queue.__aenter__()
    for each in (queue, other):
        await each.enqueue("first", b"payload")
    await queue.dequeue("nobody")
    return queue, other


class Turns:
    """Number of turns that the event loop gives another task, and the most work done between two of them.

    Args:
        work: returns the amount of work done so far.
    """

    def __init__(self, work):
        self._work = work
        self.count = self.most = 0

    async def __aenter__(self):
        self._task = asyncio.create_task(self._take_turns())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *error):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _take_turns(self):
        done = self._work()
        while True:
            await asyncio.sleep(0)
            self.count += 1
            self.most = max(self.most, self._work() - done)
            done = self._work()
