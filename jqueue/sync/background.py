"""The thread behind all blocking calls of a process: one event loop, from the first call to the end of the process.

* It starts with the first call, never by an import.
* A forked child has none of its parent's threads: it starts a thread of its own and leaves the parent's alone.
* At exit, after the last thread of the program has ended, calls under way are finished and open queues are left.

The thread is a daemon, so the interpreter does not wait for it; `atexit` ends it. Threads of the program that outlive
its main thread can make calls until then.

In a program that gevent has patched, it is a thread of the operating system nevertheless. As a greenlet it would make
every other greenlet of its thread look like one that runs in an event loop. The loop does the work of thread pools
itself, as their threads would be greenlets. A greenlet that waits for a call lets others run.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

from jqueue.domain.errors import JQueueError, QueueClosedError
from jqueue.ports.log import Logger, logger_of
from jqueue.runtime.system import at_fork, process_id

logger: Logger = logger_of("jqueue")

END_MARGIN = 5.0
"""Seconds that the end may take beyond the deadlines of the queues, whatever a store does."""

_POOL_IS_SHUT = "cannot schedule new futures"
_TOO_LATE = "the process is ending and takes no more calls"

Result = TypeVar("Result")

AN_HOUR = 3600.0
"""Seconds to wait at a time. gevent refuses to wait without an end for what no greenlet of the thread will do."""


class CallEnded(QueueClosedError):
    """The call was ended before it was done, or was never begun, because its queue was left or the process ends."""


class Call(Generic[Result]):
    """Work that runs on the event loop, and the thread that waits for it.

    Args:
        work: makes the coroutine; called on the event loop.
        endless: True if the call may wait for longer than any deadline. Leaving the queue then ends it.
        give_back: called on the event loop with a result that came after the thread had stopped waiting.
    """

    def __init__(
        self,
        work: Callable[[], Coroutine[Any, Any, Result]],
        *,
        endless: bool = False,
        give_back: Callable[[Result], object] | None = None,
    ) -> None:
        self.endless = endless
        self._work = work
        self._give_back = give_back
        self._task: asyncio.Task[Result] | None = None
        # Not a `concurrent.futures.Future`: a lock is enough, and waiting for it can be interrupted.
        self._under_way = threading.Lock()
        self._under_way.acquire()

    # On the event loop

    def begin(self) -> asyncio.Task[Result]:
        """Start the work."""
        self._task = asyncio.get_running_loop().create_task(self._work(), name="jqueue-call")
        self._task.add_done_callback(self._end)
        return self._task

    def refuse(self) -> None:
        """Refuse the call, which came too late."""
        self._under_way.release()

    def abandon(self) -> None:
        """Stop the work, as the thread no longer waits, and give a finished result back."""
        task = self._task
        if task is None:
            return
        if not task.done():
            task.cancel()
        elif self._give_back is not None and not task.cancelled() and task.exception() is None:
            self._give_back(task.result())

    def _end(self, task: asyncio.Task[Result]) -> None:
        if not task.cancelled():
            task.exception()  # marks the error as seen, as the caller may be gone
        self._under_way.release()

    # In the thread

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the call has ended, or for `timeout` seconds. To be called once."""
        while not self._under_way.acquire(timeout=AN_HOUR if timeout is None else timeout) and timeout is None:
            pass

    def outcome(self) -> tuple[Result | None, BaseException | None]:
        """Return the result and the error of the call, after `wait`. One of them is None."""
        task = self._task
        if task is None or task.cancelled():
            return None, CallEnded("the queue was closed before this call was done")
        error = task.exception()
        return (task.result(), None) if error is None else (None, error)


class Background:
    """A daemon thread that runs an event loop.

    Attributes:
        open_queues: the `OpenQueue`s that are left before the loop ends.
        loop: the event loop.
    """

    def __init__(self) -> None:
        self.open_queues: set[Any] = set()
        self._process = process_id()
        self._closing = False
        self._posting = threading.RLock()  # a signal handler or a finalizer may post while its thread posts
        self._ended = threading.Event()
        self.loop: _Loop
        gevent = _gevent()
        made = threading.Lock() if gevent is None else gevent.get_original("_thread", "allocate_lock")()
        made.acquire()

        def run() -> None:
            try:
                self.loop = _Loop(has_threads=gevent is None)  # gevent's loops belong to the hub of their thread
            finally:
                made.release()
            self._run()

        try:
            if gevent is None:
                threading.Thread(target=run, name="jqueue-sync", daemon=True).start()
            else:
                gevent.get_original("_thread", "start_new_thread")(run, ())  # a thread that is no greenlet
            made.acquire()
            if not hasattr(self, "loop"):
                raise RuntimeError("its event loop could not be made")
        except RuntimeError as error:
            raise JQueueError(f"the thread for blocking calls could not be started: {error}") from error

    @property
    def takes_calls(self) -> bool:
        """True if this thread belongs to this process and is not ending."""
        return not self._closing and self._process == process_id()

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have the event loop call a function soon.

        Raises:
            CallEnded: it no longer takes calls.
        """
        if not self.takes_calls:
            raise CallEnded(_TOO_LATE)
        with self._posting:
            if self._closing:
                raise CallEnded(_TOO_LATE)
            self.loop.call_soon_threadsafe(function, *arguments)

    def run(self, call: Call[Any], begin: Callable[[Call[Any]], object]) -> Any:
        """Post a call and wait until it has ended. An exception that interrupts the wait abandons the call.

        Raises:
            CallEnded: the call was ended before it was done.
            JQueueError: this is called on the event loop, which would wait for itself.
        """
        with suppress(RuntimeError):  # no event loop runs in this thread
            if asyncio.get_running_loop() is self.loop:
                raise JQueueError("a blocking call of jqueue was made within another one: await its queue's own calls")
        try:
            self.post(begin, call)
            call.wait()
            result, error = call.outcome()
        except BaseException:  # KeyboardInterrupt, or another exception from a signal handler
            with suppress(CallEnded):
                self.post(call.abandon)
            raise
        if error is None:
            return result
        try:
            raise error
        finally:
            del call, error  # breaks a reference cycle: the call holds the error, whose traceback holds this frame

    def end(self) -> None:
        """Leave all queues and stop, within their deadlines and `END_MARGIN`."""
        with self._posting:
            if self._closing:
                return
            self._closing = True
        leaving = Call(self._leave_all)
        with suppress(RuntimeError):  # the event loop is closed: an error that could not be caught has ended it
            self.loop.call_soon_threadsafe(leaving.begin)
            longest = max((queue.deadline for queue in list(self.open_queues)), default=0.0)
            leaving.wait(longest + END_MARGIN)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._ended.wait(END_MARGIN)

    async def _leave_all(self) -> None:
        leaving = [queue.leave() for queue in list(self.open_queues)]
        for error in await asyncio.gather(*leaving, return_exceptions=True):
            if isinstance(error, Exception):
                logger.warning("a queue could not be closed properly: %s: %s", type(error).__name__, error)

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            with self._posting:
                self._closing = True
            with suppress(Exception):
                self.loop.run_until_complete(self._finish_tasks())
            self.loop.close()
            self._ended.set()

    async def _finish_tasks(self) -> None:
        """End every task, so that no thread waits for ever and no task is destroyed while it runs."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        await self.loop.shutdown_asyncgens()


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that outlives the thread pools.

    The pools take no more work once the main thread has ended, although other threads of the program may still make
    calls. From then on the event loop does their work itself. That blocks it, in the last moments of the process.

    Args:
        has_threads: False if it does their work itself from the beginning.
    """

    def __init__(self, *, has_threads: bool) -> None:
        super().__init__()
        self._has_threads = has_threads

    def run_in_executor(  # type: ignore[override]
        self, executor: concurrent.futures.Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        if self._has_threads:
            try:
                return super().run_in_executor(executor, func, *args)
            except RuntimeError as error:
                if _POOL_IS_SHUT not in str(error):  # such as no more threads: the call may be queued
                    raise
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            done.set_result(func(*args))
        except BaseException as error:
            done.set_exception(error)
        if hasattr(type(func), "future"):  # as its pool does: see `jqueue.runtime.threads`
            func.future = done  # type: ignore[attr-defined]
        return asyncio.wrap_future(done, loop=self)


def _gevent() -> Any:
    """Return the module `gevent.monkey` if it has made greenlets of the threads of this program, else None.

    Raises:
        JQueueError: eventlet has patched it.
    """
    if "eventlet.patcher" in sys.modules and sys.modules["eventlet.patcher"].is_monkey_patched("thread"):
        raise JQueueError(
            "SyncQueue does not work in a program that eventlet has patched: use gevent, or leave threads as they are "
            "with eventlet.monkey_patch(thread=False)"
        )
    gevent = sys.modules.get("gevent.monkey")
    return gevent if gevent is not None and gevent.is_module_patched("threading") else None


starting: threading.RLock = threading.RLock()
"""Held while the thread is made or a queue is opened on it, so that only one of several first callers makes it."""

_current: Background | None = None
_is_ending = False
_of_parents: list[object] = []


def background() -> Background:
    """Return the thread of this process. It is started if there is none.

    Raises:
        CallEnded: the process is ending.
        JQueueError: no thread can be started.
    """
    global _current
    process_id()  # a fork has a lock and a thread of its own
    if _is_ending:
        raise CallEnded(_TOO_LATE)
    with starting:
        if _current is None or not _current.takes_calls:
            _current = Background()
        return _current


def wait_for(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine in the thread, for as long as it takes, and wait for its result.

    Args:
        work: makes the coroutine; called in the thread.

    Raises:
        CallEnded: the process is ending.
    """
    result: Result = background().run(Call(work, endless=True), Call.begin)
    return result


def is_ending() -> bool:
    """True if this process takes no more calls, because the interpreter is ending."""
    return _is_ending


@atexit.register
def _end() -> None:
    global _is_ending
    process_id()  # a fork leaves the thread of its parent alone
    with starting:
        _is_ending = True
        last = _current
    if last is not None:
        last.end()


def _reset_after_fork() -> None:
    """In a forked child: begin without a thread. The parent's thread is not used, closed or collected here.

    The copy of its event loop shares descriptors with the parent's loop. Closing it here would cut off the parent's
    loop from its events.
    """
    global starting, _current, _is_ending
    if _current is not None:
        _of_parents.append((_current, asyncio.all_tasks(_current.loop)))
    starting, _current, _is_ending = threading.RLock(), None, False


at_fork(_reset_after_fork)
