"""The one compare-and-set engine: read or reuse the cached state, apply, write with the etag, recognise, retry.

Every queue commits through it, and nothing else writes to a store. It promises that an operation takes effect in at
most one version, and that the result returned is that of the try that landed:

* a write that got any answer but a clean success stays *open* until the object's etag has moved; then the commit table
  says whether it landed (`jqueue.domain.commits`);
* an answer that no commit carries comes from a read begun after the call.

The loop of a commit is in `jqueue.core.engine.engine`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from datetime import datetime
from string import ascii_letters, digits
from typing import TypeVar

from jqueue.core.blob.codec import ParsedBlob, parse_blob
from jqueue.core.blob.content import Blob
from jqueue.core.blob.history_mover import HistoryMover
from jqueue.core.blob.segments import Segments
from jqueue.core.engine.engine import Engine, read_until
from jqueue.core.engine.lazy_state import LazyState
from jqueue.core.engine.observers import Observers
from jqueue.core.engine.open_writes import SentWrite
from jqueue.core.engine.requests import Outcome, Request
from jqueue.core.engine.slices import SpareTurns, in_turns
from jqueue.domain.commits import CommitId, Verdict, next_header, recognise
from jqueue.domain.errors import (
    BlobMissingError,
    CASConflictError,
    InvalidBlobError,
    JQueueError,
    StorageError,
    StorageFatalError,
    shown,
)
from jqueue.domain.limits import VERSIONS_KEPT, bytes_taken
from jqueue.domain.models import QueueState
from jqueue.domain.segment_rows import Wanted
from jqueue.domain.segments import RETENTION, SEGMENTS
from jqueue.domain.stored_object import OBJECTS
from jqueue.domain.transitions import claims_of
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.log import logger_of
from jqueue.ports.storage import (
    ObjectStoragePort,
    SupportsObjects,
    SupportsReadIfChanged,
    SupportsStoreTime,
    SupportsTurns,
)

Answer = TypeVar("Answer")

logger = logger_of("jqueue")

SUFFIX_LETTERS = frozenset(f"{ascii_letters}{digits}-_")
"""Letters that the names of objects may have."""


class CommitEngine(Engine):
    """Commits requests to one object of one store, from one process.

    Args:
        storage: holds the blob.
        clock: tells the time if the store does not.
        entropy: makes ids and jitter.
        claim_timeout: seconds, for claims in the blob that carry no timeout of their own.
        call_timeout: seconds within which a call to the store must end.
        max_conflicts: maximum number of conflicts in one commit; the next one raises CASConflictError. None: no limit.
        hot_bytes: see `Limits`.
    """

    def __init__(
        self,
        storage: ObjectStoragePort,
        clock: Clock,
        entropy: Entropy,
        *,
        claim_timeout: float,
        call_timeout: float,
        max_conflicts: int | None = None,
        hot_bytes: int | None = None,
    ) -> None:
        self.storage = storage
        self.call_timeout = call_timeout
        self.versions_kept = VERSIONS_KEPT  # the simulation shortens it to test forgotten commits
        self.retention = RETENTION  # the simulation shortens it, too
        self._read_if_changed = storage.read_if_changed if isinstance(storage, SupportsReadIfChanged) else None
        self._keeps_objects = isinstance(storage, SupportsObjects)
        self._store_time = storage.store_time if isinstance(storage, SupportsStoreTime) else None
        self.turn = storage.turn if isinstance(storage, SupportsTurns) else None
        self.commits = 0
        self.recognised = 0
        self.observers = Observers(clock)
        self._spare = SpareTurns()
        self.queue_id = ""
        self.existed = False
        self._first_id: str | None = None
        self.history = HistoryMover(storage, clock, self.now, self.observers, call_timeout=call_timeout)
        self.segments: Segments | None = None
        if isinstance(storage, SupportsObjects):
            self.segments = Segments(
                storage,
                clock,
                entropy,
                self.now,
                self._new_name,
                self.observers,
                self._spare,
                lambda: self._call("read", self._read),
                call_timeout=call_timeout,
            )
            self.segments.writer.sizes.hot_bytes = hot_bytes
        super().__init__(clock, entropy, claim_timeout=claim_timeout, max_conflicts=max_conflicts)

    def reset(self) -> None:
        """Begin anew as another writer, with a read: after a fork, or when the cached state cannot be trusted.

        The id of the queue, and the fact that it existed, are kept.
        """
        super().reset()
        self.writer_id = self.entropy.new_id()[:18]
        self.sequence = 0
        self.history.forget()
        self._spare.forget()
        if self.segments is not None:
            self.segments.forget()

    def _forget_content(self) -> None:
        self.blob = Blob()
        self.draft = self.blob.draft
        self.etag: str | None = None
        self.loaded = False
        self.watch.missed_changes()

    async def finish(self, seconds: float) -> None:
        """Wait until the history is moved, for some seconds at most."""
        await self.history.finish(seconds)
        if self.segments is not None:
            await self.segments.finish(seconds)

    @property
    def place(self) -> object:
        """As in the engine."""
        return self.storage

    async def is_absent(self) -> bool:
        """As in the engine."""
        return not self.existed

    async def objects_named_in(self, header: QueueState) -> set[str]:
        """Return the names of the segments, of retired segments, and of the objects of their rows."""
        return set() if self.segments is None else await self.segments.objects_named_in(header)

    def _begin(self) -> None:
        """Drop the rows of segments that are loaded for earlier commits, if they are many."""
        if self.segments is not None:
            self.segments.loader.begin(self.draft)
            self.pacing.cycle.rows_of_try = 0.0

    async def _apply(self, pending: Sequence[Request]) -> list[tuple[Request, Outcome]]:
        await self.history.make_room(self.draft.header)
        if self.existed and self.workers.are_due(self.clock.monotonic()):  # a worker that waits creates no queue
            self.draft.touch()
        if self.segments is not None:
            self.segments.loader.integrate(self.draft)
        return await super()._apply(pending)

    def _answer(self, outcomes: Sequence[tuple[Request, Outcome]]) -> None:
        self.observers.applied(self.draft.header.version, self._applied_at, outcomes, self._swept)
        super()._answer(outcomes)

    async def _load_rows(self, wanted: Set[Wanted], *, fresh: bool) -> bool:
        assert self.segments is not None  # a queue with segments is refused otherwise
        started = self.clock.monotonic()
        try:
            return await self.segments.loader.load(wanted, self.draft, fresh=fresh)
        finally:
            self.pacing.cycle.rows_of_try += self.clock.monotonic() - started

    def set_segment_aside(self, name: str, chunks: Iterable[int], error: JQueueError) -> None:
        """Set a segment aside, as some chunks of it could not be read: see `SegmentLoader.set_aside`."""
        assert self.segments is not None
        parts = [Wanted(name, None), *(Wanted(name, chunk) for chunk in chunks)]
        self.segments.loader.set_aside(name, parts, error, self.draft.jobs.rows)

    def _late_segments(self) -> Collection[str]:
        return () if self.segments is None else self.segments.loader.late()

    def _set_back(self, request: Request, wanted: Set[Wanted]) -> None:
        super()._set_back(request, wanted)
        if self.segments is not None and (late := {each.segment for each in wanted} & {*self._late_segments()}):
            self.waits_for_rows = True
            request.last_error = self.segments.loader.failure(sorted(late))

    def _add_upkeep(self, now: datetime) -> None:
        if self.segments is not None:
            self.segments.writer.name_stored(self.draft, now)

    @property
    def known_queue(self) -> str:
        """The id of the queue, or the id that this engine will give to a new queue."""
        known = self.draft.header.queue or self.queue_id  # the draft knows none while its content is forgotten
        if self._first_id is None:
            self._first_id = known or self.entropy.new_id()
        return known or self._first_id

    @property
    def activity(self) -> object:
        """The counters: a heartbeat of a worker leaves them as they are."""
        return (self.draft.header.counters,)  # in a tuple, the same counters are equal at once

    def store_time(self) -> datetime | None:
        """Return the time by a clock that all users of the store share; None if there is no such clock."""
        return None if self._store_time is None else self._store_time()

    async def refresh(self) -> bool:
        """Read the blob if it has changed, and settle the open writes. Return True if it had changed.

        Raises:
            BlobMissingError: the blob existed and is gone.
            InvalidBlobError: the blob is not a queue that this version can read.
            StorageError: the store failed.
        """
        started, generation = self.clock.monotonic(), self.generation
        try:
            found = await self._call("read", self._read)
        except BaseException:
            if generation is self.generation:
                self.watch.failed()
            raise
        self.check_generation(generation)
        self.pacing.cycle.read(self.clock.monotonic() - started)
        moved = found is not None and await self._adopt(*found)
        self.pacing.read(self.draft.header.version, moved=moved)
        self.watch.observed(self.draft, self.clock.monotonic(), self.store_time())
        return moved

    async def _read_all(self) -> tuple[bool, str, bytes, str | None]:
        existed, queue_id = self.existed, self.queue_id  # as known before the read: a commit may change them meanwhile
        return existed, queue_id, *await self._call("read", self.storage.read)

    async def look_if_changed(
        self, etag: str | None, deadline: float
    ) -> tuple[str | None, tuple[LazyState, int, int] | None]:
        """As in the engine; the store is asked for another version than the known one."""

        async def read() -> tuple[bool, str, bytes, str | None] | None:
            if etag is None or self._read_if_changed is None:
                return await self._read_all()
            existed, queue_id, changed = self.existed, self.queue_id, self._read_if_changed
            found = await self._call("read", lambda: changed(etag))
            return None if found is None else (existed, queue_id, *found)

        found = await read_until(deadline, read, self.entropy, "the queue")
        return (etag, None) if found is None else (found[3], await self._lazy_state(found, deadline))

    async def _lazy_state(
        self, found: tuple[bool, str, bytes, str | None], deadline: float
    ) -> tuple[LazyState, int, int]:
        existed, queue_id, data, etag = found
        if etag is None and existed:
            raise self._gone()
        if etag is None:
            return LazyState(QueueState(), (), {}, absent=True), 0, 0
        parsed = self._parse(data, queue_id)
        lazy = await in_turns(self.blob.looking(parsed))
        header = lazy.header
        if header.segments and self.segments is not None:
            lazy.rows = self.segments.rows.jobs_of(header, deadline)
        return lazy, len(data), bytes_taken(len(data) - parsed.header_bytes, header.holds, header.schedules)

    async def _read(self) -> tuple[bytes, str | None] | None:
        if self.etag is not None and self._read_if_changed is not None:
            return await self._read_if_changed(self.etag)
        data, etag = await self.storage.read()
        return None if self.loaded and etag is not None and etag == self.etag else (data, etag)

    async def _adopt(self, data: bytes, etag: str | None) -> bool:
        """Take over the content that was read. Return True if it was not the known version."""
        if etag is None and data:
            raise StorageFatalError(
                "the storage adapter returned content without an etag: its read must return both, or b'' and None"
            )
        if etag is None:
            if self.existed:
                raise self._gone()
            self.loaded = True
            return False
        parsed = self._parse(data, self.queue_id)
        if parsed.header.version < self.draft.header.version:
            logger.warning(
                "queue %s went back from version %d to %d: was a backup restored?",
                self.draft.header.queue,
                self.draft.header.version,
                parsed.header.version,
            )
        generation = self.generation
        try:
            await in_turns(self.blob.adopting(parsed, len(data)))
        except BaseException:  # only a part of it was taken over
            if generation is self.generation:
                self._forget_content()
            raise
        self.check_generation(generation)
        self.etag, self.loaded = etag, True
        self.existed, self.queue_id = True, parsed.header.queue
        verdicts = {sent: recognise(parsed.header, sent.commit) for sent in self.open_writes.writes}
        landed = [sent for sent, verdict in verdicts.items() if verdict is Verdict.LANDED]
        self.recognised += len(landed)
        for sent in landed:
            self.observers.landed(sent, 0.0, recognised=True)
        self.open_writes.close(verdicts)
        return True

    def _parse(self, data: bytes, queue_id: str) -> ParsedBlob:
        """Parse a blob, and raise StorageFatalError if it belongs to another queue than the known one."""
        parsed = parse_blob(data)
        if queue_id not in ("", parsed.header.queue):
            found = shown(parsed.header.queue) if parsed.header.queue else "of jqueue 1.0.0"
            raise StorageFatalError(
                f"the queue's object now holds another queue ({found}), not queue {shown(queue_id)}: if that is "
                "intended, restart the program or make a new BrokerQueue or DirectQueue"
            )
        if OBJECTS in parsed.header.critical and not self._keeps_objects:
            raise InvalidBlobError(
                "the queue keeps large payloads in objects beside it, which this storage cannot read: use a storage "
                "with the methods of SupportsObjects"
            )
        if SEGMENTS in parsed.header.critical and self.segments is None:
            raise InvalidBlobError(
                "the queue keeps jobs in segments beside it, which this storage cannot read: use a storage with the "
                "methods of SupportsObjects"
            )
        return parsed

    def _gone(self) -> BlobMissingError:
        what_to_do = (
            "restore it, or restart the program (make a new BrokerQueue or DirectQueue) to start an empty queue"
        )
        return BlobMissingError(f"the queue's object has disappeared: {what_to_do}")

    async def _write(self, outcomes: list[tuple[Request, Outcome]]) -> None:
        """Write the draft, and settle its requests if the answer is a clean success.

        Raises:
            CASConflictError: it was refused, or it landed and the answer was lost. The next read finds out.
            StorageError: the store failed. The write stays open until the etag has moved, unless the store is certain
                that nothing was written.
        """
        generation = self.generation
        self.sequence += 1
        commit = CommitId(self.writer_id, self.sequence, self.draft.header.version)
        queue = self.known_queue
        now = self.now()
        workers = self.workers.records(now.timestamp())
        cycle = self.pacing.cycle.seconds
        claimed: Mapping[str, int] = claims_of(self.draft.moves) if self.draft.header.segments else {}
        before, moved = self.draft.header.history, self.history.moved
        kept, retention, stuck = self.versions_kept, self.retention, self.history.is_stuck
        header = next_header(
            self.draft, commit, queue, now, cycle, kept, workers, moved, self._new_name, retention, stuck
        )
        try:
            content = await in_turns(self.blob.encoding(header))
            self.check_generation(generation)
        except BaseException:  # it was not sent
            if generation is self.generation:
                self._undo(outcomes)
            raise
        self.observers.applied(commit.base_version, self._applied_at, outcomes, self._swept, commit)
        sent = SentWrite(commit, tuple(outcomes))
        started = self.pacing.sent()
        try:
            etag = await self._send(content)
            self.check_generation(generation)
            seconds = self.clock.monotonic() - started
            self.pacing.cycle.write(seconds)
            self.blob.settle(header, len(content))
            self.pacing.landed(self.writer_id, header.commits)
            self.workers.landed(workers, self.clock.monotonic())
            self.existed, self.queue_id = True, queue
            self.etag = etag  # last: if a line above ever fails, the next read finds the commit
        except BaseException as error:
            if generation is not self.generation:
                raise
            if not (isinstance(error, StorageError) and error.nothing_written):
                self.open_writes.add(sent)
            self._undo(outcomes)
            self.open_writes.forget_old()
            if isinstance(error, CASConflictError):
                self.pacing.cycle.write(self.clock.monotonic() - started)
            else:
                self.watch.failed()
            raise
        self.commits += 1
        self.observers.landed(sent, seconds, recognised=False)
        self.open_writes.close(dict.fromkeys(self.open_writes.writes, Verdict.NOT_DONE), landed=sent)
        self.watch.observed(self.draft, self.clock.monotonic(), self.store_time())
        if header.history is not None:
            self.history.landed(before, header)
        if self.segments is not None:
            self.segments.landed(self.draft, claimed)

    async def _send(self, content: bytes) -> str:
        """Write the blob if the object is as it was read, and return the new etag."""
        writing = self._spare.begin_write()
        try:
            etag = await self._call("write", lambda: self.storage.write(content, if_match=self.etag))
        finally:
            self._spare.end_write(writing)
        if not etag:
            raise StorageError("the storage adapter returned no etag for a write: its write must return the new etag")
        return etag

    def _new_name(self) -> str:
        """Return the name of a segment, or of a series of objects for the history."""
        return "".join(letter if letter in SUFFIX_LETTERS else "-" for letter in self.entropy.new_id()[:18])

    async def _call(self, what: str, call: Callable[[], Awaitable[Answer]]) -> Answer:
        with self.observers.timing(what):
            async with asyncio.timeout(self.call_timeout):
                return await call()
