"""Stale jobs: recovered by `requeue_stale` of a DirectQueue, and by a BrokerQueue automatically."""

# mypy: ignore-errors

import asyncio
from datetime import timedelta

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage


async def main():
    q = DirectQueue(InMemoryStorage())
    await q.enqueue("task", b"of a worker that died")
    [job] = await q.dequeue("task")
    print(await q.requeue_stale(timeout=timedelta(minutes=5)), await q.requeue_stale(timedelta(0)))
    recovered = (await q.read_state()).find(job.id)
    print(recovered.status, recovered.heartbeat_at, await q.requeue_stale(timedelta(0)))

    async with BrokerQueue(InMemoryStorage(), stale_timeout=timedelta(seconds=1)) as q:
        await q.enqueue("task", b"of a worker that died")
        [lost] = await q.dequeue("task")
        print(await q.dequeue("task"))
        await asyncio.sleep(1.2)
        [found] = await q.dequeue("task")
        print(found.id == lost.id, found.payload)

    q = BrokerQueue(InMemoryStorage(), timedelta(seconds=7))
    print(q.stale_timeout, BrokerQueue(InMemoryStorage()).stale_timeout)


asyncio.run(main())
