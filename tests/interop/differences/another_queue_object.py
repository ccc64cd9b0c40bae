"""An id stands only for a claim that the same queue object handed out

Why: an id alone does not name a claim. `Job` does, and every verb accepts it

1.0.0: acked by its id through another queue object
2.0.0: ClaimLostError
2.0.0: acked by the Job through another queue object
"""

import asyncio

from jqueue import DirectQueue, InMemoryStorage, JQueueError


async def main():
    storage = InMemoryStorage()
    mine, other = DirectQueue(storage), DirectQueue(storage)
    await mine.enqueue("task", b"")
    [job] = await mine.dequeue("task")
    try:
        await other.ack(job.id)
        print("acked by its id through another queue object")
    except JQueueError as error:
        print(type(error).__name__)
        await other.ack(job)
        print("acked by the Job through another queue object")


asyncio.run(main())
