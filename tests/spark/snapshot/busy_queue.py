"""A queue with constantly busy writers, and the jobs of each of its versions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from jqueue import DirectQueue, StorageError, connect
from jqueue.core.blob.codec import decode
from jqueue.domain.operations import Cancel
from jqueue.operations import Enqueue
from jqueue.ports.storage import SupportsRelease

WRITERS = 3
CHANGED = 5


class Remembered:
    """A storage that records the job ids of each content that it writes.

    Args:
        storage: the real storage.
        versions: the list to record in.
    """

    def __init__(self, storage: Any, versions: list[frozenset[str]]) -> None:
        self._storage = storage
        self._versions = versions
        self.read = storage.read

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Record the job ids and write. A content whose write fails is recorded, too."""
        self._versions.append(frozenset(job.id for job in decode(content).jobs))
        etag: str = await self._storage.write(content, if_match)
        return etag

    async def release(self) -> None:
        """Release the storage."""
        if isinstance(self._storage, SupportsRelease):
            await self._storage.release()


class BusyQueue:
    """A queue whose writers replace jobs, a few in each commit, and record every version.

    Args:
        url: URL of the queue.
        jobs: number of jobs in every version.
    """

    def __init__(self, url: str, jobs: int) -> None:
        self.url = url
        self.jobs = jobs
        self.versions: list[frozenset[str]] = []

    def fill(self) -> None:
        """Create the queue with all its jobs."""
        asyncio.run(self._fill())

    def commit(self, writer: int = 0) -> None:
        """Replace some jobs in one commit."""
        asyncio.run(self._commit(writer))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Run the writers during the block."""
        done = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._write(done)))
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def is_a_version(self, ids: Iterable[str]) -> bool:
        """True if these are exactly the jobs of one version."""
        ids = list(ids)
        return len(ids) == len(set(ids)) and frozenset(ids) in self.versions

    def _open(self) -> DirectQueue:
        return DirectQueue(Remembered(connect(self.url), self.versions))

    async def _fill(self) -> None:
        async with self._open() as queue:
            for first in range(0, self.jobs, 5000):
                numbers = range(first, min(first + 5000, self.jobs))
                names = (f"{number % WRITERS}-{number // WRITERS}" for number in numbers)
                await queue.apply(*(Enqueue("resize", bytes(64), job_id=name) for name in names))

    async def _commit(self, writer: int) -> None:
        async with self._open() as queue:
            await self._change(queue, writer)

    async def _write(self, done: threading.Event) -> None:
        async def work(writer: int) -> None:
            async with self._open() as queue:
                while not done.is_set():
                    with suppress(StorageError):  # a slow machine may exceed the deadline
                        await self._change(queue, writer)

        await asyncio.gather(*map(work, range(WRITERS)))

    async def _change(self, queue: DirectQueue, writer: int) -> None:
        """Replace the oldest jobs of a writer by new ones, which are at another position of the blob: its end."""
        own = f"{writer}-"
        ids = [job.id for job in (await queue.read_state()).jobs if job.id.startswith(own)]
        numbers = sorted(int(name.removeprefix(own)) for name in ids)
        gone = [Cancel(f"{own}{number}") for number in numbers[:CHANGED]]
        come = [Enqueue("resize", bytes(64), job_id=f"{own}{numbers[-1] + 1 + number}") for number in range(CHANGED)]
        await queue.apply(*gone, *come)
