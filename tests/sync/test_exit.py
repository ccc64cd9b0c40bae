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
def test_jobs_that_threads_enqueue_about_the_end_of_the_program_are_kept_and_no_waiting_call_delays_it(tmp_path):
    source = """
queue = SyncQueue(BrokerQueue(LocalFileSystemStorage(sys.argv[1])))
acknowledged = threading.Semaphore(0)

def enqueue():
    while True:
        job = queue.enqueue("work", b"payload")
        os.write(1, job.id.encode() + b"\\n")
        acknowledged.release()

def wait():
    while True:
        queue.dequeue("nobody", wait=3600)

def late():
    threading.main_thread().join()
    os.write(1, queue.enqueue("late", b"").id.encode() + b"\\n")

for target in (enqueue, enqueue, wait):
    threading.Thread(target=target, daemon=True).start()
threading.Thread(target=late).start()
for _ in range(40):
    acknowledged.acquire()
"""
    acknowledged = run(tmp_path, source)
    content = (tmp_path / "queue.json").read_text()
    assert len(acknowledged) > 40
    assert '"late"' in content
    assert [] == [job_id for job_id in acknowledged if f'"{job_id}"' not in content]


def test_a_call_under_way_in_a_daemon_thread_is_finished_at_exit(tmp_path):
    source = """
arrived = threading.Event()

class AtTheEnd(LocalFileSystemStorage):
    async def write(self, content, if_match=None):
        arrived.set()
        while threading.main_thread().is_alive():  # no other thread may wait for it: the exit waits for those
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


def test_ctrl_c_ends_a_waiting_call_and_leaves_no_claim(tmp_path):
    source = """
def interrupt():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

class Interrupting(BrokerQueue):
    async def dequeue(self, *args, **options):
        if moment == "before":
            interrupt()
        jobs = await super().dequeue(*args, **options)
        if moment == "after":
            interrupt()
        return jobs

queue = SyncQueue(Interrupting(LocalFileSystemStorage(sys.argv[1])))

def be_interrupted(**options):
    try:
        queue.dequeue("work", **options)
        threading.Event().wait()  # the dequeue returned before the interrupt
    except KeyboardInterrupt:
        print("interrupted")

moment = "before"
be_interrupted(wait=3600)
queue.enqueue("work", b"")
be_interrupted()
moment = "after"
be_interrupted(wait=30)
moment = None
print(*(job.failures for job in queue.dequeue("work", wait=30)))
"""
    assert [*["interrupted"] * 3, "1"] == run(tmp_path, source)
