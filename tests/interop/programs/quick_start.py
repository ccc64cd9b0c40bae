"""The quick start of the documentation of 1.0.0."""

import asyncio

from jqueue import BrokerQueue, HeartbeatManager, InMemoryStorage


async def main():
    async with BrokerQueue(InMemoryStorage()) as q:
        # Producer: add jobs to the queue
        await q.enqueue("send_email", b'{"to": "alice@example.com"}')
        await q.enqueue("send_email", b'{"to": "bob@example.com"}')

        # Consumer: claim and process
        jobs = await q.dequeue("send_email", batch_size=2)
        for job in jobs:
            async with HeartbeatManager(q, job.id):
                print(f"Sending email: {job.payload!r}")
            await q.ack(job.id)


asyncio.run(main())
