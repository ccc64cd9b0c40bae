"""Helpers of tests of sets of queues: queues in memory and in virtual time."""

import asyncio

from jqueue import DirectQueue, InMemoryStorage, JobQueue, QueueSet
from jqueue.testing.virtual_time import VirtualClock


def blob(storage=None, **options):
    return DirectQueue(storage or InMemoryStorage(clock=VirtualClock()), clock=VirtualClock(), **options)


def set_of(*queues):
    return QueueSet(*queues, clock=VirtualClock())


async def all_of(queues, **options):
    """Claim and ack all jobs, and return their ids in that order."""
    found = []
    while jobs := await queues.dequeue(**options):
        found += [job.id for job in jobs]
        assert [] == await queues.ack_many(jobs)
    return found


async def two(*, between=1.0):
    """Return two queues with two jobs each, enqueued in turn, `between` seconds apart."""
    first, second = blob(), blob()
    for number, queue in enumerate([first, second, first, second]):
        await queue.enqueue("work", b"%d" % number, job_id=f"{number}")
        await asyncio.sleep(between)
    return first, second


class Plain:
    """A queue of a user's own, which can only be read as a whole."""

    def __init__(self, queue):
        self._queue = queue
        for name in dir(JobQueue):
            if not name.startswith("_") and name != "capabilities":
                setattr(self, name, getattr(queue, name))

    @property
    def capabilities(self):
        return self._queue.capabilities
