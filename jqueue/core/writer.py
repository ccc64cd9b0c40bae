"""The session of a queue in one object. Its task carries the calls to the engine in batches, until no call is left.

Direct and broker queues share it; they differ only in the number of requests in one commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from jqueue.core.access import Access
from jqueue.core.broker_client import BrokerClient
from jqueue.core.engine import Engine
from jqueue.core.pacing import BATCH_LIMIT
from jqueue.core.requests import Request
from jqueue.core.session import POLL_GROWTH, SHORTEST_POLL, Session
from jqueue.core.values import Collector, ValueObjects
from jqueue.domain.counters import Counters
from jqueue.domain.operations.operator import EmptyCommit
from jqueue.ports.sharing import SupportsDialing
from jqueue.runtime.system import process_id

PAUSE = 2.0
"""Longest intervals between polls without a read, after which the polls begin quickly again."""

LATE_ROWS = 0.1
"""Seconds until calls that need rows for which commits do not wait are tried again. As many as the last try took, if
that is more: a try that looks for thousands of rows must leave time to read them."""


class Writer(Session):
    """Holds every call of one session from its entry to its answer, and runs the engine.

    Args:
        access: to the store.
        objects: stores large payloads and results; None if the queue keeps none.
        batch_limit: maximum number of requests in one commit, unless the store limits the rate of commits.
        here: see `Session`.
        before: the session that this one replaces; None for the first one.

    Attributes:
        engine: commits the requests.
        broker_client: takes calls to a broker of another process, if there is one; None: never.
        volunteer: offers to serve other processes, which have been seen; None: this queue object does so only if told.
    """

    broker_client: BrokerClient | None = None
    volunteer: Callable[[], None] | None = None
    _is_dropped = False

    def __init__(
        self,
        access: Access,
        objects: ValueObjects | None,
        batch_limit: int,
        here: Callable[[], Session],
        before: Writer | None,
    ) -> None:
        super().__init__(access.options, access.watched, here, before)
        self.engine: Engine = Engine(access, None if before is None else before.engine)
        self._batch_limit = batch_limit
        self._counters: dict[str, Counters] = {}  # as the store's content was last known; no heartbeat changes them
        self._rows_in = 0.0  # seconds to wait for rows that calls need, and that the last commit did not wait for
        dialed: Any = getattr(access.storage, "dial_url", None)
        if isinstance(access.storage, SupportsDialing):
            dialed = access.storage
        if dialed is not None and access.options.share:
            self.broker_client = BrokerClient(dialed, self.engine, self.wake)
        if objects is not None:
            look, fence = partial(self.engine.view, None, self.deadline), partial(self.enter, (EmptyCommit(),), None)
            named_in = self.engine.objects_named_in
            self.collector: Collector | None = Collector(access, objects, look, named_in, partial(fence, convert=list))
        if before is not None:
            self.volunteer = before.volunteer
            before.abandon()

    def abandon(self) -> None:
        """Free what the session serves, and its connections, as its event loop has stopped.

        In a forked child, leave them to the parent.
        """
        if self.broker_client is not None:
            self.broker_client.abandon(is_ours=self.process == process_id())

    def _forget(self) -> None:
        self.engine.forget()

    async def close(self, reason: str, deadline: float) -> None:
        """See `Session.close`. The connection to a broker and the work of the engine in the background end, too."""
        until = asyncio.get_running_loop().time() + deadline
        if self.collector is not None:
            await self.collector.end()  # it commits, and the task would go on
        await super().close(reason, deadline)
        if self.collector is not None:
            await self.collector.end()  # begun by the last commits
        if self.broker_client is not None:
            self.broker_client.close()
            await asyncio.sleep(0)  # the connection begins to end now, also if the event loop ends with the queue
        await self.engine.finish(until - asyncio.get_running_loop().time())

    async def resolve(self, request: Request, timeout: float | None) -> list[Any]:
        """See `Session.resolve`. A queue that was closed keeps no connection to a broker."""
        try:
            return await super().resolve(request, timeout)
        finally:
            if self.closed is not None and self.broker_client is not None:
                self.broker_client.close()

    def drop(self) -> None:
        """End the connection to a broker, or to clients, after the calls under way, as the queue object is gone.

        Never waits, as the garbage collector may call this, in any thread.
        """
        if self._loop is None or self._loop.is_closed() or self.process != process_id():
            self.abandon()
        else:
            with suppress(RuntimeError):  # the loop was closed just now
                self._loop.call_soon_threadsafe(self._dropped)

    def _dropped(self) -> None:
        self._is_dropped = True
        if self._task is None and self.broker_client is not None:
            self.broker_client.close()
            if self.broker_client.seat_server is not None:
                self.broker_client.seat_server.drop()

    def _ended(self, task: asyncio.Task[None]) -> None:
        super()._ended(task)
        if self._is_dropped:
            self._dropped()

    async def _finish(self, until: float) -> None:
        time, begun = asyncio.get_running_loop().time, asyncio.get_running_loop().time()
        if self.broker_client is not None:
            self.broker_client.stop_waiting()
        await self.storing.end()
        await self._wait_for_task(until)
        await self.loading.end(until - (until - begun) / 4 - time())  # then claims can be handed back
        if self.broker_client is not None:
            await self.broker_client.answered_all(until - time())
        await self._wait_for_task(until)
        if self._owes_claims() and time() < until:
            self._start()  # the store may be available again
            await self._wait_for_task(until)

    def _owes_claims(self) -> bool:
        return self.engine.owes_claims() or (self.broker_client is not None and self.broker_client.owes_claims)

    def _has_workers_at_a_broker(self) -> bool:
        """Return True if no commit of this process shows its workers, so that a busy one must report itself."""
        return self._has_broker() and self.closed is None and bool(self.engine.workers.present)

    def _has_broker(self) -> bool:
        """Return True if another process serves this one."""
        client = self.broker_client
        return client is not None and not client.serving and (client.shares or client.broker_came())

    def wake(self) -> None:
        """Let the task look at its calls again."""
        if self.waiting or self.pending or self._owes_claims():
            self._go_on()

    async def _run(self) -> None:
        engine, fenced = self.engine, False
        while True:
            # Calls gather while the store would refuse a commit, or while it is another writer's turn
            while self.pending and self.closed is None and (pause := engine.pacing.pause()) > 0:
                if self._has_broker():
                    break
                await self._wait_for_call(pause)
            batch = self._next_batch()
            if batch:
                batch[:0] = self.waiting  # the call that has waited longest is served first
                # If the content of the store was known just now, the next poll is soon enough for calls that wait
                is_recent = asyncio.get_running_loop().time() - self._last_read < SHORTEST_POLL
                await self._commit(batch, read_first=engine.pacing.begin(), read_later=is_recent)
                if not engine.unread:
                    self._has_read()
                fenced = False
            elif self.pending:
                continue  # they were in line
            elif self.waiting:
                await self._poll_for_jobs()
            elif self._owes_claims() and not fenced:
                await self._commit([self._own_request(EmptyCommit(), self.deadline)])
                fenced = True
            elif self._has_workers_at_a_broker():
                if not await self._wait_for_call(engine.workers.until_due(asyncio.get_running_loop().time())):
                    await self._commit([])  # it shows the workers, if no other call did
            else:
                return

    def _next_batch(self) -> list[Request]:
        """Take the calls for the next commit. Those of a direct queue share one while its commits must be few."""
        limit, pacing = self._batch_limit, self.engine.pacing
        if limit < BATCH_LIMIT and (
            pacing.pace.interval
            or pacing.has_neighbours
            or (self.broker_client is not None and self.broker_client.shares)
        ):
            limit = BATCH_LIMIT
        return self._take_batch(limit)

    async def _commit(self, requests: list[Request], *, read_first: bool = False, read_later: bool = False) -> None:
        """Commit requests, and clear their list."""
        engine = self.engine
        self._carried = own = requests
        if self.broker_client is not None:
            own = await self.broker_client.carry(requests, self._callers)
            self._carried = [*requests, *own]
        if own:
            came = None if self.broker_client is None else self.broker_client.broker_came
            began = asyncio.get_running_loop().time()
            is_late = await engine.commit(own, read_first=read_first, read_later=read_later, broker_came=came)
            self._rows_in = max(LATE_ROWS, asyncio.get_running_loop().time() - began) if is_late else 0.0
            if engine.gave_way:
                await self._commit(requests)
                return
            if self.volunteer is not None and engine.pacing.has_neighbours and self.closed is None:
                self.volunteer()
        if self.collector is not None and (self.claims.saw_objects or engine.draft.header.segments):
            self._collect_after(self.collector, requests)
        self.waiting: list[Request] = [request for request in requests if request.awaited]
        self._carried = []
        requests.clear()  # so that a call is freed when its caller goes on
        await asyncio.sleep(0)  # callers get their answers, and their next calls form the next batch

    def _collect_after(self, collector: Collector, requests: list[Request]) -> None:
        """Let the collector look for objects that the jobs of ended claims named."""
        if any(operation.ends_claims for request in requests for operation in request.operations):
            collector.begin()

    async def _poll_for_jobs(self) -> None:
        """Look for jobs for the waiting calls when one may have become ready, and regularly in any case."""
        client, loop = self.broker_client, asyncio.get_running_loop()
        here = [request for request in self.waiting if client is None or not client.waits(request)]
        until_beat = self.engine.workers.until_due(loop.time())
        if not here:
            self._files.end()
            await self._wait_for_call(min(self._longest_poll, until_beat))
            await self._commit(self.waiting)
            return
        serving = client is not None and client.serving  # what others do comes here, mostly
        if serving:
            self._files.end()  # each commit of this process would be an event, and cause a read
        else:
            self._files.begin()
        due = self.engine.next_due() if any(request.search_key is not None for request in here) else None
        longest = min(self._longest_poll if request.poll is None else request.poll for request in here)
        until_due = longest if due is None else max(0.0, (due - self.engine.now()).total_seconds())
        until_due = min(until_due, until_beat)
        if self._rows_in:
            until_due = self._rows_in
        poll = longest if serving or self._files.active else self._poll_interval
        if self.engine.unread:
            poll = SHORTEST_POLL
        until_poll = max(self._rows_in, self._last_read + poll - loop.time())
        polling = until_poll <= until_due
        if (
            not self._files.noticed
            and await self._wait_for_call(min(until_poll, until_due))
            and not self._files.noticed
        ):
            return
        polling, self._files.noticed = polling or self._files.noticed, False
        await self._commit(self.waiting, read_first=polling)
        if polling or self.engine.draft.header.counters != self._counters:
            self._has_read()

    def _has_read(self) -> None:
        """Note that the store's content is known now. Activity or a pause makes the next polls quick.

        If a caller waits again right after a wait without a job, its polls keep their pace.
        """
        now, counters = asyncio.get_running_loop().time(), self.engine.draft.header.counters
        paused = now - self._last_read > PAUSE * self._longest_poll
        if paused or counters != self._counters:
            self._poll_interval = SHORTEST_POLL
        else:
            self._poll_interval = min(self._longest_poll, self._poll_interval * POLL_GROWTH)
        self._counters, self._last_read = counters, now
