"""Claiming jobs: as many as there are free slots, and when there are none to claim, by a long poll.

At most one claim is under way. While there is work, claims leave in the moment in which outcomes free the slots, so
that a queue which puts the calls of a moment into one commit needs one for both. A long poll that was begun when few
slots were free is begun anew when there are many more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from jqueue.core.options import options_of
from jqueue.domain.errors import StorageFatalError
from jqueue.domain.models import Job
from jqueue.ports.clock import Entropy
from jqueue.ports.log import logger_of
from jqueue.ports.queue import Consumer
from jqueue.worker.held import Hands, Signal
from jqueue.worker.trouble import TROUBLE, Health, Trouble

logger = logger_of("jqueue.worker")

POLL = 30.0
"""Seconds that a long poll waits."""

LOOK_EVERY = 1.0
"""Seconds between two looks at a queue that knows no long poll."""


class Claimer:
    """Claims for a run.

    Args:
        queue: whose jobs.
        hands: tells how many slots are free.
        begin: starts to work on jobs.
        names: the entrypoints whose jobs can be done here.
        entropy: draws pauses.
        health: is told how the claims go.
        claim_timeout: how long a claim lasts without a heartbeat; None: as the queue says.
        drain: whether to end when there is nothing to claim and nothing to wait for.
    """

    def __init__(
        self,
        queue: Consumer,
        hands: Hands,
        begin: Callable[[list[Job]], None],
        names: Sequence[str],
        *,
        entropy: Entropy,
        health: Health,
        claim_timeout: float | None,
        drain: bool,
    ) -> None:
        self._queue = queue
        self._hands = hands
        self._begin = begin
        self._names: str | Sequence[str] = names[0] if len(names) == 1 else tuple(names)
        self._drain = drain
        self._most = options_of(queue).limits.batch_size
        self._trouble = Trouble("claiming jobs", entropy, health)
        self._more = Signal()
        self._task: asyncio.Task[Any] | None = None
        self._polled_for = 0
        self._renewing = False
        self._renewal_due = False
        self._answered = False
        self._timeout: dict[str, Any] = {}
        if claim_timeout is not None and queue.capabilities.claim_timeout:
            self._timeout["claim_timeout"] = claim_timeout
        hands.nudge = self.nudge

    async def run(self) -> None:
        """Claim until cancelled, or, to drain, until nothing is left to do."""
        hands = self._hands
        self._task = asyncio.current_task()
        found_all = False  # whether the last look left nothing to claim
        while True:
            if hands.free <= 0:
                if self._drain and hands.is_idle:
                    logger.warning("all slots are taken by handlers that go on although they were told to stop")
                    return
                await self._more.wait()
                found_all = False
                continue
            asked, last_look = min(hands.free, self._most), self._drain and hands.is_idle
            if self._drain and found_all and last_look:
                found_all = False
            try:
                jobs = await self._claim(asked, patient=found_all)
            except TROUBLE as error:
                if isinstance(error, StorageFatalError) and not self._answered:
                    raise
                await asyncio.sleep(self._trouble.begins(error))
                found_all = False  # a long poll would not tell for a while that the queue answers again
                continue
            if jobs is None:
                found_all = False
                continue
            self._answered = True
            self._trouble.is_over()
            if jobs:
                hands.free -= len(jobs)
                self._begin(jobs)
            elif last_look and hands.is_idle:
                return
            found_all = len(jobs) < asked

    async def _claim(self, asked: int, *, patient: bool) -> list[Job] | None:
        """Claim so many; None if they shall be counted anew."""
        if not patient:
            return await self._queue.dequeue(self._names, batch_size=asked, **self._timeout)
        if not self._queue.capabilities.wait:
            await self._pause(LOOK_EVERY)
            return None
        self._polled_for = asked
        try:
            return await self._queue.dequeue(self._names, batch_size=asked, wait=POLL, **self._timeout)
        except asyncio.CancelledError:
            if not self._renewing or self._task is None:
                raise
            self._renewing = False
            if self._task.uncancel():
                raise
            return None
        finally:
            self._polled_for = 0
            if self._renewing:  # it ended by itself in that moment
                self._renewing = False
                if self._task is not None:
                    self._task.uncancel()

    async def _pause(self, seconds: float) -> None:
        """Wait so long, or until something has changed."""
        try:
            async with asyncio.timeout(seconds):
                await self._more.wait()
        except TimeoutError:
            return

    def nudge(self) -> None:
        """There are more free slots, or nothing is left to do."""
        if not self._polled_for:
            self._more.set()
        elif not self._renewal_due and self._is_outgrown():
            self._renewal_due = True
            asyncio.get_running_loop().call_soon(self._renew)  # its answer may be here already

    def _renew(self) -> None:
        """Begin the long poll anew."""
        self._renewal_due = False
        if self._polled_for and self._task is not None and not self._renewing and self._is_outgrown():
            self._renewing = True
            self._task.cancel()

    def _is_outgrown(self) -> bool:
        """Whether the long poll asks for so few that another one is worth it, or it is time for the last look."""
        return min(self._hands.free, self._most) >= 2 * self._polled_for or (self._drain and self._hands.is_idle)
