"""A failing store is retried until the deadline; then the call raises a StorageError that says if it took effect

Why: "certainly not done" (DeadlineExceededError) and "perhaps done" (UnknownOutcomeError) need different reactions

1.0.0: two failures: StorageError
1.0.0: down: StorageError
1.0.0: a mistake in the adapter: ZeroDivisionError
2.0.0: two failures: done
2.0.0: down: DeadlineExceededError
2.0.0: a mistake in the adapter: StorageError
"""

import asyncio

from jqueue import DirectQueue, InMemoryStorage, StorageError


class Failing:
    def __init__(self, failures, error):
        self.storage = InMemoryStorage()
        self.failures = failures
        self.error = error

    async def read(self):
        if self.failures:
            self.failures -= 1
            raise self.error
        return await self.storage.read()

    async def write(self, content, if_match=None):
        return await self.storage.write(content, if_match)


async def attempt(what, failures, error, **settings):
    q = DirectQueue(Failing(failures, error), **settings)
    try:
        await q.enqueue("task", b"")
        print(f"{what}: done")
    except Exception as raised:
        print(f"{what}: {type(raised).__name__}")


async def main():
    await attempt("two failures", 2, StorageError("503", OSError()))
    shorter = {"deadline": 1} if hasattr(DirectQueue(InMemoryStorage()), "options") else {}  # than 30 s
    await attempt("down", 1_000_000, StorageError("503", OSError()), **shorter)
    await attempt("a mistake in the adapter", 1, ZeroDivisionError())


asyncio.run(main())
