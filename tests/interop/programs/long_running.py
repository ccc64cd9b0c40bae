"""Long-running jobs: a heartbeat during the work, an ack when it succeeds, a nack when it fails."""

# mypy: ignore-errors

import asyncio
from datetime import timedelta

from jqueue import BrokerQueue, HeartbeatManager, InMemoryStorage

failures = [RuntimeError("no space left"), None]


async def transcode(payload):
    await asyncio.sleep(0.5)
    failure = failures.pop(0)
    if failure:
        raise failure
    return payload.upper()


async def main():
    async with BrokerQueue(InMemoryStorage(), stale_timeout=timedelta(seconds=30)) as q:
        await q.enqueue("transcode_video", b"film")
        while (await q.read_state()).jobs:
            [job] = await q.dequeue("transcode_video")
            try:
                async with HeartbeatManager(q, job.id, interval=timedelta(milliseconds=10)):
                    result = await transcode(job.payload)  # might take minutes
                await q.ack(job.id)
                print("done", result)
            except Exception as error:
                beaten = (await q.read_state()).find(job.id)
                print("failed", error, beaten.heartbeat_at > job.heartbeat_at)
                await q.nack(job.id)  # return to queue for retry
                given_back = (await q.read_state()).find(job.id)
                print(given_back.status, given_back.heartbeat_at)


asyncio.run(main())
