"""Handlers in processes of their own, by the extra "processes" (pebble).

A process that dies, or is killed when its job is cancelled or out of time, costs that job and no other. What goes to a
process is the job; the function is found there by its module and its name, and the payload is parsed there. What comes
back is bytes with plain values in them, for what pebble cannot read breaks its pool. One that breaks is made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import operator
import os
import pickle
from collections import Counter
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from jqueue.domain.counting import counted
from jqueue.domain.errors import JQueueError
from jqueue.domain.models import Job
from jqueue.runtime.system import SystemClock
from jqueue.worker.context import Context
from jqueue.worker.endings import Raised, check_awaited
from jqueue.worker.handlers import Handler
from jqueue.worker.payloads import ResultError, json_value
from jqueue.worker.process_group import EXIT_STATUS_0, GroupContext

if TYPE_CHECKING:
    from pebble import ProcessFuture, ProcessPool

JOIN = 5.0
"""Seconds that processes get to end."""

BEGINS_WITHIN = 0.02
"""Seconds in which it is noticed that a process has begun with a job: pebble tells when it is asked."""

LOOK_EVERY = 1.0
"""Seconds between two looks whether the pool of a running handler still works."""

FORGIVEN = 2
"""So often, a job that was there when the pool broke is handed back without being charged."""

Running = Callable[[bool], None]
"""Told False when a process is waited for, and True when it has begun with the job."""


class ProcessDied(Exception):
    """The process of a handler ended before the handler did."""


class PoolBroke(Exception):
    """All processes ended, and nobody knows why: hardly because of this very job."""


class Processes:
    """A pool of processes that is made when it is first needed.

    Args:
        most: how many processes it may have; there are never more than processors.

    Attributes:
        turn: the line for a process. Whoever does a job waits here first.
    """

    def __init__(self, most: int) -> None:
        self._most = min(most, os.cpu_count() or 1)
        self.turn = asyncio.Semaphore(self._most)
        self._pool: ProcessPool | None = None
        self._endings: dict[ProcessPool, asyncio.Future[None]] = {}
        self._breaks: Counter[str] = Counter()
        self._suspected = asyncio.Lock()

    async def call(self, handler: Handler[..., Any], job: Job, running: Running) -> Any:
        """Do a job in a process. Cancelling this kills the process.

        Raises:
            ProcessDied: the process did not survive it.
            PoolBroke: no process survived. All that were left have been ended.
            BaseException: what the handler raised, in a class of the same name.
        """
        running(False)
        # Whoever was there when the pool broke is there alone of these, until it is known who did it.
        async with self._suspected if job.id in self._breaks else contextlib.nullcontext():
            return await self._call(handler, job, running)

    async def _call(self, handler: Handler[..., Any], job: Job, running: Running) -> Any:
        from pebble import ProcessExpired

        pool = self._pool if self._pool is not None and self._pool.active else None
        if pool is None:
            if self._pool is not None:
                self._end(self._pool)
            pool = self._pool = _made_pool(self._most)
        try:
            future = _scheduled(pool, handler, job)
            answer = await _ended(pool, future, running)
        except BrokenProcessPool:
            await asyncio.wait([self._end(pool)])  # none of its handlers shall go on
            raise self._broke(job) from None
        except ProcessExpired as error:
            code = error.exitcode
        else:
            self._breaks.pop(job.id, None)
            return _opened(answer)
        self._breaks.pop(job.id, None)
        raise ProcessDied(_how_it_ended(code))

    async def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._end(self._pool)
        if self._endings:
            await asyncio.wait(self._endings.values())

    def _end(self, pool: ProcessPool) -> asyncio.Future[None]:
        """Have the processes of a pool end. It is not used again."""
        if self._pool is pool:
            self._pool = None
        if pool not in self._endings:
            pool.stop()  # type: ignore[no-untyped-call]
            ending = asyncio.get_running_loop().run_in_executor(None, _join, pool)
            ending.add_done_callback(lambda _: self._endings.pop(pool))
            self._endings[pool] = ending
        return self._endings[pool]

    def _broke(self, job: Job) -> Exception:
        """What to say of a job that was there when the pool broke: whoever is there each time is why."""
        self._breaks[job.id] += 1
        if self._breaks[job.id] <= FORGIVEN:
            return PoolBroke("the processes of handlers ended unexpectedly")
        times = self._breaks.pop(job.id)
        return ProcessDied(
            f"all processes of handlers ended, {counted(times, 'time')} in a row, as this job was in their hands"
        )


def _how_it_ended(code: int) -> str:
    """The end of a process, as it is kept with its job."""
    if code == EXIT_STATUS_0:
        return "the process of the handler ended with exit code 0, before the handler did"
    return f"the process of the handler ended with exit code {code}"


def check_processes() -> None:
    """Have an error at the start of a worker, and not at its first job, if the extra is missing.

    Raises:
        JQueueError: it is.
    """
    try:
        import pebble  # noqa: F401
    except ImportError:
        raise JQueueError(
            'handlers with process=True need the extra "processes": pip install "jqueue[processes]"'
        ) from None


def _made_pool(most: int) -> ProcessPool:
    from pebble import ProcessPool

    return ProcessPool(max_workers=most, context=GroupContext())


def _join(pool: ProcessPool) -> None:
    with contextlib.suppress(Exception):  # what does not end by this ends with this process
        pool.join(JOIN)


def _scheduled(pool: ProcessPool, handler: Handler[..., Any], job: Job) -> ProcessFuture[bytes]:
    """Give a job to a pool.

    Raises:
        BrokenProcessPool: it cannot be used, or its processes cannot be started.
    """
    function, seconds = handler.function, handler.options.seconds
    try:
        return pool.schedule(_do, args=[function.__module__, function.__qualname__, job, seconds])
    except RuntimeError as error:
        raise BrokenProcessPool(str(error)) from error


async def _ended(pool: ProcessPool, future: ProcessFuture[bytes], running: Running) -> bytes:
    """Wait for the answer of a process.

    Raises:
        ProcessExpired: it ended before.
        BrokenProcessPool: nobody will give one.
    """
    ended, has_begun = asyncio.wrap_future(future), False
    ended.add_done_callback(lambda _: ended.cancelled() or ended.exception())  # nobody may be there to hear it
    try:
        while not ended.done():
            await asyncio.wait([ended], timeout=LOOK_EVERY if has_begun else BEGINS_WITHIN)
            if not has_begun and future.running():
                has_begun = True
                running(True)
            if not future.done() and not pool.active:
                raise BrokenProcessPool("a thread of the pool has ended")
        return ended.result()
    finally:
        future.cancel()  # type: ignore[no-untyped-call]


def _opened(answer: bytes) -> Any:
    """What a process answered.

    Raises:
        BaseException: what its handler raised.
    """
    try:
        value, raised = pickle.loads(answer)
    except Exception as error:
        raise ResultError(f"the result of the handler cannot be read: {type(error).__name__}") from None
    if raised is not None:
        raise raised.again()
    return value


def _do(module: str, name: str, job: Job, seconds: float | None) -> bytes:
    """In the process: do the job. Returns its result and what was raised, one of them None, as bytes."""
    try:
        return pickle.dumps((_done(module, name, job, seconds), None))
    except BaseException as error:
        return pickle.dumps((None, Raised.of(error)))


def _done(module: str, name: str, job: Job, seconds: float | None) -> Any:
    """Find the handler, do the job, and return its result if it is to be kept."""
    deadline = None if seconds is None else SystemClock().now() + timedelta(seconds=seconds)
    handler = operator.attrgetter(name)(importlib.import_module(module))
    if not isinstance(handler, Handler):
        raise TypeError(f"{module}.{name} is not a handler of jqueue there: decorate it where it is defined")
    signature = handler.signature
    value = signature.codec.parse(job.payload) if signature.codec is not None else None
    ctx = Context(job, deadline=deadline) if signature.wants_context else None
    result = signature.call(handler.function, value, ctx)
    check_awaited(result)
    if handler.keep_result_of(job) is None:
        return None
    return json_value(signature.returns, result)
