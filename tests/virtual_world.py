"""Virtual time for tests: a decorator that runs a test in it, and a small world whose network can fail."""

import asyncio
import functools
from unittest import mock

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.direct import DirectQueue
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.runtime.system import SystemClock
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import EPOCH, VirtualClock, VirtualTimeLoop, run


def in_virtual_time(test):
    """Run an async test on an event loop of its own, whose time jumps to the next timer.

    The machine's monotonic clock is that of the loop meanwhile: a pause by the real one would never end.
    """

    @functools.wraps(test)
    def run_test(*args, **kwargs):
        with mock.patch.object(SystemClock, "monotonic", _monotonic):
            run(test(*args, **kwargs))

    return run_test


def _monotonic(_clock):
    return now()


def now():
    """Return the seconds since the test began."""
    return asyncio.get_running_loop().time()


def stand_still(seconds):
    """Let time pass while nothing runs, as if the process was stopped: timers come late."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.stand_still(seconds)


class Breakable(FaultyStorage):
    """A storage that can be unreachable for a while."""

    down = False

    async def read(self):
        if self.down:
            self.on_read(Fault.LOST_REQUEST)
        return await super().read()

    async def write(self, content, if_match=None):
        if self.down:
            self.on_write(Fault.LOST_REQUEST)
        return await super().write(content, if_match)


class World:
    """A queue whose network can fail, and an operator's queue whose network does not."""

    def __init__(self, kind):
        self.memory = InMemoryStorage(clock=VirtualClock())
        self.storage = Breakable(self.memory)
        self.queue = kind(self.storage, clock=VirtualClock(), call_timeout=5)
        self.operator = DirectQueue(self.memory, clock=VirtualClock())

    async def __aenter__(self):
        await self.queue.__aenter__()
        return self

    async def __aexit__(self, *error):
        await self.queue.__aexit__(*error)

    async def claimed(self, count=1, timeout=30):
        """Enqueue and claim `count` jobs by the queue."""
        await self.queue.enqueue_many([Enqueue("work", b"payload")] * count)
        return await self.queue.dequeue("work", batch_size=count, claim_timeout=timeout)

    async def revoke(self, job):
        """End a claim of the queue, as another program could."""
        await self.operator.nack(job)

    async def confirmed(self, job):
        """Return the time when a claim was last confirmed, in seconds of virtual time."""
        found = (await self.operator.read_state()).find(job.id)
        assert found is not None
        assert found.heartbeat_at is not None
        return round((found.heartbeat_at - EPOCH).total_seconds(), 3)

    async def confirmations(self, job, seconds):
        """Return the times when a claim is confirmed within the next `seconds`, counted from now."""
        began, seen = now(), []
        while now() < began + seconds:
            await asyncio.sleep(0.5)
            at = await self.confirmed(job)
            if at > began and at not in seen:
                seen.append(at)
        return [round(at - began) for at in seen]
