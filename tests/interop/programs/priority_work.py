"""Priorities: lower values first, equal ones in order of arrival, for one entrypoint or any."""

import asyncio

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage


async def fill(q):
    await q.enqueue("report", b"best-effort", priority=10)
    await q.enqueue("report", b"first", priority=0)
    await q.enqueue("mail", b"other", priority=0)
    await q.enqueue("report", b"second", priority=0)
    await q.enqueue("report", b"urgent", priority=-5)
    await q.enqueue("mail", b"positional", 3)


async def drain(q):
    print([job.payload for job in (await q.read_state()).queued_jobs()])
    print([job.payload for job in (await q.read_state()).queued_jobs("mail")])
    print([job.payload for job in await q.dequeue("report", batch_size=2)])
    print([job.payload for job in await q.dequeue()])
    print([job.payload for job in await q.dequeue(None, batch_size=2)])
    print([job.payload for job in await q.dequeue(entrypoint="report", batch_size=100)])
    print(await q.dequeue(batch_size=0), await q.dequeue("report"))


async def main():
    direct = DirectQueue(InMemoryStorage())
    await fill(direct)
    await drain(direct)
    async with BrokerQueue(InMemoryStorage()) as broker:
        await fill(broker)
        await drain(broker)


asyncio.run(main())
