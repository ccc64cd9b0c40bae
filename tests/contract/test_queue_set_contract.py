"""A worker on a set of queues keeps the contract of workers.

New jobs, and calls that concern one queue, go to its first queue.
"""

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.queue_set import QueueSet
from jqueue.domain.errors import InvalidJobError
from jqueue.testing.virtual_time import VirtualClock
from tests.contract.places import without_waiting
from tests.contract.worker_contract import HeartbeatsContract, WorkerContract


def on_the_first(verb):
    def call(self, *given, **options):
        return getattr(self.queues[0], verb)(*given, **options)

    return call


class SetWithHomeQueue(QueueSet):
    """A set whose first queue gets the calls that concern one queue."""

    enqueue, enqueue_many, read_state = map(on_the_first, ("enqueue", "enqueue_many", "read_state"))
    cancel, redrive, requeue_stale = map(on_the_first, ("cancel", "redrive", "requeue_stale"))
    limit, schedule, schedules, result = map(on_the_first, ("limit", "schedule", "schedules", "result"))

    @property
    def capabilities(self):
        return self.queues[0].capabilities

    async def apply(self, *operations, deadline=None):
        if not any(operation.references() for operation in operations):
            return await self.queues[0].apply(*operations, deadline=deadline)
        return await super().apply(*operations, deadline=deadline)

    async def apply_each(self, *operations, deadline=None):
        results = await super().apply_each(*operations, deadline=deadline)
        for place, (operation, result) in enumerate(zip(operations, results, strict=True)):
            if isinstance(result, InvalidJobError) and "names no job" in str(result):
                [results[place]] = await self.queues[0].apply_each(operation, deadline=deadline)
        return results


@without_waiting
@pytest.mark.filterwarnings("ignore:The test .* is marked with '@pytest.mark.asyncio'")
class TestAWorkerOnASetOfBlobs(WorkerContract, HeartbeatsContract):
    @pytest.fixture
    def make_queue(self):
        storages = [InMemoryStorage(clock=VirtualClock()) for _ in range(2)]

        def make(**options):
            options = {"clock": VirtualClock(), **options}
            return SetWithHomeQueue(*(BrokerQueue(storage, **options) for storage in storages), **options)

        return make
