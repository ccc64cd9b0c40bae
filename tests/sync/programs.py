"""Programs that run in a process of their own, where a test can see how they end, and queues that tell what they do."""

import asyncio
import subprocess
import sys
import textwrap
import threading

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.blob import codec
from jqueue.core.broker import BrokerQueue
from jqueue.testing.faults import FaultyStorage

PATIENCE = 60
"""Seconds after which something has hung."""

# Warnings of what was left open are errors, and errors nobody can catch are printed. Python 3.12 warns of every fork
# that finds a thread, which is what these tests are about.
FLAGS = ["-W", "error", "-W", "ignore::DeprecationWarning"]


def run_program(folder, source, *arguments):
    """Run a program that is a file in this folder; returns the finished process."""
    file = folder / "program.py"
    file.write_text(textwrap.dedent(source), encoding="utf-8")
    return subprocess.run(
        [sys.executable, *FLAGS, str(file), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=folder,
    )


def assert_ended_well(done):
    """It ended by itself, and had nothing to complain of."""
    assert (0, "") == (done.returncode, done.stderr)


def entrypoints(path):
    """The entrypoints of the jobs in a file, in order."""
    return sorted(job.entrypoint for job in codec.decode(path.read_bytes()).jobs)


def run_in_threads(count, work):
    """Run a function in so many threads at once, and raise what one of them raised."""
    errors = []

    def run(number):
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


class TellingQueue(BrokerQueue):
    """A broker that tells other threads about its calls.

    Attributes:
        entered: released whenever an enqueue or a dequeue begins.
        beaten: released whenever a heartbeat was answered.
        stopped: set when it is left.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.entered = threading.Semaphore(0)
        self.beaten = threading.Semaphore(0)
        self.stopped = threading.Event()

    async def enqueue(self, *args, **options):
        self.entered.release()
        return await super().enqueue(*args, **options)

    async def dequeue(self, *args, **options):
        self.entered.release()
        return await super().dequeue(*args, **options)

    async def heartbeat_many(self, *args, **options):
        errors = await super().heartbeat_many(*args, **options)
        self.beaten.release()
        return errors

    async def stop(self, **options):
        await super().stop(**options)
        self.stopped.set()


class HeldStorage(FaultyStorage):
    """A storage in memory whose writes wait while it is held, and which says when it is released.

    Attributes:
        arrived: released whenever a write begins.
        released: how many times it was released.
    """

    def __init__(self, **options):
        super().__init__(InMemoryStorage(), **options)
        self.arrived = threading.Semaphore(0)
        self.released = 0
        self._free = threading.Event()
        self._free.set()

    def hold(self):
        self._free.clear()

    def let_go(self):
        self._free.set()

    async def write(self, content, if_match=None):
        self.arrived.release()
        while not self._free.is_set():
            await asyncio.sleep(0.001)
        return await super().write(content, if_match)

    async def release(self):
        self.released += 1
