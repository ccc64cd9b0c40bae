"""Background job processing: a web handler enqueues, and a worker loop polls, sends heartbeats and acks."""

# mypy: ignore-errors

import asyncio
from datetime import timedelta
from pathlib import Path

from jqueue import BrokerQueue, HeartbeatManager, LocalFileSystemStorage

resized = []
done = asyncio.Event()


async def handle_request(q, image_bytes):
    await q.enqueue("resize_image", payload=image_bytes, priority=0)


async def resize(payload):
    resized.append(payload)
    if len(resized) == 12:
        done.set()


async def worker(q):
    while True:
        jobs = await q.dequeue("resize_image", batch_size=5)
        if not jobs:
            await asyncio.sleep(0.01)
            continue
        for job in jobs:
            async with HeartbeatManager(q, job.id, interval=timedelta(seconds=30)):
                await resize(job.payload)
            await q.ack(job.id)


async def main():
    path = Path("var") / "lib" / "queue.json"
    async with (
        BrokerQueue(LocalFileSystemStorage(path)) as web,
        BrokerQueue(LocalFileSystemStorage(str(path))) as worker_queue,
    ):
        working = asyncio.create_task(worker(worker_queue))
        for number in range(12):
            await handle_request(web, b"image %d" % number)
        await done.wait()
        while (await web.read_state()).jobs:
            await asyncio.sleep(0.01)
        working.cancel()
    print(b", ".join(resized).decode())


asyncio.run(main())
