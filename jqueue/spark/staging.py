"""Staged objects: data that tasks leave beside the queue, for the commit.

Every attempt of a task writes an object of its own, so that two attempts never collide. An object that is no longer
needed is only litter. It is removed at the end of its write if the store can list, and by age at the latest. This
module names, writes, reads and removes staged objects. `jqueue.spark.enqueue.writing` decides what becomes of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Self, TypeVar

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.connect import open_storage
from jqueue.core.tasks import retried, some_at_once
from jqueue.domain.errors import CASConflictError, InvalidURLError, JQueueError, StorageFatalError
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.storage import SupportsListing, SupportsObjects, SupportsRelease, SupportsScratch, SupportsStoreTime
from jqueue.runtime.system import SystemClock, SystemEntropy

logger: Logger = logger_of("jqueue")

Answer = TypeVar("Answer")

PREFIX = ".staged-"
"""Start of the names of staged objects, after the name of the queue."""

STAGED_KEPT = 7 * 86400.0
"""Seconds after which a staged object goes: without the outcomes of a batch of a stream, failed jobs count as done."""

CLEANING = 10.0
"""Seconds to repeat a request while cleaning up: the write is done, and the caller waits for the answer."""


def open_store(url: str) -> SupportsScratch:
    """Return the store of a URL, which all processes of Spark can reach.

    Args:
        url: of a queue, or of the name that staged objects are beside.

    Raises:
        InvalidURLError: the URL names no such store.
    """
    storage = open_storage(url)
    if isinstance(storage, InMemoryStorage):
        raise InvalidURLError(
            "a queue in memory:// is in one process, and Spark has many: use a file, or s3://bucket/queue.json"
        )
    if not isinstance(storage, SupportsScratch):
        raise InvalidURLError(
            "Spark puts objects beside the queue, and a broker or an older format takes none: give"
            " the URL of the queue's own object, as in s3://bucket/queue.json"
        )
    return storage


@dataclass(frozen=True)
class Staging:
    """The place of staged objects, and the settings to reach them. It may be pickled.

    Attributes:
        url: of the queue.
        deadline: seconds that a request may take, repetitions included.
    """

    url: str = field(repr=False)
    deadline: float

    def name(self, write_id: str, partition: int, attempt: int) -> str:
        """Return a name for the object that an attempt of a task stages. No other object ever has it.

        Args:
            write_id: of the write.
            partition: the number of the task.
            attempt: a number that no other attempt of the task has.
        """
        return f"{PREFIX}{write_id}-{partition}-{attempt}-{SystemEntropy().new_id()[:8]}"

    def opened(self) -> StagedObjects:
        """Return the staged objects, for an `async with` block."""
        return StagedObjects(self, open_store(self.url))


class StagedObjects:
    """The objects that are staged in one place. The end of an `async with` block releases the store.

    Args:
        staging: their settings.
        anchor: the object that they are beside.
    """

    def __init__(self, staging: Staging, anchor: SupportsScratch) -> None:
        self._staging = staging
        self._anchor = anchor

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if isinstance(self._anchor, SupportsRelease):
            await self._anchor.release()

    async def write(self, name: str, content: bytes) -> None:
        """Stage this content.

        Raises:
            StorageError: the store failed until the deadline.
        """

        async def create() -> None:
            with suppress(CASConflictError):  # the name is ours alone: a try landed, its answer was lost
                await self._anchor.beside(name).write(content)

        await self._persist(create)

    async def update(self, name: str, change: Callable[[bytes | None], bytes]) -> None:
        """Replace the content of an object of a known name by what `change` makes of it. No update is lost.

        Args:
            name: of the object.
            change: takes the content; None if the object does not exist. Repeating it must change nothing.

        Raises:
            StorageError: the store failed until the deadline.
        """
        place = self._anchor.beside(name)

        async def put() -> None:
            while True:
                content, etag = await place.read()
                with suppress(CASConflictError):
                    await place.write(change(None if etag is None else content), etag)
                    return

        await self._persist(put)

    async def remove(self, name: str) -> None:
        """Remove a staged object. It need not exist.

        Raises:
            StorageError: the store failed until the deadline.
        """
        await self._persist(self._anchor.beside(name).remove)

    async def create(self, name: str, content: bytes) -> None:
        """Stage this content in an object that is durable, and never changes, such as a segment.

        Raises:
            StorageError: the store failed until the deadline.
        """

        async def create() -> None:
            assert isinstance(self._anchor, SupportsObjects)
            with suppress(CASConflictError):  # as in `write`
                await self._anchor.create_object(name, content)

        await self._persist(create)

    async def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the contents of staged objects, in order; None for each that does not exist.

        Raises:
            StorageError: the store failed until the deadline.
        """
        contents: dict[str, bytes | None] = {}

        async def one(name: str) -> None:
            content, etag = await self._persist(self._anchor.beside(name).read)
            contents[name] = None if etag is None else content

        await some_at_once(one, names)
        return [contents[name] for name in names]

    async def clean(self, write_id: str) -> None:
        """Remove the staged objects of a write, and old ones of any write. An object that cannot be removed stays.

        Args:
            write_id: the write that has ended.
        """
        unwanted = set()
        try:
            for name, age in await self._listed(PREFIX, most=CLEANING) or ():
                if name.startswith(f"{PREFIX}{write_id}-") or age > STAGED_KEPT:
                    unwanted.add(name)
        except JQueueError as error:
            logger.warning("Staged jobs could not be listed; any that are left are removed later: %s", error)
        try:
            await some_at_once(lambda name: self._persist(self._anchor.beside(name).remove, CLEANING), sorted(unwanted))
        except JQueueError as error:
            logger.warning("Staged jobs could not be removed; that is done later: %s", error)

    async def names_with(self, prefix: str) -> list[str] | None:
        """Return the suffixes of the objects that begin with this; None if the store cannot list, or refuses to.

        Raises:
            StorageError: the store failed until the deadline.
        """
        try:
            listed = await self._listed(prefix)
        except StorageFatalError:
            return None
        return None if listed is None else [name for name, _ in listed]

    async def remove_created(self, suffixes: Iterable[str]) -> None:
        """Remove objects of `create` that no commit will name. A segment that cannot be removed goes by age.

        Raises:
            StorageError: the store failed for some seconds.
        """
        anchor = self._anchor
        assert isinstance(anchor, SupportsObjects)
        await some_at_once(
            lambda suffix: self._persist(partial(anchor.remove_object, suffix), CLEANING), sorted(suffixes)
        )

    async def _listed(self, prefix: str, most: float = math.inf) -> list[tuple[str, float]] | None:
        """Return names with their ages in seconds; None if the store cannot list."""
        if not isinstance(self._anchor, SupportsListing):
            return None
        anchor = self._anchor
        entries = await self._persist(lambda: anchor.list_beside(prefix), most)
        now = anchor.store_time() if isinstance(anchor, SupportsStoreTime) else None
        if now is None:
            now = SystemClock().now()
        return [(entry.suffix, (now - entry.modified) / timedelta(seconds=1)) for entry in entries]

    async def _persist(self, request: Callable[[], Awaitable[Answer]], most: float = math.inf) -> Answer:
        """Repeat a request until it is answered, for at most `most` seconds, and no longer than the deadline."""
        seconds = min(self._staging.deadline, most)
        return await retried(seconds, request, SystemEntropy(), "a staged object was not read or written")


def absolute(url: str) -> str:
    """Return the URL in a form that every process understands, wherever it runs: a path becomes absolute.

    Args:
        url: of a store.

    Raises:
        InvalidURLError: it names no store that all processes can reach.
    """
    open_store(url)
    return url if "://" in url else os.path.abspath(url)
