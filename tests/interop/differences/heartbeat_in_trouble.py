"""A heartbeat goes on through trouble with the store, until the claim's timeout

Why: one failed beat cost 1.0.0 the claim, silently

1.0.0: 1 beat
2.0.0: many beats
"""

import asyncio
from datetime import timedelta

from jqueue import HeartbeatManager, StorageError


class Unreachable:
    beats = 0

    async def heartbeat(self, job_id):
        self.beats += 1
        raise StorageError("no route to the store", OSError())


async def main():
    q = Unreachable()
    async with HeartbeatManager(q, "a job", interval=timedelta(milliseconds=10)):
        for _ in range(100):
            await asyncio.sleep(0.01)
    print("1 beat" if q.beats == 1 else "many beats")


asyncio.run(main())
