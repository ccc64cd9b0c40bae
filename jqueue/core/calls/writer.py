"""The task that carries requests to the engine: one at a time, in batches, until nothing is left to do.

It starts with the first request and ends when idle, so an unused queue costs nothing. Direct and broker queues share
it; they differ only in the number of requests in one commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from jqueue.core.calls.backlog import Backlog
from jqueue.core.calls.claim_registry import ClaimRegistry
from jqueue.core.calls.file_watch import FileWatch
from jqueue.core.calls.object_calls import ObjectCalls
from jqueue.core.engine.callers import Callers
from jqueue.core.engine.engine import Engine
from jqueue.core.engine.requests import Request
from jqueue.core.pacing.pace import BATCH_WHILE_PACED
from jqueue.domain.commits import Verdict
from jqueue.domain.errors import DeadlineExceededError, JQueueError, StorageError
from jqueue.domain.job import Claim
from jqueue.domain.operations import Fence, HandBack, Operation
from jqueue.ports.log import logger_of
from jqueue.runtime.system import forks

logger = logger_of("jqueue")

SHORTEST_POLL = 0.01
POLL_GROWTH = 1.5
PAUSE = 2.0
"""Longest intervals between polls without a read, after which the polls begin quickly again."""

LATE_ROWS = 0.1
"""Seconds between two looks for rows of a segment that a commit did not wait for. They cost no request."""


class Writer:
    """Runs one engine.

    Args:
        engine: commits the requests.
        claims: remembers the claims that callers get.
        batch_limit: maximum number of requests in one commit, unless the store limits the rate of commits.
        max_pending: maximum number of pending requests; further calls wait for room until their deadline.
        deadline: seconds that a call may take by default.
        longest_poll: maximum seconds between reads while a caller waits for jobs.
    """

    def __init__(
        self,
        engine: Engine,
        claims: ClaimRegistry,
        *,
        batch_limit: int,
        max_pending: int,
        deadline: float,
        longest_poll: float,
    ) -> None:
        self.engine = engine
        self.note = claims.note
        self.reopen = claims.reopen
        self.claims = claims
        self.deadline = deadline
        self._batch_limit = batch_limit
        self._max_pending = max_pending
        self._longest_poll = longest_poll
        self._forks = forks()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._callers: Callers  # once the loop is known
        self._begin(None)

    def _begin(self, closed: str | None) -> None:
        """Begin without calls and without a task."""
        self.calls = Backlog(self._max_pending, closed)
        self.objects = ObjectCalls()
        self._task: asyncio.Task[None] | None = None
        self._running = False  # True if the task will look for pending calls again
        self._idle = False  # True while the task waits for a pending call
        self._wake: asyncio.Event = asyncio.Event()
        self._files = FileWatch(self.engine.watched, self._wake.set)
        self._poll_interval = SHORTEST_POLL
        self._last_read = 0.0  # time when the store's content was last known, on the clock of the event loop

    def enter(
        self,
        operations: Sequence[Operation],
        seconds: float,
        atomic: bool = True,
        wait: float | None = None,
        convert: Callable[[list[Any]], Any] = list,
    ) -> Request:
        """Enter operations for one commit. The caller awaits the returned request, and gets their results.

        Args:
            operations: prepared.
            seconds: maximum time for the call, in addition to `wait`.
            atomic: True if one refused operation undoes the others.
            wait: maximum seconds to wait for a result that is not empty.
            convert: see `Request`.

        Raises:
            QueueClosedError: the queue takes no calls now.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop or self._forks != forks():
            self._join_running_loop()
        calls = self.calls
        if calls.closed is not None:
            calls.check_open()
        request = Request(operations, self._callers, self, atomic, convert)
        request.until = until = loop.time() + seconds
        if wait is not None:
            request.until = until + wait
            request.waits_for_jobs = True
            if self.engine.watched is not None:
                request.add_done_callback(self._stopped_waiting)
            calls.alarms.set(request, until - seconds + wait, Request.stop_waiting)
            calls.alarms.set(request, request.until, Request.expire)
        elif seconds == self.deadline:
            request.due = until
            if until < calls.alarms.first:
                calls.alarms.arm(until)
        else:
            calls.alarms.set(request, until, Request.expire)
        calls.pending.append(request)
        if self._idle or not self._running:
            self._go_on()
        return request

    async def wait_for_space(self, seconds: float) -> float:
        """Wait until a call can be entered: see `Backlog.wait_for_space`."""
        self._join_running_loop()
        return await self.calls.wait_for_space(seconds)

    async def close(self, reason: str, deadline: float) -> None:
        """Take no more calls, finish those under way, and hand back claims that no caller took, by the deadline.

        Args:
            reason: error message for later calls.
            deadline: in seconds.
        """
        self.calls.close(reason)
        self._wake.set()
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline
        await self.objects.end_storing()
        await self._wait_for_task(until)
        await self.objects.end_loading(until - deadline / 4)  # what is not loaded by then can still be handed back
        await self._wait_for_task(until)
        if self._may_owe_claims() and loop.time() < until:
            self._start()  # the store may be available again
            await self._wait_for_task(until)
        self.calls.fail_all(None)
        await self.engine.finish(until - loop.time())
        await self._files.ended()

    async def _wait_for_task(self, until: float) -> None:
        task = self._task
        if task is not None and not task.done():
            await asyncio.wait([task], timeout=until - asyncio.get_running_loop().time())
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=1.0)

    def open(self) -> bool:
        """Begin to take calls. Return False if it took them already, in this process and on this event loop."""
        begun = self.calls.closed is None and self._loop is asyncio.get_running_loop() and self._forks == forks()
        self._join_running_loop()
        self.calls.closed = None
        return not begun

    async def resolve(self, request: Request, timeout: float | None) -> list[Any]:
        """Return the results of a request whose outcome was unknown: see `UnknownOutcomeError.resolve`."""
        seconds = self.deadline if timeout is None else timeout
        if request.verdict is None:
            loop = self._join_running_loop()
            fence = Request([Fence()], self._callers, self)
            self.calls.alarms.set(fence, loop.time() + seconds, Request.expire)
            self._send(fence)  # sent even if the queue is closed: it belongs to an earlier call
            try:
                await fence
            except StorageError as error:
                request.last_error = error
        if request.verdict is Verdict.LANDED:
            if isinstance(request.outcome, JQueueError):
                raise request.outcome
            pairs = list(zip(request.operations, request.outcome or [], strict=True))
            for operation, result in pairs:
                if not operation.claims_jobs:
                    self.note([operation], [result])
            return [[] if operation.claims_jobs else result for operation, result in pairs]
        if request.verdict is Verdict.NOT_DONE:
            raise DeadlineExceededError(
                "the operation was certainly not done, and never will be: repeat it if it is still needed"
            )
        raise request.unknown("it is still unknown whether the operation was done", request.last_error)

    # Entering

    def _join_running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop.

        After a fork or on another loop, begin anew: the old requests and locks are useless here.
        """
        loop = asyncio.get_running_loop()
        if self._loop is loop and self._forks == forks():
            return loop
        if self._forks == forks() and self._loop is not None and self._loop.is_running():
            raise JQueueError(
                "one queue object was used from two running event loops: make a queue object for each loop"
            )
        moved = self._loop is not None or self._forks != forks()
        self._forks, self._loop, self._callers = forks(), loop, Callers(loop)
        if moved:
            self._begin(self.calls.closed)
            self.engine.reset()
        return loop

    def _send(self, request: Request) -> None:
        self.calls.pending.append(request)
        self._go_on()

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

    def hand_back(self, claims: Sequence[Claim]) -> None:
        """Hand back claims that no caller received, with the next commit."""
        for claim in claims:
            self.claims.forget(claim)
        self._send(self._own_request(HandBack(tuple(claims)), None))  # without a deadline

    def _own_request(self, operation: Operation, deadline: float | None) -> Request:
        """Create a request that no caller waits for."""
        loop = asyncio.get_running_loop()
        request = Request([operation], self._callers, self)
        if deadline is not None:
            self.calls.alarms.set(request, loop.time() + deadline, Request.expire)
        return request

    def _stopped_waiting(self, _: object) -> None:
        """Wake the task if this was the last waiting call, so that it stops watching the folders."""
        if self._idle and not any(request.awaited for request in self.calls.waiting):
            self._wake.set()

    # Sending

    async def _run(self) -> None:
        generation = self.engine.generation
        try:
            await self._commit_until_idle()
        finally:
            await self.engine.pacing.line.leave()
            if generation is self.engine.generation:
                self._running = False
                self._files.end()

    async def _commit_until_idle(self) -> None:
        fenced = False
        while True:
            await self._keep_pace()
            batch = self._take_batch()
            self.calls.drop_ended()
            if batch:
                batch[:0] = self.calls.waiting  # the call that has waited longest is served first
                activity = self.engine.activity
                await self._commit(batch, read_first=self.engine.pacing.begin())
                self._has_read(activity)
                fenced = False
            elif self.calls.waiting:
                await self._poll_for_jobs()
            elif self._may_owe_claims() and not fenced:
                await self._commit([self._own_request(Fence(), self.deadline)])
                fenced = True
            else:
                return

    async def _keep_pace(self) -> None:
        """Let calls gather for the next commit while the store would refuse it, or while it is another writer's turn.

        A queue that is being closed tries at once.
        """
        while self.calls.pending and self.calls.closed is None and (pause := self.engine.pacing.pause()) > 0:
            await self._wait_for_call(pause)

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
        """Take the calls for the next commit.

        While the store takes few commits, a direct queue's calls share them too.
        """
        limit = max(self._batch_limit, BATCH_WHILE_PACED) if self.engine.pacing.is_slow else self._batch_limit
        return self.calls.take(limit)

    async def _commit(self, requests: list[Request], *, read_first: bool = False) -> None:
        """Commit requests, and clear their list."""
        calls, generation = self.calls, self.engine.generation
        calls.carried = requests
        await self.engine.commit(requests, read_first=read_first)
        await self.engine.pacing.line.leave(over=False)
        self.engine.check_generation(generation)
        calls.waiting = [request for request in requests if request.awaited]
        calls.carried = []
        requests.clear()  # so that a call is freed when its caller goes on
        await asyncio.sleep(0)  # callers get their answers, and their next calls form the next batch
        self.engine.check_generation(generation)
        if not calls.pending:
            await self.engine.pacing.line.leave()

    async def _poll_for_jobs(self) -> None:
        """Look for jobs for the waiting calls when one may have become ready, and regularly in any case."""
        loop, activity = asyncio.get_running_loop(), self.engine.activity
        self._files.begin()
        due = self.engine.next_due() if any(request.search_key is not None for request in self.calls.waiting) else None
        until_due = self._longest_poll if due is None else max(0.0, (due - self.engine.now()).total_seconds())
        if self.engine.waits_for_rows:
            until_due = LATE_ROWS
        poll = self._longest_poll if self._files.active else self._poll_interval
        until_poll = max(0.0, self._last_read + poll - loop.time())
        polling = until_poll <= until_due
        if (
            not self._files.noticed
            and await self._wait_for_call(min(until_poll, until_due))
            and not self._files.noticed
        ):
            return
        polling, self._files.noticed = polling or self._files.noticed, False
        await self._commit(self.calls.waiting, read_first=polling)
        if polling or self.engine.activity != activity:
            self._has_read(activity)

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

    def _may_owe_claims(self) -> bool:
        """True if an open write may have made claims. If it lands, claims of callers that have left must go back."""
        return any(request.claims_jobs for sent in self.engine.open_writes.writes for request, _ in sent.outcomes)

    # Ending

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task is not self._task:
            return
        self._task = None
        if not self.calls.pending:
            self.calls.alarms.clear()  # no caller waits
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            if error is not None:
                logger.error("the queue's writer failed: %s", type(error).__name__, exc_info=error)
            self.calls.fail_all(error)
        if error is not None:
            self.engine.reset()
