"""A queue whose object has disappeared raises StorageError instead of looking empty

Why: jobs were lost, and the program must notice. A new queue object starts a new queue

1.0.0: read_state: done
1.0.0: enqueue: done
2.0.0: read_state: BlobMissingError
2.0.0: enqueue: UnknownOutcomeError, because of BlobMissingError
"""

import asyncio
from pathlib import Path

from jqueue import DirectQueue, LocalFileSystemStorage, StorageError


async def attempt(what, call, *arguments):
    try:
        await call(*arguments)
        print(f"{what}: done")
    except StorageError as error:
        because = f", because of {type(error.cause).__name__}" if error.cause else ""
        print(f"{what}: {type(error).__name__}{because}")


async def main():
    q = DirectQueue(LocalFileSystemStorage("queue.json"))
    await q.enqueue("task", b"1")
    Path("queue.json").unlink()
    await attempt("read_state", q.read_state)
    await attempt("enqueue", q.enqueue, "task", b"2")
    await DirectQueue(LocalFileSystemStorage("queue.json")).enqueue("task", b"2")


asyncio.run(main())
