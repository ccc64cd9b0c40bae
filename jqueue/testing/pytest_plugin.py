"""Fixtures for testing workers; pytest finds them wherever jqueue is installed.

`queue_clock` is a `FakeClock`, `queue` a queue in memory on that clock, `worker` a `WorkerTester` on both:

    async def test_a_welcome_is_sent(queue, worker):
        await welcome.enqueue(queue, User(name="Ada"), delay=3600)
        report = await worker.run_until_idle(app.worker)
        assert ["succeeded"] == [ran.outcome for ran in report]

They are plain fixtures, so any plugin that runs async tests will do, in any mode. A fixture of the same name in a
project's own conftest.py or test file takes precedence. Modules that a fixture needs are imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from jqueue.core.direct import DirectQueue
    from jqueue.ports.queue import JobQueue
    from jqueue.testing.fake_clock import FakeClock
    from jqueue.testing.worker_testing import WorkerTester

# Assertions of the contracts that fail then show the expected and the actual value.
pytest.register_assert_rewrite("jqueue.testing.queue_contract", "jqueue.testing.storage_contract")
pytest.register_assert_rewrite("jqueue.testing.objects_contract")

POLL_INTERVAL = 0.02
"""Seconds within which a waiting dequeue notices that the clock was moved."""


@pytest.fixture
def queue_clock() -> FakeClock:
    """The clock of `queue`. It moves when told: `queue_clock.advance(60)`."""
    from jqueue.testing.fake_clock import FakeClock

    return FakeClock()


@pytest.fixture
def queue(queue_clock: FakeClock) -> DirectQueue:
    """An in-memory queue for this test alone, which goes by `queue_clock`. It can be used at once.

    Retries always wait for the longest time that their backoff allows, so nothing is random.
    """
    from jqueue.adapters.storage.memory import InMemoryStorage
    from jqueue.core.direct import DirectQueue
    from jqueue.testing.fake_clock import LongestWaits

    storage = InMemoryStorage(clock=queue_clock)
    return DirectQueue(storage, clock=queue_clock, entropy=LongestWaits(), poll_interval=POLL_INTERVAL)


@pytest.fixture
def worker(queue: JobQueue, queue_clock: FakeClock) -> WorkerTester:
    """Runs workers on `queue` until nothing is left to do: `report = await worker.run_until_idle(app.worker)`."""
    from jqueue.testing.worker_testing import WorkerTester

    return WorkerTester(queue, queue_clock)
