"""Sizes are limited: 1 MiB for a payload in the blob, 512 bytes for a name, 64 MiB for the blob, 10,000 jobs a dequeue

Why: each commit writes the whole blob. `Limits` sets other limits, as in `DirectQueue(storage, limits=...)`

1.0.0: a payload of 2 MiB: taken
1.0.0: an entrypoint of 600 bytes: taken
1.0.0: a batch of 20,000: taken
2.0.0: a payload of 2 MiB: InvalidJobError
2.0.0: an entrypoint of 600 bytes: InvalidJobError
2.0.0: a batch of 20,000: InvalidJobError
"""

import asyncio

from jqueue import DirectQueue, InMemoryStorage, JQueueError


class TwoMethods:
    """A store that keeps no object beside the queue's. Elsewhere, large payloads get objects of their own."""

    def __init__(self):
        storage = InMemoryStorage()
        self.read, self.write = storage.read, storage.write


async def attempt(what, call):
    try:
        await call
        print(f"{what}: taken")
    except JQueueError as error:
        print(f"{what}: {type(error).__name__}")


async def main():
    q = DirectQueue(TwoMethods())
    await attempt("a payload of 2 MiB", q.enqueue("task", bytes(2 << 20)))
    await attempt("an entrypoint of 600 bytes", q.enqueue("t" * 600, b""))
    await attempt("a batch of 20,000", q.dequeue(batch_size=20_000))


asyncio.run(main())
