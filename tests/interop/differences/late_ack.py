"""A worker that lost its claim cannot end the claim of the next worker

Why: the next worker still runs the job, and its failure would go unnoticed

1.0.0: the late worker: done
1.0.0: the worker that holds it: JobNotFoundError
2.0.0: the late worker: ClaimLostError
2.0.0: the worker that holds it: done
"""

import asyncio
from datetime import timedelta

from jqueue import DirectQueue, InMemoryStorage, JQueueError


async def ack(who, q, job):
    try:
        await q.ack(job.id)
        print(f"{who}: done")
    except JQueueError as error:
        print(f"{who}: {type(error).__name__}")


async def main():
    storage = InMemoryStorage()
    slow, quick = DirectQueue(storage), DirectQueue(storage)
    await slow.enqueue("task", b"")
    [lost] = await slow.dequeue("task")
    await quick.requeue_stale(timedelta(0))
    [held] = await quick.dequeue("task")
    await ack("the late worker", slow, lost)
    await ack("the worker that holds it", quick, held)


asyncio.run(main())
