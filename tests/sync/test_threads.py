"""Many threads use one queue: they share commits, and an error in one thread affects no other."""

import asyncio
import gc
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.errors import JQueueError, QueueClosedError
from jqueue.sync import SyncQueue
from jqueue.sync.background import wait_for
from tests.sync.programs import (
    PATIENCE,
    HeldStorage,
    SignallingQueue,
    assert_ended_well,
    run_program,
)


def test_calls_of_many_threads_share_a_commit():
    storage = HeldStorage()
    broker = SignallingQueue(storage)
    with SyncQueue(broker) as queue:
        storage.free.clear()
        first = threading.Thread(target=queue.enqueue, args=("work", b"first"))
        first.start()
        assert storage.arrived.acquire(timeout=PATIENCE)
        others = [threading.Thread(target=queue.enqueue, args=("work", b"%d" % number)) for number in range(8)]
        for thread in others:
            thread.start()
        for _ in range(9):
            assert broker.entered.acquire(timeout=PATIENCE)
        storage.free.set()
        for thread in (first, *others):
            thread.join(PATIENCE)
        assert (9, 2) == (len(queue.read_state().jobs), storage.writes)


def test_closing_finishes_the_calls_of_other_threads():
    storage = HeldStorage()
    broker = SignallingQueue(storage)
    queue = SyncQueue(broker)
    storage.free.clear()
    results: list[Any] = []
    enqueuing = threading.Thread(target=lambda: results.append(queue.enqueue("work", b"").entrypoint))
    enqueuing.start()
    assert storage.arrived.acquire(timeout=PATIENCE)
    waiting = threading.Thread(target=lambda: results.append(queue.dequeue("nobody", wait=3600)))
    waiting.start()
    for _ in range(2):
        assert broker.entered.acquire(timeout=PATIENCE)
    closing = threading.Thread(target=queue.close)
    closing.start()
    storage.free.set()
    for thread in (closing, enqueuing, waiting):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert "work" in results
    assert [] in results
    assert 1 == storage.released


def test_the_deadline_of_close_ends_a_call_that_never_returns():
    entered = threading.Event()

    class Endless(SignallingQueue):
        async def stats(self, **options):
            entered.set()
            await asyncio.Event().wait()

    queue = SyncQueue(Endless(InMemoryStorage()))
    with ThreadPoolExecutor() as threads:
        looking = threads.submit(queue.stats)
        assert entered.wait(PATIENCE)
        queue.close(deadline=0)
        with pytest.raises(QueueClosedError):
            looking.result(PATIENCE)


def test_a_garbage_collected_queue_is_stopped():
    broker = SignallingQueue(InMemoryStorage())
    queue = SyncQueue(broker)
    queue.enqueue("work", b"")
    del queue
    gc.collect()
    assert broker.stopped.wait(PATIENCE)


# Event loops


async def test_in_a_coroutine_calls_warn_and_a_call_that_may_never_end_is_refused_except_in_a_notebook(monkeypatch):
    with SyncQueue(InMemoryStorage()) as queue:
        with pytest.warns(RuntimeWarning, match="blocks the event loop of this coroutine: use BrokerQueue") as caught:
            job = queue.enqueue("work", b"")
        assert [__file__] == [each.filename for each in caught]
        with pytest.raises(JQueueError, match="may need the same event loop: use BrokerQueue"):
            queue.result(job)
        shell = types.SimpleNamespace(kernel=object())
        monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
        assert "work" == queue.enqueue("work", b"").entrypoint


def test_code_that_a_running_loop_calls_outside_of_its_tasks_is_served():
    """So does the blocking API of Playwright: the program goes on in a callback of its event loop."""
    loop, jobs = asyncio.new_event_loop(), list[Any]()

    def program() -> None:
        with SyncQueue(InMemoryStorage()) as queue:
            jobs.append(queue.enqueue("work", b""))
            with queue.keep_alive(queue.dequeue(batch_size=1)):
                jobs.append(queue.find(jobs[0].id))
        loop.stop()

    loop.call_soon(program)
    loop.run_forever()
    loop.close()
    assert ["work", "work"] == [job.entrypoint for job in jobs]


PATCHED = """
import _thread, sys, types

monkey = types.ModuleType("gevent.monkey")
monkey.is_module_patched = lambda name: name == "threading"
monkey.get_original = lambda module, name: getattr(_thread, name)
sys.modules["gevent.monkey"] = monkey

import threading
from jqueue.sync import SyncQueue

with SyncQueue(sys.argv[1]) as queue:
    print(queue.enqueue("work", b"").entrypoint, *(thread.name for thread in threading.enumerate()))
"""


def test_in_a_program_patched_by_gevent_all_blocking_work_is_done_by_one_thread_that_threading_did_not_start(tmp_path):
    done = run_program(tmp_path, PATCHED, tmp_path / "queue.json")
    assert_ended_well(done)
    assert ["work", "MainThread"] == done.stdout.split()


def test_a_blocking_call_within_another_one_is_an_error_and_not_a_wait_for_itself():
    async def inner() -> None: ...

    async def outer() -> None:
        wait_for(inner)

    with pytest.raises(JQueueError, match="a blocking call of jqueue was made within another one"):
        wait_for(outer)
