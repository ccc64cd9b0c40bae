"""The task that carries the calls of a queue object to the engine: in batches, until nothing is left to do.

It starts with the first request and ends when idle, so an unused queue costs nothing. Direct and broker queues share
it; they differ only in the number of requests in one commit.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from jqueue.core.blob.segments import Segments
from jqueue.core.claims import ClaimRegistry
from jqueue.core.courier import Courier
from jqueue.core.pacing import BATCH_WHILE_PACED, Pacing
from jqueue.core.requests import Callers, Request
from jqueue.core.tasks import end_tasks
from jqueue.core.values import ObjectCalls
from jqueue.core.view import QueueView
from jqueue.core.workers import Workers
from jqueue.domain.commits import Verdict
from jqueue.domain.draft import Draft
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import DeadlineExceededError, JQueueError, QueueClosedError, QueueFullError, StorageError
from jqueue.domain.header import Header
from jqueue.domain.job import Claim
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.ends import HandBack
from jqueue.domain.operations.operator import Fence
from jqueue.domain.printable import counted
from jqueue.ports.log import logger_of
from jqueue.runtime.file_events import FileEvents
from jqueue.runtime.system import forks
from jqueue.runtime.threads import in_a_thread

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
        self.first = math.inf

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
        self.noticed = False

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
            with suppress(RuntimeError):  # the loop was closed, and no caller waits
                loop.call_soon_threadsafe(self._notice, events)

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


logger = logger_of("jqueue")

SHORTEST_POLL = 0.01
POLL_GROWTH = 1.5
PAUSE = 2.0
"""Longest intervals between polls without a read, after which the polls begin quickly again."""

LATE_ROWS = 0.1
"""Seconds between two looks for rows of a segment that a commit did not wait for. They cost no request."""


class QueueEngine(Protocol):
    """The engine of one queue: what its calls and its writer need of it. It runs one `commit` at a time.

    Attributes:
        draft: the known state of the queue.
        loaded: True once the queue was read.
        generation: replaced by a new object at each `reset`.
        pacing: tells when to read and write.
        workers: the workers of this queue object.
        unread: True if the last commit has left calls that wait for jobs without a read, which must follow.
    """

    unread: bool
    draft: Draft
    loaded: bool
    generation: object
    pacing: Pacing
    workers: Workers

    @property
    def place(self) -> object:
        """The store of the queue, whose repr names it in errors."""

    @property
    def segments(self) -> Segments | None:
        """The segments of the queue; None if it keeps none."""

    @property
    def watched(self) -> Callable[[], Sequence[Path]] | None:
        """Returns the folders in which every change of the queue can be seen; None if the queue is in no folder."""

    @property
    def activity(self) -> object:
        """A value that changes with the jobs of the queue: waiting calls then poll it more often."""

    def reset(self) -> None:
        """Begin anew with a read: after a fork, or when the cached state cannot be trusted."""

    def check_generation(self, generation: object) -> None:
        """Raise CancelledError in a task that began before a `reset`: the state is no longer its own."""

    def now(self) -> datetime:
        """Return the time by the store's clock if it has one, or else by the own clock."""

    def next_due(self) -> datetime | None:
        """Return the next time at which a job becomes ready by itself; None if no such time is known."""

    def owes_claims(self) -> bool:
        """Return True if an open write may have made claims. If it lands, those of callers that left must go back."""

    async def commit(self, requests: Sequence[Request], *, read_first: bool = False, read_later: bool = False) -> bool:
        """Run requests until each is settled, has failed, or is still waiting for jobs or for rows of a late segment.

        Args:
            requests: submitted before this call.
            read_first: True to begin with a read, as another writer may have changed the queue.
            read_later: True if calls that wait for jobs, and find none in the known state, may be left without a read.

        Returns:
            True if some are left that need rows of a late segment.
        """

    async def is_absent(self) -> bool:
        """Return True if there was no queue at the last commit, which has read the store."""

    async def objects_named_in(self, header: Header) -> set[str]:
        """Return the suffixes of the objects beside the queue that a header and its segments name."""

    async def view(self, known: str | None, deadline: float) -> QueueView | None:
        """Read the queue; None if its etag is the known one."""

    async def finish(self, seconds: float) -> None:
        """End what the engine does in the background. The queue is being closed, and no call is under way."""


class Writer:
    """Holds every call of one queue object from its entry to its answer, and runs the engine.

    Args:
        engine: commits the requests.
        claims: remembers the claims that callers get.
        batch_limit: maximum number of requests in one commit, unless the store limits the rate of commits.
        max_pending: maximum number of pending requests; further calls wait in line for room until their deadline.
        deadline: seconds that a call may take by default.
        longest_poll: maximum seconds between reads while a caller waits for jobs.
        committed: called after a commit with its requests.
        courier: takes calls to a broker of another process, if there is one; None: never.

    Attributes:
        pending: the requests for the next commit, the oldest first.
        waiting: the requests that found no job and wait for one.
        closed: the reason why no calls are accepted; None while they are.
        storing: the calls that store objects at the moment.
        loading: the calls that load objects.
    """

    def __init__(
        self,
        engine: QueueEngine,
        claims: ClaimRegistry,
        *,
        batch_limit: int,
        max_pending: int,
        deadline: float,
        longest_poll: float,
        committed: Callable[[Sequence[Request]], None],
        courier: Courier | None = None,
    ) -> None:
        self.engine = engine
        self.claims = claims
        self.deadline = deadline
        self._batch_limit = batch_limit
        self._max_pending = max_pending
        self._longest_poll = longest_poll
        self._committed = committed
        self.courier = courier
        self._forks = forks()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._callers: Callers  # once the loop is known
        self.closed: str | None = None
        self._begin()

    def _begin(self) -> None:
        """Begin without calls and without a task."""
        self.pending: deque[Request] = deque()
        self._in_line: deque[Request] = deque()
        self._carried: list[Request] = []
        self.waiting: list[Request] = []
        self._alarms = Alarms(self._unfinished)
        self.storing, self.loading = ObjectCalls(), ObjectCalls()
        self._task: asyncio.Task[None] | None = None
        self._running = False  # True if the task will look for pending calls again
        self._idle = False  # True while the task waits for a pending call
        self._wake: asyncio.Event = asyncio.Event()
        self._files = FileWatch(self.engine.watched, self._wake.set)
        self._rows_are_late = False  # True if waiting calls need rows for which the last commit did not wait
        self._poll_interval = SHORTEST_POLL
        if self.courier is not None:
            self.courier.reset()
        self._last_read = 0.0  # time when the store's content was last known, on the clock of the event loop

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
        if loop is not self._loop or self._forks != forks():
            self._join_running_loop()
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
        if self._idle or not self._running:
            self._go_on()
        return request

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
        if self._forks != forks():
            self._join_running_loop()  # the calls and connections of the parent go on there
        self.closed = reason
        for request in self._in_line:
            request.fail(QueueClosedError(reason))
        for request in self.waiting:
            request.stop_waiting()
        for request in (*self.pending, *self._carried):
            request.waits_for_jobs = False
        if self.courier is not None:
            self.courier.stop_waiting()
        self._wake.set()
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline
        await self.storing.end()
        await self._wait_for_task(until)
        await self.loading.end(until - deadline / 4 - loop.time())  # then claims can be handed back
        if self.courier is not None:
            await self.courier.answered_all(until - loop.time())
        await self._wait_for_task(until)
        if self._owes_claims() and loop.time() < until:
            self._start()  # the store may be available again
            await self._wait_for_task(until)
        self._fail_all(None)
        if self.courier is not None:
            self.courier.close()
            await asyncio.sleep(0)  # the connection begins to end now, also if the event loop ends with the queue
        await self.engine.finish(until - loop.time())
        await self._files.ended()

    async def _wait_for_task(self, until: float) -> None:
        if self._task is not None:
            await end_tasks([self._task], until - asyncio.get_running_loop().time())

    def _owes_claims(self) -> bool:
        return self.engine.owes_claims() or (self.courier is not None and self.courier.owes_claims)

    def open(self) -> bool:
        """Begin to take calls. Return False if it took them already, in this process and on this event loop."""
        begun = self.closed is None and self._loop is asyncio.get_running_loop() and self._forks == forks()
        self._join_running_loop()
        self.closed = None
        return not begun

    async def resolve(self, request: Request, timeout: float | None) -> list[Any]:
        """Return the results of a request whose outcome was unknown: see `UnknownOutcomeError.resolve`."""
        seconds = self.deadline if timeout is None else timeout
        if request.verdict is None:
            self._join_running_loop()
            fence = self._own_request(Fence(), seconds)
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

    def _join_running_loop(self) -> None:
        """Begin anew after a fork or on another event loop: the old requests and locks are useless here."""
        loop = asyncio.get_running_loop()
        if self._loop is loop and self._forks == forks():
            return
        if self._forks == forks() and self._loop is not None:
            if self._loop.is_running():
                raise JQueueError(
                    "one queue object was used from two running event loops: make a queue object for each loop"
                )
            self.engine.pacing.line.leave()  # nothing else ends the turn of a loop that has stopped in it
        moved = self._loop is not None or self._forks != forks()
        self._forks, self._loop = forks(), loop
        waking = None if self.engine.watched is None else self._callers_wake
        self._callers = Callers(loop, self.claims, self.hand_back, self.resolve, waking)
        if moved:
            self._begin()
            self.engine.reset()

    def _go_on(self) -> None:
        """Let the task look for pending calls."""
        if self._idle:
            self._wake.set()
        if not self._running:
            self._start()

    def _start(self) -> None:
        """Start the task if it does not run."""
        if self._task is not None and self._task.done():
            self._ended(self._task)  # end it properly before the next one begins
        if self._task is None:
            self._running = True
            self._task = asyncio.get_running_loop().create_task(self._run(), name="jqueue-writer")
            self._task.add_done_callback(self._ended)

    def wake(self) -> None:
        """Let the task look at its calls again."""
        if self.waiting or self.pending or self._owes_claims():
            self._go_on()

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

    # Sending

    async def _run(self) -> None:
        engine, generation, fenced = self.engine, self.engine.generation, False
        try:
            while True:
                # Calls gather while the store would refuse a commit, or while it is another writer's turn
                while self.pending and self.closed is None and (pause := engine.pacing.pause()) > 0:
                    await self._wait_for_call(pause)
                batch = self._take_batch()
                if self.waiting:
                    self._drop_ended()
                if batch:
                    batch[:0] = self.waiting  # the call that has waited longest is served first
                    activity = engine.activity
                    await self._commit(batch, read_first=engine.pacing.begin(), read_later=self._is_recent())
                    if not engine.unread:
                        self._has_read(activity)
                    fenced = False
                elif self.pending:
                    continue  # they were in line
                elif self.waiting:
                    await self._poll_for_jobs()
                elif self._owes_claims() and not fenced:
                    await self._commit([self._own_request(Fence(), self.deadline)])
                    fenced = True
                else:
                    return
        finally:
            engine.pacing.line.leave()
            if generation is engine.generation:
                self._running = False
                self._files.end()

    async def _wait_for_call(self, seconds: float) -> bool:
        """Wait until a call is entered or the queue is closed. Return False if neither happens within these seconds."""
        generation = self.engine.generation
        self._wake.clear()
        self._idle = woken = True
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            woken = False
        finally:
            if generation is self.engine.generation:
                self._idle = False
        self.engine.check_generation(generation)
        return woken

    def _take_batch(self) -> list[Request]:
        """Take the calls for the next commit: those that have not ended meanwhile.

        While the store takes few commits, a direct queue's calls share them too.
        """
        limit, pending = self._batch_limit, self.pending
        if self.engine.pacing.pace.interval or (self.courier is not None and self.courier.shares):
            limit = max(limit, BATCH_WHILE_PACED)
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

    def _drop_ended(self) -> None:
        """Forget the waiting calls that have ended.

        On a closed queue, fail calls that still wait for space in the queue.
        """
        if self.closed is not None:
            for request in self.waiting:
                if isinstance(request.last_error, QueueFullError) and not request.in_flight:
                    request.fail(QueueClosedError(self.closed))
        self.waiting = [request for request in self.waiting if request.awaited]

    async def _commit(self, requests: list[Request], *, read_first: bool = False, read_later: bool = False) -> None:
        """Commit requests, and clear their list."""
        engine, generation = self.engine, self.engine.generation
        self._carried = own = requests
        if self.courier is not None:
            own = await self.courier.carry(requests, self._callers)
            engine.check_generation(generation)
            self._carried = [*requests, *own]
        if own:
            self._rows_are_late = await engine.commit(own, read_first=read_first, read_later=read_later)
            engine.check_generation(generation)
        self._committed(requests)
        self.waiting = [request for request in requests if request.awaited]
        self._carried = []
        requests.clear()  # so that a call is freed when its caller goes on
        await asyncio.sleep(0)  # callers get their answers, and their next calls form the next batch
        engine.check_generation(generation)
        engine.pacing.line.leave(over=not self.pending)

    async def _poll_for_jobs(self) -> None:
        """Look for jobs for the waiting calls when one may have become ready, and regularly in any case."""
        courier, loop, activity = self.courier, asyncio.get_running_loop(), self.engine.activity
        here = [request for request in self.waiting if courier is None or not courier.waits(request)]
        until_beat = self.engine.workers.until_due(loop.time())
        if not here:
            self._files.end()
            await self._wait_for_call(min(self._longest_poll, until_beat))
            await self._commit(self.waiting)
            return
        serving = courier is not None and courier.serving  # what others do comes here, mostly
        if serving:
            self._files.end()  # each commit of this process would be an event, and cause a read
        else:
            self._files.begin()
        due = self.engine.next_due() if any(request.search_key is not None for request in here) else None
        longest = min(self._longest_poll if request.poll is None else request.poll for request in here)
        until_due = longest if due is None else max(0.0, (due - self.engine.now()).total_seconds())
        until_due = min(until_due, until_beat)
        if self._rows_are_late:
            until_due = LATE_ROWS
        poll = longest if serving or self._files.active else self._poll_interval
        if self.engine.unread:
            poll = SHORTEST_POLL
        until_poll = max(0.0, self._last_read + poll - loop.time())
        polling = until_poll <= until_due
        if (
            not self._files.noticed
            and await self._wait_for_call(min(until_poll, until_due))
            and not self._files.noticed
        ):
            return
        polling, self._files.noticed = polling or self._files.noticed, False
        await self._commit(self.waiting, read_first=polling)
        if polling or self.engine.activity != activity:
            self._has_read(activity)

    def _is_recent(self) -> bool:
        """Return True if the store's content was known just now: the next poll is soon enough for calls that wait."""
        return asyncio.get_running_loop().time() - self._last_read < SHORTEST_POLL

    def _has_read(self, activity: object) -> None:
        """Note that the store's content is known now. Activity or a pause makes the next polls quick.

        A caller that waits again, right after it has waited in vain, goes on at the pace of before.

        Args:
            activity: the activity in the queue before the commit that has read it.
        """
        now = asyncio.get_running_loop().time()
        paused = now - self._last_read > PAUSE * self._longest_poll
        if paused or self.engine.activity != activity:
            self._poll_interval = SHORTEST_POLL
        else:
            self._poll_interval = min(self._longest_poll, self._poll_interval * POLL_GROWTH)
        self._last_read = now

    # Ending

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task is not self._task:
            return
        self._task = None
        if not self.pending:
            self._alarms.clear()  # no caller waits
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            if error is not None:
                logger.error("the queue's writer failed: %s", type(error).__name__, exc_info=error)
            self._fail_all(error)
        if error is not None:
            self.engine.reset()

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
            if request.in_flight or request.open_writes:
                request.fail(request.unknown("the queue's writer ended before the store answered", error))
            elif error is not None:
                request.fail(StorageError("the queue's writer failed, and nothing was done", error))
            else:
                request.fail(
                    DeadlineExceededError("the queue was closed before the call was sent, and nothing was done")
                )
