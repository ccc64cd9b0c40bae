"""The objects of large payloads and results: stored before the commit that names them, and loaded after a claim.

An object is created under a fresh random name, and never changed. So a call that fails later, or a process that dies,
leaves an object that no job names: litter, which `jqueue.core.values` removes.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from jqueue.core.access import Access
from jqueue.core.tasks import end_tasks, retried, some_at_once
from jqueue.core.view import QueueView
from jqueue.domain.errors import (
    InvalidJobError,
    JQueueError,
    NotLoadedError,
    ObjectDamagedError,
    ObjectMissingError,
    StorageError,
)
from jqueue.domain.header import Header
from jqueue.domain.job import PAYLOADS, RESULTS, Claim, JobRecord, StoredObject, objects_of
from jqueue.domain.large_values import NAMED_WITHIN, LargeValue, SupportsPath
from jqueue.domain.limits import Limits
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.ends import Nack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.printable import counted
from jqueue.domain.segments import FOLDER as SEGMENTS_FOLDER
from jqueue.domain.segments import Lease, awaits_commit
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.storage import Listed, SupportsObjects
from jqueue.runtime.threads import in_a_thread

Answer = TypeVar("Answer")


class ObjectCalls:
    """Work on objects, each for one call."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def do(self, work: Coroutine[Any, Any, Answer], ended: JQueueError) -> Answer:
        """Store or load the objects of a call.

        Args:
            work: does it.
            ended: raised if the queue closes meanwhile.
        """
        task = asyncio.create_task(work)
        self._tasks.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and caller is not None and not caller.cancelling():
                raise ended from None
            raise
        finally:
            self._tasks.discard(task)

    async def end(self, seconds: float = 0.0) -> None:
        """Wait for all work for some seconds, and then end it."""
        await end_tasks(self._tasks, seconds)
        await asyncio.sleep(0)  # lets the calls end


logger: Logger = logger_of("jqueue")

LEAST = 0.1
"""Seconds for loading payloads and for ending jobs, even if the deadline of the call is closer."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds for which a job is set aside: they double with each failure, from the first to the second."""

FAILURES_KEPT = 1024
"""Number of jobs set aside whose failures are remembered."""


class ClaimedPayloads:
    """Loads the payloads of claimed jobs.

    Args:
        objects: loads them.
        limits: of the queue object.
        hand_back: hands claims back to the queue, with the next commit.
        end: carries out nacks within a number of seconds.
    """

    def __init__(
        self,
        objects: ValueObjects,
        limits: Limits,
        hand_back: Callable[[Sequence[Claim]], None],
        end: Callable[[Sequence[Nack], float], Awaitable[object]],
    ) -> None:
        self._objects = objects
        self._limits = limits
        self._hand_back = hand_back
        self._end = end
        self._failures: dict[str, int] = {}

    async def loaded(self, operations: Sequence[Operation], results: list[Any], until: float) -> list[Any]:
        """Return the results of operations, with the payloads of the jobs that they claimed.

        A job is left out if its payload could not be loaded. The others wait for it while one request may take, and
        at most for half the time after which its claim is stale. If the payloads of one call take more memory than the
        queue's object may have, the last jobs are handed back.

        Args:
            operations: the operations.
            results: of the operations.
            until: end of the call, on the clock of the event loop.

        Raises:
            NotLoadedError: no payload could be loaded, and the call did nothing else.
        """
        claimed = handed_out(operations, results)
        wanted = [job for job in claimed if self._is_wanted(job)]
        if not wanted:
            return results
        wanted, surplus = self._within_memory(wanted)
        loop = asyncio.get_running_loop()
        patience = min([self._objects.call_timeout, *(job.claim_timeout / 2 for job in wanted if job.claim_timeout)])
        answers = await self._objects.load(wanted, max(LEAST, min(patience, until - loop.time())))
        answers |= dict.fromkeys([job.id for job in surplus], StorageError("the memory of one call is full"))
        ended, failed = list[tuple[JobRecord, StorageError]](), list[tuple[JobRecord, StorageError]]()
        for job in wanted:
            answer = answers[job.id]
            if isinstance(answer, JobRecord):
                self._failures.pop(job.id, None)
            else:
                lost = isinstance(answer, ObjectMissingError | ObjectDamagedError)
                (ended if lost else failed).append((job, answer))
        if surplus:
            self._hand_back([job.claim for job in surplus])
        if failed:
            await self._set_aside(failed, max(LEAST, until - loop.time()))
        if ended:
            await self._make_dead(ended, max(LEAST, until - loop.time()))
        if failed and len(failed) == len(claimed) and all(each.hands_out_jobs for each in operations):
            raise NotLoadedError(failed[0][1])
        return [
            [job for job in (answers.get(job.id, job) for job in result) if isinstance(job, JobRecord | Lease)]
            if operation.hands_out_jobs and isinstance(result, list)
            else result
            for operation, result in zip(operations, results, strict=True)
        ]

    def _is_wanted(self, job: JobRecord) -> bool:
        return job.payload_object is not None and 0 < job.payload_object.size <= self._limits.most_payload(objects=True)

    def _within_memory(self, jobs: list[JobRecord]) -> tuple[list[JobRecord], list[JobRecord]]:
        """Return the jobs whose payloads fit into memory together, at least one, and the other jobs."""
        taken = 0
        for number, job in enumerate(jobs):
            assert job.payload_object is not None
            taken += job.payload_object.size
            if number and taken > self._limits.blob_bytes:
                return jobs[:number], jobs[number:]
        return jobs, []

    async def _set_aside(self, failures: list[tuple[JobRecord, Any]], seconds: float) -> None:
        """Queue jobs again whose payloads could not be read, from a later time on. The claims count as no failures."""
        nacks = []
        for job, error in failures:
            times = self._failures[job.id] = self._failures.pop(job.id, 0) + 1
            pause = min(FIRST_PAUSE * 2 ** min(times - 1, 10), LONGEST_PAUSE)
            nacks.append(Nack(job.claim, delay=pause, error=error, charge=False))
            logger.warning("job %s is set aside for %g s, as its payload cannot be read: %s", job.id, pause, error)
        while len(self._failures) > FAILURES_KEPT:
            del self._failures[next(iter(self._failures))]
        try:
            await self._end(nacks, seconds)
        except JQueueError:
            self._hand_back([job.claim for job, _ in failures])  # with the next commit that lands

    async def _make_dead(self, failures: list[tuple[JobRecord, Any]], seconds: float) -> None:
        """Make jobs dead whose payloads are lost. A claim that is lost meanwhile needs nothing."""
        for job, error in failures:
            logger.error("job %s is dead, as its payload cannot be loaded: %s", job.id, error)
        try:
            await self._end([Nack(job.claim, error=error, dead=True) for job, error in failures], seconds)
        except JQueueError as error:
            logger.warning("jobs whose payloads are lost could not be made dead: %s. Their claims will be stale", error)


def handed_out(operations: Sequence[Operation], results: Sequence[Any]) -> list[Any]:
    """Return the jobs and leases that the results of operations hand out."""
    return [
        job
        for operation, result in zip(operations, results, strict=True)
        if operation.hands_out_jobs and isinstance(result, list)
        for job in result
    ]


def with_given_payloads(originals: Sequence[Operation], named: Sequence[Operation], results: list[Any]) -> list[Any]:
    """Return the results of enqueues: a new job has the payload that was given as bytes.

    Args:
        originals: the operations as they were prepared.
        named: the same operations, with their objects.
        results: of these operations.
    """
    return [
        result.evolve(payload=operation.payload)
        if isinstance(operation, Enqueue)
        and isinstance(stored, Enqueue)
        and operation.stored_separately
        and isinstance(operation.payload, bytes)
        and isinstance(result, JobRecord)
        and result.payload_object == stored.payload_object
        else result
        for operation, stored, result in zip(originals, named, results, strict=True)
    ]


MOST_FAILURES = 8
"""Number of objects that cannot be removed after which a removal ends: the store may be down."""

PIECE_BYTES = 1 << 20
"""Number of bytes of a payload, or of a file, that are read at once. Each of several threads keeps some in memory."""

WHOLE_BYTES = 8 << 20
"""Bytes of a value above which it is stored and loaded by several requests: each must end within `call_timeout`."""

HASHED_INLINE = 256 << 10
"""Number of bytes above which a digest is computed in a thread."""


class ValueObjects:
    """The objects of large payloads and results beside one queue.

    Args:
        access: to the store.
        storage: keeps them.

    Attributes:
        named_within: longest time from the start of the creation of an object to the commit that names it.
        call_timeout: seconds within which a call to the store must end.
    """

    def __init__(self, access: Access, storage: SupportsObjects) -> None:
        self.storage = storage
        self.named_within = NAMED_WITHIN
        self._entropy, self._now, self._store_time = access.entropy, access.now, access.store_time
        self._observers = access.observers
        self.call_timeout: float = access.call_timeout

    async def store(
        self, operations: Sequence[Operation], seconds: float
    ) -> tuple[list[Operation | JQueueError], float]:
        """Store the large values of prepared operations.

        Returns:
            The operations, which name the objects, or the errors that kept values from being stored, and the seconds
            left. The time in which a file or an async iterable is read and sent does not count. The errors are:
            DeadlineExceededError (the store did not take a value in time), InvalidJobError (a file cannot be read, or
            an async iterable yields something else than bytes) and StorageError (the store refused).
        """
        loop = asyncio.get_running_loop()
        named: list[Operation | JQueueError] = list(operations)
        large = {place: each.large for place, each in enumerate(operations) if each.large is not None}
        begun = loop.time()

        async def store_one(place: int) -> None:
            try:
                named[place] = await self._stored(operations[place], large[place], seconds)
            except JQueueError as error:
                named[place] = error

        await some_at_once(store_one, [place for place, each in large.items() if isinstance(each.content, bytes)])
        seconds -= loop.time() - begun
        for place, each in large.items():
            if not isinstance(each.content, bytes):  # one by one, as each takes up to 16 MiB of memory
                await store_one(place)
        return named, max(seconds, 0.0)

    async def _stored(self, operation: Operation, large: LargeValue, seconds: float) -> Operation:
        """Store one value, and return its operation, which names the object."""
        at, content = self._now(), large.content
        if isinstance(content, bytes):
            if len(content) > WHOLE_BYTES:
                stored = await self.retried(lambda: self._create_from(large.folder, _pieces_of(content)), seconds)
            else:
                digest = await _digest_of(content)
                stored = await self.retried(lambda: self._create(large.folder, content, digest), seconds)
        elif isinstance(content, SupportsPath):
            stored = await self.retried(
                lambda: self._create_from(large.folder, _pieces_of_file(content)), seconds, streams=True
            )
        else:
            stored = await self._create_from(large.folder, _checked_pieces(content))
        return operation.storing(stored, at + self.named_within)

    async def _create(self, folder: str, content: bytes, digest: str) -> StoredObject:
        suffix = self._fresh(folder)
        await self._observers.call("create", self.call_timeout, self.storage.create_object, suffix, content)
        return StoredObject(suffix, len(content), digest)

    async def _create_from(self, folder: str, pieces: AsyncGenerator[bytes, None]) -> StoredObject:
        suffix, digest = self._fresh(folder), hashlib.sha256()

        async def hashed() -> AsyncGenerator[bytes, None]:
            async with aclosing(pieces):
                async for piece in pieces:
                    await _add(digest, piece)
                    yield piece

        async def create() -> int:
            async with aclosing(hashed()) as source:
                return await self.storage.create_object_from(suffix, source)

        size = await self._observers.call("create", self.named_within.total_seconds(), create)
        return StoredObject(suffix, size, digest.hexdigest())

    def _fresh(self, folder: str) -> str:
        unique = self._entropy.new_id()  # of any characters, if the entropy is a caller's own
        return f"{folder}{hashlib.sha256(unique.encode()).hexdigest()[:32]}"

    async def load(self, jobs: Iterable[JobRecord], seconds: float) -> dict[str, JobRecord | StorageError]:
        """Return jobs with their payloads, by id, or the error that kept a payload from being loaded.

        Args:
            jobs: jobs whose payloads are in objects.
            seconds: maximum time.
        """
        answers: dict[str, JobRecord | StorageError] = {}

        async def load_one(job: JobRecord) -> None:
            assert job.payload_object is not None
            try:
                answers[job.id] = job.evolve(payload=await self.read(job.payload_object, seconds))
            except StorageError as error:
                answers[job.id] = error

        await some_at_once(load_one, list(jobs))
        return answers

    async def read(self, stored: StoredObject, seconds: float) -> bytes:
        """Return the content of an object.

        Raises:
            ObjectMissingError: it does not exist.
            ObjectDamagedError: its content is not what was stored.
            DeadlineExceededError: the store did not answer in time.
            StorageError: the store refused.
        """
        piece_bytes = PIECE_BYTES if stored.size > WHOLE_BYTES else WHOLE_BYTES
        return b"".join([piece async for piece in self.pieces(stored, seconds, piece_bytes)])

    async def pieces(
        self, stored: StoredObject, seconds: float, piece_bytes: int = PIECE_BYTES
    ) -> AsyncGenerator[bytes, None]:
        """Yield the content of an object in pieces, and check it at the end.

        Args:
            stored: the object.
            seconds: maximum time for each piece.
            piece_bytes: size of a piece.

        Raises:
            ObjectMissingError: it does not exist.
            ObjectDamagedError: its content is not what was stored.
            StorageError: the store failed.
        """
        digest, start, stop = hashlib.sha256(), 0, 0

        async def next_piece() -> bytes:
            read = self.storage.read_object
            return await self._observers.call("fetch", self.call_timeout, read, stored.suffix, start, stop)

        while start == stop:  # until the store has given less than asked for, which is the end of the object
            stop = min(start + piece_bytes, stored.size + 1)
            piece = await self.retried(next_piece, seconds, reads=True)
            start += len(piece)
            if start > stored.size:
                raise ObjectDamagedError(stored.suffix, f"it has more than the {stored.size} bytes that were stored")
            await _add(digest, piece)
            if piece:
                yield piece
        if start != stored.size:
            raise ObjectDamagedError(stored.suffix, f"it has {start} bytes, and {stored.size} were stored")
        if digest.hexdigest() != stored.sha256:
            raise ObjectDamagedError(stored.suffix, "its SHA-256 digest is not that of the bytes that were stored")

    async def older_than(
        self, age: timedelta, folders: Sequence[str], listing_timeout: float
    ) -> Mapping[str, timedelta]:
        """Return the ages of the objects in these folders that were created longer ago than `age`, by their suffixes.

        If the store does not tell its time, that of its newest object stands for it: the own clock may be hours ahead.

        Args:
            age: by the clock of the store.
            folders: beginnings of suffixes.
            listing_timeout: seconds for the listing of one folder.

        Raises:
            StorageError: the store failed.
        """
        listed: list[Listed] = []
        for folder in folders:
            request = partial(self._observers.call, "list", listing_timeout, self.storage.list_beside, folder)
            failed = "the objects beside the queue could not be listed"
            listed += await retried(listing_timeout, request, self._entropy, failed)
        now = self._store_time() or max((each.modified for each in listed), default=None)
        ages = {} if now is None else {each.suffix: now - each.modified for each in listed}
        return {suffix: each for suffix, each in ages.items() if each > age}

    async def remove(self, suffixes: Sequence[str]) -> None:
        """Remove objects. One that cannot be removed stops no other.

        Raises:
            StorageError: the store failed. Some may be removed.
        """
        failures: list[Exception] = []

        async def remove_one(suffix: str) -> None:
            try:
                await self._observers.call("remove", self.call_timeout, self.storage.remove_object, suffix)
            except (StorageError, OSError, TimeoutError) as error:
                failures.append(StorageError(f"the object {suffix!r} could not be removed", error))
                if len(failures) >= MOST_FAILURES:
                    raise failures[0] from error

        await some_at_once(remove_one, suffixes)
        if failures:
            raise failures[0]

    async def retried(
        self, request: Callable[[], Awaitable[Answer]], seconds: float, *, reads: bool = False, streams: bool = False
    ) -> Answer:
        """Send a request until the store answers: see `jqueue.core.tasks.retried`.

        Args:
            request: sends it once.
            seconds: time to try for.
            reads: True if the request reads an object, as the error then says.
            streams: True if a request that has begun may take longer.
        """
        failed = f"an object beside the queue could not be {'read' if reads else 'stored'}"
        return await retried(seconds, request, self._entropy, failed, streams=streams)


async def _digest_of(content: bytes) -> str:
    digest = hashlib.sha256()
    await _add(digest, content)
    return digest.hexdigest()


async def _add(digest: Any, piece: bytes) -> None:
    if len(piece) > HASHED_INLINE:
        await in_a_thread(digest.update, piece)
    else:
        digest.update(piece)


async def _checked_pieces(pieces: AsyncIterable[Any]) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of a caller's async iterable."""
    try:
        async for piece in pieces:
            if not isinstance(piece, bytes | bytearray | memoryview):
                raise InvalidJobError(f"a payload's async iterable must yield bytes, got {type(piece).__name__}")
            yield bytes(piece)
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()


async def _pieces_of(content: bytes) -> AsyncGenerator[bytes, None]:
    """Yield bytes in pieces."""
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]


async def _pieces_of_file(path: SupportsPath) -> AsyncGenerator[bytes, None]:
    """Yield the content of a file."""
    try:
        file = await in_a_thread(lambda: open(path, "rb", buffering=0))  # noqa: SIM115 - closed below
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        while True:
            try:
                piece = await in_a_thread(file.read, PIECE_BYTES)
            except OSError as error:
                raise _unreadable(path, error) from error
            if not piece:
                return
            yield piece
    finally:
        file.close()


def _unreadable(path: SupportsPath, error: OSError) -> InvalidJobError:
    return InvalidJobError(f"the payload's file {path.__fspath__()!r} cannot be read: {error.strerror}")


LISTING_TIMEOUT = 60.0
"""Seconds within which a store must list the objects of a folder."""

OURS = re.compile(r"\.(payloads|results)/[0-9a-f]{32}|\.segments/[A-Za-z0-9_-]{1,200}")
"""The suffixes of the objects that queues create. Other files in these folders are left alone."""

_NAME = re.compile(rb"\.(payloads|results)\\?/([A-Za-z0-9_-]+)")


class Collector:
    """Removes the objects of one queue that no job names.

    Args:
        access: to the store.
        objects: the objects.
        look: reads the queue.
        named_in: returns the suffixes of the objects that a header and its segments name.
        fence: commits to the queue without changing it.
    """

    def __init__(
        self,
        access: Access,
        objects: ValueObjects,
        look: Callable[[], Awaitable[QueueView | None]],
        named_in: Callable[[Header], Awaitable[set[str]]],
        fence: Callable[[], Awaitable[object]],
    ) -> None:
        self._monotonic, self._numbers = access.clock.monotonic, access.numbers
        self._objects = objects
        self._look = look
        self._named_in = named_in
        self._fence = fence
        self._due = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin a collection beside the calls, if it is time for one."""
        if (self._task is None or self._task.done()) and self._monotonic() >= self._due:
            self._due = self._monotonic() + self._numbers.interval
            self._task = asyncio.create_task(self._collect_quietly(), name="jqueue-collection")

    async def end(self) -> None:
        """End a collection that is under way."""
        await end_tasks([] if self._task is None else [self._task])

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
        listed = await self._objects.older_than(self._numbers.kept_for, folders, LISTING_TIMEOUT)
        ages = {suffix: age for suffix, age in listed.items() if OURS.fullmatch(suffix)}
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
        if view is None or not view.header.version:
            return set(ages)
        transactions = view.header.transactions
        staged = {
            suffix
            for suffix, age in ages.items()
            if age <= self._numbers.staged_kept and awaits_commit(suffix.removeprefix(SEGMENTS_FOLDER), transactions)
        }
        return staged | await self._named(view)

    async def _named(self, view: QueueView) -> set[str]:
        """Return the suffixes that the queue names."""
        named = {stored.suffix for job in view.records.values() for stored in objects_of(job)}
        named |= await self._named_in(view.header)
        for aside in view.set_aside:  # an operator may repair the line
            named.update(f".{folder.decode()}/{name.decode()}" for folder, name in _NAME.findall(aside.line))
        return named
