"""One run of a worker on a queue: it opens everything, runs the parts side by side, and ends them in order.

The order of the end: claims stop; running handlers get their grace; the others are cancelled and their jobs are handed
back; all outcomes reach the queue; the lifespan is closed; the queue is closed if it was opened here.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Literal

from jqueue._version import __version__
from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import JQueueError
from jqueue.domain.header import ENTRYPOINTS_SHOWN, WorkerRecord
from jqueue.domain.printable import counted
from jqueue.ports.log import logger_of
from jqueue.ports.queue import JobQueue, SupportsOffering, SupportsWorkers
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import process_name
from jqueue.telemetry.exporters import Exporter, observed
from jqueue.worker.calls import call_of
from jqueue.worker.claiming import Claimer
from jqueue.worker.claims import Claims
from jqueue.worker.deaths import Deaths
from jqueue.worker.declaring import Cron, declare, warn_of_unhandled_crons
from jqueue.worker.handler_options import WorkerSettings, seconds_of
from jqueue.worker.handlers import Handler
from jqueue.worker.heartbeats import Heartbeats
from jqueue.worker.job_runner import AnyCall, JobRunner
from jqueue.worker.outcome_sender import OutcomeSender
from jqueue.worker.periodic_checks import PeriodicChecks
from jqueue.worker.processes import Processes
from jqueue.worker.queue_health import CallFailures, QueueHealth, check_writable, name_of, open_queue
from jqueue.worker.run_state import Figures, RunReport, RunState, report_of
from jqueue.worker.signals import handle_signals
from jqueue.worker.threads import Threads

logger = logger_of("jqueue.worker")

SETTLE = 30.0
"""Seconds that a worker that ends tries to send the outcomes of its last jobs."""

HURRIED_SETTLE = 5.0
"""Seconds that a worker gets to send its last outcomes when it was told to stop at once."""


class Run:
    """One run of a worker.

    Args:
        settings: the settings of the worker.
        handlers: its handlers, by entrypoint.
        crons: its cron entries.
        queue: the queue whose jobs it does.
        drain: True to end when nothing is left to do.
        signals: True to stop at signals.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        handlers: Mapping[str, Handler[..., Any]],
        crons: Sequence[Cron],
        queue: JobQueue,
        *,
        drain: bool,
        signals: bool,
    ) -> None:
        self._settings = settings
        self._handlers = handlers
        self._crons = crons
        self._queue = queue
        self._drain = drain
        self._signals = signals
        self._loop = asyncio.get_running_loop()
        self._state = RunState(settings.concurrency)
        self._claim_timeout = seconds_of("claim_timeout", settings.claim_timeout)
        give_up_after = seconds_of("give_up_after", settings.give_up_after)
        self._health = QueueHealth(name_of(queue), give_up_after, self._state.fail)
        self._was_told = False
        self._hurried = False
        self._has_ended = False
        self._phase: Literal["opening", "working", "closing"] = "opening"

        self._deaths: Deaths | None = None
        if settings.on_dead is not None:
            self._deaths = Deaths(settings.on_dead, settings.show_errors, self._state.progress.set)
        self._id = options_of(queue).entropy.new_id()[:13]
        self._started = options_of(queue).clock.now().timestamp()
        self._task_of_all: asyncio.Task[RunReport] | None = None
        self._handles_signals = False
        self._interrupt: KeyboardInterrupt | None = None

    @property
    def is_over(self) -> bool:
        """True if the event loop of the run is closed, so that it will never end by itself."""
        return self._loop.is_closed()

    @property
    def phase(self) -> str:
        """The phase of the run, in one word."""
        return "stopping" if self._phase == "working" and self._was_told else self._phase

    @property
    def queue_here(self) -> JobQueue | None:
        """The queue of the run, for code on its event loop. Elsewhere, as in the thread of a handler, it is None."""
        return self._queue if asyncio._get_running_loop() is self._loop else None

    def stop(self) -> None:
        """Stop in order. A second call stops at once."""
        self._hurried, self._was_told = self._was_told, True
        self._state.end_run()
        task = self._task_of_all
        hangs = self._phase == "opening" or (self._phase == "closing" and self._hurried)
        if task is not None and hangs and not task.cancelling():
            task.cancel()  # a lifespan or a queue may hang while it is opened or closed

    def _obey(self) -> None:
        """Stop in order, as an operator has told this worker to, unless it is stopping."""
        if not self._was_told:
            logger.info("%s stops: an operator has told it to", self._settings.name)
            self.stop()

    def stop_from_anywhere(self) -> None:
        """Stop, from any thread or signal handler."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.stop)

    def interrupt(self, error: KeyboardInterrupt) -> bool:
        """Take a KeyboardInterrupt of a handler. Return True if it may come from the terminal, and so ends the run.

        It may in the main thread, unless signals are handled. `perform` raises it when the other jobs are handed back.
        """
        if self._handles_signals or threading.current_thread() is not threading.main_thread():
            return False
        self._interrupt = error
        self._hurried = self._was_told = True
        self._state.end_run()
        return True

    async def perform(self) -> RunReport:
        """Open everything, work, and end in order, even if this is cancelled, and cancelled again while it ends.

        The work is done in a task of its own. Any cancellation hurries the end, but the task is cancelled only once.
        """
        self._task_of_all = task = asyncio.create_task(self._perform(), name="jqueue-worker")
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                self._hurried, cancelled = True, error
                self._state.progress.set()
                if not task.cancelling():
                    task.cancel()
        if self._interrupt is not None:
            raise self._interrupt from None if task.cancelled() else task.exception()
        if cancelled is not None and (task.cancelled() or task.exception() is None):
            raise cancelled
        if task.cancelled() and self._was_told:
            return self._report()
        return task.result()

    async def _perform(self) -> RunReport:
        """Open everything, work, end in order, and log the report."""
        self._health.expect_answer()
        try:
            await self._open_and_work()
        finally:
            failing = self._health.close()
        report = self._report()
        logger.log(logging.ERROR if failing else logging.INFO, "%s stopped: %s%s", self._settings.name, report, failing)
        return report

    def _report(self) -> RunReport:
        return report_of(self._state.counts, len(self._state.stuck))

    async def _open_and_work(self) -> None:
        """Open everything, work, and close everything."""
        async with AsyncExitStack() as stack:
            if self._signals:
                self._handles_signals = stack.enter_context(handle_signals(self.stop))
            exporter = await self._open_probes(stack)
            await open_queue(self._queue, stack, tuple(self._handlers))
            await check_writable(self._queue)
            if self._settings.tracing is not None:
                self._settings.tracing.instrument(self._queue)
            if (deaths := self._deaths) is not None:
                stack.callback(deaths.close)
                self._state.died = deaths.failed_here
                for queue in getattr(self._queue, "queues", (self._queue,)):
                    stack.enter_context(observed(queue, deaths))
            if exporter is not None:
                await stack.enter_async_context(exporter.watch(self._queue, Figures(self._settings.name, self._state)))
            resources = None
            if self._settings.lifespan is not None:
                resources = await stack.enter_async_context(self._settings.lifespan())
            threads, processes = Threads(self._settings.concurrency), Processes(self._settings.concurrency)
            stack.push_async_callback(processes.close)
            stack.callback(threads.shutdown)
            if not self._was_told:
                self._phase = "working"
                await self._work(resources, threads, processes)
            self._phase = "closing"

    async def _open_probes(self, stack: AsyncExitStack) -> Exporter | None:
        """Serve the probes, if there is an address for them. Return what exports the metrics of this run, if any."""
        settings = self._settings
        if settings.health is None:
            return settings.metrics
        from jqueue.worker.probes import Probes, exporter_for, open_probes  # loads an HTTP server

        exporter = exporter_for(settings.metrics)
        probes = Probes(self._settings.name, self._queue, lambda: self.phase, self._state, self._health)
        await open_probes(stack, settings.health, probes, exporter)
        stack.enter_context(observed(self._queue, probes))
        return exporter

    async def _work(self, resources: Any, threads: Threads, processes: Processes) -> None:
        """Claim, send outcomes and send heartbeats side by side, until stopped or drained; then end in order."""
        queue, state, health = self._queue, self._state, self._health
        entropy = options_of(queue).entropy
        failures = CallFailures("sending outcomes of jobs", entropy, health)
        claims = Claims(queue, self._claim_timeout, self._settings.name, self._handlers, state, failures)
        calls: dict[str, tuple[Handler[..., Any], AnyCall, bool]] = {
            name: (
                handler,
                call_of(handler, threads, processes),
                handler.signature.wants_context or bool(handler.middlewares or handler.thread_middlewares),
            )
            for name, handler in self._handlers.items()
        }
        job_runner = JobRunner(
            queue,
            state,
            claims,
            calls,
            self._settings,
            resources=resources,
            interrupt=self.interrupt,
            batches_wait=not self._drain,
        )
        batches = {name: handler.options.batch for name, handler in self._handlers.items()}
        claimer = Claimer(claims, state, job_runner.begin, batches, entropy=entropy, health=health, drain=self._drain)
        if isinstance(queue, SupportsWorkers):
            queue.attend(self._id, self._record, self._obey)
        if isinstance(queue, SupportsOffering):
            queue.offer()
        sender = OutcomeSender(claims, state, job_runner, failures)
        checks = PeriodicChecks(queue, state, health, None if self._drain else self._handlers)
        logger.info(
            "%s started: up to %s at a time of %s",
            self._settings.name,
            counted(self._settings.concurrency, "job"),
            ", ".join(self._handlers),
        )
        async with asyncio.TaskGroup() as group:  # no part fails in it: see `_part`
            claiming = group.create_task(self._part(lambda: self._claim(claimer)), name="jqueue-worker-claims")
            sending = group.create_task(self._part(sender.run, is_last=True), name="jqueue-worker-outcomes")
            parts = [sending, group.create_task(self._part(checks.run), name="jqueue-worker-checks")]
            if queue.capabilities.heartbeat:
                heartbeats = Heartbeats(claims, state, job_runner, entropy, health)
                parts.append(group.create_task(self._part(heartbeats.run), name="jqueue-worker-heartbeats"))
            cancelled: asyncio.CancelledError | None = None
            failure: Exception | None = None
            try:
                while True:
                    try:
                        await state.must_end.wait()
                        failure = failure if cancelled else state.failure
                        self._hurried = self._hurried or state.failure is not None
                        await self._end(group, claiming, sending, claims, job_runner)
                        break
                    except asyncio.CancelledError as error:  # the end is begun anew, and hurries
                        self._hurried, cancelled = True, error
                        state.end_run()
            finally:
                self._has_ended = True
                claims.abandon()
                for part in parts:
                    part.cancel()
            if cancelled is not None and failure is None:
                raise cancelled
        if failure is not None:
            raise failure

    async def _end(
        self,
        group: asyncio.TaskGroup,
        claiming: asyncio.Task[None],
        sending: asyncio.Task[None],
        claims: Claims,
        job_runner: JobRunner,
    ) -> None:
        """End the work in order. Only the claims are over before the handlers, and heartbeats go on until the end."""
        queue, grace_ends = self._queue, self._loop.time() + to_seconds("grace", self._settings.grace)
        await self._end_claims(claiming, claims, job_runner)
        settling = group.create_task(self._settle(claims, claiming), name="jqueue-worker-last-claim")
        await self._end_handlers(job_runner)
        if isinstance(queue, SupportsWorkers):
            queue.leave(self._id)  # if the last outcomes need a commit, it removes the record
        await self._end_outcomes(sending)
        await self._remove_record()
        if (deaths := self._deaths) is not None:
            left = max(HURRIED_SETTLE, grace_ends - self._loop.time())
            await self._wait_until(lambda: not deaths.calls or self._hurried, left)
        await asyncio.wait([settling])

    async def _part(self, work: Callable[[], Awaitable[None]], *, is_last: bool = False) -> None:
        """Do a part of the run until it is cancelled. If it returns or fails, the run must end.

        Args:
            work: does it.
            is_last: True if it goes on when it is cancelled, until the run is over: a program that ends cancels all of
                its tasks.
        """
        while True:
            try:
                await work()
            except asyncio.CancelledError:
                if is_last and not self._has_ended:
                    continue
                raise
            except Exception as error:
                self._state.fail(error)
            self._state.end_run()
            return

    def _record(self, at: float) -> WorkerRecord:
        """Return the record of this worker at a time, in seconds since 1970."""
        host, _, pid = process_name().rpartition(":")
        return WorkerRecord(
            name=self._settings.name,
            host=host,
            pid=int(pid),
            started=round(self._started, 3),
            at=round(at, 3),
            slots=self._settings.concurrency,
            entrypoints=tuple(self._handlers)[:ENTRYPOINTS_SHOWN],
            version=__version__,
        )

    async def _claim(self, claimer: Claimer) -> None:
        """Set the limits and schedules that the handlers declare, then claim."""
        await declare(self._queue, self._handlers.values(), self._crons, options_of(self._queue).entropy, self._health)
        await warn_of_unhandled_crons(self._queue, self._handlers)
        await claimer.run()

    async def _end_claims(self, claiming: asyncio.Task[None], claims: Claims, job_runner: JobRunner) -> None:
        """Claim no more jobs, and give back batches whose handlers have not begun because they wait for more."""
        self._state.wake_claimer = _do_nothing
        claiming.cancel()
        await asyncio.wait([claiming])
        for execution in list(self._state.filling.values()):
            job_runner.stop(execution, "stop")
        claims.close()

    async def _settle(self, claims: Claims, claiming: asyncio.Task[None]) -> None:
        """Wait for jobs that the last claim may still make, and that the queue then hands back."""
        if claiming.cancelled():
            await claims.settle(tuple(self._handlers), HURRIED_SETTLE)

    async def _end_handlers(self, job_runner: JobRunner) -> None:
        """Let handlers finish within the grace period, then cancel the others, and give back jobs that still run.

        Stuck handlers are not waited for: they have had their time.
        """
        state, grace = self._state, to_seconds("grace", self._settings.grace)
        if state.running and not self._hurried:
            jobs = counted(sum(len(execution.jobs) for execution in state.running), "job")
            logger.info("%s is stopping: waiting for %s, up to %g s", self._settings.name, jobs, grace)
        await self._wait_until(lambda: not state.running or self._hurried, grace)
        if not state.running and not state.stuck:
            return
        for execution in list(state.running):
            job_runner.stop(execution, "stop")
        if not self._hurried:
            await self._wait_until(lambda: not state.running or self._hurried, job_runner.cancel_grace)
        for _ in range(3):
            await asyncio.sleep(0)  # lets cancelled handlers end
        for execution in {held.execution for held in state.held}:
            job_runner.abandon(execution)

    async def _end_outcomes(self, sending: asyncio.Task[None]) -> None:
        """Wait until all outcomes are in the queue, or until the time for that is over."""
        state = self._state
        await self._wait_until(lambda: state.is_idle or sending.done() or self._hurried, SETTLE)
        if self._hurried:
            await self._wait_until(lambda: state.is_idle or sending.done(), HURRIED_SETTLE)
        if not state.is_idle:
            logger.error(
                "%s ends, and the queue has not confirmed the outcomes of %s: unless they arrived, the claims become"
                " stale and run again",
                self._settings.name,
                counted(len(state.held), "job"),
            )

    async def _remove_record(self) -> None:
        """Remove the record of this worker, if the store answers. Otherwise the worker is shown as lost for an hour."""
        if isinstance(self._queue, SupportsWorkers) and not self._hurried and not self._health.trouble:
            with suppress(JQueueError):
                await self._queue.remove_left(HURRIED_SETTLE)

    async def _wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    await self._state.progress.wait()
        except TimeoutError:
            return


def _do_nothing() -> None:
    """Do nothing: claiming has ended."""
