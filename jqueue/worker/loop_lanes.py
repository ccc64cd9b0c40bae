"""Lanes on the event loop, for async handlers.

Most handlers that only compute never give way to the event loop. So a lane runs each handler up to its end or its first
wait. A job that waits keeps the task of the lane, and another lane goes on with the other jobs. So a handler finds what
it finds elsewhere: a task of its own from its first wait on, and context variables of its own.

Plain jobs are the common case: the handler takes no context, and nothing is known of the job but its payload. One
coroutine awaits their handlers one after the other: see `LoopLanes._plain_jobs`.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from operator import length_hint
from typing import Any

from jqueue.worker.context import Context
from jqueue.worker.handler_errors import check_awaited
from jqueue.worker.held_jobs import Work
from jqueue.worker.job_runner import JOB_TASK
from jqueue.worker.lanes import Lane, Lanes
from jqueue.worker.rows import BEGUN, DONE

LANE_TASK = "jqueue-lane"
"""Name of the task of a lane."""

TURN = 0.005
"""Seconds after which a lane lets the event loop do other things."""


class _Turn:
    """The turn of a lane at plain jobs, as the lane and the coroutine that does them know it.

    Attributes:
        began: the time of the call of the job's handler.
        until: the time at which the turn ends.
        waits: True once the job waits. Its coroutine then does no other.
    """

    __slots__ = ("began", "until", "waits")

    def __init__(self, began: float, until: float) -> None:
        self.began = began
        self.until = until
        self.waits = False


class LoopLanes(Lanes):
    """Does jobs of async handlers on the event loop. One lane at a time takes jobs."""

    _lane: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """See `Lanes`."""
        state = self._state
        self._begin()
        try:
            while self._failure is None:
                if self._lane is None:
                    if state.free > 0 and not self._all_taken:
                        self._start_lane()
                    elif state.is_idle:
                        if not self._all_taken:
                            self._warn_of_jobs_left()
                        return
                await self._more.wait()
            raise self._failure
        finally:
            self._ended = True

    def _start_lane(self) -> None:
        self._lane = task = self._loop.create_task(self._drive(), name=LANE_TASK)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Note that the task of a lane has ended, or of a job that kept it."""
        if task is self._lane:
            self._lane = None
            if not task.cancelled():
                self._failure = task.exception()
        self._more.set()

    async def _drive(self) -> None:
        """Do jobs until one waits, no slot is free or no job is left. A job that waits keeps this task to its end."""
        state, loop, task = self._state, self._loop, asyncio.current_task()
        assert task is not None
        now = loop.time()
        until = now + TURN
        while not self._ended and state.free > 0:
            lane = self._plain_lane()
            if lane is not None:
                waiting = self._do_plain(lane, _Turn(now, until))
            elif (taken := self._take()) is not None:
                waiting = self._do(*taken, now)
            else:
                return
            if waiting is not None:
                await self._go_on(task, *waiting)
                return
            if task.cancelling():  # a handler has cancelled its own task: the next job gets another one
                return
            now = loop.time()
            if now >= until:
                await asyncio.sleep(0)
                now = loop.time()
                until = now + TURN

    async def _go_on(self, task: asyncio.Task[None], work: Work, rest: Awaitable[Any]) -> None:
        """Let jobs that wait keep this task, and another lane go on with the other jobs."""
        task.set_name(f"{JOB_TASK}{work.jobs[0].job.id}")
        work.task, self._lane = task, None
        if self._state.free > 0 and not self._ended:
            self._start_lane()
        await self._runner.go_on(work, rest)

    def _do_plain(self, lane: Lane, turn: _Turn) -> tuple[Work, Awaitable[Any]] | None:
        """Do plain jobs up to the end of a turn. If one waits, return it, adopted, with what is left of its call."""
        rows, variables, near = self._rows, copy_context(), length_hint(self._near)
        assert lane.plain is not None
        jobs = self._plain_jobs(lane.plain, turn, variables)
        is_done = 0
        try:
            waits_for = variables.run(jobs.send, None)
        except StopIteration:
            is_done = 1
            return None
        except BaseException as error:
            self._fail((rows.current or 0,), lane, error)
            return None
        finally:
            self._state.counts["succeeded"] += near - length_hint(self._near) - 1 + is_done
        turn.waits = True
        return self._adopt((rows.current or 0,), lane, turn.began), rest_of(jobs, waits_for, variables)

    async def _plain_jobs(self, call: Callable[[bytes], Awaitable[Any]], turn: _Turn, variables: Variables) -> Any:
        """Do plain jobs. An error that is raised here is that of the last one.

        Args:
            call: calls the handler.
            turn: tells when to end. If a job waits, its end is the end, and the value of its handler is returned.
            variables: the context variables in which this runs. If a job changes them, the next one needs others.
        """
        rows, time, before = self._rows, self._loop.time, variables.copy()
        task = asyncio.current_task()
        assert task is not None
        marks, cancelling = rows.marks, task.cancelling
        for place, payload in self._near_jobs:
            rows.current = place
            marks[place] = BEGUN
            value = await call(payload)
            if turn.waits:
                return value
            if value is not None:
                check_awaited(value)
            marks[place] = DONE
            turn.began = now = time()
            if now >= turn.until or variables != before or cancelling():
                return None

    def _do(self, places: Sequence[int], lane: Lane, now: float) -> tuple[Work, Awaitable[Any]] | None:
        """Call a handler. If it waits, return its jobs, adopted, with what is left of the call."""
        rows = self._rows
        values = self._values(places, lane)
        if values is None:
            self._hand_over(places)
            return None
        rows.current = places[0]
        for place in places:
            rows.marks[place] = BEGUN
        ctx: Context | None = None
        try:
            if lane.wants_context:
                ctx = self._runner.context_of(rows.job(places[0]), lane.handler)
            call = lane.call(values[0] if lane.batch is None else values, ctx)
        except BaseException as error:
            self._fail(places, lane, error, ctx)
            return None
        if call.__class__ is not types.CoroutineType:  # a decorator of the handler has made another awaitable
            return self._adopt(places, lane, now, ctx), call
        variables = copy_context()
        try:
            waits_for = variables.run(call.send, None)
        except StopIteration as end:
            self._end(places, lane, end.value, ctx)
            return None
        except BaseException as error:
            self._fail(places, lane, error, ctx)
            return None
        return self._adopt(places, lane, now, ctx), rest_of(call, waits_for, variables)


@types.coroutine
def rest_of(call: Coroutine[Any, Any, Any], waits_for: Any, variables: Variables) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that has begun, in its own context variables, and return its value.

    Args:
        call: the coroutine.
        waits_for: the first value that it yielded to the event loop.
        variables: the context variables in which it began.
    """
    while True:
        step: Callable[[], Any]
        try:
            step = partial(call.send, (yield waits_for))
        except BaseException as error:
            step = partial(call.throw, error)
        try:
            waits_for = variables.run(step)
        except StopIteration as end:
            return end.value
