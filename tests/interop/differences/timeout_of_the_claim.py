"""The timeout of a claim is set by the queue that made it, and is stored with it

Why: the setting or the clock of another process must not take a job from a live worker

1.0.0: taken over: 1
2.0.0: taken over: 0
"""

import asyncio
from datetime import timedelta

from jqueue import BrokerQueue, InMemoryStorage


async def main():
    storage = InMemoryStorage()
    patient = BrokerQueue(storage, stale_timeout=timedelta(minutes=5))
    hasty = BrokerQueue(storage, stale_timeout=timedelta(milliseconds=50))
    async with patient, hasty:
        await patient.enqueue("task", b"")
        await patient.dequeue("task")
        await asyncio.sleep(0.2)
        print("taken over:", len(await hasty.dequeue("task")))


asyncio.run(main())
