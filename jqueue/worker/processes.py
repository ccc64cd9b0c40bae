"""Handlers in separate processes, by the extra "processes" (pebble).

A process that dies, or is killed because its job is cancelled or out of time, costs only that job. The process gets the
job, finds the handler by its module and its name, and parses the payload. The answer is bytes that hold plain values,
because an answer that pebble cannot read breaks its pool. A pool that breaks is made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import operator
import os
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from jqueue.domain.counting import counted
from jqueue.domain.errors import JQueueError
from jqueue.domain.models import Job
from jqueue.runtime.system import SystemClock
from jqueue.worker.batch_results import error_in, results_of
from jqueue.worker.context import BatchContext, Context
from jqueue.worker.handler_errors import PortableError, check_awaited
from jqueue.worker.handlers import Handler
from jqueue.worker.payloads import ResultError, json_value, refuse_payload_apart
from jqueue.worker.process_group import EXIT_STATUS_0, GroupContext

if TYPE_CHECKING:
    from pebble import ProcessFuture, ProcessPool

JOIN_TIMEOUT = 5.0
"""Seconds that the processes of a stopped pool get to end."""

START_CHECK_INTERVAL = 0.02
"""Seconds between two checks whether a process has begun with a job: pebble tells only when asked."""

POOL_CHECK_INTERVAL = 1.0
"""Seconds between two checks that the pool of a running handler still works."""

CRASHES_FORGIVEN = 2
"""Number of pool crashes that a job may be present at before it is charged with one."""

Running = Callable[[bool], None]
"""Called with False while the job waits for a process, and with True once a process has begun with it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The answer of a process that did a batch.

    Attributes:
        results: the result of each job, or its error.
    """

    results: list[Any | PortableError]


class ProcessDied(Exception):
    """The process of a handler ended before the handler did."""


class PoolBroke(Exception):
    """All processes ended for an unknown reason. It is unlikely that this very job ended them."""


class Processes:
    """A pool of processes that is made when it is first needed.

    Args:
        max_processes: the largest number of processes; there are never more than processors.

    Attributes:
        turn: semaphore with one place per process. A caller acquires it before `call`.
    """

    def __init__(self, max_processes: int) -> None:
        self._max_processes = min(max_processes, os.cpu_count() or 1)
        self.turn = asyncio.Semaphore(self._max_processes)
        self._pool: ProcessPool | None = None
        self._endings: dict[ProcessPool, asyncio.Future[None]] = {}
        self._crashes: Counter[str] = Counter()
        self._one_at_a_time = asyncio.Lock()

    async def call(self, handler: Handler[..., Any], jobs: Sequence[Job], running: Running) -> Any:
        """Do a job or a batch in a process. Cancelling this kills the process. A batch gives one result for each job.

        Raises:
            ProcessDied: the process ended before the handler did, or the pool broke too often while it had this job.
            PoolBroke: the pool broke. Processes that were left have been ended.
            BaseException: the error of the handler, in a class of the same name.
        """
        running(False)
        # Jobs that were present when the pool broke run one at a time, until it is known which of them breaks it.
        crashed = any(job.id in self._crashes for job in jobs)
        async with self._one_at_a_time if crashed else contextlib.nullcontext():
            return await self._call(handler, jobs, running)

    async def _call(self, handler: Handler[..., Any], jobs: Sequence[Job], running: Running) -> Any:
        from pebble import ProcessExpired

        pool = self._pool if self._pool is not None and self._pool.active else None
        if pool is None:
            if self._pool is not None:
                self._end(self._pool)
            pool = self._pool = _make_pool(self._max_processes)
        try:
            future = _schedule(pool, handler, jobs)
            answer = await _wait_for_answer(pool, future, running)
        except BrokenProcessPool:
            await asyncio.wait([self._end(pool)])  # none of its handlers may go on
            raise self._error_after_crash(jobs) from None
        except ProcessExpired as error:
            code = error.exitcode
        else:
            self._forget_crashes(jobs)
            return _read_answer(answer)
        self._forget_crashes(jobs)
        raise ProcessDied(_describe_exit(code))

    async def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._end(self._pool)
        if self._endings:
            await asyncio.wait(self._endings.values())

    def _end(self, pool: ProcessPool) -> asyncio.Future[None]:
        """Stop the processes of a pool, which is not used again. The future is done when they have ended."""
        if self._pool is pool:
            self._pool = None
        if pool not in self._endings:
            pool.stop()  # type: ignore[no-untyped-call]
            ending = asyncio.get_running_loop().run_in_executor(None, _join, pool)
            ending.add_done_callback(lambda _: self._endings.pop(pool))
            self._endings[pool] = ending
        return self._endings[pool]

    def _error_after_crash(self, jobs: Sequence[Job]) -> Exception:
        """Return the error for jobs that were present when the pool broke. A job present each time is the cause."""
        for job in jobs:
            self._crashes[job.id] += 1
        times = max(self._crashes[job.id] for job in jobs)
        if times <= CRASHES_FORGIVEN:
            return PoolBroke("the handler processes ended unexpectedly")
        self._forget_crashes(jobs)
        return ProcessDied(f"all handler processes ended, {counted(times, 'time')} in a row, while they had this job")

    def _forget_crashes(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._crashes.pop(job.id, None)


def _describe_exit(code: int) -> str:
    """Describe the end of a process, for the error kept with its job."""
    if code == EXIT_STATUS_0:
        return "the process of the handler ended with exit code 0 before the handler returned"
    return f"the process of the handler ended with exit code {code}"


def check_processes() -> None:
    """Check that the extra is installed when a worker starts, not at its first job.

    Raises:
        JQueueError: the extra is missing.
    """
    try:
        import pebble  # noqa: F401
    except ImportError:
        raise JQueueError(
            'handlers with process=True need the extra "processes": pip install "jqueue[processes]"'
        ) from None


def _make_pool(max_processes: int) -> ProcessPool:
    from pebble import ProcessPool

    return ProcessPool(max_workers=max_processes, context=GroupContext())


def _join(pool: ProcessPool) -> None:
    with contextlib.suppress(Exception):  # processes that this does not end will end with the worker
        pool.join(JOIN_TIMEOUT)


def _schedule(pool: ProcessPool, handler: Handler[..., Any], jobs: Sequence[Job]) -> ProcessFuture[bytes]:
    """Give a job or a batch to a pool.

    Raises:
        BrokenProcessPool: the pool cannot be used, or its processes cannot be started.
    """
    function, seconds = handler.function, handler.options.seconds
    try:
        return pool.schedule(_run_in_process, args=[function.__module__, function.__qualname__, jobs, seconds])
    except RuntimeError as error:
        raise BrokenProcessPool(str(error)) from error


async def _wait_for_answer(pool: ProcessPool, future: ProcessFuture[bytes], running: Running) -> bytes:
    """Wait for the answer of a process.

    Raises:
        ProcessExpired: the process ended without an answer.
        BrokenProcessPool: the pool broke, so there will be no answer.
    """
    ended, has_begun = asyncio.wrap_future(future), False
    ended.add_done_callback(lambda _: ended.cancelled() or ended.exception())  # the caller may be gone
    try:
        while not ended.done():
            await asyncio.wait([ended], timeout=POOL_CHECK_INTERVAL if has_begun else START_CHECK_INTERVAL)
            if not has_begun and future.running():
                has_begun = True
                running(True)
            if not future.done() and not pool.active:
                raise BrokenProcessPool("a thread of the pool has ended")
        return ended.result()
    finally:
        future.cancel()  # type: ignore[no-untyped-call]


def _read_answer(answer: bytes) -> Any:
    """Return the result in a process's answer.

    Raises:
        BaseException: the error of the handler.
    """
    try:
        value, raised = pickle.loads(answer)
    except Exception as error:
        raise ResultError(f"the result of the handler cannot be read: {type(error).__name__}") from None
    if raised is not None:
        raise raised.rebuild()
    if isinstance(value, Batch):
        return [each.rebuild() if isinstance(each, PortableError) else each for each in value.results]
    return value


def _run_in_process(module: str, name: str, jobs: Sequence[Job], seconds: float | None) -> bytes:
    """In the process: do the jobs. Return the result and the error raised, one of them None, as bytes."""
    try:
        return pickle.dumps((_run_handler(module, name, jobs, seconds), None))
    except BaseException as error:
        return pickle.dumps((None, PortableError.of(error)))


def _run_handler(module: str, name: str, jobs: Sequence[Job], seconds: float | None) -> Any:
    """Find the handler, do the jobs, and return the results that must be kept."""
    deadline = None if seconds is None else SystemClock().now() + timedelta(seconds=seconds)
    handler = operator.attrgetter(name)(importlib.import_module(module))
    if not isinstance(handler, Handler):
        raise TypeError(f"{module}.{name} is not a jqueue handler in the process: decorate it where it is defined")
    if handler.options.batch is not None:
        return _run_batch_handler(handler, jobs, deadline)
    [job] = jobs
    value = _payload_of(handler, job)
    ctx = Context(job, deadline=deadline) if handler.signature.wants_context else None
    result = handler.signature.call(handler.function, value, ctx)
    check_awaited(result)
    return _result_of(handler, job, result)


def _run_batch_handler(handler: Handler[..., Any], jobs: Sequence[Job], deadline: datetime | None) -> Batch:
    """Do the jobs of a batch, except those with a bad payload."""
    results: list[Any] = [_caught(_payload_of, handler, job) for job in jobs]
    places = [place for place, value in enumerate(results) if not isinstance(value, PortableError)]
    if places:
        contexts = [Context(jobs[place], deadline=deadline) for place in places]
        ctx = BatchContext(handler.entrypoint, contexts, deadline=deadline)
        returned = handler.signature.call(handler.function, [results[place] for place in places], ctx)
        check_awaited(returned)
        for place, result in zip(places, results_of(returned, len(places)), strict=True):
            error = error_in(result)
            results[place] = (
                _caught(_result_of, handler, jobs[place], result) if error is None else PortableError.of(error)
            )
    return Batch(results)


def _caught(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return PortableError.of(error)


def _payload_of(handler: Handler[..., Any], job: Job) -> Any:
    """Return the payload of a job as its handler takes it; None if it takes none."""
    codec = handler.signature.codec
    if codec is None:
        return None
    refuse_payload_apart(job)
    return codec.parse(job.payload)


def _result_of(handler: Handler[..., Any], job: Job, result: Any) -> Any:
    """Return the result of a job as a JSON value if it must be kept."""
    return None if handler.keep_result_of(job) is None else json_value(handler.signature.returns, result)
