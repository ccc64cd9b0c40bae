"""Lanes: jobs in memory done one after the other, without a task, a timer or an outcome for each.

A job that ends without a word is marked as done, and that is all. Any other job is adopted by the job runner: one that
failed, one that has something to tell the queue, and one that takes its time. So retries, dead letters, timeouts and
cancellation are the same as elsewhere. `loop_lanes` and `thread_lanes` have the two kinds of lanes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Any

from jqueue.domain.models import Job
from jqueue.ports.log import logger_of
from jqueue.worker.batch_results import error_in, results_of
from jqueue.worker.context import Context
from jqueue.worker.handler_errors import check_awaited, raisable
from jqueue.worker.handlers import Handler, Home
from jqueue.worker.held_jobs import Work
from jqueue.worker.job_runner import JobRunner
from jqueue.worker.retries import is_spent
from jqueue.worker.rows import DONE, RowQueue
from jqueue.worker.run_state import RunState, Signal
from jqueue.worker.signatures import gives_coroutine

logger = logger_of("jqueue.worker")

NEAR = 500
"""Number of jobs that are looked at together before the first of them is begun."""


class Lane:
    """The way of one entrypoint's jobs through lanes.

    Args:
        handler: the handler.

    Attributes:
        handler: as given.
        batch: the largest number of jobs of a call; None if it takes single jobs.
        wants_context: True if the handler takes a context.
        parse: parses a payload.
        call: calls the handler with a value or a list of them, and the context.
        plain: calls the handler with a payload that is not parsed yet, and returns a coroutine; None if it takes a
            context or a batch, or if something else than a coroutine may come of a call.
    """

    def __init__(self, handler: Handler[..., Any]) -> None:
        signature = handler.signature
        self.handler = handler
        self.batch = handler.options.batch
        self.wants_context = signature.wants_context
        self.parse: Callable[[bytes], Any] = _no_payload if signature.codec is None else signature.codec.parse
        self.call = partial(signature.call, handler.function)
        is_plain = self.batch is None and not self.wants_context and gives_coroutine(handler.function)
        self.plain = signature.on_payload(handler.function) if is_plain else None


class Lanes(ABC):
    """Does the jobs of a queue whose jobs are rows in memory. It takes the place of a run's claims.

    Args:
        queue: has the rows.
        state: the state of the run, with its number of free slots.
        job_runner: adopts jobs.
        handlers: the handlers, by entrypoint. The lanes fit all of them: see `fits`.
    """

    def __init__(
        self, queue: RowQueue, state: RunState, job_runner: JobRunner, handlers: Mapping[str, Handler[..., Any]]
    ) -> None:
        self._queue = queue
        self._rows = queue.rows
        self._state = state
        self._runner = job_runner
        self._lanes = {name: Lane(handler) for name, handler in handlers.items()}
        self._loop = asyncio.get_running_loop()
        self._more = Signal()
        self._failure: BaseException | None = None
        self._waiting: list[int] = []
        self._near_places: Sequence[int] = ()
        self._near: Iterator[int] = iter(())
        self._near_jobs: Iterator[tuple[int, Any]] = iter(())
        self._near_lane: Lane | None = None
        self._all_taken = False
        self._ended = False

    @abstractmethod
    async def run(self) -> None:
        """Do all jobs, and return when their outcomes are told. If this is cancelled, no more jobs are begun."""

    def _begin(self) -> None:
        self._queue.begin_lanes()
        self._state.wake_claimer = self._more.set

    def _take(self) -> tuple[Sequence[int], Lane] | None:
        """Take a job, or the jobs of a batch. None: no job is left."""
        names = self._rows.names
        while (place := self._next()) is not None:
            lane = self._lanes.get(names[place])
            if lane is None:  # this worker has no handler for it
                continue
            if lane.batch is None:
                return (place,), lane
            places = [place]
            while len(places) < lane.batch and (following := self._next()) is not None:
                if names[following] != names[place]:
                    self._waiting.append(following)
                    break
                places.append(following)
            return places, lane
        self._all_taken = True
        return None

    def _next(self) -> int | None:
        if self._waiting:
            return self._waiting.pop()
        return next(self._near_jobs)[0] if length_hint(self._near) else next(self._rows.places, None)

    def _plain_lane(self) -> Lane | None:
        """Return the lane of the next jobs, which `_near_jobs` yields; None if each must be looked at by itself."""
        if self._waiting:
            return None
        rows = self._rows
        if not length_hint(self._near):
            places = list(islice(rows.places, NEAR))
            payloads = list(map(rows.payloads.__getitem__, places))
            self._near_places, self._near = places, iter(places)
            self._near_jobs = zip(self._near, payloads, strict=True)
            self._near_lane = self._lane_of_all(places, payloads)
        if rows.cancelled and not rows.cancelled.isdisjoint(self._near_places):  # some since the last look
            return None
        return self._near_lane

    def _lane_of_all(self, places: Sequence[int], payloads: Sequence[bytes | None]) -> Lane | None:
        """Return the lane of jobs if nothing is special about any of them and they have the same one."""
        rows = self._rows
        entrypoints = {*map(rows.names.__getitem__, places)}
        lane = self._lanes.get(entrypoints.pop()) if len(entrypoints) == 1 else None
        if lane is None or lane.plain is None or None in payloads or not rows.doubtful.isdisjoint(places):
            return None
        return lane

    def _values(self, places: Sequence[int], lane: Lane) -> list[Any] | None:
        """Return the parsed payloads of jobs; None if the job runner must find out which of them fail, and why."""
        rows, values = self._rows, []
        for place in places:
            payload = rows.payloads[place]
            if payload is None or place in rows.cancelled:
                return None
            if place in rows.doubtful and self._is_spent(place, lane):
                return None
            try:
                values.append(lane.parse(payload))
            except BaseException:
                return None
        return values

    def _is_spent(self, place: int, lane: Lane) -> bool:
        return is_spent(self._rows.job(place), lane.handler.options.max_attempts)

    def _hand_over(self, places: Sequence[int]) -> None:
        """Have the job runner do jobs whose handler was not called."""
        self._runner.begin([self._handed(place) for place in places])

    def _handed(self, place: int) -> Job:
        job = self._rows.job(place)
        if place in self._rows.cancelled:
            job = job.evolve(cancel_requested=True)
        self._queue.hand_over(place, job)
        return job

    def _adopt(self, places: Sequence[int], lane: Lane, began: float, ctx: Context | None = None) -> Work:
        """Hand jobs whose handler was called to the job runner."""
        if ctx is None:
            jobs = [self._handed(place) for place in places]
        else:
            jobs = [ctx.job]
            self._queue.hand_over(places[0], ctx.job)
        return self._runner.adopt(lane.handler, jobs, began, ctx)

    def _end(self, places: Sequence[int], lane: Lane, value: Any, ctx: Context | None = None) -> None:
        """Mark jobs as done whose handler returned a value. If there is more to tell, the job runner tells it."""
        try:
            results = _checked(value, len(places), lane)
        except BaseException as error:
            self._fail(places, lane, error, ctx)
            return
        if results is None and (ctx is None or not ctx.has_companions):
            self._mark_done(places)
        else:
            work = self._adopt(places, lane, self._loop.time(), ctx)
            self._runner.finish(work, (value,) if results is None else results)

    def _mark_done(self, places: Sequence[int]) -> None:
        for place in places:
            self._rows.marks[place] = DONE
        self._state.counts["succeeded"] += len(places)

    def _fail(self, places: Sequence[int], lane: Lane, error: BaseException, ctx: Context | None = None) -> None:
        """Have the job runner decide about jobs whose handler raised an error."""
        self._runner.takes_interrupt(error)
        self._runner.fail_all(self._adopt(places, lane, self._loop.time(), ctx), raisable(error))

    def _warn_of_jobs_left(self) -> None:
        logger.warning("jobs are left that are not begun: handlers that ignore the order to stop take all slots")


def _checked(value: Any, count: int, lane: Lane) -> Sequence[Any] | None:
    """Return the results of a batch if one of them is an error, and otherwise None.

    Raises:
        TypeError, ValueError: a handler must not return such a value.
    """
    if value is None:
        return None
    check_awaited(value)
    if lane.batch is None:
        return None
    results = results_of(value, count)
    return results if any(error_in(result) is not None for result in results) else None


def fits(handler: Handler[..., Any], home: Home) -> bool:
    """Return True if lanes of this kind can do the jobs of a handler: there is no middleware and no result to keep."""
    options = handler.options
    return (
        not (handler.middlewares or handler.thread_middlewares)
        and handler.home == home
        and options.keep_result is None
        and (options.batch is None or not handler.signature.wants_context)
    )


def _no_payload(payload: bytes) -> None:
    """Return None: the handler takes no payload."""
