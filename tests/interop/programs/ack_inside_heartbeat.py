"""A job acked or nacked by its id while its heartbeat still runs: the block runs to its end."""

import asyncio
from datetime import timedelta

from jqueue import DirectQueue, HeartbeatManager, InMemoryStorage


async def main():
    q = DirectQueue(InMemoryStorage())
    for number in range(2):
        await q.enqueue("task", b"%d" % number)
    for end in (q.ack, q.nack):
        [job] = await q.dequeue("task")
        async with HeartbeatManager(q, job.id, interval=timedelta(milliseconds=10)):
            await end(job.id)
            await asyncio.sleep(0.05)
        print(end.__name__, "and the block went on")


asyncio.run(main())
