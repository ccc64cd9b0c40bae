"""An adapter with a connection, which the program that opened it closes after several queues have used it."""

import asyncio

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage


class Connected:
    def __init__(self):
        self.storage = InMemoryStorage()
        self.closed = False

    async def read(self):
        assert not self.closed
        return await self.storage.read()

    async def write(self, content, if_match=None):
        assert not self.closed
        return await self.storage.write(content, if_match)

    async def aclose(self):
        self.closed = True


async def main():
    connected = Connected()
    async with BrokerQueue(connected) as q:
        await q.enqueue("task", b"data")
    print(connected.closed)
    async with BrokerQueue(connected) as q:
        [job] = await q.dequeue("task")
        await q.ack(job.id)
    print(len((await DirectQueue(connected).read_state()).jobs))
    await connected.aclose()


asyncio.run(main())
