"""The slots of a worker, and for each of its queues the jobs that it holds and the number of outcomes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import JQueueError
from jqueue.domain.printable import counted
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.queue import JobQueue
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import memory_in_use
from jqueue.worker.executions import Execution, HeldJob, Phase
from jqueue.worker.handler_options import WorkerSettings, seconds_of
from jqueue.worker.handlers import Handler
from jqueue.worker.queue_health import SLOTS, QueueHealth, name_of
from jqueue.worker.reports import Reports
from jqueue.worker.retries import OutcomeKind

logger: Logger = logger_of("jqueue.worker")

MIB = 2**20

MEASURE_EVERY = 1.0
"""Seconds after which the end of a job has the memory measured again."""


class Signal(asyncio.Event):
    """An event that is cleared by the end of a wait for it."""

    async def wait(self) -> Literal[True]:
        """Wait until the signal is set, and clear it."""
        await super().wait()
        self.clear()
        return True


class Slots:
    """The slots of a worker, which the queues of its run use in turn, and what ends the run of them all.

    Args:
        settings: the settings of the worker.

    Attributes:
        free: number of slots to claim jobs for. A claim takes slots while it is under way. A job or a batch takes a
            slot from its claim until its handler has ended and its outcomes are sent. Below zero while outcomes that
            were sent must be sent again.
        turns: the states of the queues. The first is the next to get slots: it got jobs the longest time ago.
        drained: the states of queues that had no jobs left when no handler ran any more.
        worn: why the worker claims no more jobs and ends when those that it has are done; None if it goes on.
        must_end: set when the run must end: it was told to stop, is drained, or has failed.
        failure: the first error by which the run ends; None if there is none.
        died: called with each job whose last attempt has certainly failed here.
        progress: set when a handler has ended or outcomes have arrived.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings: WorkerSettings = settings
        self.free: int = settings.concurrency
        self.turns: list[RunState] = []
        self.drained: set[RunState] = set()
        self.worn: str | None = None
        self._measured_at = 0.0
        self.must_end: asyncio.Event = asyncio.Event()
        self.failure: Exception | None = None
        self.died: Callable[[HeldJob], None] = lambda held: None
        self.progress: Signal = Signal()

    @property
    def outcomes(self) -> Counter[OutcomeKind]:
        """Number of jobs so far, by outcome, of all queues."""
        return sum((state.counts for state in self.turns), Counter[OutcomeKind]())

    @property
    def executions(self) -> set[Execution]:
        """The calls of handlers that run, of all queues."""
        return {execution for state in self.turns for execution in state.executions}

    @property
    def stuck(self) -> int:
        """Number of handlers that go on although they were told to stop."""
        return sum(len(state.stuck) for state in self.turns)

    @property
    def held(self) -> list[HeldJob]:
        """The jobs whose claims are kept alive, of all queues."""
        return [held for state in self.turns for held in state.held]

    @property
    def room(self) -> int:
        """Number of slots to claim jobs for, within `max_jobs`."""
        most = self.settings.max_jobs
        if most is None:
            return self.free
        return min(self.free, most - self.outcomes.total() - len(self.held) - sum(each.claiming for each in self.turns))

    @property
    def is_idle(self) -> bool:
        """True if all outcomes are in the queues and no handler runs, stuck ones aside."""
        return all(state.is_idle for state in self.turns)

    def wake(self) -> None:
        """Wake the claims of all queues, in turn: more slots are free, or nothing is left to do."""
        for state in self.turns:
            state.more.set()

    def wake_others(self, state: RunState) -> None:
        """Wake the claims of the other queues: a claim has given slots back."""
        for other in self.turns:
            if other is not state:
                other.more.set()

    def turn_of(self, state: RunState) -> None:
        """Note that a queue got jobs. The others come before it."""
        self.drained.clear()
        self.turns.remove(state)
        self.turns.append(state)

    def is_drained(self, state: RunState) -> bool:
        """Note that a queue has no jobs left, unless a handler runs that may add some. Return True if none has."""
        if self.is_idle:
            self.drained.add(state)
        return len(self.drained) == len(self.turns)

    def fail(self, error: Exception) -> None:
        """End the run by an error."""
        self.failure = self.failure or error
        self.end_run()
        for state in self.turns:
            state.has_outcomes.set()

    def end_run(self) -> None:
        """End the run in order, or go on with its end: what it waits for may have changed."""
        self.must_end.set()
        self.progress.set()

    def check_wear(self) -> None:
        """Claim no more jobs if another worker must take the place of this one."""
        if self.worn is None and not self.must_end.is_set() and (worn := self._wear()) is not None:
            self.worn = worn
            logger.info("%s %s: it finishes the jobs that it has, and ends", self.settings.name, worn)
            self.wake()

    def _wear(self) -> str | None:
        """Return the reason for which another worker must take the place of this one."""
        most, memory = self.settings.max_jobs, self.settings.max_memory
        if most is not None and self.outcomes.total() >= most:
            return f"has done {counted(most, 'job')}"
        now = asyncio.get_running_loop().time()
        if memory is None or now < self._measured_at + MEASURE_EVERY:
            return None
        self._measured_at = now
        size = memory_in_use() / MIB
        return f"takes {size:.0f} MiB of memory, more than {memory}" if size > memory else None


class RunState:
    """State shared by the parts of one run on one queue. Each part changes it in one go, with no await in between.

    Exporters of metrics read its `name`, `running` and `outcomes`.

    Args:
        slots: the slots of the worker, which its queues share.
        handlers: its handlers, by entrypoint.
        queue: the queue whose jobs it does.
        drain: True to end when nothing is left to do.

    Attributes:
        name: name of the worker.
        concurrency: number of slots.
        cancel_grace: seconds that a handler gets to end when it is told to stop.
        claim_timeout: seconds that a claim lasts without a heartbeat; None for the queue's default.
        loop: the event loop of the run.
        health: the state of the calls to the queue.
        claiming: number of slots that a claim has taken that is under way.
        held: jobs whose claims are kept alive, until their outcome is in the queue.
        executions: calls of handlers, until they end or are stuck.
        filling: by entrypoint: the batch that claims more jobs by itself.
        counts: number of jobs so far, by kind of outcome.
        unsent: jobs whose outcomes are not on their way yet.
        sending: number of outcomes on their way.
        has_outcomes: set when there are outcomes to send.
        reports: the progress of jobs, on its way to the queue.
        claimed: set when jobs were claimed.
        stuck: calls whose handlers go on although they were told to stop, each with the time at which `cancel_grace`
            was over, on the loop's clock. Their slots and claims are kept.
        more: set when more slots are free, or nothing is left to do.
    """

    def __init__(
        self, slots: Slots, handlers: Mapping[str, Handler[..., Any]], queue: JobQueue, *, drain: bool
    ) -> None:
        settings = slots.settings
        self.slots = slots
        self.settings: WorkerSettings = settings
        self.handlers = handlers
        self.queue = queue
        self.drain = drain
        self.name: str = settings.name
        self.concurrency: int = settings.concurrency
        self.cancel_grace: float = to_seconds("cancel_grace", settings.cancel_grace)
        self.claim_timeout: float | None = seconds_of("claim_timeout", settings.claim_timeout)
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        give_up_after = seconds_of("give_up_after", settings.give_up_after)
        self.health: QueueHealth = QueueHealth(name_of(queue), options_of(queue).entropy, give_up_after, slots.fail)
        self.claiming = 0
        self.held: set[HeldJob] = set()
        self.executions: set[Execution] = set()
        self.filling: dict[str, Execution] = {}
        self.counts: Counter[OutcomeKind] = Counter()
        self.unsent: list[HeldJob] = []
        self.sending: int = 0
        self.stuck: dict[Execution, float] = {}
        self.has_outcomes: Signal = Signal()
        self.reports: Reports = Reports()
        self.claimed: Signal = Signal()
        self.more: Signal = Signal()
        slots.turns.append(self)

    @property
    def running(self) -> int:
        """Number of handlers that run."""
        return len(self.executions)

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of jobs so far, by outcome."""
        return {kind: self.counts[kind] for kind in get_args(OutcomeKind)}

    @property
    def room(self) -> int:
        """Number of slots to claim jobs for, those of a claim under way included."""
        return self.slots.room + self.claiming

    @property
    def is_idle(self) -> bool:
        """True if all outcomes are in the queue, no handler runs, stuck ones aside, and no claim has taken slots."""
        return not (self.executions or self.unsent or self.sending or self.claiming)

    def add_outcome(self, held: HeldJob) -> None:
        """Add a job whose outcome must be sent to the queue."""
        self.unsent.append(held)
        self.has_outcomes.set()
        if not self.executions:
            self.slots.progress.set()

    def occupy(self, execution: Execution) -> None:
        """Add a reason for which a slot is taken."""
        execution.occupants += 1
        if execution.occupants == 1:
            self.slots.free -= 1

    def vacate(self, execution: Execution) -> None:
        """Remove a reason for which a slot is taken. After the last one, the slot is free."""
        execution.occupants -= 1
        if not execution.occupants:
            self.slots.free += 1
            self.slots.wake()

    def take_outcomes(self) -> list[HeldJob]:
        """Take all outcomes to send them now. They end claims, so the slots of handlers that have ended are free."""
        taken, self.unsent = self.unsent, []
        self.sending += len(taken)
        for held in taken:
            self.vacate(held.execution)
        return taken

    def put_back(self, outcomes: Sequence[HeldJob]) -> None:
        """Take outcomes back to send them again: their claims have not ended, or that is unknown."""
        for held in outcomes:
            self.occupy(held.execution)
        self.unsent[:0] = outcomes

    def finish(self, held: HeldJob, *, is_certain: bool = False) -> None:
        """Count a job and drop it: its outcome is certainly in the queue, or probably, or will never be sent."""
        assert held.outcome is not None
        self.held.discard(held)
        self.counts[held.outcome] += 1
        if is_certain and held.outcome == "dead":
            self.slots.died(held)
        self.slots.check_wear()

    def filled(self, execution: Execution) -> None:
        """Note that a batch claims no more jobs for itself."""
        if self.filling.get(execution.handler.entrypoint) is execution:
            del self.filling[execution.handler.entrypoint]
            self.more.set()

    def stick(self, execution: Execution) -> None:
        """Note that a handler goes on although it was told to stop. It keeps its slot and its claims."""
        execution.phase = Phase.STUCK
        self.executions.discard(execution)
        self.stuck[execution] = self.loop.time()
        if self.slots.stuck >= self.concurrency:
            text = (
                f"all {self.concurrency} slots of the worker are taken by handlers that still run although they were"
                " told to stop: set timeouts on the calls that they make"
            )
            self.health.block(SLOTS, JQueueError(text))
        self.wake_waiting()

    def end(self, execution: Execution) -> bool:
        """Note that a handler has ended. Return True if it was stuck."""
        was_stuck, execution.phase = execution.phase is Phase.STUCK, Phase.ENDED
        self.executions.discard(execution)
        if self.filling:
            self.filled(execution)
        if was_stuck:
            del self.stuck[execution]
            for state in self.slots.turns:
                state.health.unblock(SLOTS)
        if not self.executions:
            self.slots.progress.set()
        return was_stuck

    def wake_waiting(self) -> None:
        """Wake the tasks that wait for the end: a handler has ended, or outcomes have arrived."""
        self.slots.progress.set()
        if self.is_idle:
            self.slots.wake()


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
        worn: True if the worker has ended as `max_jobs` or `max_memory` says, and another one is to take its place.
    """

    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    snoozed: int = 0
    handed_back: int = 0
    cancelled: int = 0
    lost: int = 0
    stuck: int = 0
    worn: bool = False

    @property
    def total(self) -> int:
        """Number of jobs in all."""
        return sum(getattr(self, kind) for kind in get_args(OutcomeKind))

    def __str__(self) -> str:
        counts = {name: getattr(self, name) for name in (*get_args(OutcomeKind), "stuck")}
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count) or "no jobs"
