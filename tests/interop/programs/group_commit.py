"""Group commit: calls made at once, the loop started and stopped by hand, a bad call among good ones."""

# mypy: ignore-errors

import asyncio
from datetime import timedelta

from jqueue import BrokerQueue, InMemoryStorage, JobNotFoundError
from jqueue.core.group_commit import GroupCommitLoop


class CountedStorage:
    """A store that counts its reads and writes."""

    def __init__(self, storage):
        self.storage = storage
        self.writes = 0

    async def read(self):
        return await self.storage.read()

    async def write(self, content, if_match=None):
        self.writes += 1
        return await self.storage.write(content, if_match)


async def main():
    counted = CountedStorage(InMemoryStorage())
    async with BrokerQueue(counted) as q:
        # These three enqueues are batched into a single storage write
        await asyncio.gather(
            q.enqueue("task", b"1"),
            q.enqueue("task", b"2"),
            q.enqueue("task", b"3"),
        )
    print(counted.writes)

    loop = GroupCommitLoop(storage=InMemoryStorage(), stale_timeout=timedelta(minutes=1))
    await loop.start()
    results = await asyncio.gather(
        loop.enqueue("task", b"valid"), loop.nack("gone"), loop.dequeue("task"), return_exceptions=True
    )
    print(results[0].payload, isinstance(results[1], JobNotFoundError), [job.payload for job in results[2]])
    await loop.heartbeat(results[2][0].id)
    await loop.nack(results[2][0].id)
    [job] = await loop.dequeue("task", batch_size=1)
    await loop.ack(job.id)
    print((await loop.read_state()).jobs)
    await loop.stop()
    await loop.stop()

    # Calls made before the exit are done during the exit.
    storage = InMemoryStorage()
    async with BrokerQueue(storage) as q:
        calls = [asyncio.create_task(q.enqueue("task", b"%d" % number)) for number in range(20)]
        await asyncio.sleep(0)
    print(len(await asyncio.gather(*calls)), len((await q.read_state()).jobs))

    try:
        async with BrokerQueue(storage) as q:
            raise KeyError("of the body")
    except KeyError as error:
        print(error)


asyncio.run(main())
