"""Handlers in separate processes, by the extra "processes" (pebble).

A process that dies, or is killed because its job is cancelled or out of time, costs only that job, or that batch. The
process gets the jobs, finds the handler by its module and its name, and parses the payloads. A pool that breaks is made
anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from jqueue.domain.errors import JQueueError
from jqueue.domain.models import Job
from jqueue.domain.printable import counted
from jqueue.worker.handlers import Handler
from jqueue.worker.in_process import read_answer, run_in_process
from jqueue.worker.process_group import EXIT_STATUS_0, GroupContext, begun

if TYPE_CHECKING:
    from pebble import ProcessFuture, ProcessPool

JOIN_TIMEOUT = 5.0
"""Seconds that the processes of a stopped pool get to end."""

START_CHECK_INTERVAL = 0.02
"""Seconds between two checks whether a handler has begun in a process."""

POOL_CHECK_INTERVAL = 1.0
"""Seconds between two checks that the pool of a running handler still works."""

CRASHES_FORGIVEN = 2
"""Number of pool crashes that a job may be present at before it is charged with one."""

IMPORT_TIMEOUT = 300.0
"""Seconds that a process gets to import the module of its handler. They do not count towards the handler's timeout."""

Running = Callable[[bool], None]
"""Called with False while the job waits for a process and its imports, and with True once its handler has begun."""

_calls = itertools.count()


class ProcessDied(Exception):
    """The process of a handler ended before the handler did."""


class PoolBroke(Exception):
    """All processes ended for an unknown reason. It is unlikely that this very job ended them."""


class Processes:
    """A pool of processes that is made when it is first needed.

    Args:
        max_processes: the largest number of processes; there are never more than processors.
        import_timeout: seconds that a process gets to import the module of a handler.

    Attributes:
        turn: semaphore with one place per process. A caller acquires it before `call`.
    """

    def __init__(self, max_processes: int, import_timeout: float = IMPORT_TIMEOUT) -> None:
        self._import_timeout = import_timeout
        self._max_processes = min(max_processes, os.cpu_count() or 1)
        self.turn = asyncio.Semaphore(self._max_processes)
        self._pool: ProcessPool | None = None
        self._endings: dict[ProcessPool, asyncio.Future[None]] = {}
        self._crashes: Counter[str] = Counter()
        self._one_at_a_time = asyncio.Lock()

    async def call(self, handler: Handler[..., Any], jobs: Sequence[Job], running: Running) -> Any:
        """Do a job or a batch in a process. Cancelling this kills the process. A batch gives one result for each job.

        Raises:
            ProcessDied: the process ended before the handler did, or could not import its module in time, or the pool
                broke too often while it had this job.
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
            call = next(_calls)
            future = _schedule(pool, call, handler, jobs)
            answer = await _wait_for_answer(pool, future, call, running, self._import_timeout)
        except BrokenProcessPool:
            await asyncio.wait([self._end(pool)])  # none of its handlers may go on
            raise self._error_after_crash(jobs) from None
        except ProcessExpired as error:
            code = error.exitcode
        else:
            self._forget_crashes(jobs)
            return read_answer(answer)
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


def _schedule(pool: ProcessPool, call: int, handler: Handler[..., Any], jobs: Sequence[Job]) -> ProcessFuture[bytes]:
    """Give a job or a batch to a pool.

    Raises:
        BrokenProcessPool: the pool cannot be used, or its processes cannot be started.
    """
    function, seconds = handler.function, handler.options.seconds
    try:
        return pool.schedule(run_in_process, args=[call, function.__module__, function.__qualname__, jobs, seconds])
    except RuntimeError as error:
        raise BrokenProcessPool(str(error)) from error


async def _wait_for_answer(
    pool: ProcessPool, future: ProcessFuture[bytes], call: int, running: Running, import_timeout: float
) -> bytes:
    """Wait for the answer of a process.

    Raises:
        ProcessExpired: the process ended without an answer.
        ProcessDied: the handler had not begun in time.
        BrokenProcessPool: the pool broke, so there will be no answer.
    """
    ended, has_begun, waited = asyncio.wrap_future(future), False, 0.0
    ended.add_done_callback(lambda _: ended.cancelled() or ended.exception())  # the caller may be gone
    try:
        while not ended.done():
            await asyncio.wait([ended], timeout=POOL_CHECK_INTERVAL if has_begun else START_CHECK_INTERVAL)
            if not has_begun and call in begun:
                has_begun = True
                running(True)
            elif not has_begun and future.running():  # the process has the job, and imports
                waited += START_CHECK_INTERVAL
                if waited > import_timeout:
                    raise ProcessDied(f"the process of the handler had not begun with it after {import_timeout:g} s")
            if not future.done() and not pool.active:
                raise BrokenProcessPool("a thread of the pool has ended")
        return ended.result()
    finally:
        begun.discard(call)
        future.cancel()  # type: ignore[no-untyped-call]
