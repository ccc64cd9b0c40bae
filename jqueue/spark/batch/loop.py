"""The loop of a partition: it calls the handlers of a worker for jobs in memory, and marks what becomes of each.

The driver has claimed the jobs, keeps their claims alive, and ends them. So the loop has neither claims to make nor
acks to send. It has as many slots as the worker does jobs at a time. Each slot is a task that does one call after the
other; a call that leaves its task changed, by context variables or by a cancellation, is the last one in it.

`ctx.queue` is the queue itself. A look at it now and then tells of lost claims and cancelled jobs.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import compress
from typing import Any

from jqueue.connect import connect
from jqueue.core.direct import DirectQueue
from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import InvalidJobError, JQueueError
from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT, JobRecord
from jqueue.domain.limits import Limits, check_result
from jqueue.domain.models import Job, job_of
from jqueue.domain.operations.base import Operation
from jqueue.spark.batch.marks import BEGUN, DONE, HANDED_BACK, OVER, STUCK, Marks
from jqueue.spark.claims.held import ClaimedJobs
from jqueue.spark.claims.outcomes import Outcome, encoded_enqueues
from jqueue.worker import Worker
from jqueue.worker.calls import Call, around, call_of
from jqueue.worker.context import Around, BatchContext, Context
from jqueue.worker.executions import Reason
from jqueue.worker.failures import fail, worn_out
from jqueue.worker.handler_errors import check_awaited, error_in, results_of
from jqueue.worker.handler_options import seconds_of
from jqueue.worker.handlers import Handler
from jqueue.worker.job_log import log_about
from jqueue.worker.parents import results_of_parents, with_argument
from jqueue.worker.payloads import UnkeptResultError
from jqueue.worker.processes import Processes
from jqueue.worker.reports import Reports
from jqueue.worker.retries import CANCELLED, Decision, HandlerTimeout, decisive, error_text
from jqueue.worker.threads import Threads

LOOKS_PER_TIMEOUT = 3
LONGEST_PAUSE = 60.0
"""Seconds between two looks at the claims, unless they last so short a time that there must be more."""

TURN = 0.01
"""Seconds after which a slot whose handlers never wait leaves the event loop to others."""

REPORTS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Plan:
    """The way to call a handler.

    Attributes:
        handler: the handler.
        call: calls it: see `call_of`.
        seconds: time that a call may take.
        wants_context: True if the handler or middleware takes a context.
        is_plain: True if it takes one job without a context, does not run in a process, and keeps no result.
    """

    handler: Handler[..., Any]
    call: Call
    seconds: float
    wants_context: bool
    is_plain: bool

    @classmethod
    def of(cls, handler: Handler[..., Any], threads: Threads, seconds: float | None) -> Plan:
        """Return the way to call a handler, given the seconds for a handler without a timeout of its own."""
        limit = handler.options.seconds if seconds is None or handler.options.seconds is not None else seconds
        wants_context = handler.signature.wants_context or bool(handler.middlewares or handler.thread_middlewares)
        is_alone = handler.options.batch is None and handler.options.keep_result is None
        is_plain = is_alone and not wants_context and handler.runs_in != "process"
        return cls(handler, call_of(handler, threads), math.inf if limit is None else limit, wants_context, is_plain)


@dataclass(slots=True, eq=False)
class Slot:
    """A place for one call at a time.

    Attributes:
        task: does the calls.
        plan: the way of the current call.
        places: the places of its jobs.
        reasons: by place: the reason for which the handler must stop the work on a job.
        is_told: True if the handler was told to stop.
        context: the context of the call, if its handler takes one.
        began: time at which it began, on the clock of the loop.
        seconds: time that it may take.
        due: time by which it must have ended, or must have stopped if it was told to, on that clock.
    """

    task: asyncio.Task[None] | None = None
    plan: Plan | None = None
    places: Sequence[int] = ()
    reasons: dict[int, Reason] = field(default_factory=dict)
    is_told: bool = False
    context: Context | BatchContext | None = None
    began: float = 0.0
    seconds: float = math.inf
    due: float = math.inf


class PartitionLoop:
    """Does the jobs of a partition, once. It is a run of the worker: `worker.stop()` ends it.

    Args:
        worker: has the handlers.
        url: of the queue.
        timeout: seconds that a handler may take that has no timeout of its own; None for no limit.
        jobs: all jobs of the partition.
        places: the places of the jobs to do.
        marks: takes what becomes of them.
        one_by_one: True to do one job at a time.
    """

    is_over = False

    def __init__(
        self,
        worker: Worker,
        url: str,
        timeout: float | None,
        jobs: ClaimedJobs,
        places: Sequence[int],
        marks: Marks,
        *,
        one_by_one: bool = False,
    ) -> None:
        self._settings = worker.settings
        self._handlers = {name: worker.wrap(handler) for name, handler in worker.handlers.items()}
        self._url, self._timeout = url, timeout
        self._jobs, self._rows, self._marks = jobs, jobs.rows, marks
        self._spared = 1 - jobs.failures  # number of failures of a row that needs no look at its attempts
        sizes = {name: 1 if one_by_one else each.options.batch or 1 for name, each in self._handlers.items()}
        self._calls = iter(_calls_of(jobs.rows, places, sizes))
        self._concurrency = 1 if one_by_one else self._settings.concurrency
        self._grace = to_seconds("cancel_grace", self._settings.cancel_grace)
        self._slots: set[Slot] = set()
        self._lost: set[str] = set()
        self._cancelled: set[str] = set()
        self._stops = 0
        self._next_check = math.inf
        self._timer: asyncio.TimerHandle | None = None

    @property
    def queues_here(self) -> Sequence[DirectQueue]:
        """The queue, for code on the event loop. Elsewhere there is none."""
        return (self._queue,) if asyncio._get_running_loop() is self._loop else ()

    def stop_from_anywhere(self) -> None:
        """Begin no more calls, and let running calls end. A second call stops them."""
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._stops += 1
        if self._stops == 1:
            self._loop.call_later(to_seconds("grace", self._settings.grace), self._stop)
            return
        for slot in self._slots:
            self._tell(slot, dict.fromkeys(slot.places, "stop"))

    async def perform(self) -> None:
        """Open everything, do the jobs, and close everything."""
        self._loop, self._context, settings = asyncio.get_running_loop(), copy_context(), self._settings
        self._ended, self._reports = self._loop.create_future(), Reports()
        async with connect(self._url, DirectQueue) as queue, AsyncExitStack() as stack:
            self._queue, self._clock, self._entropy = queue, queue.options.clock, queue.options.entropy
            if settings.tracing is not None:
                settings.tracing.instrument(queue)
            self._resources = None
            if settings.lifespan is not None:
                self._resources = await stack.enter_async_context(settings.lifespan())
            threads = Threads(self._concurrency)
            self._processes = Processes(self._concurrency, settings.max_memory)
            stack.push_async_callback(self._processes.close)
            stack.callback(threads.shutdown)
            self._plans = {name: Plan.of(each, threads, self._timeout) for name, each in self._handlers.items()}
            beside = [asyncio.create_task(each) for each in (self._watch(), self._reports.send(queue, REPORTS_AT_ONCE))]
            self._next_turn = self._loop.time() + TURN
            for _ in range(min(self._concurrency, len(self._rows))):
                self._open_slot()
            try:
                await self._ended
            finally:
                for each in beside:
                    each.cancel()
                if self._timer is not None:
                    self._timer.cancel()
        all_begun = next(self._calls, None) is None
        self._marks.end = OVER if self._stops or all_begun else STUCK

    # Slots

    def _open_slot(self) -> None:
        slot = Slot()
        slot.task = self._loop.create_task(self._work(slot), name="jqueue-slot", context=self._context.copy())
        slot.task.add_done_callback(self._check_end)
        self._slots.add(slot)

    def _check_end(self, task: asyncio.Task[None] | None = None) -> None:
        """End the loop if no slot is left, or if one has failed because notes cannot be written."""
        error = None if task is None or task.cancelled() else task.exception()
        if error is not None and not self._ended.done():
            self._ended.set_exception(error)
        elif not self._slots and not self._ended.done():
            self._ended.set_result(None)

    async def _work(self, slot: Slot) -> None:
        """Do one call after the other, until none is left, or the next one needs a new task."""
        task = slot.task
        assert task is not None
        for places in self._calls:
            if self._stops:
                break
            await self._do(slot, places)
            if slot not in self._slots or task.cancelling() or copy_context() != self._context:
                if not self._ended.done():
                    self._open_slot()
                break
            if slot.began >= self._next_turn:
                await asyncio.sleep(0)
                self._next_turn = self._loop.time() + TURN
        self._slots.discard(slot)

    async def _do(self, slot: Slot, places: Sequence[int]) -> None:
        """Do one call, and mark what becomes of its jobs."""
        row, error = self._rows[places[0]], None
        plan = self._plans[row.entrypoint]
        self._begin(slot, plan, places, row.timeout)
        try:
            if plan.is_plain and row.encoding != "chained" and slot.places:
                value = await plan.call(row, None)
                if value is None and row.keep_result is None and not slot.reasons and not self._settings.log_done:
                    self._marks.states[places[0]] = DONE
                    slot.places = ()
                    return
            else:
                value = await self._call(slot, plan)
            check_awaited(value)
            results = (value,) if plan.handler.options.batch is None else results_of(value, len(slot.places))
        except KeyboardInterrupt:
            raise
        except BaseException as raised:
            results, error = (), decisive(raised)
        if slot in self._slots:  # otherwise the handler was given up
            self._end(slot, plan, results, error)
        slot.places, slot.context = (), None

    def _begin(self, slot: Slot, plan: Plan, places: Sequence[int], own: float | None) -> None:
        """Begin a call. Jobs that were cancelled or lost meanwhile, or have no attempts left, are not done.

        Args:
            slot: the slot.
            plan: the way of the call.
            places: the places of its jobs.
            own: the timeout of the first job itself.
        """
        slot.began, slot.seconds = self._loop.time(), plan.seconds
        if own is not None and plan.handler.options.batch is None:
            slot.seconds = own
        slot.due = math.inf if plan.handler.runs_in == "process" else slot.began + slot.seconds
        slot.is_told, slot.places, due = False, places, slot.due + self._grace
        if slot.reasons:
            slot.reasons = {}
        is_rare = bool(self._lost or self._cancelled)
        for place in places:
            self._marks.due[place] = due
            self._marks.states[place] = BEGUN
            row = self._rows[place]
            is_rare = is_rare or row.cancel_requested or row.failures > self._spared
        if is_rare:
            slot.places = [place for place in places if self._may_run(place, plan)]
        if slot.due < self._next_check:
            self._check_at(slot.due)

    def _may_run(self, place: int, plan: Plan) -> bool:
        job = self._jobs.job(place)
        if (decision := worn_out(job_of(job), plan.handler.options)) is not None:
            self._decide(place, decision)
        elif job.cancel_requested or job.id in self._cancelled:
            self._decide(place, CANCELLED)
        elif job.id in self._lost:
            self._marks.states[place] = HANDED_BACK
        else:
            return True
        return False

    # Calls that are not plain

    async def _call(self, slot: Slot, plan: Plan) -> Any:
        """Call a handler with the jobs of a slot. Jobs of a batch whose payload does not validate leave it."""
        handler, jobs, contexts = plan.handler, list[Job](), list[Context]()
        deadline = None if slot.seconds == math.inf else self._clock.now() + timedelta(seconds=slot.seconds)
        around: Around = {"queue": self._queue, "resources": self._resources, "deadline": deadline}
        values, places, is_batch = list[Any](), list[int](), handler.options.batch is not None
        for place in slot.places:
            job = job_of(self._jobs.job(place))
            context = Context(job, self._lose, self._reports, **around)
            slot.context = None if is_batch else context
            try:
                if job.after and (plan.wants_context or job.encoding == "chained"):
                    context.parents = results = await results_of_parents(self._queue, job)
                    if job.encoding == "chained":
                        job = with_argument(job, handler.signature.names[0], results)
                if is_batch and handler.runs_in != "process":
                    values.append(handler.signature.parse(job))
            except Exception as error:
                if not is_batch:
                    raise
                self._fail(place, decisive(error))
                continue
            jobs.append(job)
            contexts.append(context)
            places.append(place)
        slot.places = places
        if not places:
            return None
        if is_batch:
            slot.context = BatchContext(handler.entrypoint, contexts, **around) if plan.wants_context else None
        if handler.runs_in == "process":
            return await self._in_process(slot, plan, jobs)
        return await plan.call(values if is_batch else jobs[0], slot.context)

    async def _in_process(self, slot: Slot, plan: Plan, jobs: list[Job]) -> Any:
        """Call a handler in a process. Its timeout begins with its turn, and anew once a process has begun with it."""

        def running(begun: bool) -> None:
            if slot.is_told:
                return
            slot.due = self._loop.time() + slot.seconds if begun else math.inf
            self._check_at(slot.due)
            if begun and slot.context is not None and slot.seconds < math.inf:
                slot.context.move_deadline(self._clock.now() + timedelta(seconds=slot.seconds))

        async with self._processes.turn:
            running(True)
            call = partial(self._processes.call, plan.handler, jobs, running)
            return await around(plan.handler.middlewares, slot.context, call)

    # Stopping

    def _tell(self, slot: Slot, reasons: Mapping[int, Reason]) -> None:
        """Tell a handler to stop the work on some of its jobs. A batch goes on with its other jobs, if there are any.

        Args:
            slot: the slot of its call.
            reasons: the reason, by the place of the job.
        """
        slot.reasons = {**reasons, **slot.reasons}
        told = [place in slot.reasons for place in slot.places]
        if isinstance(slot.context, BatchContext):
            for context in compress(slot.context, told):
                context.stop()
        if slot.is_told or not all(told) or not told:
            return
        slot.is_told = True
        if slot.context is not None:
            slot.context.stop()
        assert slot.task is not None
        slot.task.cancel()
        slot.due = self._loop.time() + self._grace
        self._check_at(slot.due)

    def _check_at(self, due: float) -> None:
        """Check the limits at a time, unless they are checked before. One timer serves all slots."""
        if due < self._next_check:
            if self._timer is not None:
                self._timer.cancel()
            self._next_check = due
            self._timer = self._loop.call_at(due, self._check_limits)

    def _check_limits(self) -> None:
        """Stop the handlers whose time is over. One that does not stop keeps its slot until it ends."""
        now, self._next_check = max(self._next_check, self._loop.time()), math.inf
        for slot in [each for each in self._slots if each.due <= now]:
            if not slot.is_told:
                self._tell(slot, dict.fromkeys(slot.places, "timeout"))
                continue
            for place in slot.places:
                self._give_back(slot, place, was_stuck=True)
            self._slots.discard(slot)
            self._check_end()
        self._check_at(min((each.due for each in self._slots), default=math.inf))

    def _lose(self, job: Job) -> None:
        """Stop the work on a job whose claim is found lost by its handler."""
        for slot in self._slots:
            self._tell(slot, {place: "lost" for place in slot.places if self._rows[place].id == job.id})

    async def _watch(self) -> None:
        """Look at the claims now and then, until cancelled. Stop the work on jobs that are lost or cancelled."""
        lasts = self._jobs.claim_timeout or DEFAULT_CLAIM_TIMEOUT.total_seconds()
        while True:
            await asyncio.sleep(min(LONGEST_PAUSE, lasts / LOOKS_PER_TIMEOUT))
            with suppress(JQueueError):
                self._lost, self._cancelled = await self._jobs.look(self._queue)
            for slot in self._slots:
                ids = {place: self._rows[place].id for place in slot.places}
                self._tell(slot, {place: "lost" for place, job_id in ids.items() if job_id in self._lost})
                self._tell(slot, {place: "cancelled" for place, job_id in ids.items() if job_id in self._cancelled})

    # Outcomes

    def _end(self, slot: Slot, plan: Plan, results: Sequence[Any], error: BaseException | None) -> None:
        """Decide about the jobs of a handler that returned, or raised an error, or was stopped.

        A batch handler that returns, or is stopped, has done only jobs on which it was not told to stop the work.
        """
        shows = True
        for number, place in enumerate(slot.places):
            if place in slot.reasons and (
                error is None or isinstance(error, asyncio.CancelledError) or not slot.is_told
            ):
                self._give_back(slot, place)
            elif error is not None:
                self._fail(place, error, shows=shows)
                shows = False
            else:
                context = slot.context[number] if isinstance(slot.context, BatchContext) else slot.context
                self._finish(place, plan.handler, results[number], () if context is None else context.companions)
                if self._settings.log_done:
                    seconds = self._loop.time() - slot.began
                    log_about(job_of(self._jobs.job(place)), logging.INFO, " is done after %.3f s", seconds)

    def _finish(
        self, place: int, handler: Handler[..., Any], result: Any, companions: Sequence[Operation | Any]
    ) -> None:
        """Mark a job that is done. It fails if a batch has an error in the place of its result."""
        job = self._jobs.job(place)
        if result is not None and handler.options.batch is not None:
            error = error_in(result)
            if error is not None and not isinstance(error, UnkeptResultError):
                self._fail(place, decisive(error))
                return
        keep_result = handler.keep_result_of(job)
        if keep_result is None and not companions:
            self._marks.states[place] = DONE
            return
        try:
            added = encoded_enqueues(companions)
        except InvalidJobError as error:
            log_about(job_of(job), logging.ERROR, " is dead: %s", error)
            self._decide(place, Decision("dead", error=error_text(error), dead=True))
            return
        value, seconds = None, seconds_of("keep_result", keep_result)
        try:
            if seconds is not None:
                value, _ = check_result(handler.result_to_keep(result), Limits())
        except (InvalidJobError, UnkeptResultError) as error:
            log_about(job_of(job), logging.WARNING, " is acked without its result: %s", error)
            seconds = 0.0
        self._marks.note(place, Outcome(*job.claim, "done", value, seconds, added=added))

    def _give_back(self, slot: Slot, place: int, *, was_stuck: bool = False) -> None:
        """Decide about a job whose handler was told to stop. `was_stuck`: it did not stop within `cancel_grace`."""
        reason = slot.reasons[place]
        if reason == "timeout":
            how = ", and still ran after it was told to stop" if was_stuck else ""
            self._fail(place, HandlerTimeout(f"timed out after {slot.seconds:g} s{how}"))
        elif reason == "cancelled":
            self._decide(place, CANCELLED)
        else:
            self._marks.states[place] = HANDED_BACK

    def _fail(self, place: int, error: BaseException, *, shows: bool = True) -> None:
        job, in_full = job_of(self._jobs.job(place)), self._settings.show_errors
        options = self._handlers[job.entrypoint].options
        self._decide(place, fail(error, job, options, self._entropy.jitter, shows=shows, in_full=in_full))

    def _decide(self, place: int, decision: Decision) -> None:
        self._marks.note(place, Outcome.decided(self._jobs.job(place).claim, decision))


def _calls_of(rows: Sequence[JobRecord], places: Sequence[int], sizes: Mapping[str, int]) -> Iterable[Sequence[int]]:
    """Return the places of the jobs of each call, in the order of their first jobs.

    Args:
        rows: the jobs of the partition.
        places: the places of the jobs to do.
        sizes: largest number of jobs in a call, by entrypoint.
    """
    if set(sizes.values()) == {1}:
        return zip(places, strict=True)
    calls, last = list[list[int]](), dict[str, list[int]]()
    for place in places:
        name = rows[place].entrypoint
        if (call := last.get(name)) is None or len(call) == sizes[name]:
            calls.append(call := [])
            last[name] = call
        call.append(place)
    return calls
