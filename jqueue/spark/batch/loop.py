"""The loop of a partition: it calls the handlers of a worker for jobs in memory, and marks what becomes of each.

The driver has claimed the jobs, keeps their claims alive, and ends them. So the loop has neither claims to make nor
acks to send. It has as many slots as the worker does jobs at a time. Each slot is a task that does one call after the
other; a call that leaves its task changed, by context variables or by a cancellation, is the last one in it.

`ctx.queue` is the queue itself. A look at it now and then tells of lost claims and cancelled jobs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from jqueue.connect import connect
from jqueue.core.direct import DirectQueue
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidJobError, JQueueError
from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT, JobRecord
from jqueue.domain.limits import Limits, check_result
from jqueue.domain.models import job_of
from jqueue.domain.operations.ends import Ack
from jqueue.ports.queue import JobQueue
from jqueue.spark.batch.marks import BEGUN, DONE, HANDED_BACK, OVER, STUCK, WITHHELD, Marks
from jqueue.spark.claims import ClaimedJobs, Outcome, encoded_enqueues
from jqueue.worker import Worker
from jqueue.worker.calls import Plan
from jqueue.worker.executions import KEPT_FOR_CHILDREN, Execution, Executions, HeldJob, Phase, Reason, equipment_of
from jqueue.worker.handler_options import seconds_of
from jqueue.worker.reports import Reports
from jqueue.worker.retries import CANCELLED, HAND_BACK, Decision, decisive

LOOKS_PER_TIMEOUT = 3
LONGEST_PAUSE = 60.0
"""Seconds between two looks at the claims, unless they last so short a time that there must be more."""

TURN = 0.01
"""Seconds after which a slot whose handlers never wait leaves the event loop to others."""

REPORTS_AT_ONCE = 1000

RUNNING = Phase.RUNNING


@dataclass(slots=True, eq=False)
class Slot(Execution):
    """A place for one call at a time: the execution of the current call.

    A call of a simple plan has no `jobs` until something happens to it.

    Attributes:
        places: the places of the jobs of the current call.
    """

    plan: Plan = field(init=False)
    places: Sequence[int] = ()


@dataclass(slots=True, eq=False)
class HeldRow(HeldJob):
    """A job of the partition.

    Attributes:
        place: its place.
    """

    place: int = 0


class PartitionLoop(Executions):
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
        super().__init__(worker.settings, {name: worker.wrap(handler) for name, handler in worker.handlers.items()})
        self._url, self._timeout = url, math.inf if timeout is None else timeout
        self._jobs, self._rows, self._marks = jobs, jobs.rows, marks
        self._spared = 1 - jobs.failures  # number of failures of a row that needs no look at its attempts
        sizes = {name: 1 if one_by_one else each.options.batch or 1 for name, each in self.handlers.items()}
        self._calls = iter(_calls_of(jobs.rows, places, sizes))
        self._concurrency = 1 if one_by_one else self.settings.concurrency
        self._awaited, self._lost = jobs.awaited, set[str]()
        self._cancelled: set[str] = set()
        self._stops = 0

    @property
    def queues_here(self) -> Sequence[JobQueue]:
        """The queue, for code on the event loop. Elsewhere there is none."""
        return (self.queue,) if asyncio._get_running_loop() is self.loop else ()

    def stop_from_anywhere(self) -> None:
        """Begin no more calls, and let running calls end. A second call stops them."""
        self.loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._stops += 1
        if self._stops == 1:
            self.loop.call_later(to_seconds("grace", self.settings.grace), self._stop)
            return
        for slot in self.executions:
            self.stop(slot, "stop")

    async def perform(self) -> None:
        """Open everything, do the jobs, and close everything."""
        self._variables, self._ended, reports = copy_context(), self.loop.create_future(), Reports()
        async with connect(self._url, DirectQueue) as queue:
            self.queue: JobQueue = queue
            if self.settings.tracing is not None:
                self.settings.tracing.instrument(queue)
            async with equipment_of(self.settings) as equipment:
                self.equip(equipment, _raise, reports, self._timeout)
                beside = [self._watch(queue), reports.send(queue, REPORTS_AT_ONCE)]
                tasks = [asyncio.create_task(each) for each in beside]
                self._next_turn = self.loop.time() + TURN
                for _ in range(min(self._concurrency, len(self._rows))):
                    self._open_slot()
                try:
                    await self._ended
                finally:
                    for task in tasks:
                        task.cancel()
                    self.close()
        all_begun = next(self._calls, None) is None
        self._marks.end = OVER if self._stops or all_begun else STUCK

    # Slots

    def _open_slot(self) -> None:
        slot = Slot()
        slot.task = self.loop.create_task(self._work(slot), name="jqueue-slot", context=self._variables.copy())
        slot.task.add_done_callback(self._check_end)
        self.executions.add(slot)

    def _check_end(self, task: asyncio.Task[None] | None = None) -> None:
        """End the loop if no slot is left, or if one has failed because notes cannot be written."""
        error = None if task is None or task.cancelled() else task.exception()
        if error is not None and not self._ended.done():
            self._ended.set_exception(error)
        elif not self.executions and not self._ended.done():
            self._ended.set_result(None)

    async def _work(self, slot: Slot) -> None:
        """Do one call after the other, until none is left, or the next one needs a new task."""
        task = slot.task
        assert task is not None
        for places in self._calls:
            if self._stops:
                break
            await self._do(slot, places)
            if slot not in self.executions or task.cancelling() or copy_context() != self._variables:
                if not self._ended.done():
                    self._open_slot()
                break
            if slot.began >= self._next_turn:
                await asyncio.sleep(0)
                self._next_turn = self.loop.time() + TURN
        self.executions.discard(slot)

    async def _do(self, slot: Slot, places: Sequence[int]) -> None:
        """Do one call, and mark what becomes of its jobs. A simple call holds its job only if something happens to it.

        A simple call is that of a simple plan, with a job that is as it should be.
        """
        marks, row = self._marks, self._rows[places[0]]
        slot.plan = plan = self.plans[row.entrypoint]
        slot.places, slot.phase, slot.began = places, RUNNING, self.loop.time()
        due = slot.began + (plan.seconds if row.timeout is None or plan.takes_batch else row.timeout)
        late = due + self.cancel_grace
        for place in places:
            marks.due[place] = late
            marks.states[place] = BEGUN
        if (
            not plan.is_simple
            or row.failures > self._spared
            or row.cancel_requested
            or row.encoding == "chained"
            or row.id in self._awaited
            or self._lost
            or self._cancelled
        ):
            await self._execute(slot)
            return
        slot.due = due
        if due < self._next_check:
            self._check_at(due)
        results: Sequence[Any] = ()
        error: BaseException | None = None
        try:
            value = await plan.call(row, None)
            if value is None and row.keep_result is None and slot.phase is RUNNING and not self.settings.log_done:
                marks.states[places[0]] = DONE
                slot.places, slot.due = (), math.inf
                return
            self.check_value(slot, value)
            results = (value,)
        except BaseException as raised:
            error = decisive(raised)
        self._jobs_of(slot)
        self.end(slot, results, error)
        slot.places = ()

    async def _execute(self, slot: Slot) -> None:
        """Do a call that is not simple. Jobs that were cancelled or lost, or have no attempts left, are not done."""
        slot.phase, slot.due = Phase.WAITING, math.inf
        if slot.plan.handler.runs_in == "process":
            for place in slot.places:
                self._marks.due[place] = math.inf  # it cannot block the loop, and may wait for its turn
        for place in slot.places:
            held = self._held(slot, place)
            if held.job.id in self._lost:
                self.decide(held, HAND_BACK)
            elif held.job.id in self._cancelled:
                self.decide(held, CANCELLED)
            else:
                self.hold(held)
        if slot.jobs:
            await self.execute(slot)
        slot.places, slot.context = (), None

    def _held(self, slot: Slot, place: int) -> HeldRow:
        return HeldRow(job_of(self._jobs.job(place)), slot, place=place)

    def _jobs_of(self, slot: Slot) -> Sequence[HeldJob]:
        """Return the jobs of a call. That of a simple call is held from now on, as something happens to it."""
        if slot.phase is not Phase.WAITING and not slot.jobs:
            for place in slot.places:
                slot.add(self._held(slot, place))
        return slot.jobs

    # Stopping

    def stop(self, execution: Execution, reason: Reason) -> None:
        """See `Executions.stop`. A slot between two calls has nothing to stop."""
        assert isinstance(execution, Slot)
        if self._jobs_of(execution):
            super().stop(execution, reason)

    def stick(self, execution: Execution) -> None:
        """Give up a handler that does not stop. It keeps its slot."""
        for held in execution.jobs:
            if held.outcome is None:
                self.give_back(held, was_stuck=True)
        execution.phase = Phase.STUCK
        self.executions.discard(execution)
        self._check_end()

    def limit(self, execution: Execution, seconds: float) -> None:
        """See `Executions.limit`. The parent of this process ends it some time after."""
        assert isinstance(execution, Slot)
        super().limit(execution, seconds)
        for place in execution.places:
            self._marks.due[place] = execution.due + self.cancel_grace

    async def _watch(self, queue: DirectQueue) -> None:
        """Look at the claims now and then, until cancelled. Stop the work on jobs that are lost or cancelled."""
        lasts = self._jobs.claim_timeout or DEFAULT_CLAIM_TIMEOUT.total_seconds()
        while True:
            await asyncio.sleep(min(LONGEST_PAUSE, lasts / LOOKS_PER_TIMEOUT))
            with suppress(JQueueError):
                self._lost, self._cancelled = await self._jobs.look(queue)
            if self._lost or self._cancelled:
                slots = [each for each in self.executions if isinstance(each, Slot)]
                for held in [each for slot in slots for each in self._jobs_of(slot)]:
                    if held.job.id in self._lost:
                        self.stop_job(held, "lost")
                    elif held.job.id in self._cancelled:
                        self.stop_job(held, "cancelled")

    # Outcomes

    def succeed(self, held: HeldJob, keep_result: Duration | None) -> None:
        """See `Executions.succeed`. A job that is simply done needs no ack. Jobs that wait for it need its result."""
        assert isinstance(held, HeldRow)
        if keep_result is None and held.job.id in self._awaited:
            keep_result = KEPT_FOR_CHILDREN
        if keep_result is None and not held.companions:
            self._marks.states[held.place] = DONE if held.result is None else WITHHELD
        else:
            super().succeed(held, keep_result)

    def done(self, held: HeldJob) -> None:
        """Mark a job that is done, with what its ack carries."""
        assert isinstance(held, HeldRow)
        assert isinstance(held.operation, Ack)
        try:
            added = encoded_enqueues(held.companions)
            result, _ = check_result(held.operation.result, Limits())
        except InvalidJobError as error:
            self.refuse(held, error)
            return
        ack, seconds = held.operation, seconds_of("keep_result", held.operation.keep_result)
        self._marks.note(held.place, Outcome(*held.job.claim, "succeeded", result, seconds, ack.withheld, added=added))

    def decide(self, held: HeldJob, decision: Decision) -> None:
        """Mark the outcome of a job that is not done."""
        assert isinstance(held, HeldRow)
        held.outcome = decision.kind
        if decision.kind == "handed_back":
            self._marks.states[held.place] = HANDED_BACK
        else:
            self._marks.note(held.place, Outcome.decided(held.job.claim, decision))


def _raise(error: KeyboardInterrupt) -> bool:
    """End the process by a KeyboardInterrupt of a handler."""
    raise error


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
