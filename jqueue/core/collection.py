"""Removal of objects that nothing names: of jobs that have left, of calls that failed, of segments that are used up.

An object is removed only if it is older than an hour by the store's clock, and no line of the queue, no segment and no
manifest names it. It is safe in this order: the objects are listed first, and the queue is read afterwards. A commit
names its objects within 45 minutes of their creation (`check_named_in_time`), so an old object that is in the listing
and not in the queue will never be named. A write that was sent long ago might still land: a commit moves the etag
before the queue is read for the last time.

The segments that tasks of a bulk enqueue stage wait longer for their commit. Their names tell the transaction: they are
kept for a week, or for an hour if the queue has recorded that the transaction is done.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

from jqueue.core.tasks import end_tasks
from jqueue.core.values import ValueObjects
from jqueue.core.view import QueueView
from jqueue.domain.errors import JQueueError
from jqueue.domain.header import Header
from jqueue.domain.job import PAYLOADS, RESULTS, objects_of
from jqueue.domain.large_values import NAMED_WITHIN
from jqueue.domain.printable import counted
from jqueue.domain.segments import FOLDER as SEGMENTS_FOLDER
from jqueue.domain.segments import STAGED_KEPT, STAGED_NAMED_WITHIN, awaits_commit
from jqueue.ports.log import logger_of

logger = logger_of("jqueue")

KEPT_FOR = timedelta(hours=1)
"""Age up to which an object is never removed. Longer than `NAMED_WITHIN`."""

assert KEPT_FOR > NAMED_WITHIN
assert STAGED_KEPT > STAGED_NAMED_WITHIN

INTERVAL = 600.0
"""Seconds between two collections of one queue object."""

LISTING_TIMEOUT = 60.0
"""Seconds within which a store must list the objects of a folder."""

_OURS = re.compile(r"\.(payloads|results)/[0-9a-f]{32}|\.segments/[A-Za-z0-9_-]{1,200}")
"""The suffixes of the objects that queues create. Other files in these folders are left alone."""

_NAME = re.compile(rb"\.(payloads|results)\\?/([A-Za-z0-9_-]+)")


class Collector:
    """Removes the objects of one queue that no job names.

    Args:
        objects: the objects.
        look: reads the queue.
        named_in: returns the suffixes of the objects that a header and its segments name.
        fence: commits to the queue without changing it.
        monotonic: returns the time in seconds, for the interval between two collections.
    """

    def __init__(
        self,
        objects: ValueObjects,
        look: Callable[[], Awaitable[QueueView]],
        named_in: Callable[[Header], Awaitable[set[str]]],
        fence: Callable[[], Awaitable[object]],
        monotonic: Callable[[], float],
    ) -> None:
        self.kept_for, self.staged_kept, self.interval = KEPT_FOR, STAGED_KEPT, INTERVAL  # simulations shorten them
        self._monotonic = monotonic
        self._objects = objects
        self._look = look
        self._named_in = named_in
        self._fence = fence
        self._due = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin a collection beside the calls, if it is time for one."""
        loop = asyncio.get_running_loop()
        if self._task is not None and self._task.get_loop() is not loop:  # of another process, or of a loop that ended
            self._task, self._due = None, float("-inf")
        if self._task is None and self._monotonic() >= self._due:
            self._due = self._monotonic() + self.interval
            self._task = loop.create_task(self._collect_quietly(), name="jqueue-collection")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None

    async def end(self) -> None:
        """End a collection that is under way."""
        task = self._task
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            await end_tasks([task])

    async def _collect_quietly(self) -> None:
        try:
            if removed := await self.collect():
                logger.info("%s no job needs were removed", counted(removed, "object that", "objects that"))
        except JQueueError as error:
            logger.warning("objects that no job needs could not be removed, and a later collection tries: %s", error)

    async def collect(self) -> int:
        """Remove the objects that no job names, and return their number.

        Raises:
            StorageError: the store failed, or the queue's object is gone or cannot be read.
        """
        folders = (PAYLOADS, RESULTS, SEGMENTS_FOLDER)
        listed = await self._objects.older_than(self.kept_for, folders, LISTING_TIMEOUT)
        ages = {suffix: age for suffix, age in listed.items() if _OURS.fullmatch(suffix)}
        if foreign := len(listed) - len(ages):
            logger.info("%s beside the queue, which no queue creates, were left alone", counted(foreign, "file"))
        old = set(ages)
        if old:
            old -= await self._needed(ages)
        if old:
            await self._fence()
            old -= await self._needed(ages)
        await self._objects.remove(sorted(old))
        return len(old)

    async def _needed(self, ages: Mapping[str, timedelta]) -> set[str]:
        """Return the suffixes that the queue names, and those of staged segments whose commit may still come.

        All suffixes in `ages` are needed if the queue's object does not exist.
        """
        view = await self._look()
        if not view.header.version:
            return set(ages)
        transactions = view.header.transactions
        staged = {
            suffix
            for suffix, age in ages.items()
            if age <= self.staged_kept and awaits_commit(suffix.removeprefix(SEGMENTS_FOLDER), transactions)
        }
        return staged | await self._named(view)

    async def _named(self, view: QueueView) -> set[str]:
        """Return the suffixes that the queue names."""
        named = {stored.suffix for job in view.records.values() for stored in objects_of(job)}
        named |= await self._named_in(view.header)
        for aside in view.set_aside:  # an operator may repair the line
            named.update(f".{folder.decode()}/{name.decode()}" for folder, name in _NAME.findall(aside.line))
        return named
