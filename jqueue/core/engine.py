"""The one compare-and-set engine: read or reuse the cached state, apply, write with the etag, recognise, answer.

Every queue on one object commits through it, and nothing else writes that object. It promises that an operation takes
effect in at most one version, and that the result returned is that of the try that landed:

* a write that got any answer but a clean success stays *open* until the object's etag has moved; then the commit table
  says whether it landed (`jqueue.domain.commits`);
* an answer that no commit carries comes from a read begun after the call.

One engine runs one `commit` at a time; `jqueue.core.writer` ensures that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any, TypeVar

import msgspec

from jqueue.core.access import Access
from jqueue.core.blob.codec import Blob, ParsedBlob, parse_blob
from jqueue.core.blob.history import HistoryMover, first_of
from jqueue.core.blob.lines import ENCODING_ERRORS, encode_json
from jqueue.core.blob.segments import Segments
from jqueue.core.observers import Observers
from jqueue.core.pacing import Pacing
from jqueue.core.requests import Outcome, Request, is_empty, sleep_while_awaited
from jqueue.core.staleness import ORPHANS_EVERY, StaleWatch, orphans
from jqueue.core.tasks import TRANSIENT, Backoff, SpareTurns, as_storage_error, in_turns, retried
from jqueue.core.values import OURS
from jqueue.core.view import QueueView
from jqueue.core.workers import CROWD, SHARED_BEAT, Workers
from jqueue.domain.commits import Commit, CommitId, Verdict, next_header, recognise
from jqueue.domain.draft import Draft
from jqueue.domain.durations import exact_time
from jqueue.domain.errors import (
    BlobMissingError,
    CASConflictError,
    InvalidBlobError,
    InvalidJobError,
    JQueueError,
    SegmentDamagedError,
    StorageError,
    StorageFatalError,
    StorageThrottledError,
    shown,
)
from jqueue.domain.header import BEAT, Header, WorkerRecord
from jqueue.domain.job import OBJECTS, PAYLOADS, QUEUED, Claim, JobRecord
from jqueue.domain.large_values import NAMED_WITHIN
from jqueue.domain.limits import bytes_taken
from jqueue.domain.operations.base import Operation, perform
from jqueue.domain.operations.ends import Sweep
from jqueue.domain.operations.operator import EmptyCommit
from jqueue.domain.segment_rows import RowsMissingError, Wanted
from jqueue.domain.segments import FOLDER as SEGMENT_FOLDER
from jqueue.domain.segments import SEGMENTS, STAGED, STAGED_NAMED_WITHIN, object_of
from jqueue.domain.stats import writers_warning
from jqueue.domain.transitions import claims_of
from jqueue.ports.clock import Clock, Entropy, SupportsProcesses
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.storage import (
    ObjectStoragePort,
    SupportsReadIfChanged,
    describe,
)
from jqueue.runtime.system import Presence

Answer = TypeVar("Answer")

logger: Logger = logger_of("jqueue")

OPERATIONS_PER_SLICE = 256
"""Number of requests after which the event loop gets a turn."""


STORED_FIRST = {
    SEGMENT_FOLDER + STAGED: STAGED_NAMED_WITHIN,
    SEGMENT_FOLDER: NAMED_WITHIN,
    PAYLOADS: NAMED_WITHIN,
}
"""The objects that an enqueue stores before its commit, and the time within which it mostly commits."""

OPEN_WRITES_KEPT = 256
"""Number of writes of unknown fate that are remembered for callers that have left."""


class OpenWrite(msgspec.Struct, eq=False):
    """A write that was sent and got no clean answer: it may have landed, or land later.

    Attributes:
        commit: the id that identifies it.
        outcomes: the outcome of each request that it carries, if it landed.
        dead: see `LandedCommit`.
    """

    commit: CommitId
    outcomes: list[tuple[Request, Outcome]]
    dead: list[JobRecord]


class Step(Enum):
    """The next step of a commit. It also ends when no request is pending."""

    READ = auto()
    APPLY = auto()
    REFUSE = auto()
    END = auto()


class Course(msgspec.Struct):
    """The course of a commit: its next step, and what the steps before have found out.

    Attributes:
        backoff: the pauses between its tries.
        step: the next step.
        fresh: True if the state was read since the call.
        late: see `Attempt`.
        conflicts: number of conflicts.
        refusal: an error to fail the requests with, once a read has not found the write; None if there is none.
    """

    backoff: Backoff
    step: Step
    fresh: bool = False
    late: bool = False
    conflicts: int = 0
    refusal: Exception | None = None


class Attempt(msgspec.Struct):
    """One try: requests applied to the draft, and what keeps it from being committed.

    Attributes:
        now: the time of the try.
        store_time: the same by the store's clock; None if it has none.
        outcomes: each applied request, with its outcome.
        sweep: number of requests before the sweep, the sweep, and its result; None if nothing was swept.
        missing: parts of segments to load before the requests are applied again.
        postponed: True if an operation needs rows of a segment that this commit names.
        late: True if requests were left out that need rows of a segment for which commits do not wait.
    """

    now: datetime
    store_time: datetime | None
    outcomes: list[tuple[Request, Outcome]] = msgspec.field(default_factory=list)
    sweep: tuple[int, Operation, int] | None = None
    missing: set[Wanted] = msgspec.field(default_factory=set)
    postponed: bool = False
    late: bool = False


def check_encodable(values: Any) -> None:
    """Refuse an operation that brings values which are not JSON.

    Raises:
        InvalidJobError: they are not.
    """
    try:
        encode_json(values)
    except ENCODING_ERRORS as error:
        raise InvalidJobError(f"a value of the call cannot be written to the queue's object: {error}") from None


def _may_still_land(outcomes: Sequence[tuple[Request, Outcome]]) -> bool:
    """True if a final answer is for a request that an earlier write carries, which may still land.

    A commit that changes no job then decides: if it lands, the earlier write never will; otherwise that one has landed.
    """
    return any(
        request.open_writes and not (request.waits_for_jobs and is_empty(outcome)) for request, outcome in outcomes
    )


class Engine:
    """Commits requests to one object of one store, as one writer: from one process, on one event loop.

    Args:
        access: to the store.
        before: the engine of the session before. It knows the queue, and whether that existed. None: there was none.

    Attributes:
        draft: the known state of the queue.
        loaded: True once the queue was read.
        queue_id: id of the queue; "" until it is known.
        existed: True if the object was there before: if it is missing now, it was removed.
        workers: the workers of this session: they report themselves with its commits.
        unread: True if the last commit has left calls that wait for jobs without a read, which must follow.
        gave_way: True if the last commit has left calls to a broker that has come.
    """

    unread: bool = False
    gave_way: bool = False

    def __init__(self, access: Access, before: Engine | None = None) -> None:
        self.access = access
        self.storage: ObjectStoragePort = access.storage
        self.clock: Clock = access.clock
        self.entropy: Entropy = access.entropy
        self.observers: Observers = access.observers
        self.call_timeout: float = access.call_timeout
        self.now: Callable[[], datetime] = access.now
        self.store_time: Callable[[], datetime | None] = access.store_time
        self.queue_id: str = "" if before is None else before.queue_id
        self.existed: bool = access.options.must_exist if before is None else before.existed
        self.writer_id: str = self.entropy.new_id()[:18]
        self.sequence: int = 0
        self.last_token: str = ""  # the token of the last commit
        self.open_writes: list[OpenWrite] = []
        self.workers: Workers = Workers()
        self.pacing: Pacing = Pacing(self.clock, self.entropy)
        self.watch: StaleWatch = StaleWatch(access.claim_timeout)
        self._presence = Presence(self.clock)
        self._looks_for_orphans_at = 0.0
        self._first_id = ""
        self._named_remedy = False  # True once the log says how to share a slow store
        storage, objects = access.storage, access.objects
        self._read_if_changed = storage.read_if_changed if isinstance(storage, SupportsReadIfChanged) else None
        self._spare = SpareTurns()
        self.history: HistoryMover = HistoryMover(access)
        self.segments: Segments | None = None
        if objects is not None:
            self.segments = Segments(access, objects, self._spare, lambda: self._read(self.etag))
        self.forget()

    def forget(self) -> None:
        """Forget the known state of the queue, as it cannot be trusted. The next commit reads it."""
        self.blob: Blob = Blob()
        self.draft: Draft = self.blob.draft
        self.draft.blob_bytes = self.access.options.limits.blob_bytes
        self.etag: str | None = None
        self.loaded: bool = False
        self.watch.missed_changes()

    async def finish(self, seconds: float) -> None:
        """Wait until the history is moved, for some seconds at most."""
        await self.history.finish(seconds)
        if self.segments is not None:
            await self.segments.finish()

    async def objects_named_in(self, header: Header) -> set[str]:
        """Return the suffixes of the objects beside the queue that a header and its segments name.

        Raises:
            StorageError: a segment cannot be read.
        """
        return set() if self.segments is None else await self.segments.objects_named_in(header)

    # Committing: read, apply, write, recognise, answer

    async def commit(
        self,
        requests: Sequence[Request],
        *,
        read_first: bool = False,
        read_later: bool = False,
        broker_came: Callable[[], bool] | None = None,
    ) -> bool:
        """Run requests until each is settled, has failed, or is still waiting for jobs or for rows of a late segment.

        Return True if some are left that need such rows.

        Args:
            requests: submitted before this call.
            read_first: True to begin with a read, as another writer may have changed the queue.
            read_later: True if calls that wait for jobs, and find none in the known state, may be left without a read.
            broker_came: returns True if a broker may do what is left; asked after each read. None: none may.
        """
        self.unread = self.gave_way = False
        self.draft.rollback()
        self.draft.check = None
        if self.segments is not None and self.draft.header.segments:
            self.segments.loader.begin(self.draft)  # without the rows of earlier commits, if they are many
        self.pacing.cycle.rows_of_try = 0.0
        first = Step.READ if read_first or not self.loaded or self.open_writes else Step.APPLY
        course = Course(Backoff(self.entropy), first)
        while course.step is not Step.END and (pending := [request for request in requests if request.awaited]):
            reading = course.step is Step.READ
            try:
                if reading:
                    course.step = await self._read_step(course, pending, broker_came)
                elif course.step is Step.REFUSE and course.refusal is not None:
                    self._refuse(pending, course.refusal)
                else:
                    course.step = await self._apply_step(course, pending, read_later=read_later)
            except CASConflictError as error:
                course.conflicts += 1
                most = self.access.max_conflicts
                if most is not None and course.conflicts > most:
                    course.refusal = error
                course.step = Step.READ
            except Exception as error:
                failed = await self._failed(error, pending, course.backoff, reading=reading)
                course.refusal, course.step = failed or course.refusal, Step.READ
        return course.late

    async def _read_step(
        self, course: Course, pending: Sequence[Request], broker_came: Callable[[], bool] | None
    ) -> Step:
        """Read the queue, and wait if it is not our turn to write. Return the next step."""
        seconds = await self._read_in_turn(pending)
        course.fresh = True
        self.gave_way = not self.open_writes and broker_came is not None and broker_came()
        if self.gave_way:
            return Step.END
        if seconds is not None:
            await sleep_while_awaited(pending, seconds)
            return Step.READ
        return Step.APPLY if course.refusal is None else Step.REFUSE

    async def _apply_step(self, course: Course, pending: Sequence[Request], *, read_later: bool) -> Step:
        """Apply the requests. Then load the rows that are missing, write, or answer. Return the next step."""
        applied = await self._apply(pending)
        course.late = applied.late
        if applied.missing:
            self._undo(applied.outcomes)
            return Step.APPLY if await self._load_rows(applied.missing, fresh=course.fresh) else Step.READ
        if self.draft.changed:
            is_written = await self._write(applied)
            course.fresh = course.fresh and not is_written
            return Step.END if is_written and not applied.postponed else Step.APPLY
        if course.fresh or all(call.seen_empty and is_empty(outcome) for call, outcome in applied.outcomes):
            self._answer(applied)
            return Step.END
        self._undo(applied.outcomes)
        self.unread = read_later and all(call.waits_for_jobs and is_empty(each) for call, each in applied.outcomes)
        return Step.END if self.unread else Step.READ

    async def _failed(
        self, error: Exception, pending: Sequence[Request], backoff: Backoff, *, reading: bool
    ) -> Exception | None:
        """Wait after a failure of the store that may pass. Return a refusal that a read must check, or None.

        Any other failure fails the requests.
        """
        failure = as_storage_error(error)
        if isinstance(error, TRANSIENT) and not isinstance(error, StorageFatalError):
            for request in pending:
                request.last_error = error
            refused = isinstance(error, StorageThrottledError) and not reading
            if refused and not self._named_remedy and (why := writers_warning(self.draft.header, self.now())):
                self._named_remedy = True
                logger.warning("the store refuses writes, as they come too often. %s", why)
            await sleep_while_awaited(pending, self.pacing.pace.refused() if refused else backoff.after(error))
        elif reading or failure.nothing_written:
            self._fail(pending, failure)
        else:  # a refusal, or a bug of the adapter: a read checks it like any other answer
            return failure
        return None

    async def _read_in_turn(self, pending: Sequence[Request]) -> float | None:
        """Read the queue. Return the seconds to wait before it is read again; None if it is our turn to write."""
        if all(request.waits_for_jobs for request in pending):  # a mere look
            await self.observers.look(self.refresh, pending[0])
        else:
            await self.refresh()
        header = self.draft.header
        return self.pacing.wait_after_read(header.version, header.commits)

    def _answer(self, applied: Attempt) -> None:
        """Answer requests that have changed nothing."""
        self.observers.applied(self.draft.header.version, applied.now, applied.outcomes, applied.sweep)
        for request, outcome in applied.outcomes:
            request.settle(outcome)

    async def _apply(self, pending: Sequence[Request]) -> Attempt:
        """Apply requests to the draft: first all that do not claim jobs, then the sweep, then the dequeues."""
        draft, workers, segments = self.draft, self.workers, self.segments
        if draft.header.history is not None:
            await self.history.make_room(draft.header)
        if segments is not None and draft.header.segments:
            segments.loader.integrate(draft)
        if (workers.present or workers.left) and self.existed and workers.are_due(self.clock.monotonic()):
            draft.touch()  # but a worker that waits creates no queue
        store_time = self.store_time()
        applied = Attempt(exact_time(store_time or self.clock.now()), store_time)
        claiming: list[Request] = []
        for start in range(0, len(pending), OPERATIONS_PER_SLICE):
            if start:
                await asyncio.sleep(0)
            for request in pending[start : start + OPERATIONS_PER_SLICE]:
                if request.claims_jobs:
                    claiming.append(request)
                elif request.awaited:  # its deadline may have passed just now
                    self._perform(request, applied)
        suspects, orphaned = (self.watch.suspects(), self._orphans()) if claiming or draft.changed else ((), ())
        if suspects or orphaned:
            sweep = Sweep(suspects, orphaned)
            try:
                swept = perform([sweep], draft, applied.now)
                assert isinstance(swept, list)
                applied.sweep = len(applied.outcomes), sweep, swept[0]
            except RowsMissingError as error:
                self._note_missing(error, applied)
        nothing_for: set[Any] = set()  # search keys of the requests that found nothing
        for start in range(0, len(claiming), OPERATIONS_PER_SLICE):
            if start:
                await asyncio.sleep(0)
            for request in claiming[start : start + OPERATIONS_PER_SLICE]:
                if not request.awaited:
                    continue
                if nothing_for and request.search_key in nothing_for:  # an equal search has found nothing before
                    request.in_flight = True
                    applied.outcomes.append((request, [[]]))
                    continue
                before = draft.savepoint() if nothing_for else None
                outcome = self._perform(request, applied)
                if outcome is not None and is_empty(outcome) and (key := request.search_key) is not None:
                    nothing_for.add(key)
                elif nothing_for and request.search_key is None and draft.savepoint() != before:
                    nothing_for.clear()
        if not draft.changed and _may_still_land(applied.outcomes):
            draft.touch()
        if segments is not None and segments.writer.under_way and draft.changed and not applied.missing:
            segments.writer.name_stored(draft, applied.now)
        return applied

    def _orphans(self) -> tuple[tuple[Claim, datetime | None], ...]:
        """Return the claims of processes of this machine that have ended. It looks once a second."""
        if self._looks_for_orphans_at > self.clock.monotonic() or not isinstance(self.entropy, SupportsProcesses):
            return ()
        self._looks_for_orphans_at = self.clock.monotonic() + ORPHANS_EVERY
        return orphans(self.draft, self.entropy.is_gone, self.now())

    def _perform(self, request: Request, applied: Attempt) -> Outcome | None:
        """Apply a request, and note its outcome. Return None if it is left out, as rows that it needs are not there."""
        try:
            outcome = perform(request.operations, self.draft, applied.now, atomic=request.atomic)
        except RowsMissingError as error:
            if {each.segment for each in error.wanted} <= self.draft.jobs.rows.manifest.objects:
                self._note_missing(error, applied)
                if late := {each.segment for each in error.wanted} & self._late_segments():
                    assert self.segments is not None
                    applied.late = True
                    request.last_error = self.segments.loader.failure(sorted(late))
                return None
            outcome = InvalidJobError(
                "one operation of this call adds jobs in bulk, and another one looks for jobs that may be among them: "
                "do them in two calls"
            )
        if isinstance(outcome, SegmentDamagedError) and not outcome.lasts:
            request.last_error = outcome
            return None
        request.in_flight = True
        applied.outcomes.append((request, outcome))
        return outcome

    def _note_missing(self, error: RowsMissingError, applied: Attempt) -> None:
        """Note the rows to load. Rows of a segment that this commit names can be loaded only after it."""
        committed, late = set(map(object_of, self.draft.jobs.rows.manifest.committed)), self._late_segments()
        loadable = {each for each in error.wanted if each.segment in committed}
        applied.missing |= {each for each in loadable if each.segment not in late}
        applied.postponed = applied.postponed or not loadable

    def _late_segments(self) -> set[str]:
        """Return the segments that commits do not wait for: requests that need them are left to a later commit."""
        return set() if self.segments is None else {*self.segments.loader.late()}

    async def _load_rows(self, wanted: set[Wanted], *, fresh: bool) -> bool:
        """Load rows of segments. Return False if the queue must be read first.

        Args:
            wanted: the parts of segments to load.
            fresh: True if the queue was read since the call.
        """
        assert self.segments is not None  # a queue with segments is refused otherwise
        started = self.clock.monotonic()
        try:
            return await self.segments.loader.load(wanted, self.draft, fresh=fresh)
        finally:
            self.pacing.cycle.rows_of_try += self.clock.monotonic() - started

    def _undo(self, outcomes: Sequence[tuple[Request, Outcome]]) -> None:
        self.draft.rollback()
        for request, _ in outcomes:
            request.in_flight = False
            request.release(Verdict.NOT_DONE)

    def _refuse(self, pending: Sequence[Request], refusal: Exception) -> None:
        """Fail requests with a refusal, after a read did not find the write.

        A fatal refusal means that it did not land.
        """
        if isinstance(refusal, StorageFatalError) and self.open_writes:
            self._close({self.open_writes[-1]: Verdict.NOT_DONE})
        self._fail(pending, refusal)

    def _fail(self, pending: Sequence[Request], error: Exception) -> None:
        for request in pending:
            request.in_flight = False
            request.give_up(error, "the operation was sent, and it is unknown whether it was done", error)

    def next_due(self) -> datetime | None:
        """Return the next time at which a job becomes ready by itself; None if no such time is known."""
        return self.draft.jobs.order.next_due()

    def owes_claims(self) -> bool:
        """Return True if an open write may have made claims. If it lands, those of callers that left must go back."""
        return any(request.claims_jobs for sent in self.open_writes for request, _ in sent.outcomes)

    async def refresh(self) -> bool:
        """Read the blob if it has changed, and settle the open writes. Return True if it had changed.

        Raises:
            BlobMissingError: the blob existed and is gone.
            InvalidBlobError: the blob is not a queue that this version can read.
            StorageError: the store failed.
        """
        started = self.clock.monotonic()
        try:
            content = await self._read(self.etag)
        except BaseException:
            self.watch.failed()
            raise
        self.pacing.cycle.read(self.clock.monotonic() - started)
        moved = content is not None and await self._adopt(*content)
        self.pacing.read(self.draft.header.version, moved=moved)
        stood_still = self._presence.stood_still()
        self.watch.observed(self.draft, self.clock.monotonic(), self.store_time(), stood_still)
        return moved

    async def look(self) -> None:
        """Read the blob if it has changed, between two commits: see `refresh`."""
        self.draft.rollback()
        await self.refresh()

    async def view(self, last_etag: str | None, deadline: float) -> QueueView | None:
        """Read the queue; None if its etag is the known one. A store that can tells so without sending the object.

        Args:
            last_etag: the etag of a version that was read before; None to read any.
            deadline: maximum seconds, and for each later request for a segment, with its repetitions.

        Raises:
            BlobMissingError: the object was there and is gone.
            DeadlineExceededError: the store could not be read in time.
            StorageError: the store refused, or its content is not a queue that we can read.
        """

        async def read() -> tuple[bool, str, bytes, str | None] | None:
            existed, queue_id = self.existed, self.queue_id  # a commit may change them while the store is read
            data_and_etag = await self._read(last_etag)
            return None if data_and_etag is None else (existed, queue_id, *data_and_etag)

        snapshot = await retried(deadline, read, self.entropy, "the queue could not be read")
        if snapshot is None:
            return None
        existed, queue_id, data, etag = snapshot
        if etag is None and (existed or last_etag is not None):
            raise self._gone()
        if etag is None:
            return QueueView(Header(), {}, absent=True)
        parsed = self._parse(data, queue_id)
        records, set_aside = await in_turns(self.blob.looking(parsed))
        queued = sum(job.status is QUEUED for job in records.values())
        return QueueView(
            parsed.header,
            records,
            set_aside,
            size=len(data),
            taken=bytes_taken(len(data) - parsed.header_bytes, parsed.header, queued),
            etag=etag,
            parts=None if self.segments is None else self.segments.parts,
            deadline=deadline,
        )

    async def _read(self, last_etag: str | None) -> tuple[bytes, str | None] | None:
        """Read the object; None if its etag is the known one."""
        if last_etag is not None and self._read_if_changed is not None:
            return await self.observers.call("read", self.call_timeout, self._read_if_changed, last_etag)
        data, etag = await self.observers.call("read", self.call_timeout, self.storage.read)
        return None if last_etag is not None and etag == last_etag else (data, etag)

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
        try:
            await in_turns(self.blob.adopting(parsed, len(data)))
        except BaseException:  # only a part of it was taken over
            self.forget()
            raise
        self.etag, self.loaded = etag, True
        self.existed, self.queue_id = True, parsed.header.queue
        verdicts = {sent: recognise(parsed.header, sent.commit) for sent in self.open_writes}
        own = parsed.header.commits.get(self.writer_id)
        if own is not None and own.token not in (self.last_token, *(sent.commit.token for sent in self.open_writes)):
            self.writer_id = self.entropy.new_id()[:18]  # a copy of this process writes as the same writer
        elif own is not None:
            self.last_token = own.token
        self.workers.obey(parsed.header.workers)
        landed = [sent for sent, verdict in verdicts.items() if verdict is Verdict.LANDED]
        for sent in landed:
            self.observers.landed(sent.commit, sent.outcomes, 0.0, sent.dead, recognised=True)
        self._close(verdicts)
        return True

    def _close(self, verdicts: Mapping[OpenWrite, Verdict]) -> None:
        """Close open writes whose fate is known: settle the requests of landed ones, and release all others."""
        self.open_writes = [sent for sent in self.open_writes if sent not in verdicts]
        for sent in verdicts:
            for request, _ in sent.outcomes:
                request.open_writes -= 1
        for sent, verdict in verdicts.items():
            if verdict is Verdict.LANDED:
                for request, outcome in sent.outcomes:
                    request.settle(outcome)
        for sent, verdict in verdicts.items():
            if verdict is not Verdict.LANDED:
                for request, _ in sent.outcomes:
                    request.release(verdict)

    def _forget_old_writes(self) -> None:
        """Drop the oldest open writes that no caller waits for, as they pile up while none gets through."""
        old = [
            sent
            for sent in self.open_writes[:-OPEN_WRITES_KEPT]
            if not any(request.awaited for request, _ in sent.outcomes)
        ]
        if old:
            self._close(dict.fromkeys(old, Verdict.UNKNOWABLE))

    def _parse(self, data: bytes, queue_id: str) -> ParsedBlob:
        """Parse a blob, and raise StorageFatalError if it belongs to another queue than the known one."""
        parsed = parse_blob(data)
        if queue_id not in ("", parsed.header.queue):
            owner = shown(parsed.header.queue) if parsed.header.queue else "of jqueue 1.0.0"
            raise StorageFatalError(
                f"the object {describe(self.storage)} now holds another queue ({owner}), not queue {shown(queue_id)}: "
                "if that is intended, restart the programs that use it, also its broker, or make new queue objects"
            )
        if OBJECTS in parsed.header.critical and self.access.objects is None:
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

    async def _check_beside(self, outcomes: Sequence[tuple[Request, Outcome]]) -> None:
        """Refuse to create the queue beside what is left of one whose object is gone.

        An order that decides a write of staged segments may create it beside new ones, as an enqueue may.

        Raises:
            BlobMissingError: segments, payloads, results or a history are left.
            StorageError: what is left is new, so that a first enqueue may be under way, and this commit is none itself.
            CASConflictError: the objects are of a queue that was created just now.
        """
        if (objects := self.access.objects) is None:
            return
        try:
            listed = await self.observers.call("list", self.call_timeout, objects.list_beside, ".")
        except StorageFatalError as error:
            logger.warning("a queue is created, although it is unknown if one was here before: %s", error)
            return
        own = {f"{SEGMENT_FOLDER}{name}" for name in self.draft.jobs.rows.manifest.objects}
        # without a store time, that of the newest object: the own clock may be hours ahead
        now = self.store_time() or max((each.modified for each in listed), default=None)
        left: dict[str, bool] = {}  # by folder: True if an object in it is older than one of an enqueue under way
        for suffix, modified, _ in listed:
            if suffix not in own and (OURS.fullmatch(suffix) or first_of(suffix) is not None):
                limit = next((age for start, age in STORED_FIRST.items() if suffix.startswith(start)), timedelta())
                folder = suffix[: suffix.find("/")]
                left[folder] = left.get(folder, False) or now is None or now - modified >= limit
        is_old = any(left.values())
        decides = any(isinstance(each, EmptyCommit) for request, _ in outcomes for each in request.operations)
        if not (is_old or (left and not own and not self.draft.jobs and not decides)):
            return
        if await self._read(None) != (b"", None):
            raise CASConflictError("another writer has created the queue")
        name, folders = describe(self.storage), ", ".join(sorted(left))
        missing = f"the queue's object {name} is missing, and objects of a queue are beside it ({folders})"
        if is_old:
            raise BlobMissingError(f"{missing}: restore it. To start an empty queue instead, move {folders} away")
        raise StorageError(f"{missing}: restore it, unless a first enqueue creates it now")

    def _gone(self) -> BlobMissingError:
        if not self.queue_id:
            return BlobMissingError(
                f"the queue's object {describe(self.storage)} does not exist, and must: restore it, correct the URL, "
                "or create it with `jqueue init`"
            )
        return BlobMissingError(
            f"the queue's object {describe(self.storage)} has disappeared: restore it. To start an empty queue "
            "instead, restart the programs that use it, also its broker, or make new queue objects"
        )

    async def _write(self, applied: Attempt) -> bool:
        """Write the draft, and settle its requests if that has landed. Return False if a value cannot be encoded.

        Raises:
            CASConflictError: it was refused, or it landed and the answer was lost. The next read finds out.
            StorageError: the store failed. The write stays open until the etag has moved, unless the store is certain
                that nothing was written.
        """
        draft, outcomes, now, workers = self.draft, applied.outcomes, applied.now, self.workers
        before, pacing = draft.header.history, self.pacing
        is_full = pacing.pace.interval > 0.0 and len(draft.header.workers) > CROWD
        beat = SHARED_BEAT if is_full else BEAT
        reports = workers.records(now.timestamp(), beat) if workers.present or workers.left else {}
        commit = self._next_commit(now, reports)
        dead = self.observers.died(draft.moves)
        claimed: Mapping[str, int] = claims_of(draft.moves) if draft.header.segments else {}
        try:
            if self.etag is None:
                await self._check_beside(outcomes)
            header = next_header(draft, commit)
            content = await in_turns(self.blob.encoding(header))
        except BaseException as error:  # it was not sent
            self._undo(outcomes)
            if draft.check is not None or isinstance(error, JQueueError) or not isinstance(error, ENCODING_ERRORS):
                raise
            draft.check = check_encodable
            return False  # applied again, each operation is checked by itself
        self.observers.applied(commit.id.base_version, now, outcomes, applied.sweep, commit.id)
        pacing.pace.sent = started = self.clock.monotonic()
        self._spare.writing = True
        try:
            call = self.observers.call("write", self.call_timeout, self.storage.write, content, if_match=self.etag)
            etag = await call
            if not etag:
                said = "the storage adapter returned no etag for a write: its write must return the new etag"
                raise StorageError(said)
            ended = self.clock.monotonic()
            pacing.cycle.write(ended - started)
            self.blob.settle(header, len(content))
            pacing.landed(self.writer_id, header.commits)
            if reports:
                next_beat = workers.beat_after(header.workers, now.timestamp(), beat, self.entropy.jitter)
                workers.landed(reports, ended, next_beat)
                workers.obey(header.workers)
            self.existed, self.queue_id, self.last_token = True, commit.queue, commit.id.token
            self.etag = etag  # last: if a line above ever fails, the next read finds the commit
        except BaseException as error:
            self._leave_open(OpenWrite(commit.id, outcomes, dead), error, started)
            raise
        finally:
            self._spare.written()
        self.observers.landed(commit.id, outcomes, ended - started, dead, recognised=False)
        for request, outcome in outcomes:
            request.settle(outcome)
        if self.open_writes:
            self._close(dict.fromkeys(self.open_writes, Verdict.NOT_DONE))
        self.watch.observed(draft, ended, applied.store_time, self._presence.stood_still())
        if header.history is not None:
            self.history.landed(before, header)
        if self.segments is not None:
            self.segments.landed(draft, claimed, len(content))
        return True

    def _next_commit(self, now: datetime, workers: Mapping[str, WorkerRecord | None]) -> Commit:
        header = self.draft.header
        queue = header.queue or self.queue_id or self._first_id
        if not queue:
            queue = self._first_id = self.entropy.new_id()  # each try to create the queue has it
        self.sequence += 1
        return Commit(
            CommitId(self.writer_id, self.sequence, self.entropy.new_id()[:18], header.version),
            queue,
            now,
            self.pacing.cycle.seconds,
            workers,
            self.history.moved,
            header.history is not None and self.history.is_stuck,
            self.access.numbers.versions_kept,
            self.access.numbers.retention,
        )

    def _leave_open(self, sent: OpenWrite, error: BaseException, started: float) -> None:
        """Take a write without a clean answer back. It stays open, unless the store is certain that it is not done."""
        if not (isinstance(error, StorageError) and error.nothing_written):
            self.open_writes.append(sent)
            for request, _ in sent.outcomes:
                request.open_writes += 1
        self._undo(sent.outcomes)
        self._forget_old_writes()
        if isinstance(error, CASConflictError):
            self.pacing.cycle.write(self.clock.monotonic() - started)
        else:
            self.watch.failed()
