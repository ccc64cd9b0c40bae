"""Running handlers: one task for each claimed job, whose end decides the outcome.

Nothing here waits for the queue: outcomes are reported here, and `outcome_sender` sends them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from jqueue.domain.counting import counted
from jqueue.domain.errors import InvalidJobError, JQueueError
from jqueue.domain.models import Job
from jqueue.domain.operations import Ack, Nack
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.log import Lines, logger_of
from jqueue.ports.queue import Capabilities, JobQueue
from jqueue.worker.calls import Call, ProcessCall
from jqueue.worker.context import Context
from jqueue.worker.handler_errors import check_awaited, frames_of, traceback_of
from jqueue.worker.handlers import Handler
from jqueue.worker.job_log import about
from jqueue.worker.payloads import PayloadError, ResultError, json_value
from jqueue.worker.processes import PoolBroke
from jqueue.worker.retries import (
    CANCELLED,
    HAND_BACK,
    Decision,
    Discard,
    HandlerTimeout,
    Retry,
    Snooze,
    decide,
    error_text,
    is_spent,
)
from jqueue.worker.run_state import HeldJob, Outcome, Reason, RunState

logger = logger_of("jqueue.worker")

WITHOUT_TRACEBACK = (Retry, Discard, PayloadError, ResultError)
"""Errors whose text says everything: their traceback would add nothing."""

JOB_TASK = "jqueue-job "
"""Prefix of the name of a job's task. The id of the job follows."""


class JobRunner:
    """Does the jobs of one run.

    Args:
        queue: the queue of the jobs.
        state: the state of the run.
        calls: by entrypoint: the handler, its call, and True if it needs a context.
        clock: gives the time for deadlines.
        entropy: draws backoffs.
        resources: the value that the lifespan yielded.
        cancel_grace: seconds that a handler gets to end when it is told to stop.
        is_real_interrupt: returns True if a KeyboardInterrupt may come from the terminal.
        show_errors: True to log messages and tracebacks of errors.
    """

    def __init__(
        self,
        queue: JobQueue,
        state: RunState,
        calls: Mapping[str, tuple[Handler[..., Any], Call, bool]],
        *,
        clock: Clock,
        entropy: Entropy,
        resources: Any,
        cancel_grace: float,
        is_real_interrupt: Callable[[], bool],
        show_errors: bool = False,
    ) -> None:
        self.cancel_grace = cancel_grace
        self._queue = queue
        self._state = state
        self._calls = calls
        self._clock = clock
        self._entropy = entropy
        self._resources = resources
        self._is_real_interrupt = is_real_interrupt
        self._show_errors = show_errors
        self._loop = asyncio.get_running_loop()
        self._run_task = asyncio.current_task()
        self._capabilities: Capabilities = queue.capabilities

    def begin(self, jobs: list[Job]) -> None:
        """Start the work on jobs that were just claimed."""
        state, loop = self._state, self._loop
        now = loop.time()
        for job in jobs:
            handler, call, wants_context = self._calls[job.entrypoint]
            held = HeldJob(job, handler, now)
            state.held.add(held)
            if job.failures > 1 and is_spent(job, handler.options.max_attempts):
                held.ended = True
                times = counted(job.failures, "time")
                error = f"the job was claimed {times}, and its workers ended without reporting an outcome"
                self._conclude(held, Decision("dead", error=error, dead=True))
                continue
            state.running += 1
            if wants_context:
                held.context = self._context(job, handler)
            held.task = loop.create_task(self._work(held, call), name=f"{JOB_TASK}{job.id}")
        state.claimed.set()

    def stop(self, held: HeldJob, reason: Reason) -> None:
        """Tell a handler to stop. If it has not ended after `cancel_grace`, its job is given back regardless."""
        if held.decided or held.reason is not None:
            return
        held.reason = reason
        if held.timer is not None:
            held.timer.cancel()
        if held.context is not None:
            held.context.stop()
        if held.started and held.task is not None:
            held.task.cancel()
        held.timer = self._loop.call_later(self.cancel_grace, self.give_up, held)

    def lose(self, held: HeldJob) -> None:
        """Stop the handler of a job whose claim is lost. Nothing more is sent for the job."""
        if held.reason is None:
            self.stop(held, "lost")
        elif not held.decided:
            held.reason = "lost"

    def give_up(self, held: HeldJob) -> None:
        """Give back the job of a handler that does not stop. Its slot stays taken until the handler ends."""
        if held.decided:
            return
        job = held.job
        logger.warning(
            "job %s (%s, attempt %d): its handler still runs although it was told to stop; the job is handed back, and"
            " its slot stays taken until the handler ends",
            job.id,
            job.entrypoint,
            job.tries,
            extra=about(job),
        )
        self._state.running -= 1
        self._state.add_stuck(held, self._loop.time())
        self._conclude(held, self._stopped(held, None))

    def refuse(self, held: HeldJob, error: JQueueError, *, uncertain: bool) -> None:
        """Decide anew about a job whose ack the queue refused, for its result or for an operation of its commit."""
        self._state.free -= 1
        if isinstance(error, InvalidJobError):
            logger.warning("job %s (%s) is dead: %s", held.job.id, held.job.entrypoint, error, extra=about(held.job))
            self._conclude(held, Decision("dead", error=f"{type(error).__name__}: {error}", dead=True))
        else:
            self._conclude(held, self._decide(held, error))
        self._state.outcomes[-1].uncertain = uncertain

    def abandon(self, held: HeldJob) -> None:
        """Give back the job of a handler that does not stop, and wait no longer, not even for its thread."""
        if held.timer is not None:
            held.timer.cancel()
        self.give_up(held)
        if held.task is not None:
            held.task.cancel()

    async def _work(self, held: HeldJob, call: Call) -> None:
        """Run the handler of one job. Only a KeyboardInterrupt of the terminal is raised; other errors are reported."""
        try:
            held.started = True
            if held.reason is not None:
                raise asyncio.CancelledError
            if isinstance(call, ProcessCall):
                value = await self._in_process(held, call)
            else:
                seconds = held.handler.options.seconds
                if seconds is not None:
                    held.timer = self._loop.call_later(seconds, self.stop, held, "timeout")
                value = await call(held.job, held.context)
            if value is not None:
                check_awaited(value)
            if held.reason is not None:  # it was told to stop, and may have left work undone
                raise asyncio.CancelledError
            outcome = self._finished(held, value)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and self._is_real_interrupt():
                raise
            self._end(held, error)
            return
        if self._ended_late(held):
            return
        held.decided = True
        self._state.running -= 1
        self._state.add_outcome(outcome)

    async def _in_process(self, held: HeldJob, call: ProcessCall) -> Any:
        """Call a handler in a process. Its timeout begins with its turn, and anew once a process has begun with it."""

        def running(begun: bool) -> None:
            if held.reason is not None:
                return
            if held.timer is not None:
                held.timer.cancel()
            seconds = held.handler.options.seconds
            if begun and seconds is not None:
                held.timer = self._loop.call_later(seconds, self.stop, held, "timeout")
                if held.context is not None:
                    held.context.deadline = self._deadline(held.handler)

        async with call.turn:
            running(True)  # starts the timeout for middleware
            return await call(held.job, held.context, running)

    def _finished(self, held: HeldJob, value: Any) -> Outcome:
        """Return the outcome of a handler that returned.

        Raises:
            ResultError: its result must be kept, and cannot be.
        """
        job, handler, ctx = held.job, held.handler, held.context
        keep_result = handler.keep_result_of(job) if self._capabilities.results else None
        if keep_result is None:
            operation = Ack(job)
        else:
            in_json = handler.home == "process"  # its process has converted the value already
            operation = Ack(job, value if in_json else json_value(handler.signature.returns, value), keep_result)
        if ctx is None:
            return Outcome(held, "succeeded", operation)
        return Outcome(held, "succeeded", operation, ctx.taken())

    def _end(self, held: HeldJob, error: BaseException) -> None:
        """Note that a handler raised an error or was stopped, and report the outcome."""
        if self._ended_late(held):
            return
        self._state.running -= 1
        if isinstance(error, asyncio.CancelledError) and (held.reason is not None or self._program_ends()):
            self._conclude(held, self._stopped(held, error))
        elif isinstance(error, PoolBroke):
            logger.warning(
                "job %s (%s) is handed back: %s", held.job.id, held.job.entrypoint, error, extra=about(held.job)
            )
            self._conclude(held, HAND_BACK)
        else:
            self.fail(held, error)

    def _program_ends(self) -> bool:
        """True if the worker itself is cancelled: a program that ends cancels all of its tasks, handlers too."""
        return self._run_task is not None and self._run_task.cancelling() > 0

    def _ended_late(self, held: HeldJob) -> bool:
        """Note that a handler has ended. True if its claim was lost or its job was given back before."""
        if held.timer is not None:
            held.timer.cancel()
        held.ended = True
        if not held.decided and held.reason != "lost":
            return False
        self._state.remove_stuck(held)
        if not held.decided:
            held.decided = held.sent = True
            self._state.running -= 1
            self._state.finish(held, "lost")
        if held.sent:
            self._state.release(1)
        self._state.wake_waiting()
        return True

    def _stopped(self, held: HeldJob, error: BaseException | None) -> Decision:
        """Decide about a job whose handler was told to stop. `error` is None if it did not stop in time."""
        if held.reason == "cancelled":
            return CANCELLED
        if held.reason == "timeout":
            seconds = held.handler.options.seconds
            how = "" if error is not None else ", and still ran after it was told to stop"
            return self._decide(held, HandlerTimeout(f"timed out after {seconds:g} s{how}"))
        return HAND_BACK

    def fail(self, held: HeldJob, error: BaseException) -> None:
        """Report that the work on a job failed."""
        self._conclude(held, self._decide(held, error))
        if self._show_errors and not isinstance(error, Snooze):
            text = error_text(error) if isinstance(error, WITHOUT_TRACEBACK) else traceback_of(error)
            logger.warning("job %s (%s): %s", held.job.id, held.job.entrypoint, Lines(text), extra=about(held.job))
        elif error.__traceback__ is not None and logger.isEnabledFor(logging.DEBUG):
            frames = Lines(frames_of(error))
            logger.debug(
                "job %s: %s was raised here:\n%s", held.job.id, type(error).__name__, frames, extra=about(held.job)
            )

    def _decide(self, held: HeldJob, error: BaseException) -> Decision:
        options = held.handler.options
        decision = decide(error, held.job, options.max_attempts, options.backoff, self._entropy.jitter)
        job = held.job
        if decision.kind == "snoozed":
            logger.debug("job %s (%s) is snoozed for %g s", job.id, job.entrypoint, decision.delay, extra=about(job))
            return decision
        logger.warning(
            "job %s (%s, attempt %d) failed: %s; %s",
            job.id,
            job.entrypoint,
            job.tries,
            type(error).__name__,
            "dead" if decision.dead else f"next try in {decision.delay:.3g} s",
            extra=about(job),
        )
        return decision

    def _conclude(self, held: HeldJob, decision: Decision) -> None:
        """Report the decision about a job."""
        held.decided = True
        if held.reason == "lost":
            held.sent = True
            self._state.finish(held, "lost")
            self._state.wake_waiting()
            return
        self._state.add_outcome(Outcome(held, decision.kind, nack_of(held.job, decision, self._capabilities)))

    def _context(self, job: Job, handler: Handler[..., Any]) -> Context:
        return Context(job, queue=self._queue, resources=self._resources, deadline=self._deadline(handler))

    def _deadline(self, handler: Handler[..., Any]) -> datetime | None:
        seconds = handler.options.seconds
        return None if seconds is None else self._clock.now() + timedelta(seconds=seconds)


def nack_of(job: Job, decision: Decision, capabilities: Capabilities) -> Ack | Nack:
    """Return the operation that tells a queue the decision, as far as the queue supports it."""
    if decision.dead and not capabilities.dead_letters:
        return Ack(job)  # after a nack it would come back for ever
    return Nack(
        job,
        delay=decision.delay if capabilities.delay else None,
        error=decision.error if capabilities.errors else None,
        dead=decision.dead,
        charge=decision.charge or not capabilities.uncharged,
    )
