"""A job that was given back, or recovered, goes behind its equals

Why: a job that always fails must not keep the others waiting; `nack(job, charge=False)` keeps its place

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
