"""The history: each call of a process with its outcome, what was applied for it, and the error for a broken rule."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from jqueue.domain.errors import DeadlineExceededError, JQueueError, QueueClosedError, StorageError, UnknownOutcomeError
from jqueue.domain.job import Claim
from jqueue.domain.limits import Limits
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.ends import HandBack, HandBackCalls, Sweep
from jqueue.domain.operations.lookups import LastSequence
from jqueue.domain.operations.operator import Attend, EmptyCommit, LeaveSeat, TakeSeat
from jqueue.ports.observer import AppliedCall, AppliedCalls, LandedCommit, Observer, SentCall
from tests.simulation.chain import Created, Timeline, Version

NEVER = float("inf")
BY_ITSELF = (EmptyCommit, HandBack, HandBackCalls, Sweep, Attend, LastSequence, TakeSeat, LeaveSeat)
"""Operations that a queue object makes without a call of its user."""

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


class Violation(AssertionError):
    """A rule was broken.

    Attributes:
        rule: number of the rule in docs/reference/protocol.md; 0 for liveness, 13 for lines that stand there twice, 15
            for counters, 16 for the history, 17 for objects, 19 for segments, 20 if a version or an answer is not what
            the model makes of the operations.
        index: place in the chain of the version that shows the violation; None if no version shows it.
        call: the call concerned; None if no single call is.
    """

    def __init__(self, rule: int, what: str, *, version: Version | None = None, call: Call | None = None) -> None:
        where = f" (version {version.number})" if version is not None else ""
        who = f"{call} by {call.process}: " if call is not None else ""
        super().__init__(f"{'liveness' if rule == 0 else f'rule {rule}'}: {who}{what}{where}")
        self.rule = rule
        self.index = version.index if version is not None else None
        self.call = call


class Calls:
    """The calls of a history, indexed by verb, and the heartbeats by claim."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self.all = list(calls)
        self.beating: dict[Claim, list[Call]] = defaultdict(list)
        self.by_verb: dict[str, list[Call]] = defaultdict(list)
        for call in self.all:
            self.by_verb[call.verb].append(call)
            if call.verb in ("heartbeat", "heartbeat_many", "beat_lease"):
                for claim in call.claims:
                    self.beating[claim].append(call)


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """Calls that one process has applied together.

    Attributes:
        process: its name.
        at: the time, in seconds of the simulation.
        applied: the operations with their outcomes.
        calls: the call to which each belongs; None for what the queue object does by itself.
    """

    process: str
    at: float
    applied: AppliedCalls
    calls: tuple[Call | None, ...]


SentCalls = dict[str, list[tuple[Sequence[Operation], Call | None]]]
"""The operations of calls that went to a broker with the calls, by the name of their batch."""


class Recorder(Observer):
    """Records what one queue object applies.

    Args:
        process: name of the process.
        records: gets the records.
        sent: gets the calls that go to a broker; None if none do.

    Attributes:
        recognised: commits recognised after an answer that was not a clean success.
        dead: ids of the jobs that each commit has made dead because their claims were stale, by its version.
    """

    def __init__(self, process: str, records: list[Record], sent: SentCalls | None = None) -> None:
        self.recognised = 0
        self.dead: dict[int, list[str]] = {}
        self._process = process
        self._records = records
        self._sent = {} if sent is None else sent

    def committed(self, commit: LandedCommit) -> None:
        """See `Observer`."""
        self.recognised += commit.recognised
        self.dead[commit.version] = [job.id for job in commit.dead]

    def applied(self, calls: AppliedCalls) -> None:
        """See `Observer`."""
        made = tuple(map(_call_of, calls.calls))
        self._records.append(Record(self._process, asyncio.get_running_loop().time(), calls, made))

    def sent(self, name: str, calls: Sequence[SentCall]) -> None:
        """See `Observer`."""
        self._sent[name] = [(each.operations, _call_of(each)) for each in calls]


def _call_of(applied: AppliedCall | SentCall) -> Call | None:
    by_itself = all(isinstance(operation, BY_ITSELF) for operation in applied.operations)
    return None if by_itself or applied.context is None else applied.context.get(CURRENT_CALL)


@dataclass
class Evidence:
    """The records of one seed, from which the audits judge it.

    Attributes:
        versions: the chain.
        calls: the history.
        records: what the processes have applied.
        objects: every object that was ever created beside the queue's.
        damaged: names of the segments that were damaged, or could not be read.
        tells_time: True if the store tells its time. If not, clocks that are wrong decide how long segments are kept
            for readers, which rows of a range are due, how old jobs are, and whether a process may name what another
            has just staged.
        pauses: start and end of each pause of each process.
        standstills: start of each pause of all processes, and the time at which the first of them went on.
        exits: times at which each process began to leave, and had left.
        calm: True if nothing was wrong with the store or with a process.
        jumped: processes whose clock has jumped, if the store does not tell the time. An object that such a process has
            just stored may be too old to be named.
        sent: the calls that went to brokers.
        deaths: the time at which each process died that did so, by the holder of its claims.
        blob_bytes: size limit of the queue objects of all processes; that of "drain" is the usual one.
    """

    versions: Sequence[Version]
    calls: Calls
    records: Sequence[Record]
    objects: Created
    damaged: frozenset[str] = frozenset()
    tells_time: bool = True
    pauses: Mapping[str, list[tuple[float, float]]] = field(default_factory=dict)
    standstills: Sequence[tuple[float, float]] = ()
    exits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    calm: bool = False
    jumped: frozenset[str] = frozenset()
    sent: SentCalls = field(default_factory=dict)
    deaths: Mapping[str, float] = field(default_factory=dict)
    blob_bytes: int = Limits().blob_bytes

    def __post_init__(self) -> None:
        self.timeline = Timeline(list(self.versions))
