"""The jobs that a worker holds: the call that each is in, and its outcome."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.printable import counted
from jqueue.worker.context import BatchContext, Context
from jqueue.worker.handlers import Handler
from jqueue.worker.job_log import about
from jqueue.worker.retries import OutcomeKind

Reason = Literal["timeout", "cancelled", "lost", "stop"]
"""The reason for which a handler was told to stop."""


class Work:
    """One call of a handler, for one job or for a batch of them. It takes one slot.

    Attributes:
        handler: the handler.
        call: calls the handler.
        batch: largest number of jobs; None if the handler takes single jobs.
        jobs: the jobs to call it with. Jobs that fail before the call leave this list.
        unstopped: number of those jobs that were neither told to stop nor decided about.
        holds: number of reasons for which its slot is taken: its handler, until it has ended, and each of its jobs,
            until the outcome is on its way to the queue.
        context: the context of the call; None if neither the handler nor middleware takes one.
        task: the task that runs the handler.
        gathering: True while more jobs are claimed for the batch.
        started: True once the task has begun.
        stopped: True once the handler was told to stop.
        ended: True once the handler has ended.
        began: time at which the handler was called, on the loop's clock; None if it was not.
        timer: runs until the handler's timeout, or until a handler that was told to stop counts as stuck.
    """

    __slots__ = (
        "batch",
        "began",
        "call",
        "context",
        "ended",
        "gathering",
        "handler",
        "holds",
        "jobs",
        "started",
        "stopped",
        "task",
        "timer",
        "unstopped",
    )

    def __init__(self, handler: Handler[..., Any], call: Any, batch: int | None = None) -> None:
        self.handler = handler
        self.call = call
        self.batch = batch
        self.jobs: list[HeldJob] = []
        self.unstopped = 0
        self.holds = 0
        self.context: Context | BatchContext | None = None
        self.task: asyncio.Task[None] | None = None
        self.gathering = False
        self.started = False
        self.stopped = False
        self.ended = False
        self.began: float | None = None
        self.timer: asyncio.TimerHandle | None = None

    def drop(self, held: HeldJob) -> None:
        """Remove a job before the call of the handler."""
        self.jobs.remove(held)
        self.unstopped -= held.reason is None

    @property
    def name(self) -> str:
        """The job, or the number of jobs, for the log."""
        if self.batch is not None:
            return f"a batch of {counted(len(self.jobs), 'job')} ({self.handler.entrypoint})"
        job = self.jobs[0].job
        return f"job {job.id} ({job.entrypoint}, attempt {job.tries})"

    @property
    def about(self) -> dict[str, Any]:
        """The `extra` of a record of the log about this call."""
        if self.batch is not None:
            return {"entrypoint": self.handler.entrypoint}
        return about(self.jobs[0].job)


class HeldJob:
    """One claimed job, from its claim until its outcome is in the queue and its handler has ended.

    Attributes:
        job: the job as it was claimed.
        work: the call of its handler.
        context: the context of the job; None if neither the handler nor middleware takes one.
        confirmed: time at which the store last confirmed the claim, on the loop's clock.
        reason: the reason for which its handler must stop the work on it; None if there is none.
        decided: True once it is decided what becomes of the job.
        sent: True once the outcome is on its way to the queue, or there.
    """

    __slots__ = ("confirmed", "context", "decided", "job", "reason", "sent", "work")

    def __init__(self, job: Job, work: Work, confirmed: float) -> None:
        self.job = job
        self.work = work
        self.context: Context | None = None
        self.confirmed = confirmed
        self.reason: Reason | None = None
        self.decided = False
        self.sent = False


class Outcome:
    """The end of one job, as it is sent to the queue.

    Attributes:
        held: the job.
        kind: the field of the report that counts it.
        operation: the ack or nack that tells the queue.
        companions: operations to do in the same commit, all or nothing.
        uncertain: True if it was sent before and may have been done.
    """

    __slots__ = ("companions", "held", "kind", "operation", "uncertain")

    def __init__(
        self, held: HeldJob, kind: OutcomeKind, operation: Operation, companions: tuple[Operation, ...] = ()
    ) -> None:
        self.held = held
        self.kind = kind
        self.operation = operation
        self.companions = companions
        self.uncertain = False
