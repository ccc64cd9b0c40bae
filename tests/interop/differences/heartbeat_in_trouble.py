"""A heartbeat is retried through errors of the store until the timeout of the claim

Why: in 1.0.0, one failed heartbeat silently cost the claim

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
