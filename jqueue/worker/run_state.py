"""The jobs that a worker holds and the slots that they take: the state shared by the parts of a run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from jqueue.worker.held_jobs import HeldJob, Outcome, Work
from jqueue.worker.retries import OutcomeKind


class RunState:
    """State shared by the parts of one run. Each part changes it in one go, with no await in between.

    Args:
        concurrency: number of slots.

    Attributes:
        free: number of slots to claim jobs for. A job or a batch takes a slot from its claim until its handler has
            ended and its outcomes are sent. Below zero while outcomes that were sent must be sent again.
        held: jobs whose claims are kept alive, until their outcome is in the queue.
        running: calls of handlers for claims of this worker, until they end or are stuck.
        gathering: the entrypoints for which a batch claims more jobs by itself.
        open_claims: number of claims whose jobs are handed out, and ended, bit by bit.
        counts: number of jobs so far, by kind of outcome.
        outcomes: outcomes that are not on their way yet.
        sending: number of outcomes on their way.
        has_outcomes: set when there are outcomes to send.
        failure: error by which the run ends; None while it goes on.
        claimed: set when jobs were claimed.
        stuck: calls whose handlers go on although they were told to stop, each with the time at which `cancel_grace`
            was over, on the loop's clock. Their claims are kept.
        stuck_changed: called when a call is added to `stuck` or removed from it.
        progress: set when a handler has ended or outcomes have arrived.
        wake_claimer: called to tell the claimer that more slots are free, or that nothing is left to do.
    """

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.free = concurrency
        self.held: set[HeldJob] = set()
        self.running: set[Work] = set()
        self.gathering: set[str] = set()
        self.open_claims = 0
        self.counts: Counter[OutcomeKind] = Counter()
        self.outcomes: list[Outcome] = []
        self.sending = 0
        self.stuck: dict[Work, float] = {}
        self.stuck_changed: Callable[[], None] = _do_nothing
        self.has_outcomes = Signal()
        self.failure: Exception | None = None
        self.claimed = Signal()
        self.progress = Signal()
        self.wake_claimer: Callable[[], None] = _do_nothing

    @property
    def is_idle(self) -> bool:
        """True if all outcomes are in the queue and no handler runs, stuck ones aside."""
        return not self.running and not self.outcomes and not self.sending and not self.open_claims

    def add_outcome(self, outcome: Outcome) -> None:
        """Add an outcome that must be sent to the queue."""
        self.outcomes.append(outcome)
        self.has_outcomes.set()
        if not self.running:
            self.progress.set()

    def fail(self, error: Exception) -> None:
        """End the run by an error."""
        self.failure = error
        self.has_outcomes.set()

    def release(self, slots: int) -> None:
        """Make slots free to claim jobs for."""
        self.free += slots
        self.wake_claimer()

    def hold(self, work: Work) -> None:
        """Add a reason for which a slot is taken."""
        work.holds += 1
        if work.holds == 1:
            self.free -= 1

    def let_go(self, work: Work) -> None:
        """Remove a reason for which a slot is taken. After the last one, the slot is free."""
        work.holds -= 1
        if not work.holds:
            self.release(1)

    def take_outcomes(self) -> list[Outcome]:
        """Take all outcomes to send them now. They end claims, so the slots of handlers that have ended are free."""
        taken, self.outcomes = self.outcomes, []
        self.sending += len(taken)
        released = 0
        for outcome in taken:
            held = outcome.held
            held.sent = True
            held.work.holds -= 1
            released += not held.work.holds
        if released:
            self.release(released)
        return taken

    def put_back(self, outcomes: Sequence[Outcome]) -> None:
        """Take outcomes back to send them again: their claims have not ended, or that is unknown."""
        for outcome in outcomes:
            outcome.held.sent = False
            self.hold(outcome.held.work)
        self.outcomes[:0] = outcomes

    def end_gathering(self, work: Work) -> None:
        """Note that a batch claims no more jobs for itself."""
        work.gathering = False
        self.gathering.discard(work.handler.entrypoint)
        self.wake_claimer()

    def finish(self, held: HeldJob, kind: OutcomeKind) -> None:
        """Count a job and drop it: its outcome is in the queue, or will never be sent."""
        self.held.discard(held)
        self.counts[kind] += 1

    def add_stuck(self, work: Work, now: float) -> None:
        """Note that a handler goes on although it was told to stop. It keeps its slot and its claims."""
        self.stuck[work] = now
        self.stuck_changed()

    def remove_stuck(self, work: Work) -> None:
        """Note that a handler has ended, and is stuck no longer if it was."""
        if self.stuck.pop(work, None) is not None:
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
