"""DirectQueue recovers stale jobs when it dequeues, as BrokerQueue does

Why: the job of a dead worker must not wait for a call of `requeue_stale`

1.0.0: recovered: 0
2.0.0: recovered: 1
"""

import asyncio

from jqueue import DirectQueue, InMemoryStorage

# 1.0.0 ignores the timeout in this blob. It makes the program fast on 2.0.0, whose default is 5 minutes.
OF_A_DEAD_WORKER = b"""{"version": 1, "jobs": [{"id": "a", "entrypoint": "task", "payload": "", "status": "in_progress",
"created_at": "2024-01-01T00:00:00Z", "heartbeat_at": "2024-01-01T00:00:00Z", "claim_timeout": 0.1}]}"""


async def main():
    q = DirectQueue(InMemoryStorage(OF_A_DEAD_WORKER))
    found = []
    for _ in range(10):
        found += await q.dequeue("task")
        await asyncio.sleep(0.05)
    print("recovered:", len(found))


asyncio.run(main())
