"""Many threads use one queue: they share commits, and an error in one thread affects no other."""

import asyncio
import gc
import sys
import threading
import types
from typing import Any

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.errors import JQueueError, QueueClosedError
from jqueue.sync import SyncQueue
from jqueue.sync.background import Background
from tests.sync.programs import (
    PATIENCE,
    HeldStorage,
    SignallingQueue,
    assert_ended_well,
    run_in_threads,
    run_program,
)


def test_calls_of_many_threads_share_a_commit():
    storage = HeldStorage()
    broker = SignallingQueue(storage)
    with SyncQueue(broker) as queue:
        storage.hold()
        first = threading.Thread(target=queue.enqueue, args=("work", b"first"))
        first.start()
        assert storage.arrived.acquire(timeout=PATIENCE)
        others = [threading.Thread(target=queue.enqueue, args=("work", b"%d" % number)) for number in range(8)]
        for thread in others:
            thread.start()
        for _ in range(9):
            assert broker.entered.acquire(timeout=PATIENCE)
        storage.let_go()
        for thread in (first, *others):
            thread.join(PATIENCE)
        assert (9, 2) == (len(queue.read_state().jobs), storage.writes)


def test_many_threads_can_make_their_first_call_at_once():
    barrier = threading.Barrier(8)
    with SyncQueue(InMemoryStorage()) as queue:

        def begin(number):
            barrier.wait(PATIENCE)
            queue.enqueue("work", b"")

        run_in_threads(8, begin)
        assert 8 == len(queue.read_state().jobs)


def test_closing_finishes_the_calls_of_other_threads():
    storage = HeldStorage()
    broker = SignallingQueue(storage)
    queue = SyncQueue(broker)
    storage.hold()
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
    storage.let_go()
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
    errors = []

    def look():
        try:
            queue.stats()
        except QueueClosedError as error:
            errors.append(error)

    looking = threading.Thread(target=look)
    looking.start()
    assert entered.wait(PATIENCE)
    queue.close(deadline=0.01)
    looking.join(PATIENCE)
    assert 1 == len(errors)


def test_a_garbage_collected_queue_is_stopped():
    broker = SignallingQueue(InMemoryStorage())
    queue = SyncQueue(broker)
    queue.enqueue("work", b"")
    del queue
    gc.collect()
    assert broker.stopped.wait(PATIENCE)


# Event loops


async def test_a_call_in_a_running_loop_raises_an_error_that_names_the_async_queue():
    queue = SyncQueue(InMemoryStorage())
    with pytest.raises(JQueueError, match="BrokerQueue"):
        queue.enqueue("work", b"")
    with pytest.raises(JQueueError, match="BrokerQueue"):
        queue.keep_alive("an id")
    job = await asyncio.to_thread(queue.enqueue, "work", b"")
    assert [job.id] == [found.id for found in await asyncio.to_thread(queue.dequeue)]
    await asyncio.to_thread(queue.close)


async def test_notebook_cells_may_call_in_their_running_loop(monkeypatch):
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    with SyncQueue(InMemoryStorage()) as queue:
        assert "work" == queue.enqueue("work", b"").entrypoint


GREENLETS = """
from gevent import monkey
monkey.patch_all()

import asyncio, sys
import gevent
from jqueue.sync import SyncQueue

queue = SyncQueue(sys.argv[1])

def view(number):
    job = queue.enqueue("view", b"%d" % number)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return job.id
    raise AssertionError("the event loop runs in the thread of the greenlets")

ticks = 0
def tick():
    global ticks
    while True:
        gevent.sleep(0.001)
        ticks += 1

queue.enqueue("first", b"")  # no other greenlet could end this wait
gevent.spawn(tick)
views = [gevent.spawn(view, number) for number in range(50)]
gevent.joinall(views, raise_error=True)
before = ticks
assert [] == queue.dequeue("none", wait=0.1) and ticks > before  # others run meanwhile
print(len({each.value for each in views}), queue.stats().depth)
"""


def test_greenlets_share_a_queue_while_others_run(tmp_path):
    pytest.importorskip("gevent")
    done = run_program(tmp_path, GREENLETS, tmp_path / "queue.json")
    assert_ended_well(done)
    assert ["50", "51"] == done.stdout.split()


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


def test_a_program_patched_by_eventlet_is_refused_at_its_first_call(monkeypatch):
    patcher = types.ModuleType("eventlet.patcher")
    patcher.is_monkey_patched = lambda name: True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "eventlet.patcher", patcher)
    with pytest.raises(JQueueError, match=r"eventlet has patched: use gevent, or .*monkey_patch\(thread=False\)"):
        Background()
