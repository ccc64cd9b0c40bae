"""DirectQueue on a local file: single calls, several event loops one after the other, several queue objects."""

import asyncio
from pathlib import Path

from jqueue import DirectQueue, LocalFileSystemStorage

storage = LocalFileSystemStorage("folder/that/is/not/there/queue.json")
q = DirectQueue(storage)


async def main():
    print(await storage.read())
    job = await q.enqueue("task", b"data")
    [claimed] = await q.dequeue("task")
    print(claimed.id == job.id, claimed.payload, claimed.status, claimed.heartbeat_at is not None)
    await q.ack(claimed.id)
    print(storage.path, Path("folder/that/is/not/there/queue.json").is_file())


async def race():
    queues = [DirectQueue(LocalFileSystemStorage(path=storage.path), 100) for _ in range(3)]
    await asyncio.gather(*(q.enqueue("task", b"%d" % number) for number, q in enumerate(queues)))
    jobs = await queues[0].dequeue(batch_size=5)
    print(sorted(job.payload for job in jobs))
    await asyncio.gather(*(queues[0].ack(job.id) for job in jobs))


asyncio.run(main())
asyncio.run(race())
asyncio.run(q.enqueue("task", b"in a third event loop"))
print([job.payload for job in asyncio.run(q.read_state()).jobs])
