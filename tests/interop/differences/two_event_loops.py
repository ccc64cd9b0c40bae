"""A queue object is used by one running event loop at a time

Why: it caches the state of the last commit and its claims. Make one queue object per thread, on one storage

1.0.0: in two threads: done
2.0.0: in two threads: JQueueError
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from jqueue import DirectQueue, InMemoryStorage, JQueueError


class Slow:
    def __init__(self):
        self.storage = InMemoryStorage()

    async def read(self):
        await asyncio.sleep(0.5)
        return await self.storage.read()

    async def write(self, content, if_match=None):
        return await self.storage.write(content, if_match)


q = DirectQueue(Slow())
both = Barrier(2)


async def handle_request():
    both.wait()
    await q.enqueue("task", b"")


try:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: asyncio.run(handle_request()), range(2)))
    print("in two threads: done")
except JQueueError as error:
    print("in two threads:", type(error).__name__)
