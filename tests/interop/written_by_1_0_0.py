"""A program for 1.0.0 that writes `queue.json` with jobs in every status of 1.0.0, and prints the queue."""

import asyncio
import json
from datetime import timedelta

from jqueue import BrokerQueue, DirectQueue, LocalFileSystemStorage

storage = LocalFileSystemStorage("queue.json")


def shown(job):
    fields = job.model_dump(mode="json", include={"id", "entrypoint", "payload", "status", "priority"})
    times = (job.created_at, job.heartbeat_at)
    return {**fields, "times": [time and time.timestamp() for time in times]}


async def main():
    q = DirectQueue(storage)
    for number in range(3):
        await q.enqueue("to be claimed", b"%d" % number, priority=-10)
    await q.enqueue("to be acked", b"", priority=-10)
    await q.enqueue("binary", bytes(range(256)), priority=2)
    await q.enqueue("größe/漢字 \U0001f600 \u2028", b"unicode", priority=-1)
    await q.enqueue("an empty payload", b"")
    await q.enqueue("large", bytes(2 << 20), priority=2**31 - 1)  # like the next three, beyond the limits of jqueue 2
    for entrypoint in ("", "line\nbreak", "x" * 600):
        await q.enqueue(entrypoint, b"", priority=2**31 - 1)
    await q.enqueue("urgent", b"u", priority=-(2**31))
    async with BrokerQueue(storage, stale_timeout=timedelta(hours=1)) as broker:
        await asyncio.gather(*(broker.enqueue("equal", b"%d" % number, priority=1) for number in range(10)))
        given_back, *_ = await broker.dequeue("to be claimed", batch_size=3)
        await broker.nack(given_back.id)
        [acked] = await broker.dequeue("to be acked")
        await broker.ack(acked.id)
    state = await q.read_state()
    print(
        json.dumps(
            {
                "version": state.version,
                "jobs": [shown(job) for job in state.jobs],
                "queued": [job.id for job in state.queued_jobs()],
                "in progress": [job.id for job in state.in_progress_jobs()],
            }
        )
    )


asyncio.run(main())
