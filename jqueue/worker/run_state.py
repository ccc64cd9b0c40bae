"""The slots of a worker, and for each of its queues the jobs that it has claimed, until their outcomes are there.

Nothing here waits for the queue, but for batches that claim more jobs: outcomes are added here, and `outcome_sender`
sends them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from jqueue.domain.errors import JQueueError
from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT, may_kill
from jqueue.domain.models import Job
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.printable import counted
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.queue import JobQueue
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import Presence, memory_in_use, process_name
from jqueue.worker.executions import Execution, Executions, HeldJob, Phase
from jqueue.worker.handler_options import MIB, WorkerSettings, seconds_of
from jqueue.worker.handlers import Handler
from jqueue.worker.job_log import log_about
from jqueue.worker.queue_health import SLOTS, QueueHealth, name_of
from jqueue.worker.reports import Reports
from jqueue.worker.retries import Decision, OutcomeKind

logger: Logger = logger_of("jqueue.worker")

JOB_TASK = "jqueue-job "
"""Prefix of the name of a job's task. The id of the job follows."""

CLAIMS_PER_WAIT = 10
"""Number of claims by which a batch looks for more jobs within its `batch_wait`."""


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
        turns: the states of the queues. The first is the next to get slots: it got jobs the longest time ago.
        drained: the states of the queues that were empty when the last handler had ended.
        worn: why the worker claims no more jobs and ends when its claimed jobs are done; None if it goes on.
        must_end: set when the run must end: it was told to stop, is drained, or has failed.
        failure: the first error by which the run ends; None if there is none.
        died: called with each job whose last attempt has certainly failed here.
        progress: set when a handler has ended or outcomes have arrived.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings: WorkerSettings = settings
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
        """Number of slots to claim jobs for, within `max_jobs`. Below zero if outcomes must be sent again."""
        claiming = sum(state.claiming for state in self.turns)
        free, most = self.settings.concurrency - sum(state.taken for state in self.turns), self.settings.max_jobs
        if most is not None:
            free = min(free, most - self.outcomes.total() - len(self.held))
        return free - claiming

    @property
    def is_idle(self) -> bool:
        """True if all outcomes are in the queues and no handler runs, stuck ones aside."""
        return all(state.is_idle for state in self.turns)

    def wake(self) -> None:
        """Wake the claims of all queues, in turn: more slots are free, or nothing is left to do."""
        for state in self.turns:
            state.more.set()

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
        most, memory = self.settings.max_jobs, self.settings.max_memory
        if self.worn is not None or self.must_end.is_set():
            return
        if most is not None and self.outcomes.total() >= most:
            self.worn = f"has done {counted(most, 'job')}"
        if memory is not None and (now := asyncio.get_running_loop().time()) >= self._measured_at + MEASURE_EVERY:
            self._measured_at = now
            if (size := memory_in_use() / MIB) > memory:
                self.worn = f"takes {size:.0f} MiB of memory, more than {memory}"
        if self.worn is not None:
            logger.info("%s %s: it finishes the jobs that it has, and ends", self.settings.name, self.worn)
            self.wake()


class RunState(Executions):
    """The jobs of one run on one queue. The parts of the run share it, and change it with no await in between.

    Exporters of metrics read its `name`, `running` and `outcomes`.

    Args:
        slots: the slots of the worker, which its queues share.
        handlers: its handlers, by entrypoint.
        queue: the queue whose jobs it does.
        drain: True to end when nothing is left to do.

    Attributes:
        name: name of the worker.
        health: the state of the calls to the queue.
        claiming: number of slots that a claim has taken that is under way.
        held: jobs whose claims are kept alive, until their outcome is in the queue.
        filling: by entrypoint: the batch that claims more jobs by itself.
        counts: number of jobs so far, by kind of outcome.
        unsent: jobs whose outcomes are not on their way yet.
        has_outcomes: set when there are outcomes to send.
        reports: the progress of jobs, on its way to the queue.
        claimed: set when jobs were claimed.
        stuck: calls whose handlers go on although they were told to stop. Their slots and claims are kept.
        more: set when more slots are free, or nothing is left to do.
        claim_timeout: seconds that a claim lasts without a heartbeat; None for the queue's default.
        claimer, sender: the tasks that claim jobs, and that send their outcomes.
    """

    claimer: asyncio.Task[None]
    sender: asyncio.Task[None]

    def __init__(
        self, slots: Slots, handlers: Mapping[str, Handler[..., Any]], queue: JobQueue, *, drain: bool
    ) -> None:
        settings = slots.settings
        super().__init__(settings, handlers)
        self.slots = slots
        self.queue = queue
        self.drain = drain
        self.name: str = settings.name
        self.claim_timeout: float | None = seconds_of("claim_timeout", settings.claim_timeout)
        give_up_after = seconds_of("give_up_after", settings.give_up_after)
        self.health: QueueHealth = QueueHealth(name_of(queue), options_of(queue).entropy, give_up_after, slots.fail)
        self.presence: Presence = Presence(options_of(queue).clock)
        self.claiming = 0
        self.held: set[HeldJob] = set()
        self.filling: dict[str, Execution] = {}
        self.counts: Counter[OutcomeKind] = Counter()
        self.unsent: list[HeldJob] = []
        self.stuck: set[Execution] = set()
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
    def call_limit(self) -> int:
        """Largest number of jobs in one call of the queue."""
        return options_of(self.queue).limits.batch_size

    @property
    def shortest_timeout(self) -> float:
        """The shortest time in seconds that any claim lasts without a heartbeat."""
        usual = DEFAULT_CLAIM_TIMEOUT.total_seconds() if self.claim_timeout is None else self.claim_timeout
        return min((held.job.claim_timeout for held in self.held if held.job.claim_timeout), default=usual)

    @property
    def taken(self) -> int:
        """Number of slots that calls take, from the claim until the handler has ended and all outcomes are sent."""
        return len(self.executions.union(self.stuck, (held.execution for held in self.unsent)))

    @property
    def room(self) -> int:
        """Number of slots to claim jobs for, those of a claim under way included."""
        return self.slots.room + self.claiming

    @property
    def is_idle(self) -> bool:
        """True if all outcomes are in the queue, no handler runs, stuck ones aside, and no claim has taken slots."""
        return not (self.executions or self.claiming or any(held.outcome is not None for held in self.held))

    def finish(self, held: HeldJob, *, is_certain: bool = False) -> None:
        """Count a job and drop it: its outcome is certainly in the queue, or probably, or will never be sent."""
        assert held.outcome is not None
        self.held.discard(held)
        self.counts[held.outcome] += 1
        if is_certain and held.outcome == "dead":
            self.slots.died(held)
        self.slots.check_wear()

    # Beginning

    async def claim(self, names: Sequence[str], count: int, **options: Any) -> list[Job]:
        """Claim up to `count` jobs that are ready: fewer only if no more are ready. The options are those of the queue.

        With a `wait`, the claim is made as soon as there are any.
        """
        able = self.queue.capabilities
        if self.claim_timeout is not None and able.claim_timeout:
            options["claim_timeout"] = self.claim_timeout
        if able.holders:
            options["holder"] = f"{self.name}@{process_name()}"
        return await self.queue.dequeue(names, batch_size=count, **options)

    def begin(self, jobs: Iterable[Job], more: bool) -> None:
        """Start the work on jobs that were just claimed: the jobs of a batch handler together, other jobs singly.

        Args:
            jobs: the jobs.
            more: True if more jobs may be ready, for batches that are not full.
        """
        unfilled: dict[str, Execution] = {}
        for job in jobs:
            plan = self.plans[job.entrypoint]
            execution = unfilled.pop(job.entrypoint, None) or Execution(plan)
            self._hold(execution, job)
            if len(execution.jobs) < (plan.handler.options.batch or 1):
                unfilled[job.entrypoint] = execution
            else:
                self._start(execution)
        for name, execution in unfilled.items():
            if execution.plan.takes_batch and (more or self._wait_of(execution.handler) > 0):
                self.filling[name] = execution
            self._start(execution)
        self.claimed.set()

    def _hold(self, execution: Execution, job: Job) -> None:
        held = HeldJob(job, execution, self.presence.lived())
        self.held.add(held)
        self.hold(held)
        if job.errors and held.outcome is None and may_kill(job):
            why = "its last two workers were lost while they had it, and no other such job runs here meanwhile"
            log_about(job, logging.WARNING, " begins: %s", why)

    def _start(self, execution: Execution) -> None:
        """Start the task of a call, unless no job is left for it."""
        name = execution.handler.entrypoint
        if execution.jobs:
            name = execution.jobs[0].job.id
        elif self.filling.get(name) is not execution:
            return
        self.executions.add(execution)
        execution.task = self.loop.create_task(self.execute(execution), name=f"{JOB_TASK}{name}")

    async def do_batch(self, execution: Execution) -> Sequence[Any]:
        """See `Executions.do_batch`. The batch is filled first."""
        await self._fill(execution)
        return await super().do_batch(execution)

    async def _fill(self, execution: Execution) -> None:
        """Claim jobs for a batch until it is full, or until no more are ready and its wait is over.

        Claims for free slots are of all entrypoints together, so that jobs are served by priority and age. The jobs of
        a batch handler among them begin a batch, which then claims for itself what else is ready. Meanwhile the
        worker's other claims leave its entrypoint out.
        """
        handler, seconds = execution.handler, self._wait_of(execution.handler)
        size, end = handler.options.batch or 1, self.loop.time() + seconds
        while self.filling.get(handler.entrypoint) is execution:
            room = min(size - len(execution.jobs), self.call_limit)
            try:
                jobs = await self.claim((handler.entrypoint,), room)
            except Exception as error:  # the claims for free slots meet and report the same trouble
                logger.debug("a batch of %s stays as it is: %s", handler.entrypoint, type(error).__name__)
                jobs, end = [], 0.0
            for job in jobs:
                self._hold(execution, job)
            self.claimed.set()
            now = self.loop.time()
            if len(execution.jobs) >= size or (len(jobs) < room and end <= now):
                self._filled(execution)
            elif len(jobs) < room:
                await asyncio.sleep(min(end - now, seconds / CLAIMS_PER_WAIT))

    def _wait_of(self, handler: Handler[..., Any]) -> float:
        return 0.0 if self.drain else handler.options.wait_seconds

    def _filled(self, execution: Execution) -> None:
        """Note that a batch claims no more jobs for itself."""
        if self.filling.get(execution.handler.entrypoint) is execution:
            del self.filling[execution.handler.entrypoint]
            self.more.set()

    # Stopping

    def lose(self, held: HeldJob, why: str) -> None:
        """Stop the work on a job whose claim is lost. Nothing more is sent for the job."""
        if held.outcome is None:
            super().lose(held, why)
            held.outcome = "lost"
            self.finish(held)
            self.wake_waiting()

    def stick(self, execution: Execution) -> None:
        """Note that a handler does not stop. The claims that are not lost and its slot are kept until it ends."""
        is_lost = all(held.outcome is not None for held in execution.jobs)
        execution.warn(
            ": its handler still runs although it was told to stop; its %s kept until the handler ends",
            "slot is" if is_lost else "claim and its slot are",
        )
        self._add_stuck(execution)

    def _add_stuck(self, execution: Execution) -> None:
        execution.phase = Phase.STUCK
        self.executions.discard(execution)
        self.stuck.add(execution)
        if self.slots.stuck >= (slots := self.settings.concurrency):
            text = (
                f"all {slots} slots of the worker are taken by handlers that still run although they were"
                " told to stop: set timeouts on the calls that they make"
            )
            self.health.block(SLOTS, JQueueError(text))
        self.wake_waiting()

    def abandon(self, execution: Execution) -> None:
        """Give back the jobs of a handler that does not stop, as the worker ends. It is not waited for."""
        self._add_stuck(execution)
        execution.warn(": its handler still runs although it was told to stop; the worker ends without waiting for it")
        for held in execution.jobs:
            if held.outcome is None:
                self.give_back(held, was_stuck=True)
        if execution.task is not None and execution.handler.runs_in != "thread":  # the task of a thread ends with it
            execution.task.cancel()

    # Outcomes

    def end(self, execution: Execution, results: Sequence[Any], error: BaseException | None) -> None:
        """See `Executions.end`. The slot is free at once if no outcomes must be sent."""
        was_stuck, has_outcomes = execution in self.stuck, any(held.outcome is None for held in execution.jobs)
        self.stuck.discard(execution)
        self.executions.discard(execution)
        if self.filling:
            self._filled(execution)
        if was_stuck:
            for state in self.slots.turns:
                state.health.unblock(SLOTS)
        super().end(execution, results, error)
        if was_stuck or not has_outcomes:
            self.slots.wake()
        if not self.executions:
            self.slots.progress.set()

    def done(self, held: HeldJob) -> None:
        """Add a job whose outcome must be sent to the queue."""
        self.unsent.append(held)
        self.has_outcomes.set()

    def decide(self, held: HeldJob, decision: Decision) -> None:
        """Set the outcome of a job, to be sent to the queue as far as the queue supports it."""
        held.outcome, held.companions = decision.kind, ()
        able = self.queue.capabilities
        if decision.dead and not able.dead_letters:
            held.operation = Ack(held.job)  # after a nack it would come back for ever
        else:
            held.operation = Nack(
                held.job,
                delay=decision.delay if able.delay else None,
                error=decision.error if able.errors else None,
                traceback=decision.traceback if able.errors else None,
                dead=decision.dead,
                charge=decision.charge or not able.uncharged,
            )
        self.done(held)

    def wake_waiting(self) -> None:
        """Wake the tasks that wait for the end: a handler has ended, or outcomes have arrived."""
        self.slots.progress.set()
        if self.is_idle:
            self.slots.wake()
