"""One run of a worker on its queues: it opens everything, runs the parts side by side, and ends them in order.

Each queue has parts of its own: claims, outcomes, heartbeats, reports and checks. The slots are shared.

The order of the end: claims stop; running handlers get their grace; the others are cancelled and their jobs are handed
back; all outcomes reach their queues; the lifespan is closed; the queues that were opened here are closed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from jqueue._version import __version__
from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import JQueueError
from jqueue.domain.header import ENTRYPOINTS_SHOWN, WorkerRecord
from jqueue.domain.limits import exact
from jqueue.domain.operations.rules import SetSchedule
from jqueue.domain.printable import counted
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.queue import JobQueue, SupportsOffering, SupportsWorkers
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import process_mark, process_name
from jqueue.runtime.tasks import all_at_once
from jqueue.telemetry.exporters import observed
from jqueue.worker.claiming import Claimer
from jqueue.worker.deaths import Deaths
from jqueue.worker.declaring import declare, warn_of_unhandled_crons, warn_of_unhandled_jobs
from jqueue.worker.executions import equipment_of
from jqueue.worker.handler_options import WorkerSettings
from jqueue.worker.handlers import Handler
from jqueue.worker.heartbeats import send_heartbeats
from jqueue.worker.loop_watch import watch_loop
from jqueue.worker.outcome_sender import OutcomeSender
from jqueue.worker.queue_health import check_writable, open_queue
from jqueue.worker.retries import OutcomeCounts
from jqueue.worker.run_state import RunState, Slots
from jqueue.worker.signals import handle_signals

logger: Logger = logger_of("jqueue.worker")

SETTLE = 30.0
"""Seconds that a worker that ends tries to send the outcomes of its last jobs."""

HURRIED_SETTLE = 5.0
"""Seconds that a worker gets to send its last outcomes when it was told to stop at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport(OutcomeCounts):
    """Number of jobs that a worker claimed, by outcome. A job counts each time it was claimed.

    Attributes:
        stuck: handlers that still went on when the worker ended, although they were told to stop. Their jobs are
            also counted above.
        worn: True if the worker has ended as `max_jobs` or `max_memory` says, and another one is to take its place.
    """

    stuck: int = 0
    worn: bool = False

    def __str__(self) -> str:
        return self.describe("stuck")


@dataclass(eq=False)
class Run:
    """One run of a worker.

    Attributes:
        settings: the settings of the worker.
        handlers: its handlers, by entrypoint.
        crons: the operations that set its cron entries.
        queues: the queues whose jobs it does, each once.
        drain: True to end when nothing is left to do.
        signals: True to stop at signals.
    """

    settings: WorkerSettings
    handlers: Mapping[str, Handler[..., Any]]
    crons: Sequence[SetSchedule]
    queues: Sequence[JobQueue]
    drain: bool
    signals: bool

    def __post_init__(self) -> None:
        settings, self._loop = self.settings, asyncio.get_running_loop()
        self._slots = Slots(settings)
        self._states = [RunState(self._slots, self.handlers, queue, drain=self.drain) for queue in self.queues]
        self._stops = 0  # 1: it was told to stop; 2: at once
        self._phase = "opening"  # then "working", "closing"
        self._deaths: Deaths | None = None
        if settings.on_dead is not None:
            self._deaths = Deaths(settings.on_dead, settings.show_errors, self._slots.progress.set)
        self._id = options_of(self.queues[0]).entropy.new_id()[:13]
        self._started = options_of(self.queues[0]).clock.now().timestamp()
        self._task_of_all: asyncio.Task[RunReport] | None = None
        self._handles_signals = False
        self._interrupt: KeyboardInterrupt | None = None
        self._parts: list[asyncio.Task[None]] = []

    @property
    def is_over(self) -> bool:
        """True if the event loop of the run is closed, so that it will never end by itself."""
        return self._loop.is_closed()

    @property
    def phase(self) -> str:
        """The phase of the run, in one word."""
        return "stopping" if self._phase == "working" and self._stops else self._phase

    @property
    def queues_here(self) -> Sequence[JobQueue]:
        """The queues of the run, for code on its event loop. Elsewhere, as in the thread of a handler, none."""
        return self.queues if asyncio._get_running_loop() is self._loop else ()

    def stop(self) -> None:
        """Stop in order. A second call stops at once."""
        self._stops += 1
        self._slots.end_run()
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
            logger.info("%s stops: an operator has told it to", self.settings.name)
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
        self._slots.end_run()
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
                self._slots.progress.set()
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
        worn = self._slots.worn is not None and not self._stops
        outcomes: dict[str, int] = dict(self._slots.outcomes.items())
        return RunReport(**outcomes, stuck=self._slots.stuck, worn=worn)

    async def _perform(self) -> RunReport:
        """Open everything, work, end in order, close everything, and log the report."""
        for state in self._states:
            state.health.expect_answer()
        try:
            async with AsyncExitStack() as stack:
                await self._open(stack)
                equipment = await stack.enter_async_context(equipment_of(self.settings))
                for state in self._states:
                    state.equip(equipment, self.interrupt, state.reports if state.queue.capabilities.steps else None)
                if not self._stops:
                    self._phase = "working"
                    await self._work()
                self._phase = "closing"
        finally:
            failing = "".join([state.health.close() for state in self._states])
        report = self._report()
        logger.log(logging.ERROR if failing else logging.INFO, "%s stopped: %s%s", self.settings.name, report, failing)
        return report

    async def _open(self, stack: AsyncExitStack) -> None:
        """Handle signals, serve the probes, and open and observe the queues."""
        settings, slots = self.settings, self._slots
        if self.signals:
            self._handles_signals = stack.enter_context(handle_signals(self.stop))
        exporter = settings.metrics
        if settings.health is not None:
            from jqueue.worker.probes import Probes, open_probes  # loads an HTTP server

            def facts() -> dict[str, Any]:
                return {"worker": settings.name, "running": len(slots.executions), "slots": settings.concurrency}

            probes = [Probes(each.queue, each.health, lambda: self.phase, facts) for each in self._states]
            exporter = await open_probes(stack, settings.health, probes, exporter)
        if (deaths := self._deaths) is not None:
            stack.callback(deaths.close)
            slots.died = deaths.failed_here
        for state in self._states:
            queue = state.queue
            await open_queue(queue, stack, tuple(self.handlers))
            await check_writable(queue)
            if settings.tracing is not None:
                settings.tracing.instrument(queue)
            stack.enter_context(observed(queue, deaths))
            if exporter is not None:
                await stack.enter_async_context(exporter.watch(queue, state))

    async def _work(self) -> None:
        """Serve the queues side by side, until stopped or drained; then end in order."""
        slots = self._slots
        logger.info(
            "%s started: up to %s at a time of %s",
            self.settings.name,
            counted(self.settings.concurrency, "job"),
            ", ".join(self.handlers),
        )
        end: BaseException | None = None
        async with asyncio.TaskGroup() as group:  # no part fails in it: see `_part`
            self._begin(group, lambda: watch_loop(lambda: slots.executions), "loop-watch")
            for state in self._states:
                self._serve(state, group)
            try:
                while True:
                    try:
                        await slots.must_end.wait()
                        end = end or slots.failure
                        self._stops = 2 if slots.failure else self._stops
                        await self._end(group)
                        break
                    except asyncio.CancelledError as error:  # the end is begun anew, and hurries
                        self._stops, end = 2, end or error
                        slots.end_run()
            finally:
                self._phase = "closing"
                for part in self._parts:
                    part.cancel()
                for state in self._states:
                    state.close()
        if end is not None:
            raise end

    def _serve(self, state: RunState, group: asyncio.TaskGroup) -> None:
        """Begin to claim jobs of a queue, to send their outcomes, and to send heartbeats."""
        queue, able = state.queue, state.queue.capabilities
        if isinstance(queue, SupportsWorkers):
            queue.attend(self._id, self._record, self._obey)
        if isinstance(queue, SupportsOffering):
            queue.offer()
        claimer, sender = Claimer(state), OutcomeSender(state)
        state.claimer = self._begin(group, lambda: self._claim(state, claimer), "claims")
        state.sender = self._begin(group, sender.run, "outcomes", is_last=True)
        if not state.drain:  # a drain ignores jobs of others
            self._begin(group, lambda: warn_of_unhandled_jobs(queue, self.handlers), "checks")
        if able.heartbeat:
            self._begin(group, lambda: send_heartbeats(state), "heartbeats")
        if able.steps:
            self._begin(group, lambda: state.reports.send(queue, state.call_limit), "reports")

    def _begin(
        self, group: asyncio.TaskGroup, work: Callable[[], Awaitable[None]], name: str, *, is_last: bool = False
    ) -> asyncio.Task[None]:
        """Begin a part of the run in a task of its own."""
        part = group.create_task(self._part(work, is_last), name=f"jqueue-worker-{name}")
        self._parts.append(part)
        return part

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
                self._slots.fail(error)
            self._slots.end_run()
            return

    async def _claim(self, state: RunState, claimer: Claimer) -> None:
        """Set the limits and schedules that the handlers declare, then claim."""
        await declare(state.queue, self.handlers.values(), self.crons, state.health)
        await warn_of_unhandled_crons(state.queue, self.handlers)
        await claimer.run()

    def _record(self, at: float) -> WorkerRecord:
        """Return the record of this worker at a time, in seconds since 1970."""
        host, _, pid = process_name().rpartition(":")
        return WorkerRecord(
            name=exact(self.settings.name),
            host=host,
            pid=int(pid),
            started=round(self._started, 3),
            at=round(at, 3),
            slots=self.settings.concurrency,
            entrypoints=tuple(map(exact, self.handlers))[:ENTRYPOINTS_SHOWN],
            version=__version__,
            mark=process_mark(int(pid)),
        )

    # The end

    async def _end(self, group: asyncio.TaskGroup) -> None:
        """End the work in order. Only the claims are over before the handlers, and heartbeats go on until the end."""
        slots, states, grace = self._slots, self._states, to_seconds("grace", self.settings.grace)
        grace_ends = self._loop.time() + grace
        for each in states:
            each.claimer.cancel()
        await asyncio.wait([each.claimer for each in states])
        for each in states:
            for execution in list(each.filling.values()):  # it waits for more jobs; its handler has not begun
                each.stop(execution, "stop")
        settling = [group.create_task(self._settle(each), name="jqueue-worker-last-claim") for each in states]
        await self._end_handlers(grace)
        for each in states:
            if isinstance(each.queue, SupportsWorkers):
                each.queue.leave(self._id)  # if the last outcomes need a commit, it removes the record

        def is_over() -> bool:
            return all(each.is_idle or each.sender.done() for each in states)

        await self._wait_until(lambda: is_over() or self._is_hurried, SETTLE)
        if self._is_hurried:
            await self._wait_until(is_over, HURRIED_SETTLE)
        if not slots.is_idle:
            logger.error(
                "%s ends, and the queue has not confirmed the outcomes of %s: unless they arrived, the claims become"
                " stale and run again",
                self.settings.name,
                counted(len(slots.held), "job"),
            )
        await all_at_once(*(self._remove_record(each) for each in states))
        if (deaths := self._deaths) is not None:
            left = max(HURRIED_SETTLE, grace_ends - self._loop.time())
            await self._wait_until(lambda: not deaths.calls or self._is_hurried, left)
        await asyncio.wait(settling)

    async def _remove_record(self, state: RunState) -> None:
        """Remove the record of this worker, unless the queue is in trouble."""
        if isinstance(state.queue, SupportsWorkers) and not self._is_hurried and not state.health.trouble:
            with suppress(JQueueError):  # without an answer, the worker is shown as lost for an hour
                await state.queue.remove_left(HURRIED_SETTLE)

    async def _settle(self, state: RunState) -> None:
        """Wait until the jobs that a cancelled call may have claimed are handed back.

        A queue hands them back behind the calls that it has when the cancelled call ends. The first call here waits for
        that end, and the second one for the jobs.
        """
        if not state.claimer.cancelled():
            return
        seconds = HURRIED_SETTLE
        try:
            async with asyncio.timeout(seconds):
                for _ in range(2):
                    await state.queue.dequeue(tuple(self.handlers), batch_size=0, deadline=seconds)
        except Exception as error:
            logger.debug("the queue has not confirmed the end of a claim: %s", type(error).__name__)

    async def _end_handlers(self, grace: float) -> None:
        """Let handlers finish within the grace period, then cancel the others, and give back jobs that still run.

        Stuck handlers are not waited for: they have had their time.
        """
        slots = self._slots
        if slots.executions and not self._is_hurried:
            jobs = counted(sum(len(execution.jobs) for execution in slots.executions), "job")
            logger.info("%s is stopping: waiting for %s, up to %g s", self.settings.name, jobs, grace)
        await self._wait_until(lambda: not slots.executions or self._is_hurried, grace)
        if not slots.executions and not slots.stuck:
            return
        for state in self._states:
            for execution in list(state.executions):
                state.stop(execution, "stop")
        await self._wait_until(lambda: not slots.executions or self._is_hurried, self._states[0].cancel_grace)
        for _ in range(3):
            await asyncio.sleep(0)  # lets cancelled handlers end
        for state in self._states:
            for execution in {*state.executions, *state.stuck}:
                state.abandon(execution)

    async def _wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    await self._slots.progress.wait()
