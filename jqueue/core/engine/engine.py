"""The base class of engines, which commit requests to a queue: the loop of one commit, its order and its retries.

A subclass brings the draft up to date (`refresh`) and writes its changes (`_write`). One engine runs one `commit` at a
time; `jqueue.core.calls.writer` ensures that.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Sequence, Set
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from enum import Enum, auto
from pathlib import Path
from typing import Any, TypeVar

from jqueue.core.engine.lazy_state import LazyState
from jqueue.core.engine.open_writes import OpenWrites, answer
from jqueue.core.engine.requests import Outcome, Request, as_storage_error, is_empty, sleep_while_awaited
from jqueue.core.engine.staleness import StaleWatch
from jqueue.core.engine.workers import Workers
from jqueue.core.pacing.pace import Backoff
from jqueue.core.pacing.pacing import Pacing
from jqueue.domain.commits import Verdict
from jqueue.domain.draft import Draft
from jqueue.domain.errors import (
    CASConflictError,
    DeadlineExceededError,
    InvalidJobError,
    SegmentDamagedError,
    StorageError,
    StorageFatalError,
    StorageThrottledError,
)
from jqueue.domain.job import Claim
from jqueue.domain.models import QueueState
from jqueue.domain.operations import Operation, Sweep, perform
from jqueue.domain.segment_rows import RowsMissingError, Wanted
from jqueue.ports.clock import Clock, Entropy

Answer = TypeVar("Answer")

TRANSIENT = (StorageError, OSError, TimeoutError)
"""Errors after which another try is made, except for StorageFatalError."""

EPOCH = datetime.fromtimestamp(0, UTC)

OPERATIONS_PER_SLICE = 256
"""Number of operations after which the event loop gets a turn."""


async def read_until(deadline: float, read: Callable[[], Awaitable[Answer]], entropy: Entropy, what: str) -> Answer:
    """Read something outside of commits, and try again while the store fails.

    Args:
        deadline: maximum seconds.
        read: reads it once.
        entropy: draws the pauses.
        what: its description, for the error.

    Raises:
        DeadlineExceededError: it could not be read in time.
        StorageError: the store refused.
    """
    try:
        return await ask_until(deadline, read, entropy, f"{what} could not be read before the deadline")
    except StorageError:
        raise
    except Exception as error:
        raise as_storage_error(error) from error


async def ask_until(deadline: float, request: Callable[[], Awaitable[Answer]], entropy: Entropy, failed: str) -> Answer:
    """Send a request that may be repeated, again and again while the store fails.

    Args:
        deadline: maximum seconds.
        request: sends it once.
        entropy: draws the pauses.
        failed: the error if it was not answered in time; the reason is added.

    Raises:
        DeadlineExceededError: it was not answered in time.
        StorageError: the store refused.
    """
    backoff = Backoff(entropy)
    last: BaseException | None = None
    try:
        async with asyncio.timeout(deadline):
            while True:
                try:
                    return await request()
                except StorageFatalError:
                    raise
                except TRANSIENT as error:
                    last = error
                    await asyncio.sleep(backoff.failure(throttled=isinstance(error, StorageThrottledError)))
    except TimeoutError as error:
        why = next((each for each in (last, error) if each is not None and str(each)), None)
        silent = "" if why else ": the store did not answer"
        raise DeadlineExceededError(f"{failed}{silent}", why) from why


def _may_still_land(outcomes: Sequence[tuple[Request, Outcome]]) -> bool:
    """True if a final answer is for a request that an earlier write carries, which may still land.

    A commit that changes no job then decides: if it lands, the earlier write never will; otherwise that one has landed.
    """
    return any(
        request.open_writes and not (request.waits_for_jobs and is_empty(outcome)) for request, outcome in outcomes
    )


class Step(Enum):
    """The next step of a commit. It ends when no request is pending, or when a step has answered them all."""

    READ = auto()
    APPLY = auto()
    WRITE = auto()
    REFUSE = auto()


class Engine(ABC):
    """Commits requests to a queue, from one process.

    Args:
        clock: tells the time if the store does not.
        entropy: makes ids and jitter.
        claim_timeout: seconds, for claims that carry no timeout of their own.
        max_conflicts: maximum number of conflicts in one commit; the next one raises CASConflictError. None: no limit.

    Attributes:
        draft: the known state of the queue.
        loaded: True once the queue was read.
        workers: the workers of this queue object: they report themselves with its commits.
        generation: replaced by a new object at each `reset`.
        waits_for_rows: True if the last commit left out requests that need rows of a late segment.
    """

    draft: Draft
    loaded: bool
    sweeps_in_place = False
    """True if a job with a stale claim keeps its place when it is queued again."""
    turn: Callable[[], AbstractAsyncContextManager[None]] | None = None
    """Begins a turn among the writers of the store: see `SupportsTurns`. None if the store has no turns."""
    watched: Callable[[], Sequence[Path]] | None = None
    """Returns the folders in which every change of the queue can be seen; None if the queue is in no folder."""

    def __init__(
        self, clock: Clock, entropy: Entropy, *, claim_timeout: float, max_conflicts: int | None = None
    ) -> None:
        self.clock = clock
        self.entropy = entropy
        self.claim_timeout = claim_timeout
        self.max_conflicts = max_conflicts
        self.workers = Workers()
        self.reset()

    def reset(self) -> None:
        """Begin anew with a read: after a fork, or when the cached state cannot be trusted."""
        self.generation = object()
        self.watch = StaleWatch(self.claim_timeout)
        self._forget_content()
        self._missing: set[Wanted] = set()
        self._deferred = self.waits_for_rows = False
        self._applied_at = EPOCH
        self._swept: tuple[int, Operation, int] | None = None
        self.open_writes = OpenWrites()
        self.pacing = Pacing(self.clock, self.entropy, self.turn)

    @abstractmethod
    def _forget_content(self) -> None:
        """Begin with an empty draft, as if nothing had been read."""

    def now(self) -> datetime:
        """Return the time by the store's clock if it has one, or else by the own clock."""
        return self.store_time() or self.clock.now()

    async def finish(self, seconds: float) -> None:  # noqa: B027 - most engines do nothing in the background
        """End what the engine does in the background. The queue is being closed, and no call is under way.

        Args:
            seconds: maximum time.
        """

    def store_time(self) -> datetime | None:
        """Return the time by a clock that all users of the store share; None if there is no such clock."""
        return None

    async def commit(self, requests: Sequence[Request], *, read_first: bool = False) -> None:
        """Run requests until each is settled, has failed, or is still waiting for jobs or for rows of a late segment.

        Args:
            requests: submitted before this call.
            read_first: True to begin with a read, as another writer may have changed the queue.
        """
        backoff, conflicts = Backoff(self.entropy), 0
        fresh = False  # True if the state was read since the call
        refusal: Exception | None = None
        generation = self.generation
        self.draft.rollback()
        self._begin()
        known = self.loaded and not (read_first or self.open_writes.writes or self._needs_read(requests))
        step = Step.APPLY if known else Step.READ
        while pending := [request for request in requests if request.awaited]:
            self.check_generation(generation)
            try:
                if step is Step.READ:
                    if not all(request.waits_for_jobs for request in pending):  # a mere look needs no turn
                        await self.pacing.line.join()
                    await self.refresh()
                    fresh = True
                    header = self.draft.header
                    if (seconds := self.pacing.wait_after_read(header.version, header.commits)) is not None:
                        await sleep_while_awaited(pending, seconds)
                    else:
                        step = Step.APPLY if refusal is None else Step.REFUSE
                elif step is Step.REFUSE and refusal is not None:
                    self._refuse(pending, refusal)
                else:
                    self._missing, self._deferred, self.waits_for_rows = set(), False, False
                    outcomes = await self._apply(pending)
                    self.check_generation(generation)
                    if self._missing:
                        self._undo(outcomes)
                        if not await self._load_rows(self._missing, fresh=fresh):
                            step = Step.READ
                    elif not fresh and self._needs_more(outcomes):
                        self._undo(outcomes)
                        step = Step.READ
                    elif self.draft.changed:
                        step = Step.WRITE
                        await self._write(outcomes)
                        if not self._deferred:
                            return
                        fresh, step = False, Step.APPLY
                    elif fresh or all(request.seen_empty and is_empty(outcome) for request, outcome in outcomes):
                        self._answer(outcomes)
                        return
                    else:
                        self._undo(outcomes)
                        step = Step.READ
            except CASConflictError as error:
                conflicts += 1
                self.pacing.line.lost()
                if self.max_conflicts is not None and conflicts > self.max_conflicts:
                    refusal = error
                step = Step.READ
            except Exception as error:
                await self.pacing.line.leave()  # a pause may follow
                failure = as_storage_error(error)
                if isinstance(error, TRANSIENT) and not isinstance(error, StorageFatalError):
                    pause = self._pause_after(error, pending, backoff, reading=step is Step.READ)
                    step = Step.READ
                    await sleep_while_awaited(pending, pause)
                elif step is Step.READ or failure.nothing_written:
                    self._fail(pending, failure)
                else:  # a refusal, or a bug of the adapter: a read checks it like any other answer
                    refusal, step = failure, Step.READ

    def _answer(self, outcomes: Sequence[tuple[Request, Outcome]]) -> None:
        """Deliver outcomes that need no commit."""
        answer(outcomes)

    def _begin(self) -> None:  # noqa: B027 - most engines prepare nothing
        """Prepare a draft without changes for a commit."""

    def _needs_read(self, requests: Sequence[Request]) -> bool:
        """Return True if these requests need a read first, as the cached state does not suffice."""
        return False

    def _needs_more(self, outcomes: Sequence[tuple[Request, Outcome]]) -> bool:
        """Return True if a request got less than it asked for, and a read might find more."""
        return False

    @abstractmethod
    async def refresh(self) -> bool:
        """Bring the draft up to date. Return True if the queue had changed.

        Raises:
            StorageError: the store failed.
        """

    async def look(self, deadline: float) -> tuple[LazyState, int, int]:
        """Read the queue, and return its content, its bytes, and the number of bytes that count against the limit.

        Args:
            deadline: maximum seconds.

        Raises:
            BlobMissingError: the object was there and is gone.
            DeadlineExceededError: the store could not be read in time.
            StorageError: the store refused, or its content is not a queue that we can read.
        """
        reading = read_until(deadline, self._read_all, self.entropy, "the queue")
        return await self._lazy_state(await reading, deadline)

    async def look_if_changed(
        self, etag: str | None, deadline: float
    ) -> tuple[str | None, tuple[LazyState, int, int] | None]:
        """Read the queue if its etag is another one. Return its etag, and None or what `look` returns.

        Args:
            etag: the etag of the version that is known; None if none is.
            deadline: maximum seconds.

        Raises:
            StorageError: as for `look`.
        """
        return None, await self.look(deadline)

    @property
    @abstractmethod
    def place(self) -> object:
        """The store of the queue, whose repr names it in errors."""

    @abstractmethod
    async def is_absent(self) -> bool:
        """Return True if there was no queue at the last commit, which has read the store."""

    async def objects_named_in(self, header: QueueState) -> set[str]:
        """Return the suffixes of the objects beside the queue that a header and its segments name.

        Raises:
            StorageError: a segment cannot be read.
        """
        return set()

    @abstractmethod
    async def _read_all(self) -> Any:
        """Read everything once, independently of commits. `_lazy_state` converts the result."""

    @abstractmethod
    async def _lazy_state(self, found: Any, deadline: float) -> tuple[LazyState, int, int]:
        """Convert a result of `_read_all` to the result of `look`.

        Args:
            found: the result.
            deadline: maximum seconds for each later request of the content, with its repetitions.
        """

    @abstractmethod
    async def _write(self, outcomes: list[tuple[Request, Outcome]]) -> None:
        """Write the changes of the draft, and settle the requests.

        Raises:
            CASConflictError: another writer was quicker. Requests that are not settled are tried again after a read.
            StorageError: the store failed.
        """

    def check_generation(self, generation: object) -> None:
        """Raise CancelledError in a task that began before a `reset`: the state is no longer its own."""
        if generation is not self.generation:
            raise asyncio.CancelledError("the queue has moved to another event loop")

    @property
    def activity(self) -> object:
        """A value that changes with the jobs of the queue: waiting calls then poll it more often."""
        return self.draft.header.version

    def next_due(self) -> datetime | None:
        """Return the next time at which a job becomes ready by itself; None if no such time is known."""
        return self.draft.next_due()

    def _suspects(self, now: datetime) -> tuple[tuple[Claim, datetime | None], ...]:
        """Return the claims that are stale by now, each with its last heartbeat."""
        return self.watch.suspects()

    async def _apply(self, pending: Sequence[Request]) -> list[tuple[Request, Outcome]]:
        """Apply requests to the draft: first all that do not claim jobs, then the sweep, then the dequeues."""
        draft, now = self.draft, self.now()
        self._applied_at, self._swept = now, None
        outcomes: list[tuple[Request, Outcome]] = []
        nothing_for: set[Any] = set()
        claiming: list[Request] = []
        for start in range(0, len(pending), OPERATIONS_PER_SLICE):
            if start:
                await asyncio.sleep(0)
            some = pending[start : start + OPERATIONS_PER_SLICE]
            claiming += [request for request in some if request.claims_jobs]
            for request in some:
                if request.awaited and not request.claims_jobs:  # its deadline may have passed just now
                    request.in_flight = True
                    self._perform(request, now, outcomes)
        if (claiming or draft.changed) and (suspects := self._suspects(now)):
            sweep = Sweep(suspects, in_place=self.sweeps_in_place)
            try:
                self._swept = len(outcomes), sweep, perform(sweep, draft, now)
            except RowsMissingError as error:
                self._note_missing(error)
        for start in range(0, len(claiming), OPERATIONS_PER_SLICE):
            if start:
                await asyncio.sleep(0)
            for request in claiming[start : start + OPERATIONS_PER_SLICE]:
                if request.awaited:
                    self._perform_claiming(request, now, outcomes, nothing_for)
        if not draft.changed and _may_still_land(outcomes):
            draft.touch()
        if draft.changed and not self._missing:
            self._add_upkeep(now)
        return outcomes

    def _perform_claiming(
        self, request: Request, now: datetime, outcomes: list[tuple[Request, Outcome]], nothing_for: set[Any]
    ) -> None:
        """Apply a request that claims jobs, unless an equal search has found nothing before.

        Args:
            request: the request.
            now: the time of the commit.
            outcomes: gets its outcome.
            nothing_for: search keys of the requests that found nothing.
        """
        draft, key = self.draft, request.search_key
        request.in_flight = True
        if key is None:
            before = draft.savepoint()
            self._perform(request, now, outcomes)
            if draft.savepoint() != before:
                nothing_for.clear()
        elif key in nothing_for:
            outcomes.append((request, [[]]))
        else:
            outcome = self._perform(request, now, outcomes)
            if outcome is not None and is_empty(outcome):
                nothing_for.add(key)

    def _perform(self, request: Request, now: datetime, outcomes: list[tuple[Request, Outcome]]) -> Outcome | None:
        """Apply a request, and note its outcome. If it needs rows that are not loaded, return None."""
        try:
            outcome = request.perform(self.draft, now)
        except RowsMissingError as error:
            if {each.segment for each in error.wanted} <= self.draft.header.segments.keys():
                self._note_missing(error)
                self._set_back(request, error.wanted)
                return None
            outcome = InvalidJobError(
                "one operation of this call adds jobs in bulk, and another one looks for jobs that may be among them: "
                "do them in two calls"
            )
        if isinstance(outcome, SegmentDamagedError) and not outcome.lasts:
            request.last_error, request.in_flight = outcome, False
            return None
        outcomes.append((request, outcome))
        return outcome

    def _note_missing(self, error: RowsMissingError) -> None:
        """Note the rows to load. Rows of a segment that this commit names can be loaded only after it."""
        committed, late = self.draft.jobs.rows.committed, self._late_segments()
        known = {each for each in error.wanted if each.segment in committed}
        self._missing |= {each for each in known if each.segment not in late}
        self._deferred = self._deferred or not known

    def _set_back(self, request: Request, wanted: Set[Wanted]) -> None:
        """Leave a request out of this commit, as it needs rows that are not loaded."""
        request.in_flight = False

    def _late_segments(self) -> Collection[str]:
        """Return the segments that commits do not wait for: requests that need them are left to a later commit."""
        return ()

    async def _load_rows(self, wanted: Set[Wanted], *, fresh: bool) -> bool:
        """Load rows of segments. Return False if the queue must be read first.

        Args:
            wanted: the parts of segments to load.
            fresh: True if the queue was read since the call.
        """
        raise NotImplementedError

    def _add_upkeep(self, now: datetime) -> None:  # noqa: B027 - most engines have none
        """Add changes to the draft that need no commit of their own."""

    def _undo(self, outcomes: Sequence[tuple[Request, Outcome]]) -> None:
        self.draft.rollback()
        for request, _ in outcomes:
            request.in_flight = False
            request.release(Verdict.NOT_DONE)

    def _pause_after(self, error: Exception, pending: Sequence[Request], backoff: Backoff, *, reading: bool) -> float:
        """Note a failure that passes, and return the seconds until the next try."""
        for request in pending:
            request.last_error = error
        throttled = isinstance(error, StorageThrottledError)
        return self.pacing.refused() if throttled and not reading else backoff.failure(throttled=throttled)

    def _refuse(self, pending: Sequence[Request], refusal: Exception) -> None:
        """Fail requests with a refusal, after a read did not find the write.

        A fatal refusal means that it did not land.
        """
        if isinstance(refusal, StorageFatalError) and self.open_writes.writes:
            self.open_writes.close({self.open_writes.writes[-1]: Verdict.NOT_DONE})
        self._fail(pending, refusal)

    def _fail(self, pending: Sequence[Request], error: Exception) -> None:
        for request in pending:
            request.in_flight = False
            unsure = "the operation was sent, and it is unknown whether it was done"
            request.fail(request.unknown(unsure, error) if request.open_writes else error)
