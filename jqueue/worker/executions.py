"""The jobs that a worker holds, and the calls of their handlers."""

from __future__ import annotations

import asyncio
from enum import Enum, auto
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


class Phase(Enum):
    """The phase of an execution."""

    WAITING = auto()
    """Its task has not begun."""
    RUNNING = auto()
    """Its task fills the batch, or runs the handler."""
    STOPPING = auto()
    """Its handler was told to stop."""
    STUCK = auto()
    """Its handler goes on although `cancel_grace` is over."""
    ENDED = auto()
    """Its handler has ended, or is never called."""


class Execution:
    """One call of a handler, for one job or for a batch of them. It takes one slot.

    Attributes:
        handler: the handler.
        call: calls the handler.
        phase: the phase.
        jobs: the jobs to call it with. Jobs that fail before the call leave this list.
        unstopped: number of those jobs that were neither told to stop nor decided about.
        occupants: number of reasons for which its slot is taken: its handler, until it has ended, and each of its jobs,
            until the outcome is on its way to the queue.
        context: the context of the call; None if neither the handler nor middleware takes one.
        task: the task that runs the handler.
        began: time at which the handler was called, on the loop's clock; None if it was not.
        timer: runs until the handler's timeout, or until a handler that was told to stop counts as stuck.
    """

    __slots__ = ("began", "call", "context", "handler", "jobs", "occupants", "phase", "task", "timer", "unstopped")

    def __init__(self, handler: Handler[..., Any], call: Any) -> None:
        self.handler = handler
        self.call = call
        self.phase = Phase.WAITING
        self.jobs: list[HeldJob] = []
        self.unstopped = 0
        self.occupants = 0
        self.context: Context | BatchContext | None = None
        self.task: asyncio.Task[None] | None = None
        self.began: float | None = None
        self.timer: asyncio.TimerHandle | None = None

    def drop(self, held: HeldJob) -> None:
        """Remove a job before the call of the handler."""
        self.jobs.remove(held)
        self.unstopped -= held.reason is None

    @property
    def name(self) -> str:
        """The job, or the number of jobs, for the log."""
        if self.handler.options.batch is not None:
            return f"a batch of {counted(len(self.jobs), 'job')} ({self.handler.entrypoint})"
        job = self.jobs[0].job
        return f"job {job.id} ({job.entrypoint}, attempt {job.tries})"

    @property
    def about(self) -> dict[str, Any]:
        """The `extra` of a record of the log about this call."""
        if self.handler.options.batch is not None:
            return {"entrypoint": self.handler.entrypoint}
        return about(self.jobs[0].job)


class HeldJob:
    """One claimed job, until its outcome is in the queue.

    Attributes:
        job: the job as it was claimed.
        execution: the call of its handler.
        context: the context of the job; None if neither the handler nor middleware takes one.
        confirmed: time at which the store last confirmed the claim, on the loop's clock.
        reason: the reason for which its handler must stop the work on it; None if there is none.
        outcome: the field of the report that counts it; None while nothing is decided about it.
        operation: the ack or nack that tells the queue the outcome.
        companions: operations to do in the same commit, all or nothing.
        uncertain: True if its outcome was sent before and may have been done.
    """

    __slots__ = (
        "companions",
        "confirmed",
        "context",
        "execution",
        "job",
        "operation",
        "outcome",
        "reason",
        "uncertain",
    )

    operation: Operation

    def __init__(self, job: Job, execution: Execution, confirmed: float) -> None:
        self.job = job
        self.execution = execution
        self.context: Context | None = None
        self.confirmed = confirmed
        self.reason: Reason | None = None
        self.outcome: OutcomeKind | None = None
        self.companions: tuple[Operation, ...] = ()
        self.uncertain = False
