"""Arguments are checked before anything is sent: types, 32 bits for a priority, a printable name for an entrypoint

Why: all processes must be able to read what one process writes

1.0.0: taken: '5' 1.0 True 2147483648
1.0.0: taken: '' 'a\\nb'
1.0.0: taken: -1
2.0.0: taken:
2.0.0: taken:
2.0.0: taken:
"""

import asyncio

from jqueue import DirectQueue, InMemoryStorage, JQueueError


async def taken(call, values):
    good = []
    for value in values:
        try:
            await call(value)
            good.append(repr(value))
        except JQueueError:
            pass
    print(" ".join(["taken:", *good]))


async def main():
    q = DirectQueue(InMemoryStorage())
    await taken(lambda priority: q.enqueue("task", b"", priority), ["5", 1.0, True, 2**31])
    await taken(lambda entrypoint: q.enqueue(entrypoint, b""), ["", "a\nb"])
    await taken(lambda batch_size: q.dequeue("task", batch_size=batch_size), [-1])


asyncio.run(main())
