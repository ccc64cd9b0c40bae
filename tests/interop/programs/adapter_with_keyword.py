"""An adapter whose `if_match` is keyword-only; 1.0.0 passes it by name."""

# mypy: ignore-errors

import asyncio

from jqueue import DirectQueue, InMemoryStorage


class ByName:
    def __init__(self):
        self.storage = InMemoryStorage()

    async def read(self):
        return await self.storage.read()

    async def write(self, content, *, if_match=None):
        return await self.storage.write(content, if_match)


q = DirectQueue(ByName())
asyncio.run(q.enqueue("task", b"data"))
print([job.payload for job in asyncio.run(q.dequeue("task"))])
