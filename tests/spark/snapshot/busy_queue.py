"""A queue that others write to all the time, and what was in each of its versions."""

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
    """A storage that remembers which jobs were in each content that it has written.

    Args:
        storage: the real one.
        versions: where to.
    """

    def __init__(self, storage: Any, versions: list[frozenset[str]]) -> None:
        self._storage = storage
        self._versions = versions
        self.read = storage.read

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Write, and remember. A content that was not written after all is remembered too."""
        self._versions.append(frozenset(job.id for job in decode(content).jobs))
        etag: str = await self._storage.write(content, if_match)
        return etag

    async def release(self) -> None:
        """Let go of what the storage holds."""
        if isinstance(self._storage, SupportsRelease):
            await self._storage.release()


class BusyQueue:
    """Writers that take jobs away and add others, each time in one commit, and remember every version.

    Args:
        url: where the queue is to be.
        jobs: how many there are, in every version.
    """

    def __init__(self, url: str, jobs: int) -> None:
        self.url = url
        self.jobs = jobs
        self.versions: list[frozenset[str]] = []

    def fill(self) -> None:
        """Make the queue."""
        asyncio.run(self._fill())

    def commit(self, writer: int = 0) -> None:
        """Change some jobs, once."""
        asyncio.run(self._commit(writer))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Have the writers write meanwhile."""
        done = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._write(done)))
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def is_a_version(self, ids: Iterable[str]) -> bool:
        """Whether these are the jobs of one version, each once."""
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
                    with suppress(StorageError):  # a busy machine is no reason to stop
                        await self._change(queue, writer)

        await asyncio.gather(*map(work, range(WRITERS)))

    async def _change(self, queue: DirectQueue, writer: int) -> None:
        """The oldest jobs of this writer go, and others come: in another place of the blob, as they are its last."""
        own = f"{writer}-"
        ids = [job.id for job in (await queue.read_state()).jobs if job.id.startswith(own)]
        numbers = sorted(int(name.removeprefix(own)) for name in ids)
        gone = [Cancel(f"{own}{number}") for number in numbers[:CHANGED]]
        come = [Enqueue("resize", bytes(64), job_id=f"{own}{numbers[-1] + 1 + number}") for number in range(CHANGED)]
        await queue.apply(*gone, *come)
