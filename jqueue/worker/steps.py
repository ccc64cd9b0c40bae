"""The steps of a job in the hands of its handler: each is done once, and its result is recorded before the next begins.

A retry takes what is recorded. A step that was under way when its worker ended is done again: at most that one.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, get_type_hints

from jqueue.domain.errors import CASConflictError, ClaimLostError, InvalidJobError, StepError, StorageError
from jqueue.domain.job import Step
from jqueue.domain.limits import STEPS_KEPT
from jqueue.domain.models import Job
from jqueue.domain.operations.ends import RecordStep
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import rest
from jqueue.worker.dependencies import Wait, here
from jqueue.worker.handler_errors import drop_awaitable
from jqueue.worker.payloads import ResultCodec, ResultError, UnkeptResultError
from jqueue.worker.reports import Reports

PAUSE = 1.0
"""Seconds to wait after the store has not answered for the deadline of a call."""


class Steps:
    """The steps of one job.

    Args:
        job: the job as it was claimed.
        queue: the queue that it came from.
        lost: called if the claim on the job is lost.
        reports: have the progress of jobs, which goes with each step; None: there are none.
    """

    def __init__(
        self, job: Job, queue: Any, lost: Callable[[Job], object] | None = None, reports: Reports | None = None
    ) -> None:
        self._job, self._queue, self._lost, self._reports = job, queue, lost, reports
        self._done = {(step.name, step.occurrence): step for step in job.steps}
        self._counts: Counter[str] = Counter()
        self._running: set[str] = set()
        self._lock = threading.Lock()  # the threads of a handler may call at once

    async def do(self, name: str, function: Callable[[], Any], must_stop: Callable[[], bool], wait: Wait = here) -> Any:
        """Return the result of a step, which is done now if it is not recorded.

        Args:
            name: its name.
            function: does it.
            must_stop: returns True once its handler must stop.
            wait: awaits something on the event loop of the worker. The thread of a handler gives its own.
        """
        with self._turn(name) as (occurrence, step):
            codec = ResultCodec(_returned(function), f"step {name!r}", f"step {name!r}")
            if step is not None:
                return await wait(self._recorded(step, codec))
            value = function()
            if wait is not here and drop_awaitable(value):
                raise StepError(f"step {name!r} must be awaited, and its handler has no async: make one of them async")
            if inspect.isawaitable(value):
                value = await value
            await wait(self._record(name, occurrence, value, codec, must_stop))
            return value

    @contextmanager
    def _turn(self, name: str) -> Iterator[tuple[int, Step | None]]:
        """Enter a step. Yield its occurrence, and the step if it is recorded. Only a step that is done counts."""
        with self._lock:
            if name in self._running:
                raise StepError(
                    f"two steps {name!r} of this job run at once, and a retry could not tell them apart: give each a "
                    "name of its own"
                )
            self._running.add(name)
        try:
            step = self._done.get((name, occurrence := self._counts[name] + 1))
            if step is None and len(self._done) >= STEPS_KEPT:
                raise StepError(f"the job has {STEPS_KEPT} steps, the most that are kept: do more in each of them")
            yield occurrence, step
            self._counts[name] = occurrence
        finally:
            self._running.discard(name)

    async def _recorded(self, step: Step, codec: ResultCodec) -> Any:
        """Return the recorded result of a step, as its function is annotated to return it."""
        value = step.result
        if step.result_object is not None:
            value = await self._queue.step_result(self._job, step)
        try:
            return codec.parse(value)
        except ResultError as error:
            raise StepError(
                f"{error}. It was recorded at {step.at.isoformat(timespec='seconds')}, maybe by an older program: let "
                "the function return what it did, give the step a new name, or redrive the job with --fresh"
            ) from None

    async def _record(
        self, name: str, occurrence: int, value: Any, codec: ResultCodec, must_stop: Callable[[], bool]
    ) -> None:
        """Record the result of a step, for as long as its handler may run. Recorded twice, a step stays as it is."""
        try:
            operation = RecordStep(self._job, name, occurrence, codec.encode(value))
        except UnkeptResultError as error:
            raise StepError(str(error)) from None
        while True:
            most = options_of(self._queue).limits.batch_size - 1
            reports = [] if self._reports is None else self._reports.take(most)
            try:
                *_, answer = await self._queue.apply_each(*reports, operation)
                if isinstance(answer, Exception):
                    raise answer
                self._done[name, occurrence] = Step(name, occurrence, self._job.created_at)
                return
            except ClaimLostError:
                if self._lost is not None:
                    self._lost(self._job)
                raise
            except InvalidJobError as error:
                raise StepError(str(error)) from None
            except (StorageError, CASConflictError):  # it may have landed: the next call finds out
                if must_stop():
                    raise
            await rest(PAUSE, options_of(self._queue).clock)


def _returned(function: Any) -> Any:
    """Return the annotation of what a function returns; Any if it has none, or none that can be read."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isclass(function):
        return function
    routine = function if inspect.isroutine(function) else type(function).__call__
    try:
        hint = get_type_hints(routine, include_extras=True).get("return", Any)
    except (NameError, TypeError):
        return Any
    return hint
