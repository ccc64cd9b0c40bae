"""`QueueState.version` grows by one with each commit, whatever the commit carries

Why: it is the number of the commit, by which commits are told apart; in 1.0.0 it grew with every job changed

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
