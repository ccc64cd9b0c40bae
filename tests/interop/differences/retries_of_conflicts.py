"""Lost races are retried until a deadline (30 s, or `deadline=`), not 10 or 20 times; `max_retries=n` still limits them

Why: the number of lost races does not show whether the store works. 1.0.0 counted attempts, 2.0.0 counts retries

1.0.0: 12 lost races: CASConflictError
1.0.0: 3 lost races, max_retries=3: CASConflictError
1.0.0: 4 lost races, max_retries=3: CASConflictError
2.0.0: 12 lost races: done
2.0.0: 3 lost races, max_retries=3: done
2.0.0: 4 lost races, max_retries=3: CASConflictError
"""

import asyncio

from jqueue import CASConflictError, DirectQueue, InMemoryStorage, JQueueError


class Contested:
    """A store where another writer wins the first `times` races."""

    def __init__(self, races):
        self.storage = InMemoryStorage(b'{"version": 0, "jobs": []}')
        self.races = races

    async def read(self):
        return await self.storage.read()

    async def write(self, content, if_match=None):
        if self.races:
            self.races -= 1
            old, etag = await self.storage.read()
            await self.storage.write(old, etag)
            raise CASConflictError("somebody was faster")
        return await self.storage.write(content, if_match)


async def attempt(races, **settings):
    try:
        await DirectQueue(Contested(races), **settings).enqueue("task", b"")
        return "done"
    except JQueueError as error:
        return type(error).__name__


async def main():
    print("12 lost races:", await attempt(12))
    print("3 lost races, max_retries=3:", await attempt(3, max_retries=3))
    print("4 lost races, max_retries=3:", await attempt(4, max_retries=3))


asyncio.run(main())
