"""Running handlers: one task for each claimed job or batch, whose end decides the outcomes.

Nothing here waits for the queue: outcomes are reported here, and `outcome_sender` sends them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from jqueue.domain.durations import Duration
from jqueue.domain.errors import InvalidJobError, ResultWantedError
from jqueue.domain.job import may_kill
from jqueue.domain.models import Job
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.ports.log import Logger, logger_of
from jqueue.runtime.queue_options import options_of
from jqueue.worker.calls import around, call_of
from jqueue.worker.claims import Claims
from jqueue.worker.context import Around, BatchContext, Context
from jqueue.worker.executions import Execution, HeldJob, Phase, Reason
from jqueue.worker.failures import fail, worn_out
from jqueue.worker.handler_errors import check_awaited, error_in, results_of
from jqueue.worker.handlers import Handler
from jqueue.worker.job_log import log_about
from jqueue.worker.parents import results_of_parents, with_argument
from jqueue.worker.payloads import UnkeptResultError
from jqueue.worker.processes import Processes
from jqueue.worker.retries import CANCELLED, HAND_BACK, Decision, HandlerTimeout, decisive
from jqueue.worker.run_state import RunState
from jqueue.worker.threads import Threads

logger: Logger = logger_of("jqueue.worker")

JOB_TASK = "jqueue-job "
"""Prefix of the name of a job's task. The id of the job follows."""

KEPT_FOR_CHILDREN = 1.0
"""Seconds for which the result of a job is kept at least that only its children need."""

CLAIMS_PER_WAIT = 10
"""Number of claims by which a batch looks for more jobs within its `batch_wait`."""


class JobRunner:
    """Does the jobs of one run.

    Args:
        state: the state of the run.
        claims: the claims of the run.
        threads: run the handlers without async.
        processes: run the handlers in processes.
        resources: the value that the lifespan yielded.
        interrupt: takes a KeyboardInterrupt of a handler, and returns True if the run ends by it.
    """

    def __init__(
        self,
        state: RunState,
        claims: Claims,
        threads: Threads,
        processes: Processes,
        resources: Any,
        interrupt: Callable[[KeyboardInterrupt], bool],
    ) -> None:
        self._state = state
        self._claims = claims
        self._queue = state.queue
        self._capabilities = state.queue.capabilities
        self._clock, self._entropy = options_of(state.queue).clock, options_of(state.queue).entropy
        self._processes = processes
        self._resources = resources
        self._interrupt = interrupt
        self._loop = state.loop
        self._run_task = asyncio.current_task()
        self._next_check = math.inf
        self._timer: asyncio.TimerHandle | None = None
        # By entrypoint: the handler, its call, and True if it needs a context.
        self._calls = {
            name: (
                handler,
                call_of(handler, threads),
                handler.signature.wants_context or bool(handler.middlewares or handler.thread_middlewares),
            )
            for name, handler in state.handlers.items()
        }

    # Beginning

    def begin(self, jobs: Iterable[Job], more: bool) -> None:
        """Start the work on jobs that were just claimed: the jobs of a batch handler together, other jobs singly.

        Args:
            jobs: the jobs.
            more: True if more jobs may be ready, for batches that are not full.
        """
        batches: dict[str, Execution] = {}
        now = self._loop.time()
        for job in jobs:
            handler, call, wants_context = self._calls[job.entrypoint]
            size = handler.options.batch
            execution = None if size is None else batches.get(job.entrypoint)
            if execution is None:
                execution = Execution(handler, call)
                self._state.occupy(execution)  # until its handler has ended
            held = self._hold(execution, job, now)
            if size is None and wants_context and held.outcome is None:
                held.context = execution.context = self._context(job, self._deadline(execution))
            if size is None:
                self._start(execution)
            elif len(execution.jobs) < size:
                batches[job.entrypoint] = execution
            else:
                batches.pop(job.entrypoint, None)
                self._start(execution)
        for name, execution in batches.items():
            if more or self._wait_of(execution.handler) > 0:
                self._state.filling[name] = execution
            self._start(execution)
        self._state.claimed.set()

    def _hold(self, execution: Execution, job: Job, now: float) -> HeldJob:
        """Hold a job. If it has no attempts left, it is dead without being run. If it was cancelled, it is not run."""
        held = HeldJob(job, execution, now)
        self._state.held.add(held)
        self._state.occupy(execution)  # until its outcome is sent
        if (decision := worn_out(job, execution.handler.options)) is not None:
            self._decide(held, decision)
        elif job.cancel_requested:
            self._decide(held, CANCELLED)
        else:
            execution.jobs.append(held)
            execution.unstopped += 1
            if job.errors and may_kill(job):
                why = "its last two workers were lost while they had it, and no other such job runs here meanwhile"
                log_about(job, logging.WARNING, " begins: %s", why)
        return held

    def _start(self, execution: Execution) -> None:
        """Start the task of a call, unless no job is left for it."""
        name = execution.handler.entrypoint
        if not execution.jobs and self._state.filling.get(name) is not execution:
            execution.phase = Phase.ENDED
            self._state.vacate(execution)
            return
        self._state.executions.add(execution)
        name = execution.jobs[0].job.id if execution.jobs else name
        execution.task = self._loop.create_task(self._execute(execution), name=f"{JOB_TASK}{name}")

    async def _execute(self, execution: Execution) -> None:
        """Run a handler once, and decide what becomes of its jobs."""
        results: Sequence[Any] = ()
        error: BaseException | None = None
        try:
            if execution.phase is not Phase.WAITING:
                raise asyncio.CancelledError
            execution.phase = Phase.RUNNING
            if execution.handler.options.batch is None:
                await self._load_parents(execution)
                results = (await self._call(execution, execution.jobs[0].job),)
                self._check_value(execution, results[0])
            else:
                results = await self._do_batch(execution)
        except BaseException as raised:
            error = decisive(raised)
        was_stuck = self._state.end(execution)
        self._end(execution, results, error, was_stuck)
        execution.jobs.clear()  # its jobs refer to it: a cycle would be left to the garbage collector
        self._state.vacate(execution)
        if was_stuck:
            self._state.wake_waiting()

    def _call(self, execution: Execution, payload: Any) -> Awaitable[Any]:
        """Return the call of a handler with a job, or with the payloads of a batch. Its timeout begins now."""
        call, execution.began = execution.call, self._loop.time()
        if execution.handler.runs_in == "process":
            return self._in_process(execution)
        self._limit(execution, self._seconds_of(execution))
        awaitable: Awaitable[Any] = call(payload, execution.context)
        return awaitable

    async def _load_parents(self, execution: Execution) -> None:
        """Give jobs the results of their parents: to their contexts, and as the first argument of those in a chain."""
        for held in execution.jobs:
            is_chained = held.job.encoding == "chained"
            if held.job.after and (held.context is not None or is_chained):
                results = await results_of_parents(self._queue, held.job)
                if held.context is not None:
                    held.context.parents = results
                if is_chained:
                    held.job = with_argument(held.job, execution.handler.signature.names[0], results)

    def _check_value(self, execution: Execution, value: Any) -> None:
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
            self._limit(execution, self._seconds_of(execution) if begun else None)
            if begun and execution.context is not None:
                execution.context.move_deadline(self._deadline(execution))

        async with self._processes.turn:
            running(True)  # starts the timeout for middleware
            call = partial(self._processes.call, handler, [held.job for held in execution.jobs], running)
            return await around(handler.middlewares, execution.context, call)

    # Batches

    async def _do_batch(self, execution: Execution) -> Sequence[Any]:
        """Fill a batch, call its handler, and return the result of each of its jobs."""
        if self._state.filling.get(execution.handler.entrypoint) is execution:
            await self._fill(execution)
            self._state.filled(execution)
        await self._load_parents(execution)
        payloads = self._payloads(execution)
        if not execution.jobs:
            return ()
        if self._calls[execution.handler.entrypoint][2]:
            execution.context = self._batch_context(execution)
            await self._load_parents(execution)
        value = await self._call(execution, payloads)
        self._check_value(execution, value)
        return results_of(value, len(execution.jobs))

    async def _fill(self, execution: Execution) -> None:
        """Claim jobs for a batch until it is full, or until no more are ready and its wait is over.

        Claims for free slots are of all entrypoints together, so that jobs are served by priority and age. The jobs of
        a batch handler among them begin a batch, which then claims for itself what else is ready. Meanwhile the
        worker's other claims leave its entrypoint out.
        """
        handler, seconds = execution.handler, self._wait_of(execution.handler)
        assert handler.options.batch is not None
        end = self._loop.time() + seconds
        while (room := min(handler.options.batch - len(execution.jobs), self._claims.limit)) > 0:
            try:
                jobs = await self._claims.claim((handler.entrypoint,), room)
            except Exception as error:  # the claims for free slots meet and report the same trouble
                logger.debug("a batch of %s stays as it is: %s", handler.entrypoint, type(error).__name__)
                return
            now = self._loop.time()
            for job in jobs:
                self._hold(execution, job, now)
            self._state.claimed.set()
            if len(jobs) < room:
                if end <= now:
                    return
                await asyncio.sleep(min(end - now, seconds / CLAIMS_PER_WAIT))

    def _wait_of(self, handler: Handler[..., Any]) -> float:
        return 0.0 if self._state.drain else handler.options.wait_seconds

    def _payloads(self, execution: Execution) -> list[Any]:
        """Return the payloads to call a batch handler with.

        Jobs that were told to stop meanwhile, and jobs whose payload does not validate, leave the batch.
        """
        payloads = []
        for held in list(execution.jobs):
            try:
                if held.reason is None:
                    handler = execution.handler
                    payloads.append(None if handler.runs_in == "process" else handler.signature.parse(held.job))
                    continue
                if held.outcome is None:
                    self._give_back(held)
            except Exception as error:
                execution.unstopped -= 1
                self._fail(held, decisive(error), shows=True)
            execution.jobs.remove(held)
        return payloads

    def _batch_context(self, execution: Execution) -> BatchContext:
        deadline = self._deadline(execution)
        contexts = []
        for held in execution.jobs:
            held.context = self._context(held.job, deadline)
            contexts.append(held.context)
        return BatchContext(
            execution.handler.entrypoint, contexts, queue=self._queue, resources=self._resources, deadline=deadline
        )

    # Stopping

    def stop(self, execution: Execution, reason: Reason) -> None:
        """Tell a handler to stop the work on all of its jobs. If it goes on after `cancel_grace`, it is stuck."""
        for held in execution.jobs:
            if held.outcome is None and held.reason is None:
                held.reason = reason
                execution.unstopped -= 1
                if held.context is not None:
                    held.context.stop()
        if execution.phase not in (Phase.WAITING, Phase.RUNNING):
            return
        if execution.context is not None:
            execution.context.stop()
        if execution.phase is Phase.RUNNING and execution.task is not None:
            execution.task.cancel()
        execution.phase = Phase.STOPPING
        self._limit(execution, self._state.cancel_grace)

    def _limit(self, execution: Execution, seconds: float | None) -> None:
        """Limit the time of a handler from now on: it is told to stop then, or is stuck if it was told before."""
        execution.due = math.inf if seconds is None else self._loop.time() + seconds
        self._check_at(execution.due)

    def _check_at(self, due: float) -> None:
        """Check the limits at a time, unless they are checked before. One timer serves all handlers."""
        if due < self._next_check:
            self.close()
            self._next_check = due
            self._timer = self._loop.call_at(due, self._check_limits)

    def _check_limits(self) -> None:
        """Stop the handlers whose time is over."""
        now, self._next_check = max(self._next_check, self._loop.time()), math.inf
        for execution in [each for each in self._state.executions if each.due <= now]:
            if execution.phase is Phase.RUNNING:
                self.stop(execution, "timeout")
            else:
                self._stick(execution)
        self._check_at(min((each.due for each in self._state.executions), default=math.inf))

    def close(self) -> None:
        """Check no limits any longer."""
        if self._timer is not None:
            self._timer.cancel()

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
                self.stop(held.execution, reason)

    def lose(self, held: HeldJob, why: str) -> None:
        """Stop the work on a job whose claim is lost. Nothing more is sent for the job."""
        if held.outcome is None:
            log_about(held.job, logging.WARNING, " is lost: %s", why)
            self.stop_job(held, "lost")
            held.outcome = "lost"
            self._state.vacate(held.execution)
            self._state.finish(held)
            self._state.wake_waiting()

    def _stick(self, execution: Execution) -> None:
        """Note that a handler does not stop. The claims that are not lost and its slot are kept until it ends."""
        if execution in self._state.executions:
            is_lost = all(held.outcome is not None for held in execution.jobs)
            execution.warn(
                ": its handler still runs although it was told to stop; its %s kept until the handler ends",
                "slot is" if is_lost else "claim and its slot are",
            )
            self._state.stick(execution)

    def abandon(self, execution: Execution) -> None:
        """Give back the jobs of a handler that does not stop, as the worker ends. It is not waited for."""
        if execution in self._state.executions:
            self._state.stick(execution)
        if execution.phase is Phase.STUCK:
            execution.warn(
                ": its handler still runs although it was told to stop; the worker ends without waiting for it"
            )
        for held in execution.jobs:
            if held.outcome is None:
                self._give_back(held, was_stuck=True)
        if execution.task is not None and execution.handler.runs_in != "thread":  # the task of a thread ends with it
            execution.task.cancel()

    # Outcomes

    def _end(self, execution: Execution, results: Sequence[Any], error: BaseException | None, was_stuck: bool) -> None:
        """Decide about the jobs of a handler that returned, or raised an error, or was stopped.

        A batch handler that returns, or is stopped, has done only jobs on which it was not told to stop the work.
        """
        is_stopped, told_all = isinstance(error, asyncio.CancelledError), not execution.unstopped
        ends_run = (isinstance(error, KeyboardInterrupt) and self._interrupt(error)) or (
            is_stopped and self._run_task is not None and self._run_task.cancelling() > 0
        )  # a program that ends cancels all of its tasks, handlers too
        is_shown = False
        for place, held in enumerate(execution.jobs):
            if held.outcome is not None:
                continue
            if ends_run or (held.reason is not None and (error is None or is_stopped or not told_all)):
                self._give_back(held, was_stuck)
            elif error is None:
                self._finish(held, results[place])
            else:
                self._fail(held, error, shows=not is_shown)
                is_shown = True

    def _finish(self, held: HeldJob, result: Any) -> None:
        """Ack a job that succeeded. It fails if a batch has an error in the place of its result."""
        job, handler = held.job, held.execution.handler
        error = None if handler.options.batch is None else error_in(result)
        if error is not None and not isinstance(error, UnkeptResultError):
            self._fail(held, decisive(error), shows=True)
            return
        held.outcome, held.operation, held.result = "succeeded", Ack(job, withheld=result is not None), result
        if self._state.settings.log_done:
            log_about(job, logging.INFO, " is done after %.3f s", self._loop.time() - held.execution.began)
        if held.context is not None:
            held.companions = tuple(held.context.companions)
        keep_result = handler.keep_result_of(job) if self._capabilities.results else None
        if keep_result is not None:
            self._keep(held, keep_result)
        self._state.add_outcome(held)

    def _keep(self, held: HeldJob, keep_result: Duration) -> None:
        """Let the ack of a job carry its result."""
        try:
            held.operation = Ack(held.job, held.execution.handler.result_to_keep(held.result), keep_result)
        except UnkeptResultError as failure:
            self._drop_result(held, f"{failure}")

    def _drop_result(self, held: HeldJob, reason: str) -> None:
        """Ack a job without its result, which cannot be kept: its work is done, and must not be done again."""
        held.operation = Ack(held.job, keep_result=0)
        log_about(held.job, logging.WARNING, " is acked without its result: %s", reason)

    def refuse(self, held: HeldJob, error: BaseException) -> None:
        """Decide anew about a job whose ack the queue refused, for its result or for an operation of its commit.

        It is first acked without the result. If the sending of its ack was cancelled, the job is handed back.
        """
        self._state.occupy(held.execution)
        if isinstance(error, asyncio.CancelledError):
            self._decide(held, HAND_BACK)
        elif isinstance(error, ResultWantedError):
            self._keep(held, KEPT_FOR_CHILDREN)
            self._state.add_outcome(held)
        elif (
            isinstance(error, InvalidJobError) and isinstance(held.operation, Ack) and held.operation.result is not None
        ):
            self._drop_result(held, f"the queue refused the ack: {error}")
            self._state.add_outcome(held)
        elif isinstance(error, InvalidJobError):
            log_about(held.job, logging.ERROR, " is dead: %s", error)
            self._decide(held, Decision("dead", error=f"{type(error).__name__}: {error}", dead=True))
        else:
            self._fail(held, error)

    def _give_back(self, held: HeldJob, was_stuck: bool = False) -> None:
        """Decide about a job whose handler was told to stop. `was_stuck`: it did not stop within `cancel_grace`."""
        if held.reason == "timeout":
            seconds = self._seconds_of(held.execution)
            how = ", and still ran after it was told to stop" if was_stuck else ""
            self._fail(held, HandlerTimeout(f"timed out after {seconds:g} s{how}"))
        else:
            self._decide(held, CANCELLED if held.reason == "cancelled" else HAND_BACK)

    def _decide(self, held: HeldJob, decision: Decision) -> None:
        """Set the outcome of a job, to be sent to the queue as far as the queue supports it."""
        held.outcome, held.companions = decision.kind, ()
        able = self._capabilities
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
        self._state.add_outcome(held)

    def _fail(self, held: HeldJob, error: BaseException, *, shows: bool = False) -> None:
        """Decide about a job that failed, and log it; its error in full if `shows`, and if that is asked for."""
        options, in_full = held.execution.handler.options, self._state.settings.show_errors
        self._decide(held, fail(error, held.job, options, self._entropy.jitter, shows=shows, in_full=in_full))

    def _context(self, job: Job, deadline: datetime | None) -> Context:
        reports = self._state.reports if self._capabilities.steps else None
        around: Around = {"queue": self._queue, "resources": self._resources, "deadline": deadline}
        return Context(job, self._lose_job, reports, **around)

    def _lose_job(self, job: Job) -> None:
        """Stop the work on a job whose claim is found lost by its handler."""
        for held in [each for each in self._state.held if each.job is job]:
            self.lose(held, "another worker has it, or it was removed")

    def _seconds_of(self, execution: Execution) -> float | None:
        """Return the seconds that a call may take: those of its job, or of its handler."""
        own = None if execution.handler.options.batch is not None else execution.jobs[0].job.timeout
        return execution.handler.options.seconds if own is None else own

    def _deadline(self, execution: Execution) -> datetime | None:
        seconds = self._seconds_of(execution)
        return None if seconds is None else self._clock.now() + timedelta(seconds=seconds)
