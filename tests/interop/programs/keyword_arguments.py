"""Every argument by its name in 1.0.0, and the attributes for settings."""

import asyncio
from datetime import timedelta
from pathlib import Path

from jqueue import BrokerQueue, DirectQueue, HeartbeatManager, InMemoryStorage, LocalFileSystemStorage
from jqueue.core.group_commit import GroupCommitLoop


async def each_verb(q):
    for _ in range(2):
        await q.enqueue(entrypoint="task", payload=b"data", priority=1)
    [first] = await q.dequeue(entrypoint="task", batch_size=1)
    await q.heartbeat(job_id=first.id)
    await q.nack(job_id=first.id)
    jobs = await q.dequeue(entrypoint=None, batch_size=2)
    for job in jobs:
        async with HeartbeatManager(queue=q, job_id=job.id, interval=timedelta(seconds=1)):
            await q.ack(job_id=job.id)
    print(len(jobs), len((await q.read_state()).jobs))


async def main():
    storage = InMemoryStorage(initial_content=b"")
    direct = DirectQueue(storage=storage, max_retries=3)
    await each_verb(direct)
    broker = BrokerQueue(storage=storage, stale_timeout=timedelta(minutes=5))
    async with broker as entered:
        await each_verb(broker)
    loop = GroupCommitLoop(storage=storage, stale_timeout=timedelta(minutes=5))
    await loop.start()
    await each_verb(loop)
    await loop.stop()

    print(direct.storage is storage, direct.max_retries, DirectQueue(storage, 5).max_retries)
    print(broker.storage is storage, broker.stale_timeout, entered is broker)
    print(loop.storage is storage, loop.stale_timeout, storage.initial_content)
    print(repr(LocalFileSystemStorage(path="queue.json")), LocalFileSystemStorage(Path("a/b.json")).path)


asyncio.run(main())
