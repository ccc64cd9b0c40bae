"""Lanes in threads, for handlers without async.

A thread does one job after the other. It begins alone: with handlers that only compute, a second thread gains nothing.
More threads join once calls are seen to take their time, up to the free slots. A call that takes long is adopted by
the job runner, with its thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from itertools import count
from typing import Any

from jqueue.worker.calls import to_its_end
from jqueue.worker.context import Context
from jqueue.worker.handlers import Handler
from jqueue.worker.job_runner import JOB_TASK, JobRunner
from jqueue.worker.lanes import Lane, Lanes
from jqueue.worker.rows import BEGUN, DONE, NEW, RowQueue
from jqueue.worker.run_state import RunState
from jqueue.worker.threads import Threads

CHECK_INTERVAL = 0.01
"""Seconds between two looks at the calls of threads."""

SLOW = 0.002
"""Seconds after which a call takes its time, so that more threads join."""

LONG = 0.05
"""Seconds after which a call is adopted by the job runner."""


class _Call:
    """One call of a handler in a thread.

    Attributes:
        places, lane, began: the jobs, their lane, and the time of the call.
        ctx: the context, if the handler takes one.
        ended: gets the value and the error of the call if it is adopted.
    """

    __slots__ = ("began", "ctx", "ended", "lane", "places")

    def __init__(self, places: Sequence[int], lane: Lane, began: float) -> None:
        self.places = places
        self.lane = lane
        self.began = began
        self.ctx: Context | None = None
        self.ended: asyncio.Future[Any] | None = None


class ThreadLanes(Lanes):
    """Does jobs of handlers without async, in threads.

    Args:
        queue: as for `Lanes`, like the next three.
        state: of the run.
        job_runner: adopts jobs.
        handlers: by entrypoint.
        threads: the pool of the run.
    """

    def __init__(
        self,
        queue: RowQueue,
        state: RunState,
        job_runner: JobRunner,
        handlers: Mapping[str, Handler[..., Any]],
        threads: Threads,
    ) -> None:
        super().__init__(queue, state, job_runner, handlers)
        self._threads = threads
        self._numbers = count()
        self._turn = threading.Lock()
        self._busy: set[int] = set()
        self._done: dict[int, int] = {}
        self._calls: dict[int, _Call] = {}  # whoever removes a call from here reports its end
        self._variables = copy_context()

    async def run(self) -> None:
        """See `Lanes`."""
        state = self._state
        self._begin()
        try:
            while self._failure is None:
                self._look_at_calls()
                if not self._busy and (self._all_taken or state.free <= 0) and state.is_idle:
                    if not self._all_taken:
                        self._warn_of_jobs_left()
                    return
                await self._pause()
            raise self._failure
        finally:
            self._ended = True
            for number in list(self._calls):
                self._adopt_call(number)

    async def _pause(self) -> None:
        """Wait for the next look, or for news if no thread does jobs."""
        try:
            async with asyncio.timeout(CHECK_INTERVAL if self._busy else None):
                await self._more.wait()
        except TimeoutError:
            return

    def _look_at_calls(self) -> None:
        """Adopt long calls, and let more threads join if calls take their time."""
        now = self._loop.time()
        began = {number: call.began for number, call in list(self._calls.items())}
        for number, time in began.items():
            if now - time >= LONG:
                self._adopt_call(number)
        free = self._state.free - len(self._busy)
        if self._all_taken or self._ended or free <= 0:
            return
        wanted = len(self._busy) if any(now - time >= SLOW for time in began.values()) else 0
        for _ in range(min(free, max(wanted, 1 - len(self._busy)))):
            number = next(self._numbers)
            self._busy.add(number)
            self._done[number] = 0
            self._threads.submit(self._drive, number).add_done_callback(self._note_failure)

    def _note_failure(self, thread: Any) -> None:
        """Note an error of a thread that is not one of a handler."""
        if (error := thread.exception()) is not None:
            self._failure = error
            self._loop.call_soon_threadsafe(self._more.set)

    def _adopt_call(self, number: int) -> None:
        """Hand a call to the job runner, if it still goes on. Its thread ends with it."""
        call = self._calls.pop(number, None)
        if call is None:
            return
        call.ended = self._loop.create_future()
        self._busy.discard(number)
        work = self._adopt(call.places, call.lane, call.began, call.ctx)
        rest = self._runner.go_on(work, to_its_end(call.ended))
        work.task = self._loop.create_task(rest, name=f"{JOB_TASK}{work.jobs[0].job.id}")

    def _hand_over(self, places: Sequence[int]) -> None:
        """Have the job runner do jobs, unless the worker has stopped since a thread took them."""
        if not self._ended:
            super()._hand_over(places)

    def _drive(self, number: int) -> None:
        """Do jobs until none is left, or until a call is adopted. It runs in a thread."""
        try:
            while not self._ended:
                with self._turn:
                    taken = self._take()
                if taken is None or not self._do(number, *taken):
                    return
        finally:
            self._tell(self._leave, number)

    def _leave(self, number: int) -> None:
        self._busy.discard(number)
        self._state.counts["succeeded"] += self._done.pop(number)
        self._more.set()

    def _tell(self, function: Any, *arguments: Any) -> None:
        """Call a function on the event loop."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: the program ends
            return

    def _do(self, number: int, places: Sequence[int], lane: Lane) -> bool:
        """Call a handler. Return False if the call was adopted meanwhile, or the worker has stopped."""
        rows = self._rows
        values = self._values(places, lane)
        if values is None:
            self._tell(self._hand_over, places)
            return True
        call = _Call(places, lane, self._loop.time())
        for place in places:
            rows.marks[place] = BEGUN
        value, failure, is_shown = None, None, False
        try:
            if lane.wants_context:
                call.ctx = self._runner.context_of(rows.job(places[0]), lane.handler)
                call.ctx.enter_thread(self._loop)
            self._calls[number], is_shown = call, True
            if self._ended and self._calls.pop(number, None) is not None:  # nobody would watch over it
                for place in places:
                    rows.marks[place] = NEW
                return False
            value = self._variables.copy().run(lane.call, values[0] if lane.batch is None else values, call.ctx)
        except BaseException as error:
            failure = error
        if is_shown and self._calls.pop(number, None) is None:
            self._tell(_end, call, (value, failure))
            return False
        if failure is not None:
            self._tell(self._fail, places, lane, failure, call.ctx)
        elif value is None and (call.ctx is None or not call.ctx.has_companions):
            for place in places:
                rows.marks[place] = DONE
            self._done[number] += len(places)
        else:
            self._tell(self._end, places, lane, value, call.ctx)
        return True


def _end(call: _Call, result: tuple[Any, BaseException | None]) -> None:
    """Tell the end of a call to the job runner, which has adopted it."""
    if call.ended is not None and not call.ended.done():
        call.ended.set_result(result)
