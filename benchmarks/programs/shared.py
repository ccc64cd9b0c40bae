"""Code shared by our programs: their arguments, their storage, and the measured work of the queue.

They run jqueue and its first release alike, so they use only what both have, and import nothing else of the project.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jqueue import InMemoryStorage, LocalFileSystemStorage

ENTRYPOINT = "work"
STANDING_PRIORITY = 10
"""Priority of standing jobs: they share the entrypoint of other jobs and come last, so a dequeue passes them."""

SETTING_UP_SECONDS = 600
"""A deadline for calls that are not measured: ten thousand jobs at once take the first release a while."""

CHUNK = 10_000


def arguments() -> dict[str, Any]:
    """Return the arguments of the program."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def report(figures: dict[str, float]) -> None:
    """Print the result, as the last line."""
    print(json.dumps(figures))


def is_first_release() -> bool:
    """True if this is jqueue 1.0.0, which has no deadlines, no waiting and no batches."""
    from importlib.metadata import version

    return version("jqueue") == "1.0.0"


def storage_of(given: dict[str, Any]) -> Any:
    """The storage that the arguments name: "memory", "file" or "s3". A file is `path`, or a new one in the folder.

    With `served`, queue objects on S3 find the broker by the queue, as those of `connect` do.
    """
    kind = given["storage"]
    if kind == "memory":
        return InMemoryStorage()
    if kind == "file":
        return LocalFileSystemStorage(given.get("path") or Path(given["folder"]) / "queue.json")
    from jqueue.adapters.storage.s3 import S3Storage  # the name that both releases have

    # The credentials are in the environment, where both releases look for them.
    storage = S3Storage(given["bucket"], given["key"], endpoint_url=given["url"], region_name=given["region"])
    if given.get("served"):
        from jqueue.adapters.http_link import BrokerDialer

        storage.dial_url = BrokerDialer()
    return storage


@dataclass(slots=True)
class Writes:
    """Number of commits to a storage, and their bytes."""

    commits: int = 0
    bytes: int = 0


def count_writes(storage: Any) -> Writes:
    """Count the successful writes of a storage from now on."""
    writes = Writes()
    write = storage.write

    async def counted(content: bytes, *positional: Any, **named: Any) -> Any:
        etag = await write(content, *positional, **named)
        writes.commits += 1
        writes.bytes += len(content)
        return etag

    storage.write = counted
    return writes


async def fill(
    queue: Any, depth: int, payload: bytes, priority: int = STANDING_PRIORITY, entrypoint: str = ENTRYPOINT
) -> None:
    """Enqueue `depth` jobs, in as few commits as the release can."""
    if is_first_release():
        for start in range(0, depth, CHUNK):
            count = min(CHUNK, depth - start)
            await asyncio.gather(*(queue.enqueue(entrypoint, payload, priority) for _ in range(count)))
        return
    from jqueue.domain.operations.enqueue import Enqueue

    size = max(1, min(CHUNK, (8 << 20) // (len(payload) + 1)))
    for start in range(0, depth, size):
        jobs = [Enqueue(entrypoint, payload, priority) for _ in range(min(size, depth - start))]
        await queue.enqueue_many(jobs, deadline=SETTING_UP_SECONDS)


@dataclass(slots=True)
class Rate:
    """Number of operations, and the seconds that they took."""

    operations: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Operations in a second."""
        return self.operations / self.seconds


async def cycle(queue: Any, payload: bytes) -> int:
    """Enqueue a job, claim one and ack it: three operations. Returns how many were done."""
    await queue.enqueue(ENTRYPOINT, payload)
    jobs = await queue.dequeue(ENTRYPOINT)
    if not jobs:
        raise RuntimeError("a dequeue returned no jobs although the queue has some")
    await queue.ack(jobs[0].id)
    return 3


async def work_for(seconds: float, in_flight: int, step: Callable[[], Awaitable[int]]) -> Rate:
    """Repeat a step with `in_flight` workers for `seconds`. Each does at least one step, and finishes its last one."""
    start = time.perf_counter()
    end = start + seconds

    async def worker() -> int:
        done = await step()
        while time.perf_counter() < end:
            done += await step()
        return done

    operations = sum(await asyncio.gather(*(worker() for _ in range(in_flight))))
    return Rate(operations, time.perf_counter() - start)


def bare_commits(folder: str, size: int, seconds: float) -> Rate:
    """Measure the limit of the disk: write a temporary file, flush it, rename it into place, flush the folder."""
    content = os.urandom(1 << 16) * (size // (1 << 16) + 1)
    content = content[:size]
    path, temporary = Path(folder, "bare"), Path(folder, "bare.tmp")
    done = 0
    start = time.perf_counter()
    while done == 0 or time.perf_counter() - start < seconds:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.rename(path)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        done += 1
    elapsed = time.perf_counter() - start
    path.unlink()
    return Rate(done, elapsed)


class Process:
    """A program that runs beside this one.

    Args:
        words: what Python runs: a file or a module, and its arguments.
    """

    def __init__(self, *words: str) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, *words], stdin=pipe, stdout=pipe, text=True)
        self.pid = self._process.pid
        self.url = ""  # if it is a broker that answers HTTP

    def line(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def wait_for(self, line: str) -> None:
        """Wait until it prints this as its next line."""
        if (printed := self.line()) != line:
            raise RuntimeError(f"a process did not start: {printed}")

    def say(self, line: str) -> None:
        """Give it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def communicate(self) -> str:
        """All that it prints until its end."""
        return self._process.communicate()[0]

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.communicate()


def broker_of(program: str, given: dict[str, Any]) -> Process:
    """Return a process that serves the queue of the arguments, once its clients can find it.

    On a file that is the program, whose part is `serve`; on S3, and on a file with `http`, it is `jqueue serve`.
    """
    if given["storage"] == "file" and not given.get("http"):
        broker = Process(program, json.dumps({**given, "serve": True}))
        broker.wait_for("offers")
        wait_for_broker(given)
        return broker
    place = str(Path(given["folder"], "queue.json"))
    if given["storage"] == "s3":
        options = urlencode({"endpoint_url": given["url"], "region_name": given["region"]})
        place = f"s3://{given['bucket']}/{given['key']}?{options}"
    asyncio.run(_create(given))
    broker = Process("-m", "jqueue", "serve", place, "--listen", "127.0.0.1:0", "--insecure")
    broker.url = broker.line().split()[-1].rstrip("/")
    asyncio.run(_wait_for_seat(given))
    return broker


async def _create(given: dict[str, Any]) -> None:
    """Create the queue: the place of its broker stands in its object."""
    from jqueue import BrokerQueue

    async with BrokerQueue(storage_of(given), share=False) as queue:
        await queue.enqueue("other", b"")


async def _wait_for_seat(given: dict[str, Any]) -> None:
    from jqueue import BrokerQueue

    async with BrokerQueue(storage_of(given), share=False) as queue, asyncio.timeout(30):
        while given["storage"] == "s3" and (await queue.read_state()).broker is None:
            await asyncio.sleep(0.1)


async def serve(given: dict[str, Any]) -> None:
    """Serve the queue in a file until this process is killed. Print when it may be waited for."""
    from jqueue import BrokerQueue

    async with BrokerQueue(storage_of(given)) as queue:
        await queue.read_state()
        queue.offer()
        print("offers", flush=True)
        await asyncio.Event().wait()


def wait_for_broker(given: dict[str, Any]) -> None:
    """Wait until a process serves the queue in the file of the arguments."""
    give_up = time.monotonic() + 30
    while not Path(given["folder"], "queue.json.broker").exists():
        if time.monotonic() > give_up:
            raise RuntimeError("no process serves the queue")
        time.sleep(0.01)
