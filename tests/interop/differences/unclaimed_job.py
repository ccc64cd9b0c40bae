"""Only a claimed job can be acked, nacked or kept alive

Why: an ack without a claim may come from a worker that has lost the claim

1.0.0: ack: done
1.0.0: nack: done
1.0.0: heartbeat: done
2.0.0: ack: ClaimLostError, a JobNotFoundError: True
2.0.0: nack: ClaimLostError, a JobNotFoundError: True
2.0.0: heartbeat: ClaimLostError, a JobNotFoundError: True
"""

import asyncio

from jqueue import DirectQueue, InMemoryStorage, JobNotFoundError, JQueueError


async def main():
    q = DirectQueue(InMemoryStorage())
    for verb in ("ack", "nack", "heartbeat"):
        job = await q.enqueue("task", b"")
        try:
            await getattr(q, verb)(job.id)
            print(f"{verb}: done")
        except JQueueError as error:
            print(f"{verb}: {type(error).__name__}, a JobNotFoundError: {isinstance(error, JobNotFoundError)}")


asyncio.run(main())
