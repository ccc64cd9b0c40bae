"""What the tests of the safety rules share: a blob, a clock that moves when told, a network that fails when told."""

from jqueue import DirectQueue, InMemoryStorage
from jqueue.core.blob import codec
from jqueue.testing.faults import FaultyStorage
from jqueue.testing.virtual_time import VirtualClock


class World:
    """One blob, one clock, any number of processes."""

    def __init__(self):
        self.clock = VirtualClock()
        self.memory = InMemoryStorage(clock=self.clock)
        self.storage = FaultyStorage(self.memory)

    def process(self, storage=None, *, kind=DirectQueue, **options):
        return kind(storage or self.storage, **{"clock": self.clock, **options})

    def honest(self, **options):
        """Another process, whose network is fine."""
        return self.process(self.memory, **options)

    async def jobs(self):
        state = codec.decode((await self.memory.read())[0])
        return {job.id: job for job in state.jobs}
