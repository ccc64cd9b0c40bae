"""The session of a queue object: its calls from their entry to their answer, and the task that takes them to the store.

A session belongs to one process and one event loop. After a fork, or on another loop, `QueueBase` replaces the whole of
it, and nothing in it is reset: what goes on on the old loop, if that runs again, goes on in the old session.

The task starts with the first call and ends when idle, so an unused queue costs nothing. A caller may leave at any
time: the task still finishes the write, and hands back what it claimed for that caller. Each kind of queue has a task
of its own: `Writer` for a queue in one object, and that of `jqueue.formats.queue` for jobs in files of their own.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jqueue.core.claims import ClaimRegistry
from jqueue.core.requests import Callers, Request
from jqueue.core.tasks import end_tasks
from jqueue.core.values import Collector, ObjectCalls
from jqueue.domain.commits import Verdict
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import DeadlineExceededError, JQueueError, QueueClosedError, QueueFullError, StorageError
from jqueue.domain.job import Claim
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.ends import HandBack
from jqueue.domain.operations.operator import EmptyCommit
from jqueue.domain.printable import counted
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.queue import Wait
from jqueue.runtime.file_events import FileEvents
from jqueue.runtime.queue_options import QueueOptions
from jqueue.runtime.system import process_id
from jqueue.runtime.threads import in_a_thread

logger: Logger = logger_of("jqueue")

FLOOR = 256
"""Number of heap entries up to which finished calls are not removed early."""


class Alarms:
    """Acts on requests that are still awaited when their time comes.

    Args:
        live: returns every request that may be awaited. Those with a `due` expire then.

    Attributes:
        first: the next time at which requests are looked at. It must be at most the `due` of each: see `arm`.
    """

    def __init__(self, live: Callable[[], Iterable[Request]]) -> None:
        self._live = live
        self._entries: list[tuple[float, int, weakref.ref[Request], Callable[[Request], None]]] = []
        self._made = 0
        self._floor = FLOOR
        self._timer: asyncio.TimerHandle | None = None
        self.first: float = math.inf

    def set(self, request: Request, when: float, callback: Callable[[Request], None]) -> None:
        """Set a function to call with a request at any time: O(log n).

        Args:
            request: the request.
            when: time on the clock of the running event loop.
            callback: the function to call then.
        """
        self._made += 1
        # A weak reference: a strong one would keep the result of the call alive until then.
        heapq.heappush(self._entries, (when, self._made, weakref.ref(request), callback))
        if len(self._entries) > self._floor:
            self._entries = [entry for entry in self._entries if _is_awaited(entry[2]())]
            heapq.heapify(self._entries)
            self._floor = max(FLOOR, 2 * len(self._entries))
        if when < self.first:
            self.arm(when)

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self.arm(math.inf)

    def arm(self, when: float) -> None:
        """Wake up at a time."""
        if self._timer is not None:
            self._timer.cancel()
        self.first = when
        self._timer = asyncio.get_running_loop().call_at(when, self._on_timer) if when < math.inf else None

    def _on_timer(self) -> None:
        now = max(self.first, asyncio.get_running_loop().time())  # a loop may fire early by its clock resolution
        self._timer, self.first = None, math.inf
        while self._entries and (self._entries[0][0] <= now or not _is_awaited(self._entries[0][2]())):
            _, _, reference, callback = heapq.heappop(self._entries)
            if (request := reference()) is not None and request.awaited:
                callback(request)
        due = self._entries[0][0] if self._entries else math.inf
        for request in list(self._live()):
            if request.due <= now and request.awaited:
                request.expire()
            elif request.awaited:
                due = min(due, request.due)
        if due < self.first:
            self.arm(due)


def _is_awaited(request: Request | None) -> bool:
    return request is not None and request.awaited


class FileWatch:
    """Wakes the writer when something may have changed in the queue's folders.

    Args:
        folders: returns the folders; None if the queue has none.
        wake: called in the event loop.

    Attributes:
        noticed: True if something may have changed since the last read.
    """

    def __init__(self, folders: Callable[[], Sequence[Path]] | None, wake: Callable[[], None]) -> None:
        self._folders = folders
        self._wake = wake
        self._events: FileEvents | None = None
        self._ending: list[FileEvents] = []
        self.noticed: bool = False

    @property
    def active(self) -> bool:
        """True if every change is noticed."""
        return self._events is not None and self._events.active

    def begin(self) -> None:
        """Start watching, as a caller waits for jobs."""
        if self._events is not None or self._folders is None or not FileEvents.available():
            return
        loop = asyncio.get_running_loop()

        def changed() -> None:
            try:
                loop.call_soon_threadsafe(self._notice, events)
            except RuntimeError:  # the loop was closed before the task ended: no caller waits
                events.end()

        self._events = events = FileEvents(self._folders, changed)
        events.start()

    def end(self) -> None:
        """Stop watching, as no caller waits for jobs."""
        if self._events is not None:
            self._events.end()
            self._ending = [events for events in self._ending if events.is_alive()] + [self._events]
        self._events, self.noticed = None, False

    async def ended(self) -> None:
        """Stop watching, and wait until all threads have ended."""
        self.end()
        while self._ending:
            await in_a_thread(self._ending.pop().join)

    def _notice(self, events: FileEvents) -> None:
        if events is self._events:
            self.noticed = True
            self._wake()


SHORTEST_POLL = 0.01
POLL_GROWTH = 1.5


class Session(ABC):
    """The calls of one queue object in one process and on one event loop, and the task that does them.

    Args:
        options: settings of the queue.
        watched: returns the folders in which every change of the queue can be seen; None if the queue is in no folder.
        here: returns the session of the queue object in this process and on the running event loop.
        before: the session that this one replaces; None for the first one.

    Attributes:
        here: as in the arguments.
        process: id of the process.
        claims: remembers the claims that callers get.
        deadline: seconds that a call may take by default.
        pending: the calls that the task takes next, the oldest first.
        waiting: the calls that found no job and wait for one.
        closed: the reason why no calls are accepted; None while they are.
        storing: the calls that store objects at the moment.
        loading: the calls that load objects.
        collector: removes objects that no job names; None if the queue keeps no objects.
    """

    collector: Collector | None = None

    def __init__(
        self,
        options: QueueOptions,
        watched: Callable[[], Sequence[Path]] | None,
        here: Callable[[], Session],
        before: Session | None = None,
    ) -> None:
        self.here = here
        self.claims: ClaimRegistry = ClaimRegistry(options.clock) if before is None else before.claims
        self.closed: str | None = None if before is None else before.closed
        self.deadline: float = to_seconds("deadline", options.deadline)
        self._max_pending = options.max_pending
        self._longest_poll = to_seconds("poll_interval", options.poll_interval)
        self._watched = watched
        self.process: int = process_id()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._callers: Callers  # once the loop is known
        self.pending: deque[Request] = deque()
        self._in_line: deque[Request] = deque()
        self._carried: list[Request] = []
        self.waiting: list[Request] = []
        self._alarms = Alarms(self._unfinished)
        self.storing: ObjectCalls = ObjectCalls()
        self.loading: ObjectCalls = ObjectCalls()
        self._task: asyncio.Task[None] | None = None
        self._idle = False  # True while the task waits for a pending call
        self._wake: asyncio.Event = asyncio.Event()
        self._files = FileWatch(self._watched, self._wake.set)
        self._poll_interval = SHORTEST_POLL
        self._last_read = 0.0  # time when the store's content was last known, on the clock of the event loop

    @abstractmethod
    async def _run(self) -> None:
        """Do the calls until none is pending and none waits."""

    @abstractmethod
    def _forget(self) -> None:
        """Forget the known state of the queue, after a failure of the task."""

    async def _finish(self, until: float) -> None:
        """Finish the calls under way, by a time of the event loop."""
        await self._wait_for_task(until)

    def _unfinished(self) -> Iterator[Request]:
        yield from self._carried
        yield from self.waiting
        yield from self.pending
        yield from self._in_line

    # Entering

    def enter(
        self,
        operations: Sequence[Operation],
        deadline: Duration | None,
        *,
        atomic: bool = True,
        wait: Duration | None = None,
        convert: Callable[[list[Any]], Any],
        callers: Callers | None = None,
    ) -> Request:
        """Enter operations for one commit. The caller awaits the returned request, and gets their results.

        The results have jobs as records, without the payloads that are in objects. If too many requests are pending, it
        waits in line, unless it only keeps or ends claims.

        Args:
            operations: prepared, without large values.
            deadline: maximum time for the call, in addition to `wait`; None: that of the queue.
            atomic: True if one refused operation undoes the others.
            wait: maximum time to wait for a result that is not empty.
            convert: see `Request`.
            callers: the callers of another process, whose claims are not this queue object's; None: its own.

        Raises:
            InvalidJobError: a time is wrong.
            QueueClosedError: the queue takes no calls now.
        """
        seconds = self.deadline if deadline is None else to_seconds("deadline", deadline)
        wait_seconds = to_seconds("wait", wait) if wait is not None else 0.0
        loop = asyncio.get_running_loop()
        if loop is not self._loop or self.process != process_id():
            there = self.here()
            return there.enter(operations, deadline, atomic=atomic, wait=wait, convert=convert, callers=callers)
        if self.closed is not None:
            raise QueueClosedError(self.closed)
        request = Request(operations, callers or self._callers, atomic, convert)
        request.until = until = loop.time() + seconds
        if wait_seconds:
            request.wait_until = until - seconds + wait_seconds
            request.until = until + wait_seconds
            request.waits_for_jobs = True
            self._alarms.set(request, request.wait_until, Request.stop_waiting)
            self._alarms.set(request, request.until, Request.expire)
            if isinstance(wait, Wait):
                wait.on_end(partial(self._end_wait, request, seconds))
        elif seconds == self.deadline:
            request.due = until
            if until < self._alarms.first:
                self._alarms.arm(until)
        else:
            self._alarms.set(request, until, Request.expire)
        if len(self.pending) < self._max_pending or not any(each.needs_space for each in operations):
            self.pending.append(request)
        else:
            request.last_error = QueueFullError(
                f"{counted(self._max_pending, 'call is', 'calls are')} waiting for the store already, and no place "
                "became free before the deadline: make fewer calls at a time, or set a larger max_pending"
            )
            self._in_line.append(request)
        if self._idle or self._task is None or self._task.done():
            self._go_on()
        return request

    def _end_wait(self, request: Request, seconds: float) -> None:
        """End the wait of a call for jobs. It is answered with what it finds or claims now, within its deadline."""
        request.stop_waiting()
        if request.awaited:
            request.until = min(request.until, asyncio.get_running_loop().time() + seconds)
            self._alarms.set(request, request.until, Request.expire)
            if request.ending is not None:
                request.ending(request)

    def check_open(self) -> None:
        """Check that the queue is open.

        Raises:
            QueueClosedError: the queue takes no calls now.
        """
        if self.closed is not None:
            raise QueueClosedError(self.closed)

    async def close(self, reason: str, deadline: float) -> None:
        """Take no more calls, finish those under way, and hand back claims that no caller took, by the deadline.

        An empty answer is enough from now on for calls that wait for jobs.

        Args:
            reason: error message for later calls.
            deadline: in seconds.
        """
        self.closed = reason
        for request in self._in_line:
            request.fail(QueueClosedError(reason))
        for request in self.waiting:
            request.stop_waiting()
        for request in (*self.pending, *self._carried):
            request.waits_for_jobs = False
        self._wake.set()
        await self._finish(asyncio.get_running_loop().time() + deadline)
        self._fail_all(None)
        await self._files.ended()

    async def _wait_for_task(self, until: float) -> None:
        if self._task is not None:
            await end_tasks([self._task], until - asyncio.get_running_loop().time())

    async def resolve(self, request: Request, timeout: float | None) -> list[Any]:
        """Return the results of a request whose outcome was unknown: see `UnknownOutcomeError.resolve`."""
        seconds = self.deadline if timeout is None else timeout
        if request.verdict is None and self.is_here():  # a later session knows nothing of this one's writes
            fence = self._own_request(EmptyCommit(), seconds)
            self.pending.append(fence)  # sent even if the queue is closed: it belongs to an earlier call
            self._go_on()
            try:
                await fence
            except StorageError as error:
                request.last_error = error
        if request.verdict is Verdict.LANDED:
            if isinstance(request.outcome, JQueueError):
                raise request.outcome
            pairs = list(zip(request.operations, request.outcome or [], strict=True))
            for operation, result in pairs:
                if isinstance(result, JQueueError) or not operation.claims_jobs:
                    self.claims.note(operation, result)
            return [[] if operation.claims_jobs else result for operation, result in pairs]
        if request.verdict is Verdict.NOT_DONE:
            raise DeadlineExceededError(
                "the operation was certainly not done, and never will be: repeat it if it is still needed"
            )
        raise request.unknown("it is still unknown whether the operation was done", request.last_error)

    def is_here(self) -> bool:
        """Return True if this session belongs to this process and to the running event loop: that of its first call.

        Raises:
            JQueueError: its loop runs in another thread.
        """
        loop = asyncio.get_running_loop()
        if self.process != process_id():
            return False
        if self._loop is None:
            self._loop, waking = loop, None if self._watched is None else self._callers_wake
            self._callers = Callers(loop, self.claims, self.hand_back, self.resolve, waking)
        if self._loop is not loop and self._loop.is_running():
            raise JQueueError(
                "one queue object was used from two running event loops: make a queue object for each loop"
            )
        return self._loop is loop

    def _go_on(self) -> None:
        """Let the task look for pending calls."""
        if self._idle:
            self._wake.set()
        self._start()

    def _start(self) -> None:
        """Start the task if it does not run."""
        if self._task is not None and self._task.done():
            self._ended(self._task)  # end it properly before the next one begins
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="jqueue-writer")
            self._task.add_done_callback(self._ended)

    def hand_back(self, claims: Sequence[Claim]) -> None:
        """Hand back claims that no caller received, with the next commit."""
        for claim in claims:
            self.claims.forget(claim)
        self.pending.append(Request([HandBack(tuple(claims))], self._callers))  # without a deadline
        self._go_on()

    def _own_request(self, operation: Operation, seconds: float) -> Request:
        """Create a request that is no caller's, and expires after some seconds."""
        request = Request([operation], self._callers)
        self._alarms.set(request, asyncio.get_running_loop().time() + seconds, Request.expire)
        return request

    def _callers_wake(self) -> None:
        """Wake the task if the last waiting call has ended, so that it stops watching the folders."""
        if self._idle and self.waiting and not any(request.awaited for request in self.waiting):
            self._wake.set()

    # Doing

    async def _wait_for_call(self, seconds: float) -> bool:
        """Wait until a call is entered or the queue is closed. Return False if neither happens within these seconds."""
        self._wake.clear()
        self._idle = True
        try:
            async with asyncio.timeout(seconds):
                return await self._wake.wait()
        except TimeoutError:
            return False
        finally:
            self._idle = False

    def _take_batch(self, limit: int) -> list[Request]:
        """Take some pending calls, and let calls in line take their places. Pending or waiting calls that ended go."""
        pending = self.pending
        if self.waiting:
            self.waiting = [request for request in self.waiting if request.awaited]
        if len(pending) <= limit:
            batch = [request for request in pending if request.awaited]
            pending.clear()
        else:
            batch = []
            while pending and len(batch) < limit:
                request = pending.popleft()
                if request.awaited:
                    batch.append(request)
        while self._in_line and len(pending) < self._max_pending:
            request = self._in_line.popleft()
            if request.awaited:
                request.last_error = None
                pending.append(request)
        return batch

    # Ending

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task is not self._task:
            return
        self._task = None
        self._files.end()
        if not self.pending:
            self._alarms.clear()  # no caller waits
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            if error is not None:
                logger.error("the queue's writer failed: %s", type(error).__name__, exc_info=error)
            self._fail_all(error)
        if error is not None:
            self._forget()

    def _fail_all(self, error: BaseException | None) -> None:
        """Fail all calls, as the writer has ended. The error of each says whether it may have been done.

        Args:
            error: the error that ended the writer; None if it was closed.
        """
        requests = list(self._unfinished())
        self._carried, self.waiting = [], []
        self.pending.clear()
        self._in_line.clear()
        for request in requests:
            failure: StorageError = DeadlineExceededError(
                "the queue was closed before the call was sent, and nothing was done"
            )
            if error is not None:
                failure = StorageError("the queue's writer failed, and nothing was done", error)
            request.give_up(failure, "the queue's writer ended before the store answered", error)
