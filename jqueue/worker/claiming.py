"""Claiming jobs: as many as there are free slots, and by a long poll while no job is ready.

At most one claim is under way. While there is work, a claim is sent at the moment that outcomes free their slots. A
queue that commits all calls of one moment together then needs one commit for both. A long poll that was begun with few
free slots is ended and begun anew once twice as many are free. The jobs that it has claimed by then are done.

A worker on several queues claims from each by itself. A claim takes its slots before it is sent. A queue that has no
jobs, or does not answer, keeps no slots: it is waited for by a call that claims nothing.

A worker whose only entrypoint has batches claims one batch at a time, or several small ones: as many jobs as it has
free slots. A batch fills one slot, whatever its size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from jqueue.domain.errors import CASConflictError, JQueueError, NotLoadedError
from jqueue.domain.models import Job
from jqueue.domain.operations.lookups import PATIENCE, HeldJobs, LookAtHeld
from jqueue.domain.printable import counted
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.observer import Observer, SupportsObservers
from jqueue.ports.queue import SupportsPeek, Wait
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import rest
from jqueue.runtime.tasks import to_the_end
from jqueue.telemetry.exporters import observed
from jqueue.worker.queue_health import RETRIED_ERRORS, raise_if_final
from jqueue.worker.run_state import RunState

logger: Logger = logger_of("jqueue.worker")

LONG_POLL, LONGEST_POLL = 30.0, 900.0
"""Seconds that a long poll waits: the first one, and the last of many in a row that found nothing. A poll begins with a
look at the store, and shows only in the end that the queue does not answer. So a failed call to the store replaces a
longer poll by a first one, and a queue object that reports no failed calls has first ones only."""

POLL_INTERVAL = 1.0
"""Seconds between two dequeues of a queue that has no long poll."""

SLOW = 5.0
"""Seconds for which a claim may keep slots from the other queues of a worker while its queue does not answer."""

CALLS = "claiming jobs"


class Claimer(Observer):
    """Claims the jobs of one run.

    Args:
        state: the jobs of the run, with its number of free slots.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._poll = LONG_POLL
        self._longest_poll = LONGEST_POLL if isinstance(state.queue, SupportsObservers) else LONG_POLL
        self._is_blind = False  # True if a call to the store has failed during the long poll
        self._patience = PATIENCE

    async def run(self) -> None:
        """Claim until cancelled, or, to drain, until nothing is left to do. A worn worker ends once it has no jobs."""
        state, slots = self._state, self._state.slots
        # found_all: the last claim left nothing to claim. is_slow: a call has failed, and no claim has succeeded since.
        found_all = is_slow = False
        while True:
            if slots.worn is not None:
                if slots.is_idle:
                    slots.end_run()
                await state.more.wait()
                continue
            names = self._names()
            is_last_try = state.drain and slots.is_idle
            waits = found_all and not is_last_try
            if not names or (state.room <= 0 and not (waits and self._is_one_of_several)):
                if is_last_try:
                    logger.warning("the drain ends: all slots are taken by handlers that ignored the order to stop")
                    return
                await state.more.wait()
                found_all = False
                continue
            asked = 1 if is_slow and self._is_one_of_several else self._room(names)
            found_all = False
            try:
                jobs = await (self._wait(names, asked) if waits else self._claim(names, asked, is_slow))
            except NotLoadedError:
                continue  # the queue answered, and logged why it sets these jobs aside: there may be others
            except RETRIED_ERRORS as error:
                if not state.health.has_answered:
                    raise_if_final(error)
                is_slow = True
                await asyncio.sleep(state.health.failed(CALLS, error))
                found_all = self._is_one_of_several
                # A longer poll would show only after a while that the queue answers again.
                self._poll = POLL_INTERVAL if self._is_one_of_several else LONG_POLL
                continue
            if jobs is None:
                continue
            is_slow = is_slow and waits
            state.health.answered(CALLS)
            if jobs:
                self._patience = PATIENCE
                slots.turn_of(state)
                self._state.begin(jobs, len(jobs) >= asked)
            elif is_last_try and slots.is_idle:
                if not await self._may_be_revoked(names) and slots.is_drained(state):
                    return
                while state in slots.drained:
                    await state.more.wait()  # for jobs of another queue, whose handlers may add jobs here
            found_all = len(jobs) < asked

    async def _may_be_revoked(self, names: Sequence[str]) -> bool:
        """Return True after a moment if this drain must look again: claims of other workers are stale.

        A process that has just begun may not revoke them yet. If it ends, it says how many jobs others hold.
        """
        queue, held = self._state.queue, HeldJobs(0, 0)
        if queue.capabilities.holders:
            with suppress(JQueueError):
                [held] = await queue.apply(LookAtHeld(tuple(names)))
        if held.silent and self._patience > 0:
            self._patience -= POLL_INTERVAL
            await rest(POLL_INTERVAL, options_of(queue).clock)
            return True
        if held.jobs:
            logger.info("the drain ends, and other workers hold %s", counted(held.jobs, "job"))
        return False

    @property
    def _is_one_of_several(self) -> bool:
        return len(self._state.slots.turns) > 1

    async def _claim(self, names: Sequence[str], asked: int, is_slow: bool) -> list[Job]:
        """Claim jobs that are ready now. Among several queues, the claim takes its slots first."""
        state = self._state
        if not self._is_one_of_several:
            return await state.claim(names, asked)
        state.claiming = min(asked, state.room)
        try:
            return await state.claim(names, asked, deadline=None if is_slow else SLOW)
        finally:
            state.claiming = 0
            for other in state.slots.turns:
                if other is not state:
                    other.more.set()  # slots are given back

    def _names(self) -> Sequence[str]:
        """Return the entrypoints to claim jobs of: all but those of batches that claim for themselves."""
        return tuple(name for name in self._state.handlers if name not in self._state.filling)

    def _room(self, names: Sequence[str]) -> int:
        """Return the number of jobs to claim: one for each free slot; of an entrypoint with batches, whole batches."""
        free = self._state.room
        batch = self._state.handlers[names[0]].options.batch if len(names) == 1 else None
        return min(free if batch is None else max(batch, free // batch * batch), self._state.call_limit)

    async def _wait(self, names: Sequence[str], asked: int) -> list[Job] | None:
        """Claim jobs as soon as there are any. None if the wait was ended: a new claim can have more.

        Among several queues, this claims nothing, and returns None once jobs are ready.
        """
        state = self._state
        looks_only = self._is_one_of_several
        if not (isinstance(state.queue, SupportsPeek) if looks_only else state.queue.capabilities.wait):
            with suppress(TimeoutError):
                await asyncio.wait_for(state.more.wait(), POLL_INTERVAL)
            return None
        self._is_blind = False
        with observed(state.queue if self._poll > LONG_POLL else None, self):
            wait = Wait(self._poll)
            call = self._look(names, wait) if looks_only else state.claim(names, asked, wait=wait)
            poll: asyncio.Task[list[Job] | None] = asyncio.create_task(call, name="jqueue-worker-poll")
            poll.add_done_callback(lambda _: state.more.set())
            try:
                while not poll.done():
                    if self._is_outgrown(names, asked):
                        wait.end()
                    await state.more.wait()
            except asyncio.CancelledError:
                poll.cancel()  # the queue hands back the jobs that it may still claim
                with suppress(asyncio.CancelledError):  # another one: the first is raised below
                    await to_the_end(asyncio.wait([poll]))
                if not poll.cancelled() and poll.exception() is None:  # it was answered at this very moment
                    self._state.begin(poll.result() or [], False)
                raise
        jobs = poll.result()
        if jobs is None or (wait.ended and not jobs):
            return None
        self._poll = LONG_POLL if jobs else min(self._longest_poll, 2 * self._poll)
        return jobs

    async def _look(self, names: Sequence[str], wait: Wait) -> list[Job] | None:
        """Wait until jobs are ready, without claiming them. Return an empty list if there are none."""
        queue = self._state.queue
        assert isinstance(queue, SupportsPeek)
        return None if await queue.until_ready(names, wait=wait) else []

    def store_called(self, call: str, seconds: float, error: BaseException | None) -> None:
        """Begin a long poll anew, with a call that shows soon if the queue does not answer."""
        if error is not None and not isinstance(error, asyncio.CancelledError | CASConflictError):
            self._poll, self._is_blind = LONG_POLL, True
            self._state.more.set()

    def _is_outgrown(self, polled: Sequence[str], asked: int) -> bool:
        """True if a new long poll could claim twice as many jobs or others, before an end, or if blind."""
        names = self._names()
        state = self._state
        if self._is_blind or names != polled or (state.drain and state.slots.is_idle) or state.slots.worn is not None:
            return True
        return not self._is_one_of_several and self._room(names) >= 2 * asked
