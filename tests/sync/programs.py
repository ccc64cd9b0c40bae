"""Programs in separate processes whose end is tested; queues and storages that signal their calls to other threads."""

import asyncio
import json
import subprocess
import sys
import textwrap
import threading

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.testing.faults import FaultyStorage

PATIENCE = 60
"""Seconds to wait for a thread, a program or an event before it counts as hanging."""

# Warnings of unclosed resources are errors, and errors that cannot be caught are printed. The deprecation warning of
# Python 3.12 for forks of a process with threads is ignored, because these tests fork such processes on purpose.
FLAGS = ["-W", "error", "-W", "ignore::DeprecationWarning"]


def run_program(folder, source, *arguments):
    """Write a program to a file in the folder and run it. Returns the finished process."""
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
    """Assert that the program exited with 0 and printed no errors or warnings."""
    assert (0, "") == (done.returncode, done.stderr)


def entrypoints(path):
    """The sorted entrypoints of the jobs in a file."""
    return sorted(job["entrypoint"] for job in json.loads(path.read_bytes())["jobs"].values())


class SignallingQueue(BrokerQueue):
    """A broker queue that signals its calls to other threads.

    Attributes:
        entered: released whenever an enqueue or a dequeue begins.
        beaten: released whenever a heartbeat has been answered.
        stopped: set when the queue has stopped.
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
    """A storage in memory whose writes wait until it is free, and which counts calls of its `release`.

    Attributes:
        arrived: released whenever a write begins.
        free: set unless writes are to wait.
        released: number of calls of `release`.
    """

    def __init__(self, **options):
        super().__init__(InMemoryStorage(), **options)
        self.arrived = threading.Semaphore(0)
        self.released = 0
        self.free = threading.Event()
        self.free.set()

    async def write(self, content, if_match=None):
        self.arrived.release()
        await asyncio.to_thread(self.free.wait, PATIENCE)
        return await super().write(content, if_match)

    async def release(self):
        self.released += 1
