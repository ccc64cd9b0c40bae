"""What the processes asked for, and what they were told: one record for each call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from jqueue.domain.errors import (
    DeadlineExceededError,
    JQueueError,
    QueueClosedError,
    StorageError,
    StorageThrottledError,
    UnknownOutcomeError,
)
from jqueue.domain.models import Claim

NEVER = float("inf")


@dataclass(eq=False)
class Call:
    """One call of one process.

    Attributes:
        process: who called.
        verb: what was called.
        claim: the claim that it was about, if it was about one.
        job_id: the job that it was to make, or to cancel.
        tag: a text or number by which its effect is told from those of other calls.
        entrypoint: whose jobs were asked for.
        started: when, in seconds of the simulation.
        ended: when; never, if the process died before.
        limit: seconds that it may take.
        result: what it returned.
        error: what it raised.
    """

    process: str
    verb: str
    started: float
    limit: float
    claim: Claim | None = None
    job_id: str | None = None
    tag: Any = None
    entrypoint: str | None = None
    ended: float = NEVER
    result: Any = None
    error: BaseException | None = None

    @property
    def succeeded(self) -> bool:
        """It returned."""
        return self.ended != NEVER and self.error is None

    @property
    def certainly_not_done(self) -> bool:
        """It raised an error that says that nothing was done."""
        if isinstance(self.error, UnknownOutcomeError):
            return False
        if isinstance(self.error, DeadlineExceededError | QueueClosedError):
            return True
        storage = isinstance(self.error, StorageError) and not isinstance(self.error, StorageThrottledError)
        return isinstance(self.error, JQueueError) and not storage


@dataclass
class History:
    """All calls, in the order in which they began."""

    calls: list[Call] = field(default_factory=list)

    async def record(self, call: Call, work: Awaitable[Any]) -> Any:
        """Await a call and note how it ended; errors that a program must expect are returned, not raised."""
        self.calls.append(call)
        loop = asyncio.get_running_loop()
        try:
            call.result = await work
        except BaseException as error:
            call.error, call.ended = error, loop.time()
            if not isinstance(error, JQueueError):
                raise
            return error
        call.ended = loop.time()
        return call.result
