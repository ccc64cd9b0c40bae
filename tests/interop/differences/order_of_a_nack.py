"""A nacked or recovered job goes behind jobs of equal priority

Why: a job that always fails must not delay the others. `nack(job, charge=False)` keeps its place

1.0.0: a b
2.0.0: b a
"""

import asyncio

from jqueue import DirectQueue, InMemoryStorage


async def main():
    q = DirectQueue(InMemoryStorage())
    await q.enqueue("a", b"")
    await q.enqueue("b", b"")
    [a] = await q.dequeue()
    await q.nack(a.id)
    print(*[job.entrypoint for job in await q.dequeue(batch_size=2)])


asyncio.run(main())
