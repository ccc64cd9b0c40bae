"""The jobs of one partition as a queue, for the worker in the process of the handlers.

It hands out jobs that the driver has claimed, and passes on what becomes of them; the driver tells the queue, and keeps
the claims alive. A heartbeat of the worker is a look at the queue, which tells of lost claims and cancelled jobs.
Everything else that a handler may ask of `ctx.queue` is a call of the queue itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from jqueue.core.direct import DirectQueue
from jqueue.core.workers import Describe
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import ClaimLostError, JobCancelledError, JobNotFoundError, JQueueError
from jqueue.domain.job import Claim, JobRecord, JobStatus
from jqueue.domain.models import Job, job_of
from jqueue.domain.operations.base import JobReference, Operation
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.rules import Schedule
from jqueue.domain.segments import RangeClaim
from jqueue.ports.queue import Capabilities
from jqueue.ports.storage import ObjectStoragePort
from jqueue.spark.claims.outcomes import Outcome, outcome_of


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of the process of handlers.

    Attributes:
        begun: ids of jobs that begin now, with the seconds after which each must have ended, or None for no limit.
        ended: outcomes of jobs.
        failure: why no more jobs are done.
        is_over: True if the worker has ended.
        is_stuck: True if the worker has ended as handlers did not stop that hold all slots.
    """

    begun: dict[str, float | None] = {}
    ended: tuple[Outcome, ...] = ()
    failure: str | None = None
    is_over: bool = False
    is_stuck: bool = False


class PartitionQueue(DirectQueue):
    """A queue of jobs that are claimed already. One run of a worker uses it, on one event loop.

    Args:
        storage: of the queue itself.
        jobs: the jobs, in the order in which they are handed out.
        claim: the claim of their range; None if each is claimed by itself.
        limits: by entrypoint: seconds after which a job that has begun must have ended.
        send: sends a message.
    """

    def __init__(
        self,
        storage: ObjectStoragePort,
        *,
        jobs: Sequence[JobRecord],
        claim: RangeClaim | None,
        limits: Mapping[str, float],
        send: Callable[[Message], object],
    ) -> None:
        super().__init__(storage)
        self._preparation = replace(self._preparation, object_bytes=None)  # results travel with their outcomes
        self._waiting = deque(jobs)
        self._range = claim
        self._limits = limits
        self._send = send
        self._begun: set[Claim] = set()
        self._cancelled: set[str] = set()

    @property
    def capabilities(self) -> Capabilities:
        """Everything but ranges: their jobs are handed out one by one."""
        return replace(super().capabilities, ranges=False)

    def attend(self, run: str, describe: Describe, stop: Callable[[], object]) -> None:
        """Do nothing: the driver, not the partition, commits."""

    def offer(self, url: str | None = None) -> None:
        """Do nothing, as in `attend`."""

    async def schedules(self, *, deadline: Duration | None = None) -> list[Schedule]:
        """Return no schedules to a worker that starts: it has none to miss. A call of a handler reads the queue."""
        return await super().schedules(deadline=deadline) if self._begun else []

    async def dequeue(
        self, entrypoint: str | Sequence[str] | None = None, *, wait: Duration | None = None, **options: Any
    ) -> list[Job]:
        """Hand out jobs of these entrypoints. Once all are handed out, no others will come."""
        count = options.get("batch_size", 1)
        names = (entrypoint,) if isinstance(entrypoint, str) else entrypoint
        taken, passed = list[JobRecord](), list[JobRecord]()
        while self._waiting and len(taken) < count:
            job = self._waiting.popleft()
            (taken if names is None or job.entrypoint in names else passed).append(job)
        self._waiting.extendleft(reversed(passed))
        if taken:
            self._begun.update(Claim(job.id, job.attempt) for job in taken)
            self._send(Message(begun={job.id: self._limits.get(job.entrypoint) for job in taken}))
        elif wait is not None and count:
            await asyncio.sleep(to_seconds("wait", wait))
        return [job_of(job.evolve(cancel_requested=True) if job.id in self._cancelled else job) for job in taken]

    async def heartbeat_many(
        self, jobs: Iterable[JobReference], *, deadline: Duration | None = None
    ) -> list[JobNotFoundError]:
        """Return the errors of lost claims and cancelled jobs, by a look at the queue."""
        view, claims = await self.view(deadline=deadline), [self._claims.find(job) for job in jobs]
        if self._range is None:
            held = [job for job in view.records.values() if job.status is JobStatus.IN_PROGRESS]
            lost = set(claims) - {Claim(job.id, job.attempt) for job in held}
            self._cancelled = {job.id for job in held if job.cancel_requested}
        else:
            whole = view.header.ranges.get(self._range.id)
            is_ours = whole is not None and whole.claims == self._range.attempt
            lost = set() if is_ours else set(claims)
            self._cancelled = set(whole.cancelled) if whole is not None else set()
        if lost:
            self._send(Message(ended=tuple(Outcome(*claim, "handed_back") for claim in lost)))
        return [
            ClaimLostError(*claim) if claim in lost else JobCancelledError(*claim)
            for claim in claims
            if claim in lost or claim.job_id in self._cancelled
        ]

    async def apply_each(self, *operations: Operation, **options: Any) -> list[Any]:
        """Pass on what became of jobs, each by itself. Any other call goes to the queue itself."""
        claims = [self._claim_of(operation) for operation in operations]
        if None in claims:
            return await super().apply_each(*operations, **options)
        ended, answers = list[Outcome](), list[JQueueError | None]()
        for operation, claim in zip(operations, claims, strict=True):
            refusal = None
            if claim is not None and isinstance(operation, Ack) and operation.result is operation.keep_result is None:
                ended.append(Outcome(*claim, "done"))  # most are so: the general way takes ten times as long
            else:
                try:
                    ended.append(outcome_of([operation.prepared(self._preparation)]))
                except JQueueError as error:
                    refusal = error
            answers.append(refusal)
        self._send(Message(ended=tuple(ended)))
        return answers

    async def apply(self, *operations: Operation, **options: Any) -> list[Any]:
        """Pass on what became of a job, with the jobs to enqueue. Any other call goes to the queue itself.

        Raises:
            InvalidJobError: an operation beside the ack does not enqueue a job, or the ack is not the last.
        """
        if not any(map(self._claim_of, operations)):
            return await super().apply(*operations, **options)
        prepared = [operation.prepared(self._preparation) for operation in operations]
        self._send(Message(ended=(outcome_of([*operations[:-1], prepared[-1]]),)))
        return [None] * len(operations)

    def _claim_of(self, operation: Operation) -> Claim | None:
        """Return the claim that an operation ends; None if it ends none of a job that was handed out."""
        claim = self._claims.find(operation.job) if isinstance(operation, Ack | Nack) else None
        return claim if claim in self._begun else None
