"""The exit of a process that has used a `SyncQueue`: calls under way finish, no job is lost, no error is printed."""

import pytest

from tests.sync.programs import assert_ended_well, entrypoints, run_program

BEGIN = """
import asyncio, atexit, os, signal, sys, threading
from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, LocalFileSystemStorage
from jqueue.sync import SyncQueue
"""


def run(folder, source, *arguments):
    done = run_program(folder, BEGIN + source, folder / "queue.json", *arguments)
    assert_ended_well(done)
    return done.stdout.split()


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["BrokerQueue"])
def test_jobs_enqueued_by_daemon_threads_survive_the_end_of_the_program(tmp_path, kind):
    source = """
queue = SyncQueue(globals()[sys.argv[2]](LocalFileSystemStorage(sys.argv[1])))
acknowledged = threading.Semaphore(0)

def enqueue():
    while True:
        job = queue.enqueue("work", b"payload")
        os.write(1, job.id.encode() + b"\\n")
        acknowledged.release()

for _ in range(4):
    threading.Thread(target=enqueue, daemon=True).start()
for _ in range(40):
    acknowledged.acquire()
"""
    acknowledged = run(tmp_path, source, kind)
    content = (tmp_path / "queue.json").read_text()
    assert len(acknowledged) >= 40
    assert [] == [job_id for job_id in acknowledged if f'"{job_id}"' not in content]


def test_a_call_under_way_in_a_daemon_thread_is_finished_at_exit(tmp_path):
    source = """
arrived = threading.Event()

class AtTheEnd(LocalFileSystemStorage):
    async def write(self, content, if_match=None):
        arrived.set()
        while threading.main_thread().is_alive():
            await asyncio.sleep(0.001)
        return await super().write(content, if_match)

    async def release(self):
        os.write(1, b"released")

queue = SyncQueue(AtTheEnd(sys.argv[1]))
threading.Thread(target=queue.enqueue, args=("work", b""), daemon=True).start()
arrived.wait()
"""
    assert ["released"] == run(tmp_path, source)
    assert ["work"] == entrypoints(tmp_path / "queue.json")


@pytest.mark.wide
def test_threads_that_outlive_the_main_thread_can_still_call(tmp_path):
    source = """
from concurrent.futures import ThreadPoolExecutor

queue = SyncQueue(sys.argv[1])
queue.enqueue("before", b"")  # before Python 3.12.2, no thread can start after the main thread has ended

def late():
    threading.main_thread().join()
    for _ in range(10):
        queue.enqueue("late", b"")

for _ in range(2):
    threading.Thread(target=late).start()
pool = ThreadPoolExecutor(1)
for _ in range(10):
    pool.submit(queue.enqueue, "pool", b"")
"""
    run(tmp_path, source)
    assert ["before"] + ["late"] * 20 + ["pool"] * 10 == entrypoints(tmp_path / "queue.json")


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["BrokerQueue"])
def test_a_waiting_dequeue_does_not_delay_the_exit(tmp_path, kind):
    source = """
entered = threading.Event()

class Signalling(globals()[sys.argv[2]]):
    async def dequeue(self, *args, **options):
        entered.set()
        return await super().dequeue(*args, **options)

queue = SyncQueue(Signalling(LocalFileSystemStorage(sys.argv[1])))

def work():
    while True:
        queue.dequeue("nobody", wait=3600)

threading.Thread(target=work, daemon=True).start()
entered.wait()
"""
    run(tmp_path, source, kind)


@pytest.mark.wide
def test_a_silent_store_delays_the_exit_only_until_the_deadline(tmp_path):
    source = """
arrived = threading.Event()

class Hanging(InMemoryStorage):
    async def read(self):
        arrived.set()
        await asyncio.Event().wait()

queue = SyncQueue(Hanging(), deadline=0.2, call_timeout=60)

def enqueue():
    try:
        queue.enqueue("work", b"", deadline=3600)
    except Exception as error:
        os.write(1, type(error).__name__.encode())

threading.Thread(target=enqueue, daemon=True).start()
arrived.wait()
"""
    assert run(tmp_path, source) in ([], ["DeadlineExceededError"], ["UnknownOutcomeError"])


def test_ctrl_c_ends_a_waiting_call_and_leaves_no_claim(tmp_path):
    source = """
interrupting = True

class Interrupting(BrokerQueue):
    async def dequeue(self, *args, **options):
        if interrupting:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return await super().dequeue(*args, **options)

queue = SyncQueue(Interrupting(LocalFileSystemStorage(sys.argv[1])))

def be_interrupted(**options):
    try:
        queue.dequeue("work", **options)
        threading.Event().wait()  # the dequeue returned before the interrupt
    except KeyboardInterrupt:
        print("interrupted")

be_interrupted(wait=3600)
queue.enqueue("work", b"")
be_interrupted()
interrupting = False
print(*(job.failures for job in queue.dequeue("work", wait=30)))
"""
    assert ["interrupted", "interrupted", "1"] == run(tmp_path, source)
