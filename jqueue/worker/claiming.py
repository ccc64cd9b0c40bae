"""Claiming jobs: as many as there are free slots, and by a long poll while no job is ready.

At most one claim is under way. While there is work, a claim is sent at the moment that outcomes free their slots. A
queue that commits all calls of one moment together then needs one commit for both. A long poll that was begun with few
free slots is begun anew once twice as many are free.

A worker whose only entrypoint has batches claims one batch at a time, or several small ones: as many jobs as it has
free slots. A batch fills one slot, whatever its size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from jqueue.domain.errors import CASConflictError, NotLoadedError, StorageFatalError
from jqueue.domain.models import Job
from jqueue.ports.clock import Entropy
from jqueue.ports.log import logger_of
from jqueue.ports.observer import Observer, SupportsObservers
from jqueue.telemetry.exporters import observed
from jqueue.worker.claims import Claims
from jqueue.worker.queue_health import RETRIED_ERRORS, CallFailures, QueueHealth
from jqueue.worker.run_state import RunState, Signal

logger = logger_of("jqueue.worker")

LONG_POLL, LONGEST_POLL = 30.0, 900.0
"""Seconds that a long poll waits: the first one, and the last of many in a row that found nothing. Each begins with a
look at the store, and shows only in the end that the queue does not answer. So one that is longer than the first is
begun anew, as the first, when a call to the store fails; and none is on a queue object that does not tell of them."""

POLL_INTERVAL = 1.0
"""Seconds between two dequeues of a queue that has no long poll."""


class Claimer(Observer):
    """Claims the jobs of one run.

    Args:
        source: claims jobs.
        state: the state of the run, with its number of free slots.
        begin: starts the work on claimed jobs, and is told if more may be ready.
        batches: by entrypoint that has a handler here: the size of its batches; None if it takes single jobs.
        entropy: draws the pauses after failures.
        health: is told of failed and answered claims.
        drain: True to end when there is nothing to claim and nothing to wait for.
    """

    def __init__(
        self,
        source: Claims,
        state: RunState,
        begin: Callable[[list[Job], bool], None],
        batches: Mapping[str, int | None],
        *,
        entropy: Entropy,
        health: QueueHealth,
        drain: bool,
    ) -> None:
        self._source = source
        self._state = state
        self._begin = begin
        self._batches = batches
        self._all_names = tuple(batches)
        self._drain = drain
        self._failures = CallFailures("claiming jobs", entropy, health)
        self._more = Signal()
        self._poll = LONG_POLL
        self._longest_poll = LONGEST_POLL if isinstance(source.queue, SupportsObservers) else LONG_POLL
        self._is_blind = False  # True if a call to the store has failed during the long poll
        self._answered = False
        self._may_get_back = False
        state.wake_claimer = self._more.set

    async def run(self) -> None:
        """Claim until cancelled, or, to drain, until nothing is left to do."""
        state = self._state
        found_all = False  # True if the last claim left nothing to claim
        while True:
            names = self._names()
            if state.free <= 0 or not names:
                if self._drain and state.is_idle:
                    logger.warning("the drain ends: all slots are taken by handlers that ignored the order to stop")
                    return
                await self._more.wait()
                found_all = False
                continue
            asked, last_try = self._room(names), self._drain and state.is_idle
            if self._drain and found_all and last_try:
                found_all = False
            try:
                jobs = await self._claim(names, asked, long_poll=found_all)
            except NotLoadedError:
                jobs = None  # the queue answered, and logged why it sets these jobs aside: there may be others
            except RETRIED_ERRORS as error:
                if isinstance(error, StorageFatalError) and not self._answered:
                    raise
                await asyncio.sleep(self._failures.add(error))
                self._poll = LONG_POLL
                found_all = False  # a long poll would show only after a while that the queue answers again
                continue
            if jobs is None:
                found_all = False
                continue
            self._answered = True
            self._failures.clear()
            if jobs:
                self._begin(jobs, len(jobs) >= asked)
            elif last_try and state.is_idle:
                if not self._may_get_back:
                    return
                self._may_get_back = False  # jobs of a cancelled poll are handed back by now, for another try
            found_all = len(jobs) < asked

    def _names(self) -> Sequence[str]:
        """Return the entrypoints to claim jobs of: all but those of batches that claim for themselves."""
        if not self._state.filling:
            return self._all_names
        return tuple(name for name in self._all_names if name not in self._state.filling)

    def _room(self, names: Sequence[str]) -> int:
        """Return the number of jobs to claim: one for each free slot; of an entrypoint with batches, whole batches."""
        free = self._state.free
        batch = self._batches[names[0]] if len(names) == 1 else None
        return min(free if batch is None else max(batch, free // batch * batch), self._source.limit)

    async def _claim(self, names: Sequence[str], asked: int, *, long_poll: bool) -> list[Job] | None:
        """Claim up to `asked` jobs, by a long poll if `long_poll`. None: count the free slots anew and try again."""
        entrypoints = names[0] if len(names) == 1 else names
        if not long_poll:
            return await self._source.claim(entrypoints, asked)
        if self._source.waits:
            return await self._long_poll(names, entrypoints, asked)
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_INTERVAL):
                await self._more.wait()
        return None

    async def _long_poll(self, names: Sequence[str], entrypoints: str | Sequence[str], asked: int) -> list[Job] | None:
        """Claim jobs as soon as there are any. None if the poll was given up, as a new one could claim more."""
        self._is_blind = False
        with observed(self._source.queue if self._poll > LONG_POLL else None, self):
            poll = asyncio.create_task(self._source.wait(entrypoints, asked, self._poll), name="jqueue-worker-poll")
            poll.add_done_callback(lambda _: self._more.set())
            try:
                while not poll.done() and not self._is_outgrown(names, asked):
                    await self._more.wait()
                await _end(poll)
            except asyncio.CancelledError:
                await _end(poll)
                if not poll.cancelled() and poll.exception() is None:  # it was answered at this very moment
                    self._begin(poll.result(), False)
                raise
        if poll.cancelled():
            self._may_get_back = True
            return None
        jobs = poll.result()
        self._poll = LONG_POLL if jobs else min(self._longest_poll, 2 * self._poll)
        return jobs

    def store_called(self, call: str, seconds: float, error: BaseException | None) -> None:
        """Begin a long poll anew, with a call that shows soon if the queue does not answer."""
        if error is not None and not isinstance(error, asyncio.CancelledError | CASConflictError):
            self._poll, self._is_blind = LONG_POLL, True
            self._more.set()

    def _is_outgrown(self, polled: Sequence[str], asked: int) -> bool:
        """True if a new long poll could claim twice as many jobs or others, before a drain ends, or if blind."""
        names = self._names()
        if self._is_blind or names != polled or (self._drain and self._state.is_idle):
            return True
        return self._room(names) >= 2 * asked


async def _end(poll: asyncio.Task[list[Job]]) -> None:
    """Cancel a poll and wait for its end. The queue hands back the jobs that it may still claim."""
    poll.cancel()
    await asyncio.wait([poll])
