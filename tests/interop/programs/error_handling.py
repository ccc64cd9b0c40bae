"""Error handling: the error classes, their attributes, and the calls that raise them."""

# mypy: ignore-errors

import asyncio

from jqueue import (
    CASConflictError,  # CAS write rejected (etag mismatch), usually retried internally
    DirectQueue,
    InMemoryStorage,
    JobNotFoundError,  # job_id not in current state; has .job_id attribute
    JQueueError,  # base class, catches all jqueue errors
    StorageError,  # I/O failure from the storage backend; has .cause attribute
)


async def main():
    storage = InMemoryStorage()
    q = DirectQueue(storage)
    await q.enqueue("task", b"")
    [job] = await q.dequeue("task")
    await q.ack(job.id)
    try:
        await q.ack(job.id)
    except JobNotFoundError as error:
        print(error.job_id == job.id, isinstance(error, JQueueError))  # already removed, safe to ignore
    for call in (q.ack, q.nack, q.heartbeat):
        try:
            await call("no such job")
        except JobNotFoundError as error:
            print(error, error.job_id, error.args)
    for etag in ("stale", None):
        try:
            await storage.write(b"", etag)
        except CASConflictError as error:
            print(type(error).__name__, isinstance(error, JQueueError))
    try:
        await q.enqueue("task", None)
    except ValueError as error:
        print("a ValueError", "payload" in str(error))


cause = OSError("disk on fire")
for error in (StorageError("could not write", cause), StorageError(message="could not write", cause=cause)):
    print(error, error.cause is cause, error.args, isinstance(error, JQueueError))
print(JobNotFoundError(job_id="a").job_id, CASConflictError("a", "b").args, JQueueError("c"))
asyncio.run(main())
