"""`HeartbeatManager`: keeps claims alive while a block of code works on their jobs, and cancels it if one is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from jqueue.domain.durations import BEATS_PER_TIMEOUT, SHORTEST_BEAT, Duration, heartbeat_interval, to_seconds
from jqueue.domain.errors import (
    CASConflictError,
    ClaimLostError,
    InvalidJobError,
    JobCancelledError,
    JobNotFoundError,
    JQueueError,
    QueueFullError,
    StorageError,
    shown,
)
from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT, Claim
from jqueue.domain.models import Job
from jqueue.domain.operations.base import JobReference
from jqueue.domain.segments import Lease
from jqueue.ports.log import Logger, logger_of
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import Presence, rest

logger: Logger = logger_of("jqueue")


class HasHeartbeat(Protocol):
    """The part of a queue that the manager needs. With `heartbeat_many` too, one operation keeps many jobs alive."""

    async def heartbeat(self, job_id: Any) -> None:
        """Report that the work on a job goes on."""


class HeartbeatManager:
    """Sends heartbeats for one job or several, from entering the block to leaving it.

        async with HeartbeatManager(queue, job):
            await work(job.payload)

    Failures of the store are tolerated until the claim's own timeout. A claim that was acked or nacked through the same
    queue object ends without an error. If a claim is lost, the block is cancelled and raises `ClaimLostError`; with
    `on_lost="event"` it goes on, and `lost` is set. A cancelled job counts as lost (`JobCancelledError`), but its claim
    holds until it is nacked.

    Args:
        queue: the queue that the jobs were dequeued from.
        job_id: a job, a claim, a lease, an id, or several of them.
        interval: time between heartbeats; by default a third of the claim's timeout, and at most 60 seconds.
        on_lost: "cancel" the block, or set the "event" `lost`.

    Attributes:
        lost: set when a claim is lost.
        error: the ClaimLostError of the lost claim; None while no claim is lost.
    """

    def __init__(
        self,
        queue: HasHeartbeat,
        job_id: JobReference | Lease | Iterable[JobReference | Lease],
        interval: Duration | None = None,
        *,
        on_lost: Literal["cancel", "event"] = "cancel",
    ) -> None:
        if on_lost not in ("cancel", "event"):
            raise InvalidJobError(f'on_lost must be "cancel" or "event", got {shown(on_lost)}')
        single = isinstance(job_id, Job | Claim | Lease | str)
        self.queue = queue
        self.job_id = job_id
        self.interval: timedelta | None = (
            None if interval is None else timedelta(seconds=to_seconds("interval", interval))
        )
        self.on_lost = on_lost
        self.lost: asyncio.Event = asyncio.Event()
        self.error: ClaimLostError | None = None
        jobs: list[JobReference | Lease] = [job_id] if single else list(job_id)  # type: ignore[arg-type, list-item]
        self._of_leases = {each.id: each.claim_timeout for each in jobs if isinstance(each, Lease)}
        self._held_claim = getattr(queue, "held_claim", lambda job: None)
        self._jobs = [self._claim_of(job) for job in jobs]
        self._task: asyncio.Task[None] | None = None
        self._body: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._cancelled_body = False

    async def __aenter__(self) -> Self:
        self._body = asyncio.current_task()
        self._cancelling = self._body.cancelling() if self._body is not None else 0
        self._task = asyncio.create_task(self._beat(), name="jqueue-heartbeat")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._body, body = None, self._body
        self._task.cancel()
        await asyncio.wait([self._task])
        if exc_type is None and not self._task.cancelled() and (failure := self._task.exception()) is not None:
            raise failure  # a bug of the queue must not go unnoticed
        if body is None or not self._cancelled_body:
            return
        ours_alone = body.uncancel() <= self._cancelling
        if exc_type is asyncio.CancelledError and ours_alone and self.error is not None:
            raise self.error from exc_val

    async def _beat(self) -> None:
        """Send heartbeats until no claim is left, or one is lost."""
        clock = options_of(self.queue).clock
        lived = Presence(clock).lived
        timeout = min(self._timeout(job) for job in self._jobs) if self._jobs else 0.0
        interval = self._interval(timeout)
        age = self._age()
        confirmed = lived() - age
        pause = 0.0 if age > interval / 2 else interval
        while self._jobs:
            await rest(pause, clock)
            pause = interval
            try:
                errors = await self._send(max(SHORTEST_BEAT, confirmed + timeout - lived()))
                confirmed = lived()
            except (StorageError, QueueFullError, CASConflictError) as error:
                if lived() - confirmed >= timeout:
                    self._lose(self._given_up(timeout, error))
                    return
                pause = min(interval, max(0.0, confirmed + timeout - lived()) / BEATS_PER_TIMEOUT)
                continue
            except JQueueError as error:
                names = f"job {shown(_id_of(self._jobs[0]))}" if len(self._jobs) == 1 else f"{len(self._jobs)} jobs"
                logger.warning("the heartbeat of %s stopped, and its claims will time out: %s", names, error)
                return
            gone = {error.job_id for error in errors if not isinstance(error, JobCancelledError)}  # others are held
            self._jobs = [job for job in self._jobs if _id_of(job) not in gone] if gone else self._jobs
            for lost in errors:
                if not getattr(lost, "ended_here", False):
                    self._lose(lost)
                    if self.on_lost == "cancel":
                        return

    async def _send(self, deadline: float) -> list[JobNotFoundError]:
        """Send one heartbeat for all jobs, and return the errors of the lost claims."""
        many = getattr(self.queue, "heartbeat_many", None)
        if many is not None:
            return list(await many(self._jobs, deadline=deadline))
        errors = []
        for job in self._jobs:
            try:
                await self.queue.heartbeat(job)
            except JobNotFoundError as error:
                errors.append(error)
        return errors

    def _lose(self, error: JobNotFoundError) -> None:
        lost = error if isinstance(error, ClaimLostError) else ClaimLostError(error.job_id, None, str(error))
        self.error = lost
        self.lost.set()
        if self.on_lost == "cancel" and self._body is not None:
            self._cancelled_body = True
            self._body.cancel()

    def _given_up(self, timeout: float, cause: JQueueError) -> ClaimLostError:
        error = ClaimLostError(_id_of(self._jobs[0]), None, f"the store has confirmed no heartbeat for {timeout:g} s")
        error.__cause__ = cause
        return error

    def _timeout(self, job: JobReference) -> float:
        """Seconds for which a claim lasts; the default timeout if that is not known here."""
        if isinstance(job, Job) and job.claim_timeout is not None:
            return job.claim_timeout
        if (lease_timeout := self._of_leases.get(_id_of(job))) is not None:
            return lease_timeout
        held = self._held_claim(job)
        return held.timeout if held is not None else DEFAULT_CLAIM_TIMEOUT.total_seconds()

    def _claim_of(self, job: JobReference | Lease) -> JobReference:
        """Replace a bare id by its current claim: later, the id may stand for another claim."""
        if isinstance(job, Lease):
            return job.claim
        held = self._held_claim(job) if isinstance(job, str) else None
        return job if held is None else Claim(*held.claim)

    def _interval(self, timeout: float) -> float:
        setting = self.interval
        return heartbeat_interval(timeout) if setting is None else max(SHORTEST_BEAT, setting.total_seconds())

    def _age(self) -> float:
        """Seconds since the store last confirmed the claims, for the oldest confirmation; 0 if none is known here."""
        age_of = getattr(self.queue, "claim_age", None)
        ages = [age_of(job) for job in self._jobs] if age_of is not None else []
        return max((age for age in ages if age is not None), default=0.0)


def _id_of(job: JobReference) -> str:
    return job if isinstance(job, str) else job.claim.job_id if isinstance(job, Job) else job.job_id
