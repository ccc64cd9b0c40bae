"""The jobs that a worker holds, the slots that they take, and the number of outcomes: the state of a run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import get_args

from jqueue.worker.executions import Execution, HeldJob, Phase
from jqueue.worker.retries import OutcomeKind


class RunState:
    """State shared by the parts of one run. Each part changes it in one go, with no await in between.

    Args:
        concurrency: number of slots.

    Attributes:
        free: number of slots to claim jobs for. A job or a batch takes a slot from its claim until its handler has
            ended and its outcomes are sent. Below zero while outcomes that were sent must be sent again.
        held: jobs whose claims are kept alive, until their outcome is in the queue.
        running: calls of handlers, until they end or are stuck.
        filling: by entrypoint: the batch that claims more jobs by itself.
        open_claims: number of claims whose jobs are handed out, and ended, bit by bit.
        counts: number of jobs so far, by kind of outcome.
        outcomes: jobs whose outcomes are not on their way yet.
        sending: number of outcomes on their way.
        has_outcomes: set when there are outcomes to send.
        must_end: set when the run must end: it was told to stop, is drained, or has failed.
        failure: the first error by which the run ends; None if there is none.
        claimed: set when jobs were claimed.
        stuck: calls whose handlers go on although they were told to stop, each with the time at which `cancel_grace`
            was over, on the loop's clock. Their slots and claims are kept.
        stuck_changed: called when a call is added to `stuck` or removed from it.
        died: called with each job whose last attempt has certainly failed here.
        progress: set when a handler has ended or outcomes have arrived.
        wake_claimer: called to tell the claimer that more slots are free, or that nothing is left to do.
    """

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.free = concurrency
        self.held: set[HeldJob] = set()
        self.running: set[Execution] = set()
        self.filling: dict[str, Execution] = {}
        self.open_claims = 0
        self.counts: Counter[OutcomeKind] = Counter()
        self.outcomes: list[HeldJob] = []
        self.sending = 0
        self.stuck: dict[Execution, float] = {}
        self.stuck_changed: Callable[[], None] = _do_nothing
        self.has_outcomes = Signal()
        self.must_end = asyncio.Event()
        self.failure: Exception | None = None
        self.died: Callable[[HeldJob], None] = lambda held: None
        self.claimed = Signal()
        self.progress = Signal()
        self.wake_claimer: Callable[[], None] = _do_nothing

    @property
    def is_idle(self) -> bool:
        """True if all outcomes are in the queue and no handler runs, stuck ones aside."""
        return not self.running and not self.outcomes and not self.sending and not self.open_claims

    def add_outcome(self, held: HeldJob) -> None:
        """Add a job whose outcome must be sent to the queue."""
        self.outcomes.append(held)
        self.has_outcomes.set()
        if not self.running:
            self.progress.set()

    def fail(self, error: Exception) -> None:
        """End the run by an error."""
        self.failure = self.failure or error
        self.end_run()
        self.has_outcomes.set()

    def end_run(self) -> None:
        """End the run in order, or go on with its end: what it waits for may have changed."""
        self.must_end.set()
        self.progress.set()

    def occupy(self, execution: Execution) -> None:
        """Add a reason for which a slot is taken."""
        execution.occupants += 1
        if execution.occupants == 1:
            self.free -= 1

    def vacate(self, execution: Execution) -> None:
        """Remove a reason for which a slot is taken. After the last one, the slot is free."""
        execution.occupants -= 1
        if not execution.occupants:
            self.free += 1
            self.wake_claimer()

    def take_outcomes(self) -> list[HeldJob]:
        """Take all outcomes to send them now. They end claims, so the slots of handlers that have ended are free."""
        taken, self.outcomes = self.outcomes, []
        self.sending += len(taken)
        free = self.free
        for held in taken:
            held.execution.occupants -= 1
            self.free += not held.execution.occupants
        if self.free > free:
            self.wake_claimer()
        return taken

    def put_back(self, outcomes: Sequence[HeldJob]) -> None:
        """Take outcomes back to send them again: their claims have not ended, or that is unknown."""
        for held in outcomes:
            self.occupy(held.execution)
        self.outcomes[:0] = outcomes

    def finish(self, held: HeldJob, *, is_certain: bool = False) -> None:
        """Count a job and drop it: its outcome is certainly in the queue, or probably, or will never be sent."""
        assert held.outcome is not None
        self.held.discard(held)
        self.counts[held.outcome] += 1
        if is_certain and held.outcome == "dead":
            self.died(held)

    def filled(self, execution: Execution) -> None:
        """Note that a batch claims no more jobs for itself."""
        if self.filling.get(execution.handler.entrypoint) is execution:
            del self.filling[execution.handler.entrypoint]
            self.wake_claimer()

    def stick(self, execution: Execution, now: float) -> None:
        """Note that a handler goes on although it was told to stop. It keeps its slot and its claims."""
        execution.phase = Phase.STUCK
        self.running.discard(execution)
        self.stuck[execution] = now
        self.stuck_changed()
        self.wake_waiting()

    def end(self, execution: Execution) -> bool:
        """Note that a handler has ended. Return True if it was stuck."""
        was_stuck, execution.phase = execution.phase is Phase.STUCK, Phase.ENDED
        self.running.discard(execution)
        self.filled(execution)
        if was_stuck:
            del self.stuck[execution]
            self.stuck_changed()
        if not self.running:
            self.progress.set()
        return was_stuck

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Number of jobs that a worker claimed, by outcome. A job counts each time it was claimed.

    Attributes:
        succeeded: finished, and acked.
        failed: failed, and will be tried again.
        dead: failed for the last time, or discarded.
        snoozed: put off by their handler.
        handed_back: given back unharmed when the worker stopped.
        cancelled: cancelled while they were in progress.
        lost: their claim was lost before their outcome was in the queue.
        stuck: handlers that still went on when the worker ended, although they were told to stop. Their jobs are
            also counted above.
    """

    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    snoozed: int = 0
    handed_back: int = 0
    cancelled: int = 0
    lost: int = 0
    stuck: int = 0

    @property
    def total(self) -> int:
        """Number of jobs in all."""
        return sum(getattr(self, field.name) for field in fields(self) if field.name != "stuck")

    def __str__(self) -> str:
        counts = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count) or "no jobs"


def report_of(counts: Counter[OutcomeKind], stuck: int = 0) -> RunReport:
    """Return the report of these counts, with the number of handlers that go on."""
    return RunReport(**{str(kind): count for kind, count in counts.items()}, stuck=stuck)


class Figures:
    """The figures of one run of a worker, for its metrics.

    Args:
        name: name of the worker.
        state: the state of the run.
    """

    def __init__(self, name: str, state: RunState) -> None:
        self.name = name
        self._state = state

    @property
    def running(self) -> int:
        """Number of handlers that run."""
        return len(self._state.running)

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of jobs so far, by outcome."""
        return {kind: self._state.counts[kind] for kind in get_args(OutcomeKind)}
