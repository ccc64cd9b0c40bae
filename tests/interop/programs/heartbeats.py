"""HeartbeatManager: any object with a heartbeat, arguments by position and by name, and every way to leave."""

# mypy: ignore-errors

import asyncio
from datetime import timedelta

from jqueue import BrokerQueue, DirectQueue, HeartbeatManager, InMemoryStorage, JQueueError
from jqueue.core.group_commit import GroupCommitLoop


class Double:
    def __init__(self, failure=None):
        self.beats = []
        self.failure = failure

    async def heartbeat(self, job_id):
        self.beats.append(job_id)
        if self.failure:
            raise self.failure


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


async def is_beaten(q, job):
    return (await q.read_state()).find(job.id).heartbeat_at > job.heartbeat_at


async def with_a_double():
    double = Double()
    manager = HeartbeatManager(queue=double, job_id="a", interval=timedelta(milliseconds=10))
    print(manager.queue is double, manager.job_id, manager.interval)
    async with manager as entered:
        await until(lambda: len(double.beats) > 2)
    print(entered is manager, set(double.beats))
    beats = len(double.beats)
    await asyncio.sleep(0.05)
    print("it stops at the exit", len(double.beats) == beats)
    async with manager:
        await until(lambda: len(double.beats) > beats)
    print("it can be entered again")

    double = Double()
    async with HeartbeatManager(double, "b", timedelta(seconds=60)):
        await asyncio.sleep(0.02)
    print("the first beat comes after the interval", double.beats)
    try:
        async with HeartbeatManager(double, "b"):
            raise KeyError("of the body")
    except KeyError as error:
        print(error)

    double = Double(JQueueError("no more"))
    async with HeartbeatManager(double, "c", interval=timedelta(milliseconds=10)):
        await until(lambda: double.beats)
        await asyncio.sleep(0.05)
    print("an error of the queue ends it", double.beats)


async def with_a_queue(q):
    for number in range(3):
        await q.enqueue("task", b"%d" % number)
    jobs = await q.dequeue("task", batch_size=3)
    async with (
        HeartbeatManager(q, jobs[0].id, timedelta(milliseconds=10)),
        HeartbeatManager(q, jobs[1].id, interval=timedelta(milliseconds=10)),
    ):
        while [True, True, False] != (beaten := [await is_beaten(q, job) for job in jobs]):
            await asyncio.sleep(0.01)
    print(beaten)


async def main():
    await with_a_double()
    await with_a_queue(DirectQueue(InMemoryStorage()))
    async with BrokerQueue(InMemoryStorage()) as q:
        await with_a_queue(q)
    loop = GroupCommitLoop(InMemoryStorage())
    await loop.start()
    await with_a_queue(loop)
    await loop.stop()


asyncio.run(main())
