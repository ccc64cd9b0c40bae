"""`StoreQueue`: a queue on a store that keeps each job by itself, such as a folder in the format of another program.

The rules are those of every queue: operations change a draft, which mirrors the store. The changes of the draft are
then made in the store, job by job. An operation that another program was quicker than is done again, after a read.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from msgspec.msgpack import encode
from msgspec.structs import replace

from jqueue.core.queue_base import Prepared, UsableAtOnce
from jqueue.core.requests import Request, sleep_while_awaited
from jqueue.core.session import POLL_GROWTH, SHORTEST_POLL, Session
from jqueue.core.staleness import StaleWatch
from jqueue.core.tasks import TRANSIENT, Backoff, Outage, as_storage_error, retried
from jqueue.core.verbs import QueueVerbs
from jqueue.core.view import QueueView
from jqueue.domain.commits import Verdict
from jqueue.domain.draft import Draft
from jqueue.domain.durations import exact_time, to_seconds
from jqueue.domain.errors import InvalidJobError, JQueueError, QueueMissingError, StorageError, StorageFatalError
from jqueue.domain.header import Header
from jqueue.domain.job import JobRecord
from jqueue.domain.operations.base import Operation, perform
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.ends import Ack, Nack, Sweep
from jqueue.domain.operations.enqueue import Arrive, Depart, Enqueue
from jqueue.domain.transitions import Move
from jqueue.formats.port import Change, JobChangedError, JobStorePort, Outcome, StoredJob
from jqueue.ports.clock import Clock
from jqueue.ports.queue import Capabilities
from jqueue.ports.storage import ObjectStoragePort
from jqueue.runtime.queue_options import QueueOptions, lists_queue_options, takes_queue_options
from jqueue.runtime.system import Presence, process_id
from jqueue.runtime.threads import in_a_thread

Answer = TypeVar("Answer")

BATCH_LIMIT = 1_000
"""Largest number of calls that are done together."""

READ_INTERVALS = 10.0
"""Time between two reads before claims, as a multiple of the time that a read takes."""

MOST_SCANS = 20
"""Scans at most for one view, while jobs move between a scan and their reading."""

WITHOUT_READ = (Enqueue, Dequeue, Ack, Nack)
"""Operations that are done in the mirror as it is. If they change nothing there, the store is read, as for others."""

_users: WeakValueDictionary[int, StoreCalls] = WeakValueDictionary()
"""Last user made of each store, by `id(store)`. It holds its store, so that the id is not reused meanwhile."""


@dataclass(slots=True)
class Part:
    """One operation of a call, as far as it is still to be done.

    Attributes:
        request: the call.
        results: its results so far, by the places of its operations.
        place: the place of this operation.
        operation: the operation. A dequeue claims only the jobs that it still lacks.
        claimed: the jobs that it has claimed.
    """

    request: Request
    results: dict[int, Any]
    place: int
    operation: Operation
    claimed: list[JobRecord] = field(default_factory=list)


class StoreCalls(Session):
    """The calls of one queue on a store of jobs, and the task that does them.

    Args:
        store: the store of the jobs.
        options: settings of the queue.
        here, before: see `Session`.
    """

    def __init__(
        self, store: JobStorePort, options: QueueOptions, here: Callable[[], Session], before: Session | None
    ) -> None:
        self.store = store
        self.clock: Clock = options.clock
        now: Callable[[], datetime] = getattr(store, "store_time", options.clock.now)
        self.now: Callable[[], datetime] = lambda: exact_time(now())
        self._entropy, self._blob_bytes = options.entropy, options.limits.blob_bytes
        self._claim_timeout = to_seconds("stale_timeout", options.stale_timeout)
        self._outage = Outage()
        self._one_at_a_time = threading.Lock()
        super().__init__(options, store.watched, here, before)
        _users[id(store)] = self
        self._forget()

    def _forget(self) -> None:
        self._draft = Draft()
        self._draft.blob_bytes = self._blob_bytes
        self._stored: dict[str, StoredJob] = {}  # the jobs of the draft, as the store has shown them
        self._watch, self._presence = StaleWatch(self._claim_timeout), Presence(self.clock)
        self._scans, self._loaded = 0, -1  # scans made, and the number of the one in the draft; -1: it is not current
        self._young_until = 0.0

    async def _run(self) -> None:
        while True:
            batch = self._take_batch(BATCH_LIMIT)
            if batch:
                self._poll_interval = SHORTEST_POLL
                await self._serve([*self.waiting, *batch])
            elif self.waiting:
                await self._wait_for_jobs()
            elif not self.pending:
                return

    async def _wait_for_jobs(self) -> None:
        """Wait until the waiting calls may find a job, and serve them; or until another call comes."""
        self._files.begin()
        poll = self._longest_poll if self._files.active else self._poll_interval
        seconds = self._last_read + poll - asyncio.get_running_loop().time()
        if (due := self._next_due()) is not None:
            seconds = min(seconds, (due - self.now()).total_seconds())
        woken = not self._files.noticed and await self._wait_for_call(max(0.0, seconds))
        if woken and not self._files.noticed:
            return
        self._files.noticed = False
        self._poll_interval = min(self._longest_poll, self._poll_interval * POLL_GROWTH)
        await self._serve(self.waiting, read=True)

    async def _serve(self, requests: list[Request], *, read: bool = False) -> None:
        """Do calls until each is answered, has failed, or still waits for jobs.

        Args:
            requests: the calls.
            read: True to read the store first.
        """
        self._carried = requests
        parts = _parts_of(requests)
        backoff, fresh = Backoff(self._entropy), False  # fresh: the store was read since the calls
        read = read or self._loaded < 0 or any(map(self._needs_read, parts))
        while parts := _unanswered(parts):
            try:
                if read:
                    await self._refresh()
                    fresh = True
                    if any(part.operation.claims_jobs for part in parts) and not await self._sweep():
                        await self._refresh()
                read = await self._do(parts, fresh)
            except Exception as error:
                several = [part.request for part in parts]
                if isinstance(error, StorageFatalError) or not isinstance(error, TRANSIENT):
                    for request in several:
                        request.fail(as_storage_error(error))
                    continue
                for request in several:
                    request.last_error = error
                self._outage.failed(error)
                await sleep_while_awaited(several, backoff.after(error))
                batch, read = self._take_batch(BATCH_LIMIT), True  # a call that keeps failing holds up no other one
                requests += batch
                parts = [*parts, *_parts_of(batch)]
        self._carried = []
        self.waiting: list[Request] = [request for request in requests if request.awaited]
        await asyncio.sleep(0)  # callers get their answers, and their next calls form the next batch

    def _needs_read(self, part: Part) -> bool:
        """Return True if an operation must see the store as it is now.

        A read lists all jobs. So a claim takes jobs from the mirror until it is too old.
        """
        if isinstance(part.operation, Dequeue):
            return self.clock.monotonic() >= self._young_until
        return not isinstance(part.operation, WITHOUT_READ)

    async def _sweep(self) -> bool:
        """End stale claims. Return False if one could not be ended, so that it is still in the store."""
        draft, now, stale = self._draft, self.now(), self._watch.suspects()
        if self.store.claims_expire_by_clock:
            stale = tuple((job.claim, job.heartbeat_at) for job, end in self._claim_ends() if end <= now)
        if not stale:
            return True
        sweep, before = Sweep(stale), len(draft.moves)
        perform([sweep], draft, now)
        outcomes = await self._carry_out(self._changes(sweep, draft.moves[before:]), (), now)
        return not any(isinstance(outcome, Exception) for outcome in outcomes.values())

    def _claim_ends(self) -> Iterable[tuple[JobRecord, datetime]]:
        """Return each claimed job of a store that says when claims expire, with that time."""
        jobs = self._draft.jobs
        for job in [jobs[job_id] for job_id in jobs.claimed] if self.store.claims_expire_by_clock else ():
            if job.heartbeat_at is not None:
                yield job, job.heartbeat_at + timedelta(seconds=job.claim_timeout or 0.0)

    def _next_due(self) -> datetime | None:
        ends = [end for _, end in self._claim_ends()]
        return min([end for end in (self._draft.jobs.order.next_due(), *ends) if end is not None], default=None)

    async def _do(self, parts: list[Part], fresh: bool) -> bool:
        """Do operations, of which none changes a job that another one has changed. The others are left for later.

        Args:
            parts: the operations, in order.
            fresh: True if the store was read since the calls.

        Returns:
            True if the operations without a result need a read.

        Raises:
            StorageError: the store failed. The operations may be done.
            OSError: likewise.
        """
        draft, now, read = self._draft, self.now(), False
        changes: dict[str, Change] = {}
        done: list[tuple[Part, Any, Sequence[str]]] = []
        for part in parts:
            savepoint, before = draft.savepoint(), len(draft.moves)
            results: Any = perform([part.operation], draft, now)
            moved = self._changes(part.operation, draft.moves[before:])
            if not fresh and not (moved and isinstance(part.operation, WITHOUT_READ)):
                draft.rollback(savepoint)
                read = True
            elif moved.keys() & changes.keys():
                draft.rollback(savepoint)
                break
            else:
                changes |= moved
                done.append((part, results[0], list(moved)))
        outcomes = await self._carry_out(changes, [part.request for part, *_ in done], now)
        failure: Exception | None = None
        for part, result, moved_ids in done:
            errors = {name: each for name in moved_ids if isinstance(each := outcomes[name], Exception)}
            result, error = _current(result, outcomes), next(iter(errors.values()), None)
            request, operation = part.request, part.operation
            if isinstance(operation, Dequeue):
                claimed = [job for job in result if job.id not in errors]
                part.operation = replace(operation, batch_size=operation.batch_size - len(claimed))
                part.claimed += claimed
                result = part.claimed
            if error is None or (isinstance(error, JQueueError) and not isinstance(error, StorageError)):
                _answer(part, error or result)
            elif isinstance(error, JobChangedError):
                request.in_flight = bool(part.claimed or part.results)
                if not request.in_flight:
                    request.release(Verdict.NOT_DONE)
            else:
                failure = error
        if failure is not None:
            raise failure
        return read or self._loaded < 0  # a change that was not made is still in the draft

    def _changes(self, operation: Operation, moves: Iterable[Move]) -> dict[str, Change]:
        """Return the change of each job that an operation has moved."""
        states: dict[str, tuple[JobRecord | None, JobRecord | None]] = {}
        for _, before, after, _ in moves:
            job_id = (before or after).id  # type: ignore[union-attr]
            states[job_id] = (states[job_id][0] if job_id in states else before), after
        if isinstance(operation, Sweep) and self.store.claims_expire_by_clock:  # the jobs keep their places
            states = {
                job_id: (before, after and after.evolve(sequence=before.sequence))
                for job_id, (before, after) in states.items()
                if before is not None
            }
        is_transfer = isinstance(operation, Arrive | Depart)
        return {
            job_id: Change(before, after, self._stored[job_id].place if job_id in self._stored else "", is_transfer)
            for job_id, (before, after) in states.items()
            if before or after
        }

    async def _carry_out(
        self, changes: dict[str, Change], requests: Iterable[Request], now: datetime
    ) -> dict[str, Outcome]:
        """Make changes in the store, and take over the jobs as they are now. Return the outcome of each."""
        draft, stored = self._draft, self._stored
        draft.measure(0, 0)  # a store has no blob to fill up
        if not changes:
            return {}
        for request in requests:
            request.in_flight = True
        for job_id in changes:
            stored.pop(job_id, None)
        loaded, self._loaded = self._loaded, -1
        made = await self._call(self.store.carry_out, list(changes.values()), now)
        outcomes: dict[str, Outcome] = dict(zip(changes, made, strict=True))
        left = {job_id: each for job_id, each in outcomes.items() if isinstance(each, StoredJob) and each.place}
        stored |= {each.job.id: each for each in left.values()}
        draft.load([job for job, _ in left.values()], [name for name, each in left.items() if each.job.id != name])
        draft.jobs.dirty.clear()
        self._watch.observed(draft, self.clock.monotonic(), self._shared_time(), self._presence.stood_still())
        if not any(isinstance(outcome, Exception) for outcome in made):
            self._loaded = loaded
            self._outage.written()
        return outcomes

    async def _refresh(self) -> None:
        """Read the store into the mirror, if it may have changed."""
        try:
            state, young_until = await self._call(self._scan)
        except BaseException:
            self._watch.failed()
            raise
        ended, draft = self.clock.monotonic(), self._draft
        if state is not None:
            jobs, finished, self._loaded = state
            previous_jobs, self._stored = self._stored, {each.job.id: each for each in jobs}
            changed = [each.job for job_id, each in self._stored.items() if previous_jobs.get(job_id) != each]
            gone = draft.jobs.keys() - self._stored.keys()
            draft.load(changed, gone)
            draft.jobs.dirty.clear()
            draft.header.finished = dict(finished)
            if changed or gone:
                self._poll_interval = SHORTEST_POLL
        self._watch.observed(draft, ended, self._shared_time(), self._presence.stood_still())
        self._young_until = young_until
        self._last_read = asyncio.get_running_loop().time()

    def _scan(self) -> tuple[tuple[Sequence[StoredJob], Any, int] | None, float]:
        """Return the jobs, the recently acked ones, and the number of this scan; None if nothing may have changed.

        With them comes the time until which claims need no other read. It depends on the read alone, not on the time
        that the read waited for its turn, or its result for a busy event loop.

        A cancelled caller never gets the result. The mirror is then behind `_scans`, and the next read scans again.
        """
        began, state = self.clock.monotonic(), None
        if self._loaded != self._scans or self.store.may_have_changed():
            self._scans += 1
            jobs = self.store.scan(self.now())
            state = jobs, self.store.finished(), self._scans  # the acks last: a job missing above is known as finished
        ended = self.clock.monotonic()
        return state, ended + READ_INTERVALS * (ended - began)

    def _shared_time(self) -> datetime | None:
        """Return the time, on which programs that share a store agree; None if the store says when claims expire."""
        return None if self.store.claims_expire_by_clock else self.now()

    def read_all(self) -> tuple[list[JobRecord], bool]:
        """Return all jobs that can be read, with their payloads, and True if there is no queue.

        A job that has moved since the scan is looked for in another one: it would seem to have left the queue.
        """
        read: dict[str, JobRecord] = {}
        unread: list[str] = []
        for _ in range(MOST_SCANS):
            self._scans += 1
            jobs = sorted(self.store.scan(self.now()), key=lambda entry: entry.job.sequence)
            read |= {job.id: job for job in self.store.payloads([entry for entry in jobs if entry.job.id not in read])}
            before, unread = unread, [place for job, place in jobs if job.id not in read]
            if unread == before:  # none, or none that has moved
                break
        return [read[job.id] for job, _ in jobs if job.id in read], not jobs and not self.store.exists()

    async def look(self, work: Callable[[], Answer], seconds: float) -> Answer:
        """Run a function that only reads the store, and return its result."""
        return await retried(seconds, lambda: self._call(work), self._entropy, "the queue could not be read")

    async def _call(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run a function on the store, one at a time: a view may be read beside, and an abandoned call may still run.

        Raises:
            StorageFatalError: another queue object uses the store object, which remembers what its queue has read.
        """
        if _users.get(id(self.store)) is not self:
            raise StorageFatalError(
                f"another queue object was made on this store object of {self.store.name!r}: make a store object for "
                "each queue object"
            )

        def alone() -> Answer:
            with self._one_at_a_time:
                return work(*arguments)

        return await in_a_thread(alone)


def _parts_of(requests: Iterable[Request]) -> list[Part]:
    """Return the operations of calls. Those that claim are last, so that jobs that become ready now can be claimed."""
    parts = list[Part]()
    for request in requests:
        results: dict[int, Any] = {}
        parts += [Part(request, results, *numbered) for numbered in enumerate(request.operations)]
    return sorted(parts, key=lambda part: part.operation.claims_jobs)


def _unanswered(parts: Iterable[Part]) -> list[Part]:
    """Return the operations still to be done. Hand back the claims of calls that have ended without an answer."""
    left, ended = [], dict[Request, dict[int, Any]]()
    for part in parts:
        if part.place in part.results:
            continue
        if part.request.awaited:
            left.append(part)
        else:
            part.results[part.place] = part.claimed
            ended[part.request] = part.results
    for request, results in ended.items():
        request.hand_back_claims([results.get(place, ()) for place in range(len(request.operations))])
    return left


def _answer(part: Part, result: Any) -> None:
    """Note the result of an operation, and answer its call if all results are there."""
    request, results = part.request, part.results
    results[part.place] = result
    if request.atomic and isinstance(result, JQueueError):
        request.settle(result)
    elif len(results) == len(request.operations):
        request.settle([results[place] for place in range(len(results))])


def _current(result: Any, outcomes: dict[str, Outcome]) -> Any:
    """Return a result with the jobs in it as the store now has them."""
    if isinstance(result, JobRecord):
        outcome = outcomes.get(result.id)
        return outcome.job if isinstance(outcome, StoredJob) else result
    return [_current(each, outcomes) for each in result] if isinstance(result, list) else result


@lists_queue_options
class StoreQueue(QueueVerbs, UsableAtOnce):
    """A queue on a store that keeps each job by itself.

    It can be used at once. The end of `async with`, or `aclose`, waits for the calls that are still under way.

    Args:
        store: the store of the jobs. A call that needs a feature the store lacks is refused.
        options: by name: those of `QueueOptions`.
    """

    _session: StoreCalls

    @takes_queue_options
    def __init__(self, store: JobStorePort, **options: Any) -> None:
        if isinstance(store, ObjectStoragePort):
            raise InvalidJobError(
                f"a StoreQueue needs the store of an older program, got {type(store).__name__}: `connect(url)` makes "
                "the queue that belongs to a URL"
            )
        self.store = store
        self._version = self._digest = 0
        settings = QueueOptions(**options)
        settings.check()
        if settings.must_exist:
            raise InvalidJobError("a queue of an older program has no must_exist: leave it out")
        super().__init__(settings)

    def _new_session(self, here: Callable[[], Session], before: Any) -> StoreCalls:
        return StoreCalls(self.store, self.options, here, before)

    def _reader(self) -> StoreCalls:
        """Return the session to read with: not that of the parent of a fork, a thread of which may be in the store."""
        if self._session.process != process_id():
            self._here()
        return self._session

    @property
    def capabilities(self) -> Capabilities:
        """Features of the store."""
        return self.store.capabilities

    def __repr__(self) -> str:
        return f"StoreQueue(store={self.store!r})"

    def _checked(self, operation: Prepared) -> Prepared:
        self.capabilities.require(*operation.needs(self._preparation.claim_timeout))
        return operation

    def _now(self) -> datetime:
        return self._session.now()

    async def _view(self, seconds: float, last_view: QueueView | None = None) -> QueueView:
        reader = self._reader()
        jobs, absent = await reader.look(reader.read_all, seconds)
        if (digest := hash(encode((jobs, absent)))) != self._digest:
            self._digest, self._version = digest, self._version + 1  # counted here, as a store has no versions
        if last_view is not None and last_view.etag == str(self._version):
            return last_view
        size = sum(len(job.payload) for job in jobs)
        return QueueView(
            Header(version=self._version),
            {job.id: job for job in jobs},
            size=size,
            taken=size,
            etag=str(self._version),
            absent=absent,
            limits=self.options.limits,
            deadline=seconds,
        )

    async def _require_queue(self) -> None:
        if not await self._reader().look(self.store.exists, self._deadline):
            raise self._missing()

    def _missing(self) -> QueueMissingError:
        return QueueMissingError(self.store)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(StoreQueue, self.store, **vars(self.options)), ()
