"""`QueueState.version` grows by one with each commit

Why: it is the number of the commit, which identifies it. In 1.0.0 it grew with every changed job

1.0.0: 4
2.0.0: 3
"""

import asyncio

from jqueue import DirectQueue, InMemoryStorage


async def main():
    q = DirectQueue(InMemoryStorage())
    await q.enqueue("task", b"")
    await q.enqueue("task", b"")
    await q.dequeue("task", batch_size=2)
    print((await q.read_state()).version)


asyncio.run(main())
