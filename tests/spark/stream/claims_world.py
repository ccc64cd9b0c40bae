"""Helpers for tests of the claims of a streaming query: a queue, sources of the query, and a store that can fail."""

import asyncio
from typing import Any

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.direct import DirectQueue
from jqueue.domain.limits import Limits
from jqueue.domain.operations import Enqueue
from jqueue.spark.stream.offsets import Offset
from jqueue.spark.stream.query_claims import ClaimsOfQuery
from jqueue.spark.stream.source_options import SourceOptions
from jqueue.testing.faults import FaultyStorage
from jqueue.testing.virtual_time import VirtualClock

BEGIN = Offset("query", 0, "")


class Store(FaultyStorage):
    def heal(self):
        self._read_faults.clear()
        self._write_faults.clear()


class Claims:
    """A queue with jobs, and processes of one query on it."""

    def __init__(self, **options):
        self.memory = InMemoryStorage(clock=VirtualClock())
        self.storage = Store(self.memory)
        self.elsewhere = DirectQueue(self.memory, clock=VirtualClock())
        self.options = SourceOptions("memory://", most_jobs=10, **options)

    def process(self, storage=None):
        """A new source of the query, as after a start or a restart."""
        limits = Limits(batch_size=1000)
        queue = DirectQueue(storage or self.storage, clock=VirtualClock(), limits=limits, deadline=20)
        return ClaimsOfQuery(queue, self.options)

    async def enqueue(self, count, entrypoint="work", **fields):
        return await self.elsewhere.enqueue_many([Enqueue(entrypoint, b"payload", **fields)] * count)

    async def steal(self, job):
        """End a claim of the query, like a sweep of another process."""
        await self.elsewhere.nack(await self.now(job))

    async def now(self, job):
        """The current state of a job."""
        found = (await self.elsewhere.read_state()).find(job.id)
        assert found is not None
        return found

    @property
    def asked(self):
        return self.storage.reads, self.storage.writes

    async def age(self, job):
        """Seconds since the last heartbeat of a job."""
        heartbeat_at = (await self.now(job)).heartbeat_at
        return (VirtualClock().now() - heartbeat_at).total_seconds()


class OnItsWay:
    """A store that accepts a write and neither lands nor answers it."""

    def __init__(self, memory):
        self.memory = memory
        self.sent = asyncio.Event()
        self.write_sent: Any = None

    async def read(self):
        return await self.memory.read()

    async def write(self, content, if_match=None):
        self.write_sent = content, if_match
        self.sent.set()
        await asyncio.Event().wait()

    def landing_after_a_read(self):
        """The store for another process, in which the write lands right after the first read."""
        return Landing(self)


class Landing:
    def __init__(self, on_its_way):
        self.on_its_way = on_its_way
        self.landed = False

    async def read(self):
        found = await self.on_its_way.memory.read()
        if not self.landed:
            self.landed = True
            await self.on_its_way.memory.write(*self.on_its_way.write_sent)
        return found

    async def write(self, content, if_match=None):
        return await self.on_its_way.memory.write(content, if_match)


async def ended(claims):
    """Stop the heartbeats, as the end of a process does."""
    await claims.stop()
