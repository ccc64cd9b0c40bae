"""The world of the safety tests: a blob, a clock moved by hand, and a network that fails on request."""

from jqueue import DirectQueue, InMemoryStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import Breakable


class World:
    """One blob, one clock, any number of processes."""

    def __init__(self):
        self.clock = VirtualClock()
        self.memory = InMemoryStorage(clock=self.clock)
        self.storage = Breakable(self.memory)

    def process(self, storage=None, *, kind=DirectQueue, **options):
        return kind(storage or self.storage, **{"clock": self.clock, **options})

    def honest(self, **options):
        """Return another process, whose network has no faults."""
        return self.process(self.memory, **options)

    async def jobs(self):
        return {job.id: job for job in (await self.honest().read_state()).jobs}
