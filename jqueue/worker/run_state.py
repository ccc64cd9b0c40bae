"""The jobs that a worker holds and the slots that they take: the state shared by the parts of a run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from jqueue.domain.models import Claim, Job
from jqueue.domain.operations import Operation
from jqueue.worker.context import Context
from jqueue.worker.handlers import Handler
from jqueue.worker.retries import OutcomeKind

Reason = Literal["timeout", "cancelled", "lost", "stop"]
"""The reason for which a handler was told to stop."""


class HeldJob:
    """One claimed job, from its claim until its outcome is in the queue and its handler has ended.

    Attributes:
        job: the job as it was claimed.
        handler: the handler of its entrypoint.
        context: the context; None if neither the handler nor middleware takes one.
        task: the task that runs the handler.
        confirmed: time at which the store last confirmed the claim, on the loop's clock.
        started: True once the task has begun.
        reason: the reason for which the handler was told to stop; None if it was not.
        decided: True once it is decided what becomes of the job.
        ended: True once the handler has ended.
        sent: True once the outcome is on its way to the queue, or there.
        timer: runs until the handler's timeout, or until a handler that was told to stop is given up.
    """

    __slots__ = (
        "confirmed",
        "context",
        "decided",
        "ended",
        "handler",
        "job",
        "reason",
        "sent",
        "started",
        "task",
        "timer",
    )

    def __init__(self, job: Job, handler: Handler[..., Any], confirmed: float) -> None:
        self.job = job
        self.handler = handler
        self.context: Context | None = None
        self.task: asyncio.Task[None] | None = None
        self.confirmed = confirmed
        self.started = False
        self.reason: Reason | None = None
        self.decided = False
        self.ended = False
        self.sent = False
        self.timer: asyncio.TimerHandle | None = None

    @property
    def claim(self) -> Claim:
        """The claim on the job."""
        return self.job.claim


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


class RunState:
    """State shared by the parts of one run. Each part changes it in one go, with no await in between.

    Args:
        concurrency: number of slots.

    Attributes:
        free: number of slots to claim jobs for. A job takes a slot from its claim until its outcome is sent and its
            handler has ended. Below zero while outcomes that were sent must be sent again.
        held: jobs whose claims are kept alive, until their outcome is in the queue.
        running: number of handlers that run for claims of this worker.
        counts: number of jobs so far, by kind of outcome.
        outcomes: outcomes that are not on their way yet.
        sending: number of outcomes on their way.
        has_outcomes: set when there are outcomes to send.
        claimed: set when jobs were claimed.
        stuck: jobs that were given up because their handlers go on although they were told to stop, each with the
            time at which it was given up, on the loop's clock.
        stuck_changed: called when a job is added to `stuck` or removed from it.
        progress: set when a handler has ended or outcomes have arrived.
        wake_claimer: called to tell the claimer that more slots are free, or that nothing is left to do.
    """

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.free = concurrency
        self.held: set[HeldJob] = set()
        self.running = 0
        self.counts: Counter[OutcomeKind] = Counter()
        self.outcomes: list[Outcome] = []
        self.sending = 0
        self.stuck: dict[HeldJob, float] = {}
        self.stuck_changed: Callable[[], None] = _do_nothing
        self.has_outcomes = Signal()
        self.claimed = Signal()
        self.progress = Signal()
        self.wake_claimer: Callable[[], None] = _do_nothing

    @property
    def is_idle(self) -> bool:
        """True if no handler runs for a claim of this worker and all outcomes are in the queue."""
        return not self.running and not self.outcomes and not self.sending

    def add_outcome(self, outcome: Outcome) -> None:
        """Add an outcome that must be sent to the queue."""
        self.outcomes.append(outcome)
        self.has_outcomes.set()
        if not self.running:
            self.progress.set()

    def release(self, slots: int) -> None:
        """Make slots free to claim jobs for."""
        self.free += slots
        self.wake_claimer()

    def take_outcomes(self) -> list[Outcome]:
        """Take all outcomes to send them now. They end claims, so the slots of handlers that have ended are free."""
        taken, self.outcomes = self.outcomes, []
        self.sending += len(taken)
        released = 0
        for outcome in taken:
            held = outcome.held
            held.sent = True
            released += held.ended
        if released:
            self.release(released)
        return taken

    def put_back(self, outcomes: Sequence[Outcome]) -> None:
        """Take outcomes back to send them again: their claims have not ended, or that is unknown."""
        for outcome in outcomes:
            self.free -= outcome.held.ended
            outcome.held.sent = False
        self.outcomes[:0] = outcomes

    def finish(self, held: HeldJob, kind: OutcomeKind) -> None:
        """Count a job and drop it: its outcome is in the queue, or will never be sent."""
        self.held.discard(held)
        self.counts[kind] += 1

    def add_stuck(self, held: HeldJob, now: float) -> None:
        """Note that a handler goes on although it was told to stop. It keeps its slot."""
        self.stuck[held] = now
        self.stuck_changed()

    def remove_stuck(self, held: HeldJob) -> None:
        """Note that a handler has ended, and is stuck no longer if it was."""
        if self.stuck.pop(held, None) is not None:
            self.stuck_changed()

    def wake_waiting(self) -> None:
        """Wake the tasks that wait for the end: a handler has ended, or outcomes have arrived."""
        self.progress.set()
        if self.is_idle:
            self.wake_claimer()


def _do_nothing() -> None:
    """Do nothing: no callback is set yet."""


class Signal:
    """Wakes one waiting task. If none waits, the next wait returns at once. Cheaper than an asyncio.Event."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the waiting task, or let the next wait return at once."""
        if self._waiter is None:
            self._is_set = True
        elif not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until the signal is set, and clear it."""
        if self._is_set:
            self._is_set = False
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
