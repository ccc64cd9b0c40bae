"""A write whose answer was lost is recognised: it is neither repeated nor reported as failed

Why: an operation takes effect at most once, and a call that succeeded returns normally

1.0.0: answered by a conflict: done, and stored 2 times
1.0.0: answered by a timeout: StorageError, and stored 1 times
2.0.0: answered by a conflict: done, and stored 1 times
2.0.0: answered by a timeout: done, and stored 1 times
"""

import asyncio

from jqueue import CASConflictError, DirectQueue, InMemoryStorage, JQueueError, StorageError


class LosesAnAnswer:
    def __init__(self, answer):
        self.storage = InMemoryStorage()
        self.answer = answer

    async def read(self):
        return await self.storage.read()

    async def write(self, content, if_match=None):
        etag = await self.storage.write(content, if_match)
        if self.answer:
            answer, self.answer = self.answer, None
            raise answer
        return etag


async def attempt(how, answer):
    q = DirectQueue(LosesAnAnswer(answer))
    try:
        await q.enqueue("task", b"")
        became = "done"
    except JQueueError as error:
        became = type(error).__name__
    print(f"answered by {how}: {became}, and stored {len((await q.read_state()).jobs)} times")


async def main():
    await attempt("a conflict", CASConflictError("412"))
    await attempt("a timeout", StorageError("timeout", OSError()))


asyncio.run(main())
