"""Running handlers: one task for each claimed job or batch, whose end decides the outcomes.

Nothing here waits for the queue: outcomes are reported here, and `outcome_sender` sends them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from jqueue.domain.errors import InvalidJobError, JQueueError
from jqueue.domain.limits import ERROR_BYTES, cut_error
from jqueue.domain.models import Job
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.printable import counted
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.log import Lines, logger_of
from jqueue.ports.queue import Capabilities, JobQueue
from jqueue.worker.batch_results import error_in, results_of
from jqueue.worker.calls import BatchCall, Call, ProcessCall
from jqueue.worker.claims import Claims
from jqueue.worker.context import BatchContext, Context
from jqueue.worker.gathering import Gatherer
from jqueue.worker.handler_errors import check_awaited, frames_of, place_of, stack_of, tail_of, traceback_of
from jqueue.worker.handlers import Handler
from jqueue.worker.held_jobs import HeldJob, Outcome, Reason, Work
from jqueue.worker.job_log import about
from jqueue.worker.payloads import PayloadError, ResultError, json_value
from jqueue.worker.retries import (
    CANCELLED,
    HAND_BACK,
    Decision,
    Discard,
    HandlerTimeout,
    Retry,
    Snooze,
    decide,
    decisive,
    error_text,
    failures_of,
    is_spent,
)
from jqueue.worker.run_state import RunState

logger = logger_of("jqueue.worker")

WITHOUT_TRACEBACK = (Retry, Discard, PayloadError, ResultError)
"""Errors whose text says everything: their traceback would add nothing."""

JOB_TASK = "jqueue-job "
"""Prefix of the name of a job's task. The id of the job follows."""


AnyCall = Call | BatchCall | ProcessCall
"""The call of a handler of any kind."""


class JobRunner:
    """Does the jobs of one run.

    Args:
        queue: the queue of the jobs.
        state: the state of the run.
        claims: the claims of the run.
        calls: by entrypoint: the handler, its call, and True if it needs a context.
        clock: gives the time for deadlines.
        entropy: draws backoffs.
        resources: the value that the lifespan yielded.
        cancel_grace: seconds that a handler gets to end when it is told to stop.
        interrupt: takes a KeyboardInterrupt of a handler, and returns True if the run ends by it.
        show_errors: True to log messages and tracebacks of errors.

    Attributes:
        cancel_grace: as given.
        gatherer: fills batches; None: each batch has the jobs that were claimed together.
    """

    def __init__(
        self,
        queue: JobQueue,
        state: RunState,
        claims: Claims,
        calls: Mapping[str, tuple[Handler[..., Any], AnyCall, bool]],
        *,
        clock: Clock,
        entropy: Entropy,
        resources: Any,
        cancel_grace: float,
        interrupt: Callable[[KeyboardInterrupt], bool],
        show_errors: bool = False,
    ) -> None:
        self.cancel_grace = cancel_grace
        self.gatherer: Gatherer | None = None
        self._queue = queue
        self._state = state
        self._claims = claims
        self._calls = calls
        self._clock = clock
        self._entropy = entropy
        self._resources = resources
        self._interrupt = interrupt
        self._show_errors = show_errors
        self._loop = asyncio.get_running_loop()
        self._run_task = asyncio.current_task()
        self._capabilities: Capabilities = queue.capabilities

    def begin(self, jobs: Iterable[Job], more: bool = False) -> None:
        """Start the work on jobs that were just claimed: the jobs of a batch handler together, other jobs singly.

        Args:
            jobs: the jobs.
            more: True if more jobs may be ready, for batches that are not full.
        """
        batches: dict[str, Work] = {}
        now = self._loop.time()
        for job in jobs:
            handler, call, wants_context = self._calls[job.entrypoint]
            size = handler.options.batch
            work = None if size is None else batches.get(job.entrypoint)
            if work is None:
                work = Work(handler, call, size)
                self._state.hold(work)  # until its handler has ended
            held = self._take(work, job, now)
            if size is None:
                if wants_context and not held.decided:
                    held.context = work.context = self._context(job, self._deadline(handler))
                self._start(work)
            elif len(work.jobs) < size:
                batches[job.entrypoint] = work
            else:
                batches.pop(job.entrypoint, None)
                self._start(work)
        for name, work in batches.items():
            if self.gatherer is not None and self.gatherer.is_needed(work, more):
                work.gathering = True
                self._state.gathering.add(name)
            self._start(work)
        self._state.claimed.set()

    def add(self, work: Work, jobs: Iterable[Job]) -> None:
        """Add jobs that were just claimed to a batch whose handler has not begun."""
        now = self._loop.time()
        for job in jobs:
            self._take(work, job, now)
        self._state.claimed.set()

    def _take(self, work: Work, job: Job, now: float) -> HeldJob:
        """Hold a job. If it has no attempts left, it is dead without being run. If it was cancelled, it is not run."""
        held = HeldJob(job, work, self._claims.confirmed(job, now))
        self._state.held.add(held)
        work.holds += 1  # until its outcome is sent; its handler holds the slot already
        if job.failures > 1 and is_spent(job, work.handler.options.max_attempts):
            times = counted(job.failures, "time")
            error = f"the job was claimed {times}, and its workers ended without reporting an outcome"
            self._conclude(held, Decision("dead", error=error, dead=True))
        elif job.cancel_requested:
            self._conclude(held, CANCELLED)
        else:
            work.jobs.append(held)
            work.unstopped += 1
        return held

    def _start(self, work: Work) -> None:
        """Start the task of a call, unless no job is left for it."""
        if not work.jobs and not work.gathering:
            work.ended = True
            self._state.let_go(work)
            return
        self._state.running.add(work)
        name = work.jobs[0].job.id if work.jobs else work.handler.entrypoint
        work.task = self._loop.create_task(self._work(work), name=f"{JOB_TASK}{name}")

    def stop(self, held: HeldJob, reason: Reason) -> None:
        """Tell a handler to stop the work on a job. A batch goes on with its other jobs, if there are any.

        The outcome of the job is sent when the handler has ended, as a job counts as running until then.
        """
        if held.decided or held.reason is not None:
            return
        self._mark(held, reason)
        if not held.work.unstopped:
            self._stop_handler(held.work)

    def stop_work(self, work: Work, reason: Reason) -> None:
        """Tell a handler to stop the work on all of its jobs. If it goes on after `cancel_grace`, it is stuck."""
        for held in work.jobs:
            if not held.decided and held.reason is None:
                self._mark(held, reason)
        self._stop_handler(work)

    def _mark(self, held: HeldJob, reason: Reason) -> None:
        held.reason = reason
        held.work.unstopped -= 1
        if held.context is not None:
            held.context.stop()

    def _stop_handler(self, work: Work) -> None:
        if work.stopped or work.ended:
            return
        work.stopped = True
        if work.timer is not None:
            work.timer.cancel()
        if work.context is not None:
            work.context.stop()
        if work.started and work.task is not None:
            work.task.cancel()
        work.timer = self._loop.call_later(self.cancel_grace, self._note_stuck, work)

    def lose(self, held: HeldJob) -> None:
        """Stop the work on a job whose claim is lost. Nothing more is sent for the job."""
        if not held.decided:
            self._claims.lose(held.job)
            self.stop(held, "lost")
            held.reason = "lost"
            self._conclude(held, HAND_BACK)

    def _note_stuck(self, work: Work) -> None:
        """Note that a handler does not stop. The claims that are not lost and its slot are kept until it ends."""
        if work in self._state.running:
            logger.warning(
                "%s: its handler still runs although it was told to stop; its %s kept until the handler ends",
                work.name,
                "slot is" if all(held.decided for held in work.jobs) else "claim and its slot are",
                extra=work.about,
            )
            self._set_stuck(work)

    def _set_stuck(self, work: Work) -> None:
        self._state.running.discard(work)
        self._state.add_stuck(work, self._loop.time())
        self._state.wake_waiting()

    def refuse(self, held: HeldJob, error: JQueueError, *, uncertain: bool) -> None:
        """Decide anew about a job whose ack the queue refused, for its result or for an operation of its commit."""
        self._state.hold(held.work)
        if isinstance(error, InvalidJobError):
            logger.warning("job %s (%s) is dead: %s", held.job.id, held.job.entrypoint, error, extra=about(held.job))
            self._conclude(held, Decision("dead", error=f"{type(error).__name__}: {error}", dead=True))
        else:
            self._conclude(held, self._decide(held, error))
        self._state.outcomes[-1].uncertain = uncertain

    def abandon(self, work: Work) -> None:
        """Give back the jobs of a handler that does not stop, as the worker ends. It is not waited for."""
        if work.timer is not None:
            work.timer.cancel()
        if work in self._state.running:
            self._set_stuck(work)
        if work in self._state.stuck:
            logger.warning(
                "%s: its handler still runs although it was told to stop; the worker ends without waiting for it",
                work.name,
                extra=work.about,
            )
        for held in work.jobs:
            if not held.decided:
                self._conclude(held, self._stopped(held, late=True))
        if work.task is not None and work.handler.home != "thread":  # the task of a thread ends with it
            work.task.cancel()

    async def _work(self, work: Work) -> None:
        """Run a handler once, and report its end."""
        try:
            work.started = True
            if work.stopped:
                raise asyncio.CancelledError
            if work.batch is None:
                value = await self._call(work, work.jobs[0].job)
                self._check_value(work, value)
                results: Sequence[Any] = (value,)
            else:
                results = await self._do_batch(work)
        except BaseException as error:
            self.fail_all(work, error)
            return
        self.finish(work, results)

    def _call(self, work: Work, payload: Any) -> Awaitable[Any]:
        """Return the call of a handler with a job, or with the payloads of a batch. Its timeout begins now."""
        call, work.began = work.call, self._loop.time()
        if isinstance(call, ProcessCall):
            return self._in_process(work, call)
        seconds = work.handler.options.seconds
        if seconds is not None:
            work.timer = self._loop.call_later(seconds, self.stop_work, work, "timeout")
        awaitable: Awaitable[Any] = call(payload, work.context)
        return awaitable

    def _check_value(self, work: Work, value: Any) -> None:
        """Check the value that a handler returned.

        Raises:
            TypeError: it must be awaited.
            CancelledError: the handler was told to stop, and may have left work undone.
        """
        if value is not None:
            check_awaited(value)
        if work.stopped:
            raise asyncio.CancelledError

    async def _do_batch(self, work: Work) -> Sequence[Any]:
        """Fill a batch, call its handler, and return the result of each of its jobs."""
        if work.gathering and self.gatherer is not None:
            await self.gatherer.fill(work)
            self._state.end_gathering(work)
        payloads = self._payloads(work)
        if not work.jobs:
            return ()
        if self._calls[work.handler.entrypoint][2]:
            work.context = self._batch_context(work)
        value = await self._call(work, payloads)
        self._check_value(work, value)
        return results_of(value, len(work.jobs))

    def _payloads(self, work: Work) -> list[Any]:
        """Return the payloads to call a batch handler with.

        Jobs that were told to stop meanwhile, and jobs whose payload does not validate, leave the batch.
        """
        payloads = []
        for held in list(work.jobs):
            if held.reason is not None:
                work.drop(held)
                if not held.decided:
                    self._conclude(held, self._stopped(held, late=False))
                continue
            try:
                payloads.append(work.call.parse(held.job) if isinstance(work.call, BatchCall) else None)
            except Exception as error:
                work.drop(held)
                self.fail(held, error)
        return payloads

    def _batch_context(self, work: Work) -> BatchContext:
        deadline = self._deadline(work.handler)
        contexts = []
        for held in work.jobs:
            held.context = self._context(held.job, deadline)
            contexts.append(held.context)
        return BatchContext(
            work.handler.entrypoint, contexts, queue=self._queue, resources=self._resources, deadline=deadline
        )

    async def _in_process(self, work: Work, call: ProcessCall) -> Any:
        """Call a handler in a process. Its timeout begins with its turn, and anew once a process has begun with it."""

        def running(begun: bool) -> None:
            if work.stopped:
                return
            if work.timer is not None:
                work.timer.cancel()
            seconds = work.handler.options.seconds
            if begun and seconds is not None:
                work.timer = self._loop.call_later(seconds, self.stop_work, work, "timeout")
                if work.context is not None:
                    work.context.move_deadline(self._deadline(work.handler))

        async with call.turn:
            running(True)  # starts the timeout for middleware
            return await call([held.job for held in work.jobs], work.context, running)

    def finish(self, work: Work, results: Sequence[Any]) -> None:
        """Report the outcomes of a handler that returned."""
        late = self._note_end(work)
        for held, result in zip(work.jobs, results, strict=True):
            if held.decided:
                continue
            if held.reason is not None:
                self._conclude(held, self._stopped(held, late))
                continue
            error = None if work.batch is None else error_in(result)
            if error is None:
                try:
                    outcome = self._finished(held, result)
                except Exception as failure:  # the result cannot be kept
                    error = failure
            if error is None:
                held.decided = True
                self._state.add_outcome(outcome)
            else:
                self.fail(held, error)
        self._let_go(work, late)

    def _finished(self, held: HeldJob, value: Any) -> Outcome:
        """Return the outcome of a job that succeeded.

        Raises:
            ResultError: its result must be kept, and cannot be.
        """
        job, handler, ctx = held.job, held.work.handler, held.context
        keep_result = handler.keep_result_of(job) if self._capabilities.results else None
        if keep_result is None:
            operation = Ack(job)
        else:
            in_json = handler.home == "process"  # its process has converted the value already
            operation = Ack(job, value if in_json else json_value(handler.signature.returns, value), keep_result)
        if ctx is None:
            return Outcome(held, "succeeded", operation)
        return Outcome(held, "succeeded", operation, ctx.taken())

    def fail_all(self, work: Work, error: BaseException) -> None:
        """Report the outcomes of a handler that raised an error or was stopped."""
        error = decisive(error)
        interrupted = isinstance(error, KeyboardInterrupt) and self._interrupt(error)
        late = self._note_end(work)
        is_stopped = isinstance(error, asyncio.CancelledError)
        program_ends = interrupted or (is_stopped and self._program_ends())
        failed: HeldJob | None = None
        for held in work.jobs:
            if held.decided:
                continue
            told = held.reason is not None
            if program_ends or (told and (is_stopped or not work.stopped)):
                self._conclude(held, self._stopped(held, late))
            else:
                self._conclude(held, self._decide(held, error))
                failed = failed or held
        if failed is not None:
            self._show(failed, error)
        self._let_go(work, late)

    def _program_ends(self) -> bool:
        """True if the worker itself is cancelled: a program that ends cancels all of its tasks, handlers too."""
        return self._run_task is not None and self._run_task.cancelling() > 0

    def _note_end(self, work: Work) -> bool:
        """Note that a handler has ended. True if it was stuck: it went on long after it was told to stop."""
        if work.timer is not None:
            work.timer.cancel()
        work.ended = True
        if work.batch is not None and work.began is not None:
            slots = min(self._state.concurrency, len(self._state.running) + 1)
            seconds = (self._loop.time() - work.began) / slots
            self._claims.note_speed(work.handler.entrypoint, len(work.jobs), seconds)
        if work.gathering:
            self._state.end_gathering(work)
        if work in self._state.running:
            self._state.running.discard(work)
            return False
        self._state.remove_stuck(work)
        return True

    def _let_go(self, work: Work, late: bool) -> None:
        """Let go of the slot of a handler that has ended, once its outcomes are sent."""
        work.jobs.clear()  # its jobs refer to it: a cycle would be left to the garbage collector
        self._state.let_go(work)
        if late:
            self._state.wake_waiting()

    def _stopped(self, held: HeldJob, late: bool) -> Decision:
        """Decide about a job whose handler was told to stop. `late`: the handler did not stop within `cancel_grace`."""
        if held.reason == "cancelled":
            return CANCELLED
        if held.reason == "timeout":
            seconds = held.work.handler.options.seconds
            how = ", and still ran after it was told to stop" if late else ""
            return self._decide(held, HandlerTimeout(f"timed out after {seconds:g} s{how}"))
        return HAND_BACK

    def fail(self, held: HeldJob, error: BaseException) -> None:
        """Report that the work on a job failed."""
        error = decisive(error)
        self._conclude(held, self._decide(held, error))
        self._show(held, error)

    def _show(self, held: HeldJob, error: BaseException) -> None:
        """Log an error in full, if that is asked for."""
        if self._show_errors and not isinstance(error, Snooze):
            text = error_text(error) if isinstance(error, WITHOUT_TRACEBACK) else traceback_of(error)
            logger.warning("job %s (%s): %s", held.job.id, held.job.entrypoint, Lines(text), extra=about(held.job))
        elif error.__traceback__ is not None and logger.isEnabledFor(logging.DEBUG):
            frames = Lines(frames_of(error))
            logger.debug(
                "job %s: %s was raised here:\n%s", held.job.id, type(error).__name__, frames, extra=about(held.job)
            )

    def _decide(self, held: HeldJob, error: BaseException) -> Decision:
        options = held.work.handler.options
        decision = decide(error, held.job, options.max_attempts, options.backoff, self._entropy.jitter, options.retry)
        job = held.job
        if decision.kind == "snoozed":
            logger.debug("job %s (%s) is snoozed for %g s", job.id, job.entrypoint, decision.delay, extra=about(job))
            return decision
        stack = stack_of(error)
        place = place_of(stack)
        if place is not None and not isinstance(error, WITHOUT_TRACEBACK):
            where = f" ({place.file}:{place.line})"
            text = cut_error(f"{decision.error}".rstrip(), ERROR_BYTES - len(where.encode())) + where
            decision = replace(decision, error=text, traceback=tail_of(stack))
        logger.warning(
            "job %s (%s, attempt %d) failed: %s%s; %s (%s)",
            job.id,
            job.entrypoint,
            job.tries,
            type(error).__name__,
            "" if place is None else f" at {place}",
            "dead" if decision.dead else f"next try in {decision.delay:.3g} s",
            failures_of(job, options.max_attempts),
            extra=about(job),
        )
        return decision

    def _conclude(self, held: HeldJob, decision: Decision) -> None:
        """Report the decision about a job."""
        held.decided = True
        if held.reason == "lost":
            held.sent = True
            self._state.let_go(held.work)
            self._state.finish(held, "lost")
            self._state.wake_waiting()
            return
        self._state.add_outcome(Outcome(held, decision.kind, nack_of(held.job, decision, self._capabilities)))

    def _context(self, job: Job, deadline: datetime | None) -> Context:
        return Context(job, queue=self._queue, resources=self._resources, deadline=deadline)

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
        traceback=decision.traceback if capabilities.errors else None,
        dead=decision.dead,
        charge=decision.charge or not capabilities.uncharged,
    )
