"""A broker accepts calls only between entering and leaving, or raises QueueClosedError; it can be entered again

Why: outside its block a call would never be done: each call must end with its outcome

1.0.0: before: no answer
1.0.0: after: JQueueError
1.0.0: entered again: JQueueError
2.0.0: before: QueueClosedError
2.0.0: after: QueueClosedError
2.0.0: entered again: done
"""

import asyncio

from jqueue import BrokerQueue, InMemoryStorage, JQueueError


async def attempt(when, q):
    try:
        await asyncio.wait_for(q.enqueue("task", b""), 1)
        print(f"{when}: done")
    except TimeoutError:
        print(f"{when}: no answer")
    except JQueueError as error:
        print(f"{when}: {type(error).__name__}")


async def main():
    await attempt("before", BrokerQueue(InMemoryStorage()))
    q = BrokerQueue(InMemoryStorage())
    async with q:
        pass
    await attempt("after", q)
    async with q:
        await attempt("entered again", q)


asyncio.run(main())
