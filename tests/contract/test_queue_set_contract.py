"""A set of queues keeps the queue contract, both on blobs and on folders.

New jobs, and calls that concern a whole queue, go to its first queue.
"""

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.sets.queue_set import QueueSet
from jqueue.domain.errors import InvalidJobError
from jqueue.testing.queue_contract import QueueContract
from jqueue.testing.virtual_time import VirtualClock
from tests.contract.places import without_waiting
from tests.contract.worker_contract import HeartbeatsContract, WorkerContract


class SetWithHomeQueue(QueueSet):
    """A set whose first queue gets the new jobs of a test."""

    async def enqueue(self, entrypoint, payload=b"", priority=0, **options):
        self.capabilities.require(*["limits"] if options.get("concurrency_key") else [])
        return await self.queues[0].enqueue(entrypoint, payload, priority, **options)

    async def enqueue_many(self, jobs, *, deadline=None):
        return await self.queues[0].enqueue_many(jobs, deadline=deadline)

    async def apply(self, *operations, deadline=None):
        try:
            return await super().apply(*operations, deadline=deadline)
        except InvalidJobError as error:
            if "names no job" not in str(error):
                raise
            return await self.queues[0].apply(*operations, deadline=deadline)

    async def apply_each(self, *operations, deadline=None):
        results = await super().apply_each(*operations, deadline=deadline)
        for place, (operation, result) in enumerate(zip(operations, results, strict=True)):
            if isinstance(result, InvalidJobError) and "names no job" in str(result):
                [results[place]] = await self.queues[0].apply_each(operation, deadline=deadline)
        return results


@without_waiting
@pytest.mark.filterwarnings("ignore:The test .* is marked with '@pytest.mark.asyncio'")
class OfBlobs:
    kind = BrokerQueue

    @pytest.fixture
    def make_queue(self):
        storages = [InMemoryStorage(clock=VirtualClock()) for _ in range(2)]

        def make(**options):
            options = {"clock": VirtualClock(), **options}
            return SetWithHomeQueue(*(type(self).kind(storage, **options) for storage in storages), **options)

        return make


@without_waiting
class TestASetOfBlobs(OfBlobs, QueueContract):
    pass


@without_waiting
class TestAWorkerOnASetOfBlobs(OfBlobs, WorkerContract, HeartbeatsContract):
    pass
