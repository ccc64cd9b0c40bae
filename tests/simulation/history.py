"""The history: one record for each call of a process, with its arguments and its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from jqueue.domain.errors import DeadlineExceededError, JQueueError, QueueClosedError, StorageError, UnknownOutcomeError
from jqueue.domain.models import Claim

NEVER = float("inf")
MOST_SHOWN = 2
"""Number of jobs named when a call is shown."""


@dataclass(eq=False, slots=True)
class Call:
    """One call of one process.

    Attributes:
        process: name of the calling process.
        verb: name of the verb.
        claims: claims concerned.
        job_ids: ids of the jobs to make or to cancel.
        entrypoint: entrypoint of the jobs asked for; None for any.
        transaction: application and version of a bulk enqueue.
        given: other arguments, by name, that its effect can be compared with.
        expected: errors that it may end with, besides those of the store.
        certain: True if it must end with one of the expected errors and change nothing.
        aged: True if the objects that it names may be too old to be named, or removed.
        timeout: seconds for which its claims last.
        wait: seconds to wait for jobs.
        operations: number of operations in it.
        limit: seconds that it may take.
        started: start, in seconds of the simulation.
        ended: end, in seconds of the simulation; `NEVER` if the process died before.
        result: value returned.
        error: exception raised.
    """

    process: str
    verb: str
    claims: tuple[Claim, ...] = ()
    job_ids: tuple[str, ...] = ()
    entrypoint: str | None = None
    transaction: tuple[str, int] | None = None
    given: dict[str, Any] = field(default_factory=dict)
    expected: tuple[type[JQueueError], ...] = ()
    certain: bool = False
    aged: bool = False
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
        """True if the call returned."""
        return self.ended != NEVER and self.error is None

    @property
    def certainly_not_done(self) -> bool:
        """True if the call raised an error that promises that nothing was done."""
        error = self.error
        if isinstance(error, DeadlineExceededError | QueueClosedError):
            return True
        return isinstance(error, JQueueError) and not isinstance(error, StorageError)

    @property
    def outcome(self) -> str:
        """Outcome in a word: "ok", the type of the error, or "never told"."""
        if self.error is not None:
            return type(self.error).__name__
        return "ok" if self.succeeded else "never told"

    def __str__(self) -> str:
        about = [f"{claim.job_id} (attempt {claim.attempt})" for claim in self.claims] or list(self.job_ids)
        more = [f"and {len(about) - MOST_SHOWN} more"] if len(about) > MOST_SHOWN else []
        return f"{self.verb} {', '.join([*about[:MOST_SHOWN], *more]) or self.entrypoint or ''}".strip()


CURRENT_CALL: ContextVar[Call | None] = ContextVar("call", default=None)
"""The call that a task has made and awaits. Tasks that are started for it have it, too."""


@dataclass
class History:
    """All calls, in the order in which they began.

    Attributes:
        calls: the calls.
        closed: True once the simulation is over: later ends of calls are not recorded.
    """

    calls: list[Call] = field(default_factory=list)
    closed: bool = False

    async def record(self, call: Call, work: Awaitable[Any]) -> Any:
        """Await a call and record how it ended. An expected kind of error (`JQueueError`) is returned, not raised."""
        self.calls.append(call)
        loop = asyncio.get_running_loop()
        call.started = loop.time()
        token = CURRENT_CALL.set(call)
        try:
            call.result = await work
        except BaseException as error:
            if self.closed:
                raise
            call.error, call.ended = error, loop.time()
            if not isinstance(error, JQueueError):
                raise
            return error
        finally:
            CURRENT_CALL.reset(token)
        call.ended = loop.time()
        return call.result


def is_of_the_store(error: BaseException | None) -> bool:
    """True for an error that any call may end with while the store is in trouble."""
    return isinstance(error, UnknownOutcomeError | DeadlineExceededError | QueueClosedError)
