"""A store that cannot be reached: calls end by their deadline, and leaving the queue then takes no time."""

import asyncio
import random

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import DeadlineExceededError, StorageThrottledError, UnknownOutcomeError
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.simulation.workload import SeededEntropy
from tests.virtual_world import in_virtual_time, now

DEADLINE = 6.0
LOST = [Fault.LOST_REQUEST] * 10_000

both = pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])


def open_queue(kind, seed, **options):
    """Return a queue on a storage with injected faults, and the storage."""
    storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()), latency=0.01, **options)
    entropy = SeededEntropy(random.Random(seed), f"queue {seed}")
    return kind(storage, clock=VirtualClock(), entropy=entropy, deadline=DEADLINE), storage


@both
@in_virtual_time
async def test_leaving_after_the_deadline_does_not_wait_for_the_next_retry(kind):
    for seed in range(20):
        queue, storage = open_queue(kind, seed)
        storage.on_read(*LOST)
        async with queue:
            began = now()
            errors = await asyncio.gather(*(queue.enqueue("work", b"") for _ in range(5)), return_exceptions=True)
            assert [DeadlineExceededError] * 5 == [type(error) for error in errors]
            assert pytest.approx(DEADLINE, abs=0.001) == now() - began
            began = now()
        assert now() - began < 0.1, f"seed {seed}"


@both
@in_virtual_time
async def test_a_new_call_does_not_wait_for_the_retry_pause_of_ended_calls(kind):
    for seed in range(20):
        queue, storage = open_queue(kind, seed)
        storage.on_read(*LOST)
        async with queue:
            with pytest.raises(DeadlineExceededError):
                await queue.enqueue("work", b"")
            storage._read_faults.clear()
            began = now()
            await queue.enqueue("work", b"")
            assert now() - began < 0.1, f"seed {seed}"


@both
@in_virtual_time
async def test_a_throttling_pause_ends_with_the_calls_that_wait_for_it(kind):
    queue, storage = open_queue(kind, 1, error=lambda: StorageThrottledError("slow down"))
    async with queue:
        await queue.enqueue("work", b"")
        storage.on_write(*LOST)
        with pytest.raises(UnknownOutcomeError):  # it was sent
            await queue.enqueue("work", b"")
        assert queue._engine.pacing.pace.interval > 1
        began = now()
    assert now() - began < 0.1


@both
@in_virtual_time
async def test_repeated_lookups_of_a_result_share_the_first_deadline(kind):
    queue, _ = open_queue(kind, 1)
    given = []

    async def submit(_, seconds, *, wait):
        given.append((seconds, wait))
        await asyncio.sleep(2)
        raise UnknownOutcomeError("the queue no longer has the record of the write", None)

    queue._submit = submit
    with pytest.raises(DeadlineExceededError):
        await queue.result("job", timeout=1)
    assert [(6, 1), (5, 0), (3, 0), (1, 0)] == given
