"""A heartbeat that finds its claim lost cancels the block, which raises ClaimLostError

Why: otherwise two workers run one job, and the first does not know. With `on_lost="event"` the block goes on

1.0.0: the block went on
2.0.0: ClaimLostError
"""

import asyncio
from datetime import timedelta

from jqueue import DirectQueue, HeartbeatManager, InMemoryStorage, JQueueError


async def main():
    storage = InMemoryStorage()
    q, other = DirectQueue(storage), DirectQueue(storage)
    await q.enqueue("task", b"")
    [job] = await q.dequeue("task")
    try:
        async with HeartbeatManager(q, job.id, interval=timedelta(milliseconds=10)):
            await other.requeue_stale(timedelta(0))
            await other.dequeue("task")
            await asyncio.sleep(1)
        print("the block went on")
    except JQueueError as error:
        print(type(error).__name__)


asyncio.run(main())
