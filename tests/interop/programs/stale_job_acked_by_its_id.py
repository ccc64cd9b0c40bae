"""A worker loop that forgets a failed job, claims it again after its recovery, and acks it by its id."""

# mypy: ignore-errors

import asyncio
from datetime import timedelta

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage


async def main():
    async with BrokerQueue(InMemoryStorage(), stale_timeout=timedelta(milliseconds=100)) as q:
        await q.enqueue("task", b"data")
        attempts = 0
        while (await q.read_state()).jobs:
            for job in await q.dequeue("task"):
                attempts += 1
                if attempts == 1:
                    continue  # the handler raised, and the job was not nacked
                await q.ack(job.id)
            await asyncio.sleep(0.15)
        print("done at attempt", attempts)

    q = DirectQueue(InMemoryStorage())
    await q.enqueue("task", b"data")
    await q.dequeue("task")
    await q.requeue_stale(timedelta(0))
    [job] = await q.dequeue("task")
    await q.ack(job.id)
    print(len((await q.read_state()).jobs))


asyncio.run(main())
