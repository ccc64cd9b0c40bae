"""The jobs in a worker's hands, and the slots that they take: the state that the parts of a run share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from jqueue.domain.models import Claim, Job
from jqueue.domain.operations import Operation
from jqueue.worker.context import Context
from jqueue.worker.handlers import Handler
from jqueue.worker.retries import Kind

Reason = Literal["timeout", "cancelled", "lost", "stop"]
"""Why a handler was told to stop."""


class Held:
    """One claimed job, from its claim until its outcome is in the queue and its handler has ended.

    Attributes:
        job: as it was claimed.
        handler: what does it.
        context: what the handler is told; None if nobody asks.
        task: what runs it.
        confirmed: when the store last confirmed the claim, on the loop's clock.
        started: whether the task has begun.
        reason: why the handler was told to stop; None if it was not.
        decided: whether it is known what shall become of the job.
        ended: whether the handler has ended.
        sent: whether the outcome is on its way to the queue, or there.
        timer: the timeout, or the end of patience with a handler that was told to stop.
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
        """The claim that is held."""
        return self.job.claim


class Outcome:
    """What shall be told to the queue about one job.

    Attributes:
        held: the job.
        kind: what becomes of it, in a word.
        operation: says so to the queue.
        companions: what is done in the same commit, or nothing is.
        uncertain: whether it was sent before and may have been done.
    """

    __slots__ = ("companions", "held", "kind", "operation", "uncertain")

    def __init__(self, held: Held, kind: Kind, operation: Operation, companions: tuple[Operation, ...] = ()) -> None:
        self.held = held
        self.kind = kind
        self.operation = operation
        self.companions = companions
        self.uncertain = False


class Hands:
    """What the parts of a run know together. Each changes it only between two awaits.

    Args:
        concurrency: how many slots there are.

    Attributes:
        free: slots that may be claimed for. A job takes one from its claim until its outcome is sent and its handler
            has ended; below zero while outcomes that were sent have to be sent again.
        held: jobs whose claims are kept alive: until their outcome is in the queue.
        running: how many handlers run for claims that are ours.
        counts: what became of the jobs so far.
        outcomes: those that are not on their way yet.
        sending: how many outcomes are on their way.
        unsent: set when there are outcomes to send.
        begun: set when jobs were claimed.
        stuck: the jobs whose handlers go on although they were told to stop, and were given up: each with the time of
            that, on the loop's clock.
        stuck_changed: told when there is one more, or one less.
        quiet: set when a handler has ended or outcomes have arrived.
        nudge: tells whoever claims that there are more slots, or that nothing is left to do.
    """

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.free = concurrency
        self.held: set[Held] = set()
        self.running = 0
        self.counts: Counter[Kind] = Counter()
        self.outcomes: list[Outcome] = []
        self.sending = 0
        self.stuck: dict[Held, float] = {}
        self.stuck_changed: Callable[[], None] = _nobody
        self.unsent = Signal()
        self.begun = Signal()
        self.quiet = Signal()
        self.nudge: Callable[[], None] = _nobody

    @property
    def is_idle(self) -> bool:
        """Whether no handler runs for a claim of ours, and all outcomes are in the queue."""
        return not self.running and not self.outcomes and not self.sending

    def report(self, outcome: Outcome) -> None:
        """An outcome that the queue has to be told."""
        self.outcomes.append(outcome)
        self.unsent.set()
        if not self.running:
            self.quiet.set()

    def release(self, slots: int) -> None:
        """Slots can be claimed for again."""
        self.free += slots
        self.nudge()

    def take_outcomes(self) -> list[Outcome]:
        """All outcomes, which are on their way now. What they say ends claims, so their slots can be claimed for."""
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
        """Outcomes have to be sent again: their claims have not ended, or nobody knows."""
        for outcome in outcomes:
            self.free -= outcome.held.ended
            outcome.held.sent = False
        self.outcomes[:0] = outcomes

    def settle(self, held: Held, kind: Kind) -> None:
        """The queue knows what became of a job, or will not hear it from us."""
        self.held.discard(held)
        self.counts[kind] += 1

    def is_stuck(self, held: Held, now: float) -> None:
        """A handler goes on although it was told to stop, and keeps its slot."""
        self.stuck[held] = now
        self.stuck_changed()

    def is_free_again(self, held: Held) -> None:
        """A handler has ended after all."""
        if self.stuck.pop(held, None) is not None:
            self.stuck_changed()

    def look_around(self) -> None:
        """Something has ended: whoever waits for the end looks again."""
        self.quiet.set()
        if self.is_idle:
            self.nudge()


def _nobody() -> None:
    """Nobody claims yet, or any more."""


class Signal:
    """Wakes one task that waits. Setting it while nobody waits is remembered. Cheaper than an asyncio.Event."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake whoever waits, or who waits next."""
        if self._waiter is None:
            self._is_set = True
        elif not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until it is set, and take it."""
        if self._is_set:
            self._is_set = False
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
