"""A user's own adapter: two methods, no base class. If it raises CASConflictError, the queue retries."""

import asyncio

from jqueue import BrokerQueue, CASConflictError, DirectQueue, ObjectStoragePort


class MyStorage:
    def __init__(self, conflicts=0):
        self.content = b""
        self.generation = 0
        self.conflicts = conflicts

    async def read(self) -> tuple[bytes, str | None]:
        """
        Return (content, etag).
        If the object doesn't exist yet, return (b"", None).
        """
        return self.content, str(self.generation) if self.generation else None

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """
        Conditional write.
        - if_match=None  → unconditional put (first write)
        - if_match=etag  → only write if current etag matches; raise CASConflictError otherwise
        Returns the new etag.
        """
        if self.conflicts:
            self.conflicts -= 1
            raise CASConflictError("somebody was faster")
        if if_match is not None and if_match != str(self.generation):
            raise CASConflictError(f"{if_match} is not {self.generation}")
        self.content = content
        self.generation += 1
        return str(self.generation)


async def work(q):
    await asyncio.gather(*(q.enqueue("task", b"%d" % number) for number in range(5)))
    jobs = await q.dequeue("task", batch_size=5)
    print(sorted(job.payload for job in jobs))
    await q.nack(jobs[0].id)
    for job in jobs[1:]:
        await q.heartbeat(job.id)
        await q.ack(job.id)
    print(len((await q.read_state()).jobs), len(await q.dequeue()))


async def main():
    print(isinstance(MyStorage(), ObjectStoragePort), isinstance(object(), ObjectStoragePort))
    await work(DirectQueue(MyStorage(conflicts=3)))
    async with BrokerQueue(MyStorage(conflicts=3)) as q:
        await work(q)
    # Two queues on one adapter.
    storage = MyStorage()
    async with BrokerQueue(storage) as producer:
        await producer.enqueue("task", b"handed over")
    async with BrokerQueue(storage) as consumer:
        [job] = await consumer.dequeue("task")
        print(job.payload)


asyncio.run(main())
