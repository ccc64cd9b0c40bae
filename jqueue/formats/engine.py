"""Engine of queues whose store keeps each job by itself.

The rules are those of every queue: operations change a draft, which mirrors the store. The changes of the draft are
then made in the store, job by job. If another program has changed one of these jobs first, the mirror is read again and
the call is retried. The changes that were already made for the call are kept.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from jqueue.core.pacing import Pacing
from jqueue.core.requests import Outcome, Request, is_empty, sleep_while_awaited
from jqueue.core.staleness import StaleWatch
from jqueue.core.tasks import TRANSIENT, Backoff, as_storage_error, retried
from jqueue.core.view import QueueView
from jqueue.core.workers import Workers
from jqueue.domain.commits import Verdict
from jqueue.domain.draft import Draft
from jqueue.domain.errors import CASConflictError, QueueFullError, StorageFatalError
from jqueue.domain.header import Header
from jqueue.domain.job import Claim, JobRecord
from jqueue.domain.operations.base import perform
from jqueue.domain.operations.ends import Sweep
from jqueue.formats.freshness import Freshness
from jqueue.formats.outcomes import (
    comparable,
    failed_changes,
    is_refusal,
    may_be_behind,
    transferred_ids,
    with_current_jobs,
    without_failed,
)
from jqueue.formats.port import (
    Change,
    JobChangedError,
    JobStorePort,
    KeepsFilesOpen,
    ServesInOrder,
    StoredJob,
    StoreFullError,
)
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.storage import SupportsStoreTime, SupportsWatching
from jqueue.runtime.threads import in_a_thread

Answer = TypeVar("Answer")

FINISHED_KEPT = 10_000
"""Number of acks to remember at most; above it, the older half is forgotten."""

MOST_SCANS = 20
"""Scans at most for one look, while jobs move between a scan and their reading."""

OPERATIONS_PER_SLICE = 256
"""Number of requests after which the event loop gets a turn."""


_users: WeakValueDictionary[int, StoreEngine] = WeakValueDictionary()
"""Last engine made on each store, by `id(store)`. The engine holds its store, so that id is not reused meanwhile."""


class _Step(Enum):
    READ = auto()
    APPLY = auto()
    REFUSE = auto()


class StoreEngine:
    """Engine that carries requests to a store of jobs.

    Args:
        store: the store of the jobs.
        clock: source of the time.
        entropy: source of ids and jitter.
        claim_timeout: seconds, for claims that carry no timeout of their own.
    """

    segments = None
    unread = False

    def __init__(self, store: JobStorePort, clock: Clock, entropy: Entropy, *, claim_timeout: float) -> None:
        self.store = self.place = store
        self.clock = clock
        self.entropy = entropy
        self.claim_timeout = claim_timeout
        self.workers = Workers()
        self._store_time = store.store_time if isinstance(store, SupportsStoreTime) else None
        self._freshness = Freshness(clock, in_order=isinstance(store, ServesInOrder) and store.serves_in_order)
        self.watched = store.watched if isinstance(store, SupportsWatching) else None
        self._version = 0
        self._last_seen: frozenset[Any] = frozenset()
        self._finished: Mapping[str, int] = {}
        self._batch_so_far: dict[Request, list[JobRecord]] = {}
        self._scans = self._loaded_scan = 0  # scans made, and the latest scan in the draft
        _users[id(store)] = self
        self.reset()

    def reset(self) -> None:
        """Start anew with an empty mirror: after a fork, or when the mirror cannot be trusted."""
        self._one_at_a_time = threading.Lock()
        self.generation = object()
        self.watch = StaleWatch(self.claim_timeout)
        self._forget_content()
        self.pacing = Pacing(self.clock, self.entropy)

    def _forget_content(self) -> None:
        self.draft = Draft()
        self.places: dict[str, str] = {}
        self._stored_jobs: dict[str, JobRecord] = {}
        self.loaded = False
        self.watch.missed_changes()

    def store_time(self) -> datetime | None:
        """Return the time by a clock that all users of the store share; None if no such time is needed.

        Programs that share a folder are taken to agree on the time. If the store `claims_expire_by_clock`, it says
        itself when a claim ends, and the age of a claim does not matter.
        """
        if self._store_time is not None:
            return self._store_time()
        return None if self.store.claims_expire_by_clock else self.clock.now()

    def now(self) -> datetime:
        """Return the time by the store's clock if it has one, or else by the own clock."""
        return self.store_time() or self.clock.now()

    def check_generation(self, generation: object) -> None:
        """Raise CancelledError in a task that began before a `reset`: the state is no longer its own."""
        if generation is not self.generation:
            raise asyncio.CancelledError("the queue has moved to another event loop")

    async def commit(self, requests: Sequence[Request], *, read_first: bool = False, read_later: bool = False) -> bool:
        """Run requests until each is settled, has failed, or is still waiting for jobs. Return False.

        A call that fails or is cancelled with a part of its batch gives it back.

        Args:
            requests: submitted before this call.
            read_first: True to begin with a read, as another program may have changed the queue.
            read_later: nothing here: no call is left without a read.
        """
        try:
            await self._commit(requests, read_first=read_first)
        finally:
            for request, jobs in list(self._batch_so_far.items()):
                if not request.awaited:
                    del self._batch_so_far[request]
                    if request.error is not None:
                        request.hand_back_claims([jobs])
        return False

    async def _commit(self, requests: Sequence[Request], *, read_first: bool) -> None:
        backoff = Backoff(self.entropy)
        fresh = False  # True if the state was read since the call
        refusal: Exception | None = None
        generation = self.generation
        self.draft.rollback()
        behind = self._freshness.must_read() and any(request.claims_jobs for request in requests)
        step = _Step.READ if read_first or behind or not self.loaded else _Step.APPLY
        while pending := [request for request in requests if request.awaited]:
            self.check_generation(generation)
            reading = step is _Step.READ
            try:
                if step is _Step.READ:
                    await self.refresh()
                    fresh, step = True, _Step.APPLY if refusal is None else _Step.REFUSE
                elif step is _Step.REFUSE and refusal is not None:
                    self._fail(pending, refusal)
                else:
                    step = _Step.READ
                    outcomes = await self._apply(pending)
                    self.check_generation(generation)
                    if not fresh and self._needs_more(outcomes):
                        self._undo(outcomes)
                    elif self.draft.changed:
                        await self._write(outcomes)
                        return
                    elif fresh or all(request.seen_empty and is_empty(outcome) for request, outcome in outcomes):
                        for request, outcome in outcomes:
                            request.settle(outcome)
                        return
                    else:
                        self._undo(outcomes)
            except CASConflictError:
                step = _Step.READ
            except Exception as error:
                failure = as_storage_error(error)
                if isinstance(error, TRANSIENT) and not isinstance(error, StorageFatalError):
                    for request in pending:
                        request.last_error = error
                    step = _Step.READ
                    await sleep_while_awaited(pending, backoff.after(error))
                elif reading or failure.nothing_written:
                    self._fail(pending, failure)
                else:  # a refusal, or a bug of the store: a read checks it like any other answer
                    refusal, step = failure, _Step.READ

    async def _apply(self, pending: Sequence[Request]) -> list[tuple[Request, Outcome]]:
        """Apply requests to the draft: first all that do not claim jobs, then the sweep, then the dequeues."""
        draft, now = self.draft, self.now()
        outcomes: list[tuple[Request, Outcome]] = []
        nothing_for: set[Any] = set()
        claiming = [request for request in pending if request.claims_jobs]
        for place, request in enumerate(request for request in pending if not request.claims_jobs):
            if place and not place % OPERATIONS_PER_SLICE:
                await asyncio.sleep(0)
            if request.awaited:  # its deadline may have passed just now
                self._perform(request, now, outcomes)
        if (claiming or draft.changed) and (suspects := self._suspects(now)):
            perform([Sweep(suspects, in_place=self.store.claims_expire_by_clock)], draft, now)
        for place, request in enumerate(claiming):
            if place and not place % OPERATIONS_PER_SLICE:
                await asyncio.sleep(0)
            if request.awaited:
                self._perform_claiming(request, now, outcomes, nothing_for)
        if not self._batch_so_far:
            return outcomes
        return [
            (request, [[*self._batch_so_far.get(request, ()), *outcome[0]]] if isinstance(outcome, list) else outcome)
            if request in self._batch_so_far
            else (request, outcome)
            for request, outcome in outcomes
        ]

    def _perform(self, request: Request, now: datetime, outcomes: list[tuple[Request, Outcome]]) -> Outcome:
        """Apply a request, and note its outcome."""
        request.in_flight = True
        outcome = perform(request.operations, self.draft, now, atomic=request.atomic)
        outcomes.append((request, outcome))
        return outcome

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
        if key is None:
            before = draft.savepoint()
            self._perform(request, now, outcomes)
            if draft.savepoint() != before:
                nothing_for.clear()
        elif key in nothing_for:
            request.in_flight = True
            outcomes.append((request, [[]]))
        elif is_empty(self._perform(request, now, outcomes)):
            nothing_for.add(key)

    def _needs_more(self, outcomes: Sequence[tuple[Request, Outcome]]) -> bool:
        """Return True if one of the outcomes could differ because the mirror is behind the store."""
        return any(
            not isinstance(outcome, list) or any(map(may_be_behind, request.operations, outcome))
            for request, outcome in outcomes
        )

    def _undo(self, outcomes: Sequence[tuple[Request, Outcome]]) -> None:
        self.draft.rollback()
        for request, _ in outcomes:
            request.in_flight = False
            request.release(Verdict.NOT_DONE)

    def _fail(self, pending: Sequence[Request], error: Exception) -> None:
        for request in pending:
            request.in_flight = False
            request.fail(error)

    async def refresh(self) -> bool:
        """Read the store if it may have changed. Returns True if the draft changed."""
        started = self.clock.monotonic()
        try:
            found = await self._call(self._scan, not self.loaded)
        except BaseException:
            self.watch.failed()
            raise
        moved = False
        if found is not None:
            jobs, self._loaded_scan = found
            moved = self._load_jobs(jobs)
        self.loaded = True
        self._freshness.note_read(started, len(self.draft.jobs))
        self.watch.observed(self.draft, self.clock.monotonic(), self.store_time())
        return moved

    def _suspects(self, now: datetime) -> tuple[tuple[Claim, datetime | None], ...]:
        """Return the claims that are stale by now, each with its last heartbeat."""
        if not self.store.claims_expire_by_clock:
            return self.watch.suspects()
        return tuple((job.claim, job.heartbeat_at) for job, end in self._ends() if end <= now)

    def _ends(self) -> Iterator[tuple[JobRecord, datetime]]:
        """Yield each claimed job with the time at which its claim expires."""
        for job_id in self.draft.jobs.claimed:
            job = self.draft.jobs[job_id]
            if job.heartbeat_at is not None:
                yield job, job.heartbeat_at + timedelta(seconds=job.claim_timeout or 0.0)

    def next_due(self) -> datetime | None:
        """Return the time when the next job is due or the next claim expires."""
        ends = [end for _, end in self._ends()] if self.store.claims_expire_by_clock else []
        return min([end for end in (self.draft.jobs.order.next_due(), *ends) if end is not None], default=None)

    @property
    def activity(self) -> object:
        """A value that changes with the jobs of the queue: waiting calls then poll it more often."""
        return self.draft.header.version

    def owes_claims(self) -> bool:
        """Return False: a change is known to be made, or not."""
        return False

    async def finish(self, seconds: float) -> None:
        """Do nothing: the engine does nothing in the background."""

    async def is_absent(self) -> bool:
        """Return True if there is no queue."""
        return not await self._call(self.store.exists)

    async def objects_named_in(self, header: Header) -> set[str]:
        """Return no names: the store has no objects beside the queue."""
        return set()

    async def view(self, known: str | None, deadline: float) -> QueueView | None:
        """Read the queue; None if its etag is the known one: the number of the version, as this object has counted it.

        Args:
            known: the etag of a version that was read before; None to read any.
            deadline: maximum seconds.

        Raises:
            DeadlineExceededError: the store could not be read in time.
            StorageError: the store refused, or its content is not a queue that we can read.
        """
        kept, jobs = await retried(deadline, lambda: self._call(self._all), self.entropy, "the queue could not be read")
        now_seen = frozenset((place, *comparable(job)) for job, place in kept)
        if now_seen != self._last_seen:
            self._version, self._last_seen = self._version + 1, now_seen
        version = self._version  # another view may count on while this one waits
        absent = not jobs and await self.is_absent()
        etag = "absent" if absent else str(version)
        if etag == known:
            return None
        size = sum(len(job.payload) for job in jobs)
        header = Header(version=version)
        return QueueView(header, {job.id: job for job in jobs}, size=size, taken=size, etag=etag, absent=absent)

    def _scan(self, anyway: bool) -> tuple[list[StoredJob], int] | None:
        """Return the jobs and the number of this scan, or None if nothing has moved and the scan is not forced.

        A cancelled caller never gets the result. The draft is then behind `_scans`, and the next refresh scans again.
        """
        if not anyway and self._loaded_scan == self._scans and not self.store.may_have_changed():
            return None
        self._scans += 1
        jobs = list(self.store.scan(self.now()))
        self._finished = self.store.finished()  # after the scan: a job missing from it is then known as finished
        return jobs, self._scans

    def _all(self) -> tuple[Sequence[StoredJob], Sequence[JobRecord]]:
        """Return all jobs, and all that can be read with their payloads.

        A job that has moved since the scan is looked for in another one: it would seem to have left the queue.
        """
        read: dict[str, JobRecord] = {}
        unread: list[str] = []
        for _ in range(MOST_SCANS):
            self._scans += 1
            kept = sorted(self.store.scan(self.now()), key=lambda entry: entry.job.sequence)
            read |= {job.id: job for job in self.store.payloads([entry for entry in kept if entry.job.id not in read])}
            before, unread = unread, [place for job, place in kept if job.id not in read]
            if unread == before:  # none, or none that has moved
                break
        return kept, [read[job.id] for job, _ in kept if job.id in read]

    def _load_jobs(self, kept: list[StoredJob]) -> bool:
        """Load the jobs of the store into the draft. Returns True if the draft changed."""
        known, places = self.draft.jobs, {job.id: place for job, place in kept}
        gone = [job_id for job_id in known if job_id not in places]
        same = self._stored_jobs
        changed = [
            job
            for job, place in kept
            if self.places.get(job.id) != place
            or (same.get(job.id) is not job and comparable(known[job.id]) != comparable(job))
        ]
        self.places, self._stored_jobs = places, {job.id: job for job, _ in kept}
        self.draft.load(changed, gone)
        self.draft.header.finished.update(self._finished)
        self.draft.jobs.dirty.clear()
        if changed or gone:
            self.draft.header.version += 1
        return bool(changed or gone)

    async def _write(self, outcomes: list[tuple[Request, Outcome]]) -> None:
        """Make the changes of the draft in the store, and settle each request whose changes were all made.

        Raises:
            CASConflictError: another program changed some of the jobs first. The requests that need them stay pending.
            StorageError: the store failed.
        """
        stages = self.draft.moved_jobs()
        self._freshness.note_claims(outcomes)
        generation = self.generation
        try:
            results, done = await self._call(self._carry_out, stages, transferred_ids(outcomes), self.now())
        except BaseException:  # the changes may be made, or half made, or an abandoned thread may still make them
            if generation is self.generation:
                self._forget_content()
            raise
        self.check_generation(generation)
        self._forget_old_acks()
        failed = self._update_draft(results, {job_id: states[-1] for job_id, states in stages.items()})
        self.watch.observed(self.draft, self.clock.monotonic(), self.store_time())
        if not failed:
            for request, outcome in outcomes:
                request.settle(with_current_jobs(outcome, results) if isinstance(outcome, list) else outcome)
            return
        self._forget_content()
        for (request, outcome), lost in zip(outcomes, failed_changes(outcomes, failed, done), strict=True):
            self._settle_or_leave(request, outcome, results, lost)
        again = [error for error in failed.values() if not isinstance(error, StoreFullError) and not is_refusal(error)]
        if again:
            failures = [error for error in again if not isinstance(error, JobChangedError)]
            conflict = CASConflictError(f"another program changed the same jobs of {self.store.name!r} first")
            raise failures[0] if failures else conflict

    def _update_draft(
        self, results: Mapping[str, Any], expected: Mapping[str, JobRecord | None]
    ) -> dict[str, Exception]:
        """Update the draft to the changes that were made. Returns the errors of the others, by job id.

        Args:
            results: result of the change of each job, by job id.
            expected: each job as the draft has it; None if removed.
        """
        stored_jobs, places, known = self._stored_jobs, self.places, self.draft.jobs
        placed: dict[str, str] = {}
        failed: dict[str, Exception] = {}
        others: list[JobRecord] = []
        called: list[str] = []
        for job_id, result in results.items():
            stored_jobs.pop(job_id, None)
            places.pop(job_id, None)
            if result.__class__ is not StoredJob:
                if isinstance(result, Exception):
                    failed[job_id] = result
                continue
            job, place = result
            if not place:
                continue
            if job is not expected[job_id]:
                others.append(job)
                if job.id != job_id:
                    stored_jobs.pop(job.id, None)
                    if job_id in known:
                        called.append(job_id)
            placed[job.id] = place
        places.update(placed)
        self.draft.measure(0, 0)  # a store has no blob to fill up
        self.draft.load(others, called)
        self.draft.jobs.dirty.clear()
        self.draft.header.version += 1
        return failed

    def _forget_old_acks(self) -> None:
        finished = self.draft.header.finished
        if len(finished) > FINISHED_KEPT:
            for job_id in list(finished)[: len(finished) // 2]:
                del finished[job_id]

    def _carry_out(
        self, stages: Mapping[str, list[JobRecord | None]], transferred_ids: Set[str], now: datetime
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """Take each job from state to state, until it is in its last one or a step fails.

        Returns the last result of each job, and for each job that failed the number of steps made before.
        """
        results: dict[str, Any] = {}
        done: dict[str, int] = {}
        places, step = self.places, 0
        moving = [(job_id, states, places.get(job_id, "")) for job_id, states in stages.items()]
        while moving:
            changes = [
                Change(states[step], states[step + 1], place, job_id in transferred_ids)
                for job_id, states, place in moving
            ]
            further = []
            for (job_id, states, place), outcome in zip(moving, self.store.carry_out(changes, now), strict=True):
                results[job_id] = outcome
                if isinstance(outcome, Exception):
                    done[job_id] = step
                elif step + 2 < len(states):
                    further.append((job_id, states, place if outcome is None else outcome.place))
            moving, step = further, step + 1
        return results, done

    def _settle_or_leave(
        self, request: Request, outcome: Outcome, results: Mapping[str, Any], lost: list[dict[str, Exception]]
    ) -> None:
        """Settle a request with failed changes. Without a refusal, it stays pending if each operation lost a job.

        Changes that were made are not undone.

        Args:
            request: the request.
            outcome: its outcome if all changes had been made.
            results: result of the change of each job, by job id.
            lost: for each operation, the errors of the jobs that it could not change.
        """
        request.in_flight = False
        if not isinstance(outcome, list):
            request.settle(outcome)
            return
        errors = [error for of_it in lost for error in of_it.values()]
        full = [error for error in errors if isinstance(error, StoreFullError)]
        refusals = [error for error in errors if is_refusal(error)]
        if full and all(lost):
            request.last_error = QueueFullError(str(full[0]))
            return
        if refusals and request.atomic:
            request.settle(refusals[0])
            return
        if (
            len(lost) == 1
            and lost[0]
            and self._continue_batch(request, with_current_jobs(outcome, results)[0], lost[0])
        ):
            return
        if all(lost) and not refusals:
            return
        answers = [
            without_failed(operation, result, of_it) if of_it else result
            for operation, result, of_it in zip(request.operations, outcome, lost, strict=True)
        ]
        request.settle(with_current_jobs(answers, results))

    def _continue_batch(self, request: Request, result: Any, lost: Mapping[str, Exception]) -> bool:
        """Keep the claimed jobs of a batch for its call, which goes on to claim the rest of the batch.

        Args:
            request: a request of one operation.
            result: the result of that operation.
            lost: the jobs that it could not claim.

        Returns:
            False if the operation does not claim jobs, or cannot be continued.
        """
        [operation] = request.operations
        if not operation.claims_jobs:
            return False
        claimed = [job for job in result if job.id not in lost]
        rest = operation.rest(len(claimed) - len(self._batch_so_far.get(request, ())))
        if rest is None:
            return False
        request.operations, self._batch_so_far[request] = (rest,), claimed
        request.seen_empty = False  # otherwise the end of its wait would return an empty batch
        return True

    async def release(self) -> None:
        """Close the files of the store, unless an abandoned call is still using them."""
        if isinstance(self.store, KeepsFilesOpen) and _users.get(id(self.store)) is self:
            await in_a_thread(self._close_files, self.store)

    def _close_files(self, store: KeepsFilesOpen) -> None:
        if self._one_at_a_time.acquire(blocking=False):
            try:
                store.close_files()
            finally:
                self._one_at_a_time.release()

    async def _call(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        if _users.get(id(self.store)) is not self:
            raise StorageFatalError(
                f"another queue object was made on this store object of {self.store.name!r}: make a store object for "
                "each queue object"
            )
        return await in_a_thread(self._run_alone, self._one_at_a_time, work, *arguments)

    @staticmethod
    def _run_alone(lock: threading.Lock, work: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run one call at a time: `look` may run beside a commit, and an abandoned call may still be running."""
        with lock:
            return work(*arguments)
