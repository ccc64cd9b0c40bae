"""Fixtures for testing workers; pytest finds them wherever jqueue is installed.

`jqueue_clock` is a `FakeClock`, `jqueue_queue` a queue in memory on that clock, and `jqueue_worker` a `WorkerTester` on
both:

    async def test_a_welcome_is_sent(jqueue_queue, jqueue_worker):
        await welcome.using(jqueue_queue, delay=3600).enqueue(User(name="Ada"))
        report = await jqueue_worker.run_until_idle(app.worker)
        assert ["succeeded"] == [ran.outcome for ran in report]

`jqueue_inline` makes `enqueue` run jobs at once.

They are plain fixtures, so any plugin that runs async tests will do, in any mode. A fixture of the same name in a
project's own conftest.py or test file takes precedence. Modules that a fixture needs are imported when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

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
def jqueue_clock() -> FakeClock:
    """The clock of `jqueue_queue`. It moves when told: `jqueue_clock.advance(60)`."""
    from jqueue.testing.fake_clock import FakeClock

    return FakeClock()


@pytest.fixture
def jqueue_queue(jqueue_clock: FakeClock) -> DirectQueue:
    """An in-memory queue for this test alone, which goes by `jqueue_clock`. It can be used at once.

    Retries always wait for the longest time that their backoff allows, so nothing is random.
    """
    from jqueue.adapters.storage.memory import InMemoryStorage
    from jqueue.core.direct import DirectQueue
    from jqueue.testing.fake_clock import LongestWaits

    storage = InMemoryStorage(clock=jqueue_clock)
    return DirectQueue(storage, clock=jqueue_clock, entropy=LongestWaits(), poll_interval=POLL_INTERVAL)


@pytest.fixture
def jqueue_worker(jqueue_queue: JobQueue, jqueue_clock: FakeClock) -> WorkerTester:
    """Runs workers on `jqueue_queue`: `report = await jqueue_worker.run_until_idle(app.worker)`."""
    from jqueue.testing.worker_testing import WorkerTester

    return WorkerTester(jqueue_queue, jqueue_clock)


@pytest.fixture
def jqueue_inline(jqueue_worker: WorkerTester) -> Iterator[Callable[..., Any]]:
    """Runs the jobs of a worker at once: after `jqueue_inline(app.worker)`, an `enqueue` ends when its job has ended.

    It takes `raise_errors=False`, and returns the queue: see `WorkerTester.inline`.
    """
    with ExitStack() as stack:
        yield lambda worker, **options: stack.enter_context(jqueue_worker.inline(worker, **options))
