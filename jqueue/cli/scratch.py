"""Objects beside a queue's, for trials. Every call to them ends in time, and they are removed even after an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Self, TypeVar

from jqueue.domain.durations import exponential_bound
from jqueue.domain.errors import CASConflictError, StorageError, StorageFatalError, StorageThrottledError
from jqueue.ports.clock import Entropy
from jqueue.ports.storage import SupportsReadIfChanged, SupportsScratch

Answer = TypeVar("Answer")
Found = tuple[bytes, str | None]

CALL_LIMIT = 20.0
"""Seconds for one call. Our adapters have a shorter deadline of their own; a user's adapter may have none."""

TRIES = 3
FAILURE_BASE, FAILURE_CAP = 0.2, 2.0
THROTTLED_BASE, THROTTLED_CAP = 0.5, 4.0

REMOVAL_LIMIT = 15.0
"""Seconds for the removal of one object."""

LATE = 1.0
"""Seconds after which a write that got no answer is looked for once more."""


async def with_retries(call: Callable[[], Awaitable[Answer]], entropy: Entropy) -> Answer:
    """Return the answer of a call. If the store fails, try a few times. While it throttles, retry with growing pauses.

    Raises:
        StorageError: the store failed each time, or refused.
    """
    failures = throttled = 0
    while True:
        try:
            return await call()
        except StorageFatalError:
            raise
        except StorageThrottledError:
            throttled += 1
            bound = exponential_bound(throttled, THROTTLED_BASE, THROTTLED_CAP)
        except StorageError:
            failures += 1
            if failures == TRIES:
                raise
            bound = exponential_bound(failures, FAILURE_BASE, FAILURE_CAP)
        await asyncio.sleep(bound / 2 + entropy.jitter(bound / 2))


async def run_concurrently(calls: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Make several calls at once, and return their answers. If one fails or we are cancelled, all others end too."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class ScratchObject:
    """One object for trials.

    Attributes:
        storage: its storage.
        last_error: the last error of the store, other than a conflict.
        left: the reason why it could not be removed; empty if it was removed, or if that was not tried yet.
    """

    def __init__(self, storage: SupportsScratch) -> None:
        self.storage = storage
        self.last_error: StorageError | None = None
        self.left = ""
        self._under_way: set[asyncio.Task[Any]] = set()
        self._tried = False
        self._made = False
        self._unsure = False
        self._gone = False

    @property
    def may_be_there(self) -> bool:
        """True if the object may still exist: not if each write was refused, and no read has found it."""
        return self._made and not self._gone

    async def read(self) -> Found:
        """As of any storage."""
        found = await self._call("read", self.storage.read())
        self._made = self._made or found[1] is not None
        return found

    async def read_if_changed(self, etag: str) -> Found | None:
        """As of any storage; it must support this read."""
        assert isinstance(self.storage, SupportsReadIfChanged)
        return await self._call("read", self.storage.read_if_changed(etag))

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """As of any storage."""
        self._tried, refused = True, False
        try:
            return await self._call("write", self.storage.write(content, if_match))
        except (CASConflictError, StorageFatalError):
            refused = True
            raise
        except StorageError:
            self._unsure = True
            raise
        finally:  # a cancelled write may land, too
            self._made = self._made or not refused

    async def _call(self, doing: str, call: Coroutine[Any, Any, Answer]) -> Answer:
        """Wait for a call. It goes on if we are cancelled, so that an object it writes can be removed afterwards."""
        task = asyncio.create_task(call)
        self._under_way.add(task)
        task.add_done_callback(self._forget)
        try:
            async with asyncio.timeout(CALL_LIMIT) as limit:
                return await asyncio.shield(task)
        except TimeoutError as error:
            if limit.expired():
                self.last_error = StorageError(f"the store did not answer a {doing} within {CALL_LIMIT:g} s")
                raise self.last_error from error
            raise
        except StorageError as error:
            self.last_error = error
            raise

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # counts as seen, so that asyncio does not log it

    async def remove(self, entropy: Entropy) -> None:
        """Remove it, once no call is under way. If that fails, `left` says why."""
        if not self._tried or self._gone:
            return
        try:
            async with asyncio.timeout(REMOVAL_LIMIT):
                await self._settle()
                await with_retries(self.storage.remove, entropy)
                if self._unsure:
                    await asyncio.sleep(LATE)
                    if not await self._is_absent(entropy):
                        await with_retries(self.storage.remove, entropy)
        except (StorageError, TimeoutError) as error:
            try:
                async with asyncio.timeout(REMOVAL_LIMIT):
                    self._gone = await self._is_absent(entropy)
                    self._made = not self._gone
            except (StorageError, TimeoutError):
                self._gone = not self._made
            self.left = "" if self._gone else str(error) or f"the store did not remove it within {REMOVAL_LIMIT:g} s"
        else:
            self._gone = True

    async def _settle(self) -> None:
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=REMOVAL_LIMIT / 2)
            for task in late:
                task.cancel()
                self._unsure = True

    async def _is_absent(self, entropy: Entropy) -> bool:
        return (await with_retries(self.storage.read, entropy))[1] is None


class ScratchSpace:
    """Makes objects for trials beside a queue's, and removes them at the end of the `async with` block.

    Args:
        storage: the queue's object, which is not written.
        entropy: source of the id in the names of the objects, and of jitter.
    """

    def __init__(self, storage: SupportsScratch, entropy: Entropy) -> None:
        self.storage = storage
        self.entropy = entropy
        self.objects: list[ScratchObject] = []
        self._id = "".join(char for char in entropy.new_id() if char.isalnum())[-12:]

    def new_object(self) -> ScratchObject:
        """Return a new object, under a name of its own."""
        suffix = f".doctor-{self._id}-{len(self.objects) + 1}"
        made = ScratchObject(self.storage.beside(suffix))
        self.objects.append(made)
        return made

    @property
    def left(self) -> list[ScratchObject]:
        """The objects that may still exist."""
        return [made for made in self.objects if made.may_be_there]

    @property
    def last_error(self) -> StorageError | None:
        """The last error of the store, other than conflicts."""
        return next((made.last_error for made in reversed(self.objects) if made.last_error), None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(made.remove(self.entropy) for made in self.objects))
