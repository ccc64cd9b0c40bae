"""The execution of jobs: calls of handlers, their limits of time, and the decisions about their jobs.

A worker and a task of Spark execute jobs in the same way. They differ in where the jobs come from, and where their
outcomes go: see `Executions`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from functools import partial
from typing import Any, Literal

from pydantic_core import from_json, to_json

from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import (
    InvalidJobError,
    JobFailedError,
    JobNotFoundError,
    ResultNotKeptError,
    ResultTimeoutError,
    ResultWantedError,
    StepError,
)
from jqueue.domain.job import SPARED_ERROR, Progress
from jqueue.domain.limits import ERROR_BYTES, cut_error
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.ends import Ack
from jqueue.domain.printable import counted
from jqueue.ports.log import Lines, Logger, logger_of
from jqueue.ports.queue import JobQueue
from jqueue.runtime.queue_options import options_of
from jqueue.worker.calls import Plan, around
from jqueue.worker.context import Around, BatchContext, Context
from jqueue.worker.handler_errors import (
    check_awaited,
    error_in,
    frames_of,
    place_of,
    results_of,
    stack_of,
    tail_of,
    traceback_of,
)
from jqueue.worker.handler_options import WorkerSettings
from jqueue.worker.handlers import Handler
from jqueue.worker.job_log import log_about
from jqueue.worker.payloads import PayloadError, UnkeptResultError
from jqueue.worker.processes import Processes
from jqueue.worker.reports import Reports
from jqueue.worker.retries import (
    CANCELLED,
    HAND_BACK,
    Decision,
    Discard,
    HandlerTimeout,
    OutcomeKind,
    Retry,
    Snooze,
    attempts_of,
    decide,
    decisive,
    error_text,
)
from jqueue.worker.threads import Threads

logger: Logger = logger_of("jqueue.worker")

KEPT_FOR_CHILDREN = 1.0
"""Seconds for which the result of a job is kept at least that only its children need."""

NO_RESULT = (JobFailedError, JobNotFoundError, ResultNotKeptError, ResultTimeoutError)
"""Errors of a parent that was not done, and that the job does not wait for, or whose result is not kept."""

WITHOUT_TRACEBACK = (Retry, Discard, PayloadError, StepError)
"""Errors whose text says everything: their traceback would add nothing."""

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
    """Its handler has ended."""


@dataclass(slots=True, eq=False)
class Execution:
    """One call of a handler, for one job or for a batch of them. It takes one slot.

    Attributes:
        plan: the way to call the handler.
        phase: the phase.
        jobs: the jobs to call it with. Jobs that fail before the call leave this list.
        unstopped: number of those jobs that were neither told to stop nor decided about.
        context: the context of the call; None if neither the handler nor middleware takes one.
        task: the task that runs the handler.
        began: time at which the handler was called, on the loop's clock.
        due: time at which the handler has its timeout, or counts as stuck if it was told to stop, on the loop's clock.
    """

    plan: Plan
    phase: Phase = Phase.WAITING
    jobs: list[HeldJob] = field(default_factory=list)
    unstopped: int = 0
    context: Context | BatchContext | None = None
    task: asyncio.Task[None] | None = None
    began: float = 0.0
    due: float = math.inf

    @property
    def handler(self) -> Handler[..., Any]:
        """The handler."""
        return self.plan.handler

    @property
    def seconds(self) -> float:
        """Seconds that the call may take: those of its job, or of its handler."""
        own = None if self.plan.takes_batch else self.jobs[0].job.timeout
        return self.plan.seconds if own is None else own

    def add(self, held: HeldJob) -> None:
        """Add a job to call the handler with."""
        self.jobs.append(held)
        self.unstopped += 1

    def warn(self, text: str, *values: Any) -> None:
        """Log a warning that continues the name of the job, or the number of jobs."""
        if not self.plan.takes_batch:
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
        confirmed: time at which the store last confirmed the claim, on the clock of `Presence.lived`.
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
    confirmed: float = 0.0
    context: Context | None = None
    reason: Reason | None = None
    outcome: OutcomeKind | None = None
    operation: Operation = field(init=False)
    companions: tuple[Operation, ...] = ()
    uncertain: bool = False
    result: Any = None


Equipment = tuple[Threads, Processes, Any]
"""The threads and processes for handlers, and the value that the lifespan yielded."""


@asynccontextmanager
async def equipment_of(settings: WorkerSettings) -> AsyncIterator[Equipment]:
    """Open what the handlers of a worker need, and close it in the end."""
    async with AsyncExitStack() as stack:
        resources = None
        if settings.lifespan is not None:
            resources = await stack.enter_async_context(settings.lifespan())
        threads = Threads(settings.concurrency)
        processes = Processes(settings.concurrency, settings.max_memory)
        stack.push_async_callback(processes.close)
        stack.callback(threads.shutdown)
        yield threads, processes, resources


class Executions(ABC):
    """Executes jobs: it calls their handlers, stops them, and decides what becomes of the jobs.

    A subclass brings the jobs, and takes their outcomes: `done` and `decide` must not wait for anything.

    Args:
        settings: the settings of the worker.
        handlers: its handlers, by entrypoint.

    Attributes:
        settings, handlers: the same.
        loop: the event loop.
        cancel_grace: seconds that a handler gets to end when it is told to stop.
        executions: the calls of handlers that have not ended, without stuck calls.
        queue: the queue of the jobs. The subclass sets it.
    """

    queue: JobQueue

    def __init__(self, settings: WorkerSettings, handlers: Mapping[str, Handler[..., Any]]) -> None:
        self.settings: WorkerSettings = settings
        self.handlers = handlers
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.cancel_grace: float = to_seconds("cancel_grace", settings.cancel_grace)
        self.executions: set[Execution] = set()
        self._next_check = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def equip(
        self,
        equipment: Equipment,
        interrupt: Callable[[KeyboardInterrupt], bool],
        reports: Reports | None,
        seconds: float = math.inf,
    ) -> None:
        """Take what the handlers need.

        Args:
            equipment: see `equipment_of`.
            interrupt: takes a KeyboardInterrupt of a handler, and returns True if the run ends by it.
            reports: takes the progress of jobs; None: nobody looks at it.
            seconds: time that a handler may take that has no timeout of its own.
        """
        self._interrupt, self._reports = interrupt, reports
        threads, self._processes, self._resources = equipment
        self._clock, self._entropy = options_of(self.queue).clock, options_of(self.queue).entropy
        self._run_task = asyncio.current_task()
        self.plans: dict[str, Plan] = {name: Plan(each, threads, seconds) for name, each in self.handlers.items()}

    # The jobs and their outcomes

    @abstractmethod
    def done(self, held: HeldJob) -> None:
        """Take a job that is done, with the ack that says so and the operations of its commit."""

    @abstractmethod
    def decide(self, held: HeldJob, decision: Decision) -> None:
        """Take a job that is not done, with the decision about it."""

    @abstractmethod
    def stick(self, execution: Execution) -> None:
        """Take a call whose handler goes on although it was told to stop and `cancel_grace` is over."""

    def hold(self, held: HeldJob) -> None:
        """Add a job to its execution. It is not run if it has no attempts left, or was cancelled."""
        job = held.job
        if (decision := _worn_out(job, held.execution.handler.options.max_attempts)) is not None:
            self.decide(held, decision)
        elif job.cancel_requested:
            self.decide(held, CANCELLED)
        else:
            held.execution.add(held)

    # Calls

    async def execute(self, execution: Execution) -> None:
        """Call a handler once, and decide what becomes of its jobs."""
        results: Sequence[Any] = ()
        error: BaseException | None = None
        try:
            if execution.phase is not Phase.WAITING:
                raise asyncio.CancelledError
            execution.phase = Phase.RUNNING
            results = await (self.do_batch if execution.plan.takes_batch else self._do_job)(execution)
        except BaseException as raised:
            error = decisive(raised)
        self.end(execution, results, error)

    async def _do_job(self, execution: Execution) -> Sequence[Any]:
        [held] = execution.jobs
        if execution.plan.wants_context or held.job.after:
            await self._enter(held, self._around(execution))
            execution.context = held.context
        value = await self._call(execution, held.job)
        self.check_value(execution, value)
        return (value,)

    async def do_batch(self, execution: Execution) -> Sequence[Any]:
        """Call a handler with a batch, and return the result of each of its jobs.

        Jobs that were told to stop before the call, and jobs whose payload does not validate, leave the batch.
        """
        plan, payloads, surroundings = execution.plan, list[Any](), self._around(execution)
        handler = plan.handler
        for held in list(execution.jobs):
            failure: BaseException | None = None
            try:
                if held.reason is None:
                    await self._enter(held, surroundings)
                    payloads.append(None if handler.runs_in == "process" else handler.signature.parse(held.job))
                    continue
            except Exception as error:
                failure = decisive(error)
            execution.jobs.remove(held)
            if failure is not None and held.reason is None:
                execution.unstopped -= 1
                self.fail(held, failure, shows=True)
            elif held.outcome is None:
                self.give_back(held)
        if not execution.unstopped:
            return ()
        if plan.wants_context:
            contexts = [held.context for held in execution.jobs if held.context is not None]
            execution.context = BatchContext(handler.entrypoint, contexts, **surroundings)
        value = await self._call(execution, payloads)
        self.check_value(execution, value)
        return results_of(value, len(execution.jobs))

    def _call(self, execution: Execution, payload: Any) -> Awaitable[Any]:
        """Return the call of a handler with a job, or with the payloads of a batch. Its timeout begins now."""
        plan, execution.began = execution.plan, self.loop.time()
        if plan.handler.runs_in == "process":
            return self._in_process(execution)
        self.limit(execution, execution.seconds)
        return plan.call(payload, execution.context)

    async def _enter(self, held: HeldJob, surroundings: Around) -> None:
        """Give a job its context, if that is wanted, and the results of its parents: one in a chain as an argument."""
        if held.execution.plan.wants_context:
            held.context = Context(held.job, self._lose_job, self._reports, **surroundings)
        is_chained = held.job.encoding == "chained"
        if held.job.after and (held.context is not None or is_chained):
            results = await self._results_of_parents(held.job)
            if held.context is not None:
                held.context.parents = results
            if is_chained:
                held.job = _with_argument(held.job, held.execution.handler.signature.names[0], results)

    async def _results_of_parents(self, job: Job) -> dict[str, Any]:
        """Return the results of a job's parents by their ids, in the order of `after`. Some have none: see `NO_RESULT`.

        Raises:
            StorageError: the store failed, or the object of a large result is missing.
        """
        answers = await asyncio.gather(
            *(self.queue.result(each, timeout=0) for each in job.after), return_exceptions=True
        )
        results = dict(zip(job.after, answers, strict=True))
        for error in results.values():
            if isinstance(error, BaseException) and not isinstance(error, NO_RESULT):
                raise error
        return {each: result for each, result in results.items() if not isinstance(result, BaseException)}

    @staticmethod
    def check_value(execution: Execution, value: Any) -> None:
        """Check the value that a handler returned.

        Raises:
            TypeError: it must be awaited.
            CancelledError: the handler was told to stop, and may have left work undone.
        """
        if value is not None:
            check_awaited(value)
        if execution.phase is not Phase.RUNNING:
            raise asyncio.CancelledError

    async def _in_process(self, execution: Execution) -> Any:
        """Call a handler in a process. Its timeout begins with its turn, and anew once a process has begun with it."""
        handler = execution.handler

        def running(begun: bool) -> None:
            if execution.phase is not Phase.RUNNING:
                return
            self.limit(execution, execution.seconds if begun else math.inf)
            if begun and execution.context is not None:
                execution.context.move_deadline(self._deadline(execution))

        def reporting(progress: Progress) -> None:
            if self._reports is not None:
                self._reports.add(execution.jobs[0].job, progress)

        async with self._processes.turn:
            running(True)  # starts the timeout for middleware
            call = partial(self._processes.call, handler, [held.job for held in execution.jobs], running, reporting)
            return await around(handler.middlewares, execution.context, call)

    def _around(self, execution: Execution) -> Around:
        return {"queue": self.queue, "resources": self._resources, "deadline": self._deadline(execution)}

    def _deadline(self, execution: Execution) -> datetime | None:
        seconds = execution.seconds
        return None if seconds == math.inf else self._clock.now() + timedelta(seconds=seconds)

    def _lose_job(self, job: Job) -> None:
        """Stop the work on a job whose claim is found lost by its handler."""
        for held in [each for execution in self.executions for each in execution.jobs]:
            if held.job.claim == job.claim:
                self.lose(held, "another worker has it, or it was removed")

    # Stopping

    def stop(self, execution: Execution, reason: Reason) -> None:
        """Tell a handler to stop the work on all of its jobs. If it goes on after `cancel_grace`, it is stuck."""
        for held in execution.jobs:
            self.stop_job(held, reason)
        self._cancel(execution)

    def _cancel(self, execution: Execution) -> None:
        """Cancel a call, unless it was cancelled before, or has ended."""
        if execution.phase not in (Phase.WAITING, Phase.RUNNING):
            return
        if execution.context is not None:
            execution.context.stop()
        if execution.phase is Phase.RUNNING and execution.task is not None:
            execution.task.cancel()
        execution.phase = Phase.STOPPING
        self.limit(execution, self.cancel_grace)

    def stop_job(self, held: HeldJob, reason: Reason) -> None:
        """Tell a handler to stop the work on a job. A batch goes on with its other jobs, if there are any.

        The outcome of the job is sent when the handler has ended, as a job counts as running until then.
        """
        if held.outcome is None and held.reason is None:
            held.reason = reason
            held.execution.unstopped -= 1
            if held.context is not None:
                held.context.stop()
            if not held.execution.unstopped:
                self._cancel(held.execution)

    def lose(self, held: HeldJob, why: str) -> None:
        """Stop the work on a job whose claim is lost."""
        if held.outcome is None:
            log_about(held.job, logging.WARNING, " is lost: %s", why)
            self.stop_job(held, "lost")

    def limit(self, execution: Execution, seconds: float) -> None:
        """Limit the time of a handler from now on: it is told to stop then, or is stuck if it was told before."""
        execution.due = self.loop.time() + seconds
        self._check_at(execution.due)

    def _check_at(self, due: float) -> None:
        """Check the limits at a time, unless they are checked before. One timer serves all handlers."""
        if due < self._next_check:
            self.close()
            self._next_check = due
            self._timer = self.loop.call_at(due, self._check_limits)

    def _check_limits(self) -> None:
        """Stop the handlers whose time is over."""
        now, self._next_check = max(self._next_check, self.loop.time()), math.inf
        for execution in [each for each in self.executions if each.due <= now]:
            if execution.phase is Phase.RUNNING:
                self.stop(execution, "timeout")
            else:
                self.stick(execution)
        self._check_at(min((each.due for each in self.executions), default=math.inf))

    def close(self) -> None:
        """Check no limits any longer."""
        if self._timer is not None:
            self._timer.cancel()

    # Decisions

    def end(self, execution: Execution, results: Sequence[Any], error: BaseException | None) -> None:
        """Decide about the jobs of a handler that returned, or raised an error, or was stopped.

        A batch handler that returns, or is stopped, has done only jobs on which it was not told to stop the work.
        """
        was_stuck, execution.phase = execution.phase is Phase.STUCK, Phase.ENDED
        is_stopped, told_all = isinstance(error, asyncio.CancelledError), not execution.unstopped
        ends_run = (isinstance(error, KeyboardInterrupt) and self._interrupt(error)) or (
            is_stopped and self._run_task is not None and self._run_task.cancelling() > 0
        )  # a program that ends cancels all of its tasks, handlers too
        is_shown = False
        for place, held in enumerate(execution.jobs):
            if held.outcome is not None:
                continue
            if ends_run or (held.reason is not None and (error is None or is_stopped or not told_all)):
                self.give_back(held, was_stuck)
            elif error is None:
                self._finish(held, results[place])
            else:
                self.fail(held, error, shows=not is_shown)
                is_shown = True
        execution.due = math.inf
        execution.jobs.clear()  # its jobs refer to it: a cycle would be left to the garbage collector

    def _finish(self, held: HeldJob, result: Any) -> None:
        """Ack a job that succeeded. It fails if a batch has an error in the place of its result."""
        job, plan = held.job, held.execution.plan
        error = error_in(result) if plan.takes_batch and result is not None else None
        if error is not None and not isinstance(error, UnkeptResultError):
            self.fail(held, decisive(error), shows=True)
            return
        held.outcome, held.result = "succeeded", result
        if self.settings.log_done:
            log_about(job, logging.INFO, " is done after %.3f s", self.loop.time() - held.execution.began)
        if held.context is not None:
            held.companions = tuple(held.context.companions)
        self.succeed(held, plan.handler.options.keep_result if job.keep_result is None else job.keep_result)

    def succeed(self, held: HeldJob, keep_result: Duration | None) -> None:
        """Ack a job whose handler has returned, with its result if it is kept."""
        if keep_result is None or not self.queue.capabilities.results:
            held.operation = Ack(held.job, withheld=held.result is not None)
        else:
            self._keep(held, keep_result)
        self.done(held)

    def _keep(self, held: HeldJob, keep_result: Duration) -> None:
        """Let the ack of a job carry its result. The process of a handler has encoded it already."""
        handler, result = held.execution.handler, held.result
        try:
            if isinstance(result, UnkeptResultError):
                raise result
            value = result if handler.runs_in == "process" else handler.signature.returns.encode(result)
            held.operation = Ack(held.job, value, keep_result)
        except UnkeptResultError as failure:
            self._drop_result(held, f"{failure}")

    @staticmethod
    def _drop_result(held: HeldJob, reason: str) -> None:
        """Ack a job without its result, which cannot be kept: its work is done, and must not be done again."""
        held.operation = Ack(held.job, keep_result=0)
        log_about(held.job, logging.WARNING, " is acked without its result: %s", reason)

    def refuse(self, held: HeldJob, error: BaseException) -> None:
        """Decide anew about a job whose ack was refused, for its result or for an operation of its commit.

        It is first acked without the result. If the sending of its ack was cancelled, the job is handed back.
        """
        has_result = isinstance(held.operation, Ack) and held.operation.result is not None
        if isinstance(error, asyncio.CancelledError):
            self.decide(held, HAND_BACK)
        elif isinstance(error, ResultWantedError):
            self._keep(held, KEPT_FOR_CHILDREN)
            self.done(held)
        elif isinstance(error, InvalidJobError) and has_result:
            self._drop_result(held, f"the queue refused the ack: {error}")
            self.done(held)
        elif isinstance(error, InvalidJobError):
            log_about(held.job, logging.ERROR, " is dead: %s", error)
            self.decide(held, Decision("dead", error=f"{type(error).__name__}: {error}", dead=True))
        else:
            self.fail(held, error)

    def give_back(self, held: HeldJob, was_stuck: bool = False) -> None:
        """Decide about a job whose handler was told to stop. `was_stuck`: it did not stop within `cancel_grace`."""
        if held.reason == "timeout":
            how = ", and still ran after it was told to stop" if was_stuck else ""
            self.fail(held, HandlerTimeout(f"timed out after {held.execution.seconds:g} s{how}"))
        else:
            self.decide(held, CANCELLED if held.reason == "cancelled" else HAND_BACK)

    def fail(self, held: HeldJob, error: BaseException, *, shows: bool = False) -> None:
        """Decide about a job that failed, and log it.

        Args:
            held: the job.
            error: the error.
            shows: True if the log may have the error in full. Of several jobs that fail by one error, the first has it.
        """
        job, options = held.job, held.execution.handler.options
        decision = decide(error, job, options.max_attempts, options.backoff, self._entropy.jitter, options.retry)
        if decision.kind == "snoozed":
            log_about(job, logging.DEBUG, " is snoozed for %g s", decision.delay)
        else:
            attempts, stack = attempts_of(job, options.max_attempts), stack_of(error)
            place = place_of(stack)
            if place is not None and not isinstance(error, WITHOUT_TRACEBACK):
                where = f" ({place.file}:{place.line})"
                text = cut_error(f"{decision.error}".rstrip(), ERROR_BYTES - len(where.encode())) + where
                decision = replace(decision, error=text, traceback=tail_of(stack))
            log_about(
                job,
                logging.ERROR if decision.dead else logging.WARNING,
                " failed: %s%s; %s (failure %d%s)",
                type(error).__name__,
                "" if place is None else f" at {place}",
                "dead" if decision.dead else f"next try in {decision.delay:,.1f} s",
                job.failures,
                "" if attempts == math.inf else f" of {attempts}",
            )
        if shows and self.settings.show_errors and not isinstance(error, Snooze):
            text = error_text(error) if isinstance(error, WITHOUT_TRACEBACK) else traceback_of(error)
            log_about(job, logging.WARNING, ": %s", Lines(text))
        elif shows and error.__traceback__ is not None and logger.isEnabledFor(logging.DEBUG):
            name, frames = type(error).__name__, Lines(frames_of(error))
            log_about(job, logging.DEBUG, ": %s was raised here:\n%s", name, frames)
        self.decide(held, decision)


def _worn_out(job: Job, max_attempts: int | None) -> Decision | None:
    """Return the decision about a job that has no attempts left as it is claimed, and log it. None: it has some."""
    claims = job.failures
    if job.errors and job.errors[-1].text == SPARED_ERROR:
        claims += 1  # that claim was a try all the same
    if claims <= 1 or claims <= attempts_of(job, max_attempts):
        return None
    times = counted(claims, "time")
    error = f"the job was claimed {times}, and its workers ended without reporting an outcome"
    log_about(job, logging.ERROR, " is dead: %s", error)
    return Decision("dead", error=error, dead=True)


def _with_argument(job: Job, name: str, results: Mapping[str, Any]) -> Job:
    """Return a job of a chain with the result of the job before it among its arguments.

    Raises:
        PayloadError: that job has no result.
    """
    before = job.after[-1]
    if before not in results:
        raise PayloadError(f"job {before}, whose result is its first argument, has no result")
    return job.evolve(payload=to_json({name: results[before], **from_json(job.payload)}), encoding="named")
