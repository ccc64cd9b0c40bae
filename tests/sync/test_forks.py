"""A `SyncQueue` made before a fork works in the parent and in its children; a pickled one works in other processes."""

import os
import pickle

import pytest

from jqueue.domain.errors import QueueClosedError
from jqueue.sync import SyncQueue
from tests.sync.programs import assert_ended_well, entrypoints, run_program

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

PRELOADED = """
import gc, os, sys, threading
from jqueue import LocalFileSystemStorage
from jqueue.sync import SyncQueue

storage = LocalFileSystemStorage(sys.argv[1], lock_timeout=60)
queue = SyncQueue(storage)
queue.enqueue("before", b"")
stop = threading.Event()
begun = threading.Semaphore(0)

def go_on():
    while not stop.is_set():
        queue.enqueue("parent", b"")
        begun.release()

threads = [threading.Thread(target=go_on) for _ in range(4)]
for thread in threads:
    thread.start()
children = []
for number in range(3):
    begun.acquire()  # calls are under way
    child = os.fork()
    if not child:
        done = [threading.Thread(target=queue.enqueue, args=("child", b"")) for _ in range(5)]
        for thread in done:
            thread.start()
        for thread in done:
            thread.join()
        gc.collect()
        if number % 2:
            queue.close()
        sys.exit(0)
    children.append(child)
codes = [os.waitpid(child, 0)[1] for child in children]
before = queue.read_state().version
queue.enqueue("after", b"")  # the children have not consumed the wake-up call of the parent's event loop
stop.set()
for thread in threads:
    thread.join()
print(*codes)
"""


@needs_fork
def test_children_forked_while_calls_are_under_way_use_the_same_object(tmp_path):
    path = tmp_path / "queue.json"
    done = run_program(tmp_path, PRELOADED, path)
    assert_ended_well(done)
    assert ["0"] * 3 == done.stdout.split()
    found = entrypoints(path)
    assert (1, 15, 1) == (found.count("before"), found.count("child"), found.count("after"))
    assert found.count("parent") >= 3


@pytest.mark.wide
@needs_fork
def test_a_child_forked_in_a_keep_alive_block_has_neither_the_claim_nor_the_heartbeats_of_its_parent(tmp_path):
    source = """
import os, sys
from jqueue import JobNotFoundError
from jqueue.sync import SyncQueue

queue = SyncQueue(sys.argv[1])
queue.enqueue("work", b"")
[job] = queue.dequeue()
with queue.keep_alive(job, 0.01):
    child = os.fork()
if not child:
    queue.enqueue("child", b"")
    try:
        queue.ack(job.id)
    except JobNotFoundError:
        sys.exit(0)
    sys.exit("a bare id was accepted")
assert 0 == os.waitpid(child, 0)[1]
queue.ack(job.id)
"""
    path = tmp_path / "queue.json"
    assert_ended_well(run_program(tmp_path, source, path))
    assert ["child"] == entrypoints(path)


# Pickling


def test_a_pickled_queue_has_the_same_settings_and_is_open(tmp_path):
    queue = SyncQueue(tmp_path / "queue.json", stale_timeout=7)
    queue.enqueue("work", b"")
    queue.close()
    with pickle.loads(pickle.dumps(queue)) as copy:
        [job] = copy.dequeue()
    assert 7 == job.claim_timeout
    with pytest.raises(QueueClosedError):
        queue.stats()


# Forks without Python's knowledge

FORKED_IN_C = """
import asyncio, ctypes, os, pathlib, sys, time
from jqueue import DirectQueue, connect
from jqueue.sync import SyncQueue

fork = ctypes.PyDLL(None).fork  # as uWSGI does by default: Python's hooks do not run
sync, direct = SyncQueue(sys.argv[1], deadline=20), connect(sys.argv[1], DirectQueue, deadline=20)

async def use(kind):
    async with kind as queue:
        return [(await queue.enqueue("async", b"")).id for _ in range(5)]

def switches():
    paths = [path for path in pathlib.Path("/proc/self/task").iterdir() if path.name != str(os.getpid())]
    return [[line for line in (path / "status").read_text().splitlines() if "ctxt" in line] for path in paths]

def wait_until_threads_rest():
    before = None
    while before != (before := switches()):
        time.sleep(0.3)

sync.enqueue("sync", b"")
asyncio.run(use(direct))
children = []
for number in range(2):
    wait_until_threads_rest()  # the child of any such fork hangs if another thread was about to take a lock
    child = fork()
    if not child:
        ids = [sync.enqueue("sync", b"").id for _ in range(20)]
        ids += asyncio.run(use(direct))
        sync.close()
        os._exit(0 if len({*ids}) == 25 else 1)
    children.append(child)
codes = [os.waitpid(child, 0)[1] for child in children]
sync.enqueue("sync", b"")
print(*codes)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="this system does not tell when threads rest")
def test_children_that_were_forked_in_c_have_ids_threads_and_locks_of_their_own(tmp_path):
    path = tmp_path / "queue.json"
    done = run_program(tmp_path, FORKED_IN_C, path)
    assert 0 == done.returncode
    assert 2 == done.stderr.count("set py-call-osafterfork") == len(done.stderr.splitlines())
    assert ["0", "0"] == done.stdout.split()
    found = entrypoints(path)
    assert (42, 15) == (found.count("sync"), found.count("async"))
