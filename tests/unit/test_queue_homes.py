"""A queue object is at home in one event loop of one process at a time; it notices when it has moved."""

import asyncio
import json
import os
import pickle
import subprocess
import sys
from datetime import timedelta

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import JQueueError, QueueClosedError
from jqueue.domain.limits import Limits
from tests.shared_memory import SharedMemory

PATIENCE = 60


def in_another_thread(call):
    """Run a coroutine function on an event loop of another thread."""
    return asyncio.to_thread(lambda: asyncio.run(call()))


# Event loops


async def test_two_running_loops_cannot_share_a_queue_object():
    queue = DirectQueue(InMemoryStorage())
    await queue.enqueue("work", b"payload")
    with pytest.raises(JQueueError, match="two running event loops"):
        await in_another_thread(lambda: queue.enqueue("work", b"payload"))
    assert 1 == len(await queue.dequeue(batch_size=9)), "the first loop is not disturbed"


def test_calls_left_behind_in_a_closed_loop_do_not_disturb_the_next():
    queue = DirectQueue(InMemoryStorage())

    async def leave_calls_behind():
        for call in (queue.dequeue("nobody", wait=3600), queue.enqueue("work", b"first")):
            asyncio.get_running_loop().create_task(call)
        await asyncio.sleep(0)

    asyncio.run(leave_calls_behind())
    asyncio.run(queue.enqueue("work", b"second"))
    payloads = [job.payload for job in asyncio.run(queue.read_state()).jobs]
    assert payloads in ([b"first", b"second"], [b"second"])


def test_a_call_is_answered_if_its_loop_runs_again_after_another_one():
    queue, loop = DirectQueue(InMemoryStorage()), asyncio.new_event_loop()
    call = loop.create_task(queue.enqueue("work", b"first"))
    loop.run_until_complete(asyncio.sleep(0))
    asyncio.run(queue.enqueue("work", b"second"))
    assert b"first" == loop.run_until_complete(asyncio.wait_for(call, PATIENCE)).payload
    loop.close()
    assert 2 == len(asyncio.run(queue.read_state()).jobs)


def test_a_program_may_end_while_a_call_of_it_waits_at_a_broker():
    storage = SharedMemory()
    broker, client = BrokerQueue(storage), DirectQueue(storage)

    async def leave_a_call_behind():
        await broker.__aenter__()
        broker.offer()
        while storage.handle is None:
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(client.dequeue("nobody", wait=3600))
        while not any(link.messages for link in storage.links):
            await asyncio.sleep(0.01)
        return waiting

    assert asyncio.run(leave_a_call_behind()).cancelled()


def test_a_broker_can_be_entered_in_one_loop_after_another():
    queue = BrokerQueue(InMemoryStorage())

    async def use():
        async with queue:
            await queue.enqueue("work", b"payload")

    asyncio.run(use())
    asyncio.run(use())
    with pytest.raises(QueueClosedError):
        asyncio.run(queue.enqueue("work", b"payload"))
    assert 2 == len(asyncio.run(queue.read_state()).jobs)


# Pickling


@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
def test_a_pickled_queue_has_the_same_settings_and_is_another_writer(kind, tmp_path):
    options = {"stale_timeout": timedelta(seconds=7), "poll_interval": 2.5, "limits": Limits(payload_bytes=100)}
    path = tmp_path / "queue.json"
    queue = kind(LocalFileSystemStorage(path), **options)
    copy = pickle.loads(pickle.dumps(queue))
    assert type(queue) is type(copy)
    assert options == {name: getattr(copy.options, name) for name in options}

    async def write():
        async with queue:
            if kind is BrokerQueue:
                with pytest.raises(QueueClosedError, match="async with"):
                    await pickle.loads(pickle.dumps(queue)).enqueue("work", b"payload")
            async with copy:
                await queue.enqueue("work", b"payload")
                await copy.enqueue("work", b"payload")

    asyncio.run(write())
    assert 2 == len(json.loads(path.read_bytes())["commits"]), "one entry for each writer"


# Forks

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

FORKING = """
import asyncio, os, sys, time, warnings
from jqueue import DirectQueue, LocalFileSystemStorage

warnings.simplefilter("ignore")  # Python 3.12 warns of every fork that finds a thread
path = sys.argv[1]
queue = DirectQueue(LocalFileSystemStorage(path, lock_timeout=60))

async def enqueue(name, count):
    for _ in range(count):
        await queue.enqueue(name, b"payload")

asyncio.run(enqueue("parent", 5))
children = []
for number in range(3):
    child = os.fork()
    if not child:
        try:
            asyncio.run(enqueue(f"child {number}", 10))
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
            code = 1
        finally:
            os._exit(code)
    children.append(child)
asyncio.run(enqueue("parent", 10))
sys.exit(sum(os.waitpid(child, 0)[1] for child in children) != 0)
"""


@needs_fork
def test_a_forked_queue_is_another_writer_and_loses_nothing(tmp_path):
    path = tmp_path / "queue.json"
    done = subprocess.run([sys.executable, "-c", FORKING, path], capture_output=True, text=True, timeout=PATIENCE)
    assert 0 == done.returncode, done.stderr
    blob = json.loads(path.read_bytes())
    names = [job["entrypoint"] for job in blob["jobs"].values()]
    expected = {"parent": 15, **{f"child {number}": 10 for number in range(3)}}
    assert expected == {name: names.count(name) for name in expected}, "a job was lost although its enqueue returned"
    assert len(blob["commits"]) >= 4, "two processes would take each other's commits for their own"
