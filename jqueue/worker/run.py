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
from typing import Any

from jqueue._version import __version__
from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import JQueueError
from jqueue.domain.header import ENTRYPOINTS_SHOWN, WorkerRecord
from jqueue.domain.limits import exact
from jqueue.domain.printable import counted
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.queue import JobQueue, SupportsOffering, SupportsWorkers
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import process_mark, process_name
from jqueue.telemetry.exporters import observed
from jqueue.worker.claiming import Claimer
from jqueue.worker.claims import Claims
from jqueue.worker.deaths import Deaths
from jqueue.worker.declaring import Cron, declare, warn_of_unhandled_crons
from jqueue.worker.handler_options import WorkerSettings
from jqueue.worker.handlers import Handler
from jqueue.worker.heartbeats import send_heartbeats
from jqueue.worker.job_runner import JobRunner
from jqueue.worker.loop_watch import watch_loop
from jqueue.worker.outcome_sender import OutcomeSender
from jqueue.worker.periodic_checks import check_regularly
from jqueue.worker.processes import Processes
from jqueue.worker.queue_health import check_writable, open_queue
from jqueue.worker.run_state import RunReport, RunState
from jqueue.worker.signals import handle_signals
from jqueue.worker.threads import Threads

logger: Logger = logger_of("jqueue.worker")

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
        self._crons = crons
        self._queue = queue
        self._signals = signals
        self._loop = asyncio.get_running_loop()
        self._state = RunState(settings, handlers, queue, drain=drain)
        self._stops = 0  # 1: it was told to stop; 2: at once
        self._phase = "opening"  # then "working", "closing"
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
        return "stopping" if self._phase == "working" and self._stops else self._phase

    @property
    def queue_here(self) -> JobQueue | None:
        """The queue of the run, for code on its event loop. Elsewhere, as in the thread of a handler, it is None."""
        return self._queue if asyncio._get_running_loop() is self._loop else None

    def stop(self) -> None:
        """Stop in order. A second call stops at once."""
        self._stops += 1
        self._state.end_run()
        task = self._task_of_all
        hangs = self._phase == "opening" or (self._phase == "closing" and self._is_hurried)
        if task is not None and hangs and not task.cancelling():
            task.cancel()  # a lifespan or a queue may hang while it is opened or closed

    @property
    def _is_hurried(self) -> bool:
        return self._stops > 1

    def _obey(self) -> None:
        """Stop in order, as an operator has told this worker to, unless it is stopping."""
        if not self._stops:
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
        self._stops = 2
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
                self._stops, cancelled = 2, error
                self._state.progress.set()
                if not task.cancelling():
                    task.cancel()
        if self._interrupt is not None:
            raise self._interrupt from None if task.cancelled() else task.exception()
        if cancelled is not None and (task.cancelled() or task.exception() is None):
            raise cancelled
        if task.cancelled() and self._stops:
            return self._report()
        return task.result()

    def _report(self) -> RunReport:
        worn = self._state.worn is not None and not self._stops
        return RunReport(**self._state.outcomes, stuck=len(self._state.stuck), worn=worn)

    async def _perform(self) -> RunReport:
        """Open everything, work, end in order, close everything, and log the report."""
        self._state.health.expect_answer()
        try:
            async with AsyncExitStack() as stack:
                await self._open(stack)
                resources = None
                if self._settings.lifespan is not None:
                    resources = await stack.enter_async_context(self._settings.lifespan())
                threads = Threads(self._settings.concurrency)
                processes = Processes(self._settings.concurrency, self._settings.max_memory)
                stack.push_async_callback(processes.close)
                stack.callback(threads.shutdown)
                if not self._stops:
                    self._phase = "working"
                    claims = Claims(self._state)
                    runner = JobRunner(self._state, claims, threads, processes, resources, self.interrupt)
                    await self._work(claims, runner)
                self._phase = "closing"
        finally:
            failing = self._state.health.close()
        report = self._report()
        logger.log(logging.ERROR if failing else logging.INFO, "%s stopped: %s%s", self._settings.name, report, failing)
        return report

    async def _open(self, stack: AsyncExitStack) -> None:
        """Handle signals, serve the probes, and open and observe the queue."""
        queue, settings, state = self._queue, self._settings, self._state
        if self._signals:
            self._handles_signals = stack.enter_context(handle_signals(self.stop))
        exporter = settings.metrics
        if settings.health is not None:
            from jqueue.worker.probes import Probes, open_probes  # loads an HTTP server

            def facts() -> dict[str, Any]:
                return {"worker": state.name, "running": state.running, "slots": state.concurrency}

            probes = Probes(queue, state.health, lambda: self.phase, facts)
            exporter = await open_probes(stack, settings.health, probes, exporter)
        await open_queue(queue, stack, tuple(state.handlers))
        await check_writable(queue)
        if settings.tracing is not None:
            settings.tracing.instrument(queue)
        if (deaths := self._deaths) is not None:
            stack.callback(deaths.close)
            state.died = deaths.failed_here
            for each in getattr(queue, "queues", (queue,)):
                stack.enter_context(observed(each, deaths))
        if exporter is not None:
            await stack.enter_async_context(exporter.watch(queue, state))

    async def _work(self, claims: Claims, job_runner: JobRunner) -> None:
        """Claim, send outcomes and send heartbeats side by side, until stopped or drained; then end in order."""
        queue, state = self._queue, self._state
        if isinstance(queue, SupportsWorkers):
            queue.attend(self._id, self._record, self._obey)
        if isinstance(queue, SupportsOffering):
            queue.offer()
        logger.info(
            "%s started: up to %s at a time of %s",
            state.name,
            counted(state.concurrency, "job"),
            ", ".join(state.handlers),
        )
        claimer, sender = Claimer(state, claims, job_runner.begin), OutcomeSender(state, claims, job_runner)
        failure: Exception | None = None
        cancelled: asyncio.CancelledError | None = None
        async with asyncio.TaskGroup() as group:  # no part fails in it: see `_part`

            def begin(work: Callable[[], Awaitable[None]], name: str, *, is_last: bool = False) -> asyncio.Task[None]:
                return group.create_task(self._part(work, is_last), name=f"jqueue-worker-{name}")

            claiming = begin(lambda: self._claim(claimer), "claims")
            parts = [begin(sender.run, "outcomes", is_last=True), begin(lambda: check_regularly(state), "checks")]
            parts.append(begin(lambda: watch_loop(state.executions), "loop-watch"))
            if queue.capabilities.heartbeat:
                parts.append(begin(lambda: send_heartbeats(state, claims, job_runner), "heartbeats"))
            if queue.capabilities.steps:
                parts.append(begin(lambda: state.reports.send(queue, claims.limit), "reports"))
            try:
                while True:
                    try:
                        await state.must_end.wait()
                        failure = failure if cancelled else state.failure
                        self._stops = 2 if state.failure else self._stops
                        await self._end(group, claiming, parts[0], claims, job_runner)
                        break
                    except asyncio.CancelledError as error:  # the end is begun anew, and hurries
                        self._stops, cancelled = 2, error
                        state.end_run()
            finally:
                self._phase = "closing"
                for part in parts:
                    part.cancel()
                job_runner.close()
        end = failure or cancelled
        if end is not None:
            raise end

    async def _part(self, work: Callable[[], Awaitable[None]], is_last: bool) -> None:
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
                if is_last and self._phase == "working":
                    continue
                raise
            except Exception as error:
                self._state.fail(error)
            self._state.end_run()
            return

    async def _claim(self, claimer: Claimer) -> None:
        """Set the limits and schedules that the handlers declare, then claim."""
        await declare(self._queue, self._state.handlers.values(), self._crons, self._state.health)
        await warn_of_unhandled_crons(self._queue, self._state.handlers)
        await claimer.run()

    def _record(self, at: float) -> WorkerRecord:
        """Return the record of this worker at a time, in seconds since 1970."""
        host, _, pid = process_name().rpartition(":")
        return WorkerRecord(
            name=exact(self._settings.name),
            host=host,
            pid=int(pid),
            started=round(self._started, 3),
            at=round(at, 3),
            slots=self._settings.concurrency,
            entrypoints=tuple(map(exact, self._state.handlers))[:ENTRYPOINTS_SHOWN],
            version=__version__,
            mark=process_mark(int(pid)),
        )

    # The end

    async def _end(
        self,
        group: asyncio.TaskGroup,
        claiming: asyncio.Task[None],
        sending: asyncio.Task[None],
        claims: Claims,
        job_runner: JobRunner,
    ) -> None:
        """End the work in order. Only the claims are over before the handlers, and heartbeats go on until the end."""
        queue, state, grace = self._queue, self._state, to_seconds("grace", self._settings.grace)
        grace_ends = self._loop.time() + grace
        claiming.cancel()
        await asyncio.wait([claiming])
        for execution in list(state.filling.values()):  # it waits for more jobs, and its handler has not begun
            job_runner.stop(execution, "stop")
        claims.close()
        settling = group.create_task(self._settle(claiming), name="jqueue-worker-last-claim")
        await self._end_handlers(job_runner, grace)
        if isinstance(queue, SupportsWorkers):
            queue.leave(self._id)  # if the last outcomes need a commit, it removes the record
        await self._wait_until(lambda: state.is_idle or sending.done() or self._is_hurried, SETTLE)
        if self._is_hurried:
            await self._wait_until(lambda: state.is_idle or sending.done(), HURRIED_SETTLE)
        if not state.is_idle:
            logger.error(
                "%s ends, and the queue has not confirmed the outcomes of %s: unless they arrived, the claims become"
                " stale and run again",
                state.name,
                counted(len(state.held), "job"),
            )
        if isinstance(queue, SupportsWorkers) and not self._is_hurried and not state.health.trouble:
            with suppress(JQueueError):  # without an answer, the worker is shown as lost for an hour
                await queue.remove_left(HURRIED_SETTLE)
        if (deaths := self._deaths) is not None:
            left = max(HURRIED_SETTLE, grace_ends - self._loop.time())
            await self._wait_until(lambda: not deaths.calls or self._is_hurried, left)
        await asyncio.wait([settling])

    async def _settle(self, claiming: asyncio.Task[None]) -> None:
        """Wait until the jobs that a cancelled call may have claimed are handed back.

        A queue hands them back behind the calls that it has when the cancelled call ends. The first call here waits for
        that end, and the second one for the jobs.
        """
        if not claiming.cancelled():
            return
        names, seconds = tuple(self._state.handlers), HURRIED_SETTLE
        try:
            async with asyncio.timeout(seconds):
                for _ in range(2):
                    await self._queue.dequeue(names, batch_size=0, deadline=seconds)
        except Exception as error:
            logger.debug("the queue has not confirmed the end of a claim: %s", type(error).__name__)

    async def _end_handlers(self, job_runner: JobRunner, grace: float) -> None:
        """Let handlers finish within the grace period, then cancel the others, and give back jobs that still run.

        Stuck handlers are not waited for: they have had their time.
        """
        state = self._state
        if state.executions and not self._is_hurried:
            jobs = counted(sum(len(execution.jobs) for execution in state.executions), "job")
            logger.info("%s is stopping: waiting for %s, up to %g s", self._settings.name, jobs, grace)
        await self._wait_until(lambda: not state.executions or self._is_hurried, grace)
        if not state.executions and not state.stuck:
            return
        for execution in list(state.executions):
            job_runner.stop(execution, "stop")
        await self._wait_until(lambda: not state.executions or self._is_hurried, state.cancel_grace)
        for _ in range(3):
            await asyncio.sleep(0)  # lets cancelled handlers end
        for execution in {held.execution for held in state.held}:
            job_runner.abandon(execution)

    async def _wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    await self._state.progress.wait()
