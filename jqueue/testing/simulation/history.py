"""What the processes asked for, and what they were told: one record for each call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from jqueue.domain.errors import DeadlineExceededError, JQueueError, QueueClosedError, StorageError, UnknownOutcomeError
from jqueue.domain.models import Claim

NEVER = float("inf")
MOST_SHOWN = 2
"""So many of its jobs are named when a call is shown."""


@dataclass(eq=False, slots=True)
class Call:
    """One call of one process.

    Attributes:
        process: who called.
        verb: what was called.
        claims: the claims that it was about.
        bare: whether it named its claim by the job's id alone.
        job_ids: the jobs that it was to make, or to cancel.
        tag: a text or number by which its effect is told from those of other calls.
        entrypoint: whose jobs were asked for.
        key: the unique key of the job that it was to make.
        name: the cron entry that it was about.
        transaction: the application and the version of a bulk enqueue.
        keyed: what tells those of its jobs whose ids nobody knew before.
        holder: the name under which it was to claim.
        through: the last place of a job that it was to claim.
        results: what its acks say, by claim.
        running: whether it was to stop a job in progress, too.
        earliest: the least that the clock of its process showed meanwhile, in seconds since 1970.
        latest: the most that it showed.
        given: its other arguments, by name; those that its effect can be compared with.
        expected: errors that it may end with besides those of the store.
        certain: whether it must end with one of these, and change nothing.
        fleeting: whether a job of it may be gone as soon as it is there.
        delayed: whether its job is to wait before it is ready; None if nobody compares.
        replaces: whether a job that holds the key may make room.
        timeout: seconds for which its claims last.
        batch: how many jobs were asked for.
        wait: seconds for which it was to wait for jobs.
        operations: how many operations went into it.
        limit: seconds that it may take.
        started: when, in seconds of the simulation.
        ended: when; never, if the process died before.
        result: what it returned.
        error: what it raised.
    """

    process: str
    verb: str
    claims: tuple[Claim, ...] = ()
    bare: bool = False
    job_ids: tuple[str, ...] = ()
    tag: Any = None
    entrypoint: str | None = None
    key: str | None = None
    name: str | None = None
    transaction: tuple[str, int] | None = None
    keyed: tuple[str, ...] = ()
    holder: str | None = None
    through: float = NEVER
    results: dict[Claim, Any] = field(default_factory=dict)
    running: bool = False
    earliest: float | None = None
    latest: float = NEVER
    given: dict[str, Any] = field(default_factory=dict)
    expected: tuple[type[JQueueError], ...] = ()
    certain: bool = False
    fleeting: bool = False
    delayed: bool | None = None
    batch: int = 1
    replaces: bool = False
    timeout: float = 0.0
    wait: float = 0.0
    operations: int = 1
    limit: float = 0.0
    started: float = 0.0
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
        error = self.error
        if isinstance(error, DeadlineExceededError | QueueClosedError):
            return True
        return isinstance(error, JQueueError) and not isinstance(error, StorageError)

    @property
    def outcome(self) -> str:
        """How it ended, in a word."""
        if self.error is not None:
            return type(self.error).__name__
        return "ok" if self.succeeded else "never told"

    def __str__(self) -> str:
        about = [f"{claim.job_id} (attempt {claim.attempt})" for claim in self.claims] or list(self.job_ids)
        more = [f"and {len(about) - MOST_SHOWN} more"] if len(about) > MOST_SHOWN else []
        return f"{self.verb} {', '.join([*about[:MOST_SHOWN], *more]) or self.entrypoint or ''}".strip()


@dataclass
class History:
    """All calls, in the order in which they began.

    Attributes:
        calls: the calls.
        closed: whether the simulation is over: how calls end from now on is nobody's business.
    """

    calls: list[Call] = field(default_factory=list)
    closed: bool = False

    async def record(self, call: Call, work: Awaitable[Any]) -> Any:
        """Await a call and note how it ended; errors that a program must expect are returned, not raised."""
        self.calls.append(call)
        loop = asyncio.get_running_loop()
        call.started = loop.time()
        try:
            call.result = await work
        except BaseException as error:
            if self.closed:
                raise
            call.error, call.ended = error, loop.time()
            if not isinstance(error, JQueueError):
                raise
            return error
        call.ended = loop.time()
        return call.result


def is_of_the_store(error: BaseException | None) -> bool:
    """Whether it is an error that any call may end with while the store is in trouble."""
    return isinstance(error, UnknownOutcomeError | DeadlineExceededError | QueueClosedError)
