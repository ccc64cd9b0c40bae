"""The jobs that a worker holds, and the calls of their handlers."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal

from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.printable import counted
from jqueue.ports.log import Logger, logger_of
from jqueue.worker.context import BatchContext, Context
from jqueue.worker.handlers import Handler
from jqueue.worker.job_log import log_about
from jqueue.worker.retries import OutcomeKind

logger: Logger = logger_of("jqueue.worker")

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


@dataclass(slots=True, eq=False)
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
        began: time at which the handler was called, on the loop's clock.
        due: time at which the handler has its timeout, or counts as stuck if it was told to stop, on the loop's clock.
    """

    handler: Handler[..., Any]
    call: Any
    phase: Phase = Phase.WAITING
    jobs: list[HeldJob] = field(default_factory=list)
    unstopped: int = 0
    occupants: int = 0
    context: Context | BatchContext | None = None
    task: asyncio.Task[None] | None = None
    began: float = 0.0
    due: float = math.inf

    def warn(self, text: str, *values: Any) -> None:
        """Log a warning that continues the name of the job, or the number of jobs."""
        if self.handler.options.batch is None:
            log_about(self.jobs[0].job, logging.WARNING, text, *values)
            return
        entrypoint, jobs = self.handler.entrypoint, counted(len(self.jobs), "job")
        logger.warning(f"a batch of %s (%s){text}", jobs, entrypoint, *values, extra={"entrypoint": entrypoint})


@dataclass(slots=True, eq=False)
class HeldJob:
    """One claimed job, until its outcome is in the queue.

    Attributes:
        job: the job as it was claimed.
        execution: the call of its handler.
        confirmed: time at which the store last confirmed the claim, on the loop's clock.
        context: the context of the job; None if neither the handler nor middleware takes one.
        reason: the reason for which its handler must stop the work on it; None if there is none.
        outcome: the field of the report that counts it; None while nothing is decided about it.
        operation: the ack or nack that tells the queue the outcome.
        companions: operations to do in the same commit, all or nothing.
        uncertain: True if its outcome was sent before and may have been done.
        result: the value that its handler returned, until its ack is in the queue: a child may need it.
    """

    job: Job
    execution: Execution
    confirmed: float
    context: Context | None = None
    reason: Reason | None = None
    outcome: OutcomeKind | None = None
    operation: Operation = field(init=False)
    companions: tuple[Operation, ...] = ()
    uncertain: bool = False
    result: Any = None

    @property
    def claim_timeout(self) -> float | None:
        """Seconds that the claim lasts without a heartbeat, if it ends by itself."""
        return self.job.claim_timeout
