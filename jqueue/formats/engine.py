"""The engine of queues whose jobs are kept one by one: a mirror of the store, and each change carried out there.

The rules are those of every queue: operations change a draft, which mirrors the store. What changed is then done in the
store, job by job. Where somebody else was quicker, the mirror is read anew and the call is tried again; what was done
for it is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from jqueue.core.engine.engine import Engine
from jqueue.core.engine.requests import Outcome, Request
from jqueue.core.engine.sight import Sight
from jqueue.core.engine.tries import answer
from jqueue.domain.draft import Draft
from jqueue.domain.errors import CASConflictError, QueueFullError, StorageFatalError
from jqueue.domain.models import Claim, Job, QueueState
from jqueue.formats.freshness import Freshness
from jqueue.formats.outcomes import arriving, as_it_stands, is_refusal, may_be_behind, seen, undone, without
from jqueue.formats.port import (
    Change,
    Full,
    JobStorePort,
    KeepsFilesOpen,
    Kept,
    Lost,
    ServesInOrder,
    SupportsWatching,
)
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.storage import SupportsStoreTime
from jqueue.runtime.threads import in_a_thread

Answer = TypeVar("Answer")

FINISHED_KEPT = 10_000
"""So many acks are remembered, at the most; the older half of them is forgotten then."""

_users: WeakValueDictionary[int, StoreEngine] = WeakValueDictionary()
"""Whose each store is, by the number that it has as long as there is somebody who holds it."""


class StoreEngine(Engine):
    """Carries requests to a store of jobs.

    Args:
        store: where the jobs are.
        clock: tells the time.
        entropy: makes ids and jitter.
        claim_timeout: seconds, for claims that carry no timeout of their own.
    """

    def __init__(self, store: JobStorePort, clock: Clock, entropy: Entropy, *, claim_timeout: float) -> None:
        self.store = store
        self._store_time = store.store_time if isinstance(store, SupportsStoreTime) else None
        self.sweeps_in_place = store.knows_expiry
        self._freshness = Freshness(clock, in_order=isinstance(store, ServesInOrder) and store.serves_in_order)
        self.watched = store.watched if isinstance(store, SupportsWatching) else None
        self._version = 0
        self._looked_at: frozenset[Any] = frozenset()
        self._finished: Mapping[str, int] = {}
        self._won: dict[Request, list[Job]] = {}
        self._scans = self._heard = 0  # how often the place was scanned, and up to which of them the draft knows
        _users[id(store)] = self
        super().__init__(clock, entropy, claim_timeout=claim_timeout)

    def reset(self) -> None:
        """Read anew: after a fork, or when what is known cannot be trusted."""
        self._one_at_a_time = threading.Lock()
        super().reset()

    def _forget_content(self) -> None:
        self.draft = Draft()
        self.places: dict[str, str] = {}
        self._adopted: dict[str, Job] = {}
        self.loaded = False
        self.watch.lost_sight()

    def store_time(self) -> datetime | None:
        """The time by a clock that all users of the store share; None if there is no such clock.

        Programs that share a folder agree on the time. Where all of them know when a claim ends, no age is asked for.
        """
        if self._store_time is not None:
            return self._store_time()
        return None if self.store.knows_expiry else self.clock.now()

    def _must_look(self, requests: Sequence[Request]) -> bool:
        return self._freshness.is_over() and any(request.claims_jobs for request in requests)

    def _is_short(self, outcomes: Sequence[tuple[Request, Outcome]]) -> bool:
        """See whether an outcome may be another one where the mirror is behind."""
        return any(
            not isinstance(outcome, list) or any(map(may_be_behind, request.operations, outcome))
            for request, outcome in outcomes
        )

    async def refresh(self) -> bool:
        """Read the store if it may have changed. Returns whether it had."""
        started = self.clock.monotonic()
        try:
            found = await self._call(self._scan, not self.loaded)
        except BaseException:
            self.watch.failed()
            raise
        self.pacing.cycle.read(self.clock.monotonic() - started)
        moved = False
        if found is not None:
            jobs, self._heard = found
            moved = self._adopt(jobs)
        self.loaded = True
        self._freshness.read(started, len(self.draft.jobs))
        self.watch.observed(self.draft, self.clock.monotonic(), self.store_time())
        return moved

    def _suspects(self, now: datetime) -> tuple[tuple[Claim, datetime | None], ...]:
        if not self.store.knows_expiry:
            return super()._suspects(now)
        return tuple((job.claim, job.heartbeat_at) for job, end in self._ends() if end <= now)

    def _ends(self) -> Iterator[tuple[Job, datetime]]:
        """The claims, with the time at which each is over."""
        for job_id in self.draft.jobs.claimed:
            job = self.draft.jobs[job_id]
            if job.heartbeat_at is not None:
                yield job, job.heartbeat_at + timedelta(seconds=job.claim_timeout or 0.0)

    def next_due(self) -> datetime | None:
        """When a job is due, or a claim is over."""
        ends = [end for _, end in self._ends()] if self.store.knows_expiry else []
        return min([end for end in (super().next_due(), *ends) if end is not None], default=None)

    async def _read_all(self) -> tuple[Sequence[Kept], Sequence[Job]]:
        return await self._call(self._all)

    async def _sight(self, found: tuple[Sequence[Kept], Sequence[Job]]) -> tuple[Sight, int, int]:
        kept, jobs = found
        looked_at = frozenset((place, *seen(job)) for job, place in kept)
        if looked_at != self._looked_at:
            self._version, self._looked_at = self._version + 1, looked_at
        size = sum(len(job.payload) for job in jobs)
        return Sight(QueueState(version=self._version), (), {job.id: job for job in jobs}), size, size

    def _scan(self, anyway: bool) -> tuple[list[Kept], int] | None:
        """What there is, and which scan it is from. Whoever is cancelled here never hears of it."""
        if not anyway and self._heard == self._scans and not self.store.has_moved():
            return None
        self._scans += 1
        jobs = list(self.store.scan(self.now()))
        self._finished = self.store.finished()  # last, so that what has left by now is known to be finished
        return jobs, self._scans

    def _all(self) -> tuple[Sequence[Kept], Sequence[Job]]:
        self._scans += 1
        kept = sorted(self.store.scan(self.now()), key=lambda entry: entry.job.sequence)
        return kept, self.store.payloads(kept)

    def _adopt(self, kept: list[Kept]) -> bool:
        """Have the draft say what the store says. Returns whether it said something else."""
        known, places = self.draft.jobs, {job.id: place for job, place in kept}
        gone = [job_id for job_id in known if job_id not in places]
        same = self._adopted
        changed = [
            job
            for job, place in kept
            if self.places.get(job.id) != place or (same.get(job.id) is not job and seen(known[job.id]) != seen(job))
        ]
        self.places, self._adopted = places, {job.id: job for job, _ in kept}
        self.draft.load(changed, gone)
        self.draft.header.finished.update(self._finished)
        self.draft.jobs.dirty.clear()
        if changed or gone:
            self.draft.header.version += 1
        return bool(changed or gone)

    async def _write(self, outcomes: list[tuple[Request, Outcome]]) -> None:
        """Carry out what changed, and settle each request of which all was done.

        Raises:
            CASConflictError: somebody was quicker with some of the jobs; the requests that need them are left.
            StorageError: the store failed.
        """
        stages = self.draft.moved_jobs()
        self._freshness.written(outcomes)
        life = self.life
        try:
            now_there, done = await self._call(self._carry_out, stages, arriving(outcomes), self.now())
        except BaseException:  # it may have been done, by halves, or a thread that was left may still be at it
            if life is self.life:
                self._forget_content()
            raise
        self.go_on(life)
        self._forget_old_acks()
        failed = self._take_over(now_there, {job_id: states[-1] for job_id, states in stages.items()})
        self.watch.observed(self.draft, self.clock.monotonic(), self.store_time())
        if not failed:
            answer(
                [
                    (request, as_it_stands(outcome, now_there) if outcome.__class__ is list else outcome)
                    for request, outcome in outcomes
                ]
            )
            return
        self._forget_content()
        for (request, outcome), lost in zip(outcomes, undone(outcomes, failed, done), strict=True):
            self._settle_or_leave(request, outcome, now_there, lost)
        again = [error for error in failed.values() if not isinstance(error, Full) and not is_refusal(error)]
        if again:
            failures = [error for error in again if not isinstance(error, Lost)]
            raise failures[0] if failures else CASConflictError("another program was quicker")

    def _take_over(self, now_there: Mapping[str, Any], expected: Mapping[str, Job | None]) -> dict[str, Exception]:
        """Have the draft say what was done. Returns what was not.

        Args:
            now_there: what each job came to.
            expected: what it would have been.
        """
        adopted, places, known = self._adopted, self.places, self.draft.jobs.entries
        placed: dict[str, str] = {}
        failed: dict[str, Exception] = {}
        others: list[Job] = []
        called: list[str] = []
        for job_id, came_to in now_there.items():
            adopted.pop(job_id, None)
            places.pop(job_id, None)
            if came_to.__class__ is not Kept:
                if isinstance(came_to, Exception):
                    failed[job_id] = came_to
                continue
            job, place = came_to
            if not place:
                continue
            if job is not expected[job_id]:
                others.append(job)
                if job.id != job_id:
                    adopted.pop(job.id, None)
                    if job_id in known:
                        called.append(job_id)
            placed[job.id] = place
        places.update(placed)
        self.draft.settle()
        self.draft.measure(0)  # no blob becomes full here
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
        self, stages: Mapping[str, list[Job | None]], arriving: Set[str], now: datetime
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """Take each job from stage to stage, until it is where it shall be, or somebody else was quicker.

        Returns what it came to with each; and of those that failed, how many steps were done before.
        """
        came_to: dict[str, Any] = {}
        done: dict[str, int] = {}
        places, step = self.places, 0
        moving = [(job_id, states, places.get(job_id, "")) for job_id, states in stages.items()]
        while moving:
            changes = [
                Change(states[step], states[step + 1], place, job_id in arriving) for job_id, states, place in moving
            ]
            further = []
            for (job_id, states, place), outcome in zip(moving, self.store.carry_out(changes, now), strict=True):
                came_to[job_id] = outcome
                if isinstance(outcome, Exception):
                    done[job_id] = step
                elif step + 2 < len(states):
                    further.append((job_id, states, place if outcome is None else outcome.place))
            moving, step = further, step + 1
        return came_to, done

    def _settle_or_leave(
        self, request: Request, outcome: Outcome, now_there: Mapping[str, Any], lost: list[dict[str, Exception]]
    ) -> None:
        """A request of which something was not done: if it was all of it, it is left; what was done is not undone.

        Args:
            request: the request.
            outcome: what it would have come to.
            now_there: what each job came to.
            lost: for each operation, the jobs with which it was not done.
        """
        request.in_flight = False
        if not isinstance(outcome, list):
            answer([(request, outcome)])
            return
        errors = [error for of_it in lost for error in of_it.values()]
        full = [error for error in errors if isinstance(error, Full)]
        refusals = [error for error in errors if is_refusal(error)]
        if full and all(lost):
            request.last_error = QueueFullError(str(full[0]))
            return
        if refusals and request.atomic:
            answer([(request, refusals[0])])
            return
        if len(lost) == 1 and lost[0] and self._win(request, as_it_stands(outcome, now_there)[0], lost[0]):
            return
        if all(lost) and not refusals:
            return
        told = [
            without(operation, result, of_it) if of_it else result
            for operation, result, of_it in zip(request.operations, outcome, lost, strict=True)
        ]
        answer([(request, as_it_stands(told, now_there))])

    def _win(self, request: Request, result: Any, lost: Mapping[str, Exception]) -> bool:
        """Keep what was claimed of a batch for its call, which goes on with the rest. False if it is not done in parts.

        Args:
            request: of one operation.
            result: what that came to.
            lost: the jobs that it did not get.
        """
        [operation] = request.operations
        if not operation.claims_jobs:
            return False
        won = [job for job in result if job.id not in lost]
        rest = operation.rest(len(won) - len(self._won.get(request, ())))
        if rest is None:
            return False
        request.operations, self._won[request] = (rest,), won
        request.seen_empty = False  # or the end of its wait would be an empty answer
        return True

    async def _apply(self, pending: Sequence[Request]) -> list[tuple[Request, Outcome]]:
        outcomes = await super()._apply(pending)
        if not self._won:
            return outcomes
        return [
            (request, [[*self._won.get(request, ()), *outcome[0]]] if isinstance(outcome, list) else outcome)
            if request in self._won
            else (request, outcome)
            for request, outcome in outcomes
        ]

    async def commit(self, requests: Sequence[Request], *, read_first: bool = False) -> None:
        """Carry requests: see `Engine`. What was claimed for a call that ended before its batch was full goes back."""
        try:
            await super().commit(requests, read_first=read_first)
        finally:
            for request, jobs in list(self._won.items()):
                if request.future.done():
                    del self._won[request]
                    if request.future.cancelled() or request.future.exception() is not None:
                        request.orphan([jobs])

    async def release(self) -> None:
        """Have the store close what it keeps open, if nobody is at it: a call that was left ends when it ends."""
        if isinstance(self.store, KeepsFilesOpen) and _users.get(id(self.store)) is self:
            await in_a_thread(self._let_go, self.store)

    def _let_go(self, store: KeepsFilesOpen) -> None:
        if self._one_at_a_time.acquire(blocking=False):
            try:
                store.let_go()
            finally:
                self._one_at_a_time.release()

    async def _call(self, work: Callable[..., Answer], *arguments: Any) -> Answer:
        if _users.get(id(self.store)) is not self:
            raise StorageFatalError(
                f"another queue was made on this store of {self.store.name!r}, which knows what one of them has seen: "
                "make a store for each queue"
            )
        return await in_a_thread(self._alone, self._one_at_a_time, work, *arguments)

    @staticmethod
    def _alone(lock: threading.Lock, work: Callable[..., Answer], *arguments: Any) -> Answer:
        """Somebody may look while calls are carried, and a call that was left may still be at it."""
        with lock:
            return work(*arguments)
