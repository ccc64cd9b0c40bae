"""The claims of batches and of streaming queries: made in one operation, kept alive, and ended by outcomes in one.

Jobs that wait in segments are leased, and the driver holds only the leases. All others are claimed one by one, and
their rows go through the driver.

Outcomes are plain values, from handlers and functions of `foreachBatch` to the commit that ends the claims. No object
that a handler made is pickled on the way. So a value that cannot be read back is found where it was made, and costs
that job alone. `Staged` is the one format in which outcomes wait in an object beside the queue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from jqueue.connect import connect
from jqueue.core.direct import DirectQueue
from jqueue.core.heartbeat import HeartbeatManager
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidBlobError, InvalidJobError, JobNotFoundError, JQueueError, QueueMissingError
from jqueue.domain.job import Claim, JobRecord, JobStatus
from jqueue.domain.limits import Limits, cut_error
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import AllOrNothing, decode_operation, encode_operation, receiving
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.leases import ClaimBatch, EndLease
from jqueue.domain.operations.lookups import HeldBy, LeasesHeldBy
from jqueue.domain.segments import CHUNK_ROWS, JobFailure, Lease
from jqueue.ports.storage import describe
from jqueue.runtime.system import SystemEntropy
from jqueue.worker import Worker
from jqueue.worker.retries import Decision, OutcomeKind, decide


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of one job.

    Attributes:
        job_id: the id of the job.
        attempt: the number of its claim.
        kind: the kind of outcome.
        result: the JSON value that the handler returned, if it is kept.
        keep_result: seconds to keep the result of a job that was enqueued without `keep_result`.
        withheld: True if the job has a result that is not kept.
        delay: seconds until the next try.
        error: the error it failed with, cut.
        traceback: frames of the error's traceback.
        added: the enqueues of the commit of its ack, each encoded.
        killed: True if its handler has ended its process, or did not stop.
    """

    job_id: str
    attempt: int
    kind: OutcomeKind
    result: Any = None
    keep_result: float | None = None
    withheld: bool = False
    delay: float | None = None
    error: str | None = None
    traceback: str | None = None
    added: tuple[msgspec.Raw, ...] = ()
    killed: bool = False

    @property
    def claim(self) -> Claim:
        """The claim that it ends."""
        return Claim(self.job_id, self.attempt)

    @classmethod
    def decided(cls, claim: Claim, decision: Decision, *, killed: bool = False) -> Outcome:
        """Return the outcome of a job about which a worker's handler, or its options, have decided."""
        error = None if decision.error is None else cut_error(decision.error)
        return cls(
            *claim, decision.kind, delay=decision.delay, error=error, traceback=decision.traceback, killed=killed
        )

    @classmethod
    def of_error(cls, worker: Worker, job: Job, error: BaseException, *, killed: bool = False) -> Outcome:
        """Return the outcome of a job that has failed outside of its handler, as the options of its handler say."""
        options = worker.handlers[job.entrypoint].options
        rule = options.retry or worker.settings.retry
        decision = decide(error, job, options.max_attempts, options.backoff, SystemEntropy().jitter, rule)
        return cls.decided(job.claim, decision, killed=killed)

    @classmethod
    def of_failure(cls, claim: Claim, failure: JobFailure) -> Outcome:
        """Return the outcome of a job that is not done."""
        delay = None if failure.delay is None else to_seconds("delay", failure.delay)
        kind: OutcomeKind = "dead" if failure.dead else "failed"
        if not failure.dead and not failure.charge:
            kind = "handed_back" if delay is None else "snoozed"
        error = None if failure.error is None else cut_error(failure.error)
        return cls(*claim, kind, delay=delay, error=error, traceback=failure.traceback)

    @property
    def failure(self) -> JobFailure:
        """The failure of a job that is not done."""
        charge = self.kind not in ("snoozed", "handed_back")
        return JobFailure(self.error, self.delay, self.kind == "dead", charge, self.traceback)

    @property
    def enqueues(self) -> list[Operation]:
        """The enqueues of the commit of its ack."""
        return [decode_operation(bytes(each)) for each in self.added]


def encoded_enqueues(companions: Iterable[Operation]) -> tuple[msgspec.Raw, ...]:
    """Return the operations of the commit of an ack, checked but for their sizes, and each encoded.

    Raises:
        InvalidJobError: one of them does not enqueue a job, or has a wrong argument.
    """
    added = []
    for other in companions:
        if not isinstance(other, Enqueue) or not isinstance(other.payload, bytes | bytearray | memoryview):
            raise InvalidJobError("in a batch on Spark, on_ack takes only Enqueue(...), with a payload given as bytes")
        added.append(msgspec.Raw(encode_operation(other.prepared(receiving(Limits(), 0.0)))))
    return tuple(added)


class Staged(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a staged object: the outcomes of a partition of a batch, or those of a batch of a stream.

    Attributes:
        outcomes: of single jobs; and of those jobs of leases that are not simply done.
        lease_id: id of the lease, if the partition is one.
        done: number of jobs of the lease that are done, without those of `outcomes`.
        left: number of jobs at the end of the lease that nobody worked on. They wait again.
        unread: the segments that could not be read, with the reasons.
        withheld: True if jobs of the lease have results that are not kept.
    """

    outcomes: tuple[Outcome, ...] = ()
    lease_id: str | None = None
    done: int = 0
    left: int = 0
    unread: dict[str, str] = {}
    withheld: bool = False

    @property
    def all_done(self) -> int:
        """Number of all done jobs, also of jobs that enqueue others."""
        return self.done + sum(outcome.kind == "succeeded" for outcome in self.outcomes)

    @property
    def is_final(self) -> bool:
        """True if a task may end the lease, as the queue can refuse none of its outcomes."""
        return not any(outcome.added for outcome in self.outcomes)

    def encode(self) -> bytes:
        """Return it as a staged object."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, content: bytes | None) -> Staged:
        """Return the content of a staged object; None stands for an object that does not exist.

        Raises:
            InvalidBlobError: the object is damaged, or cut short.
        """
        try:
            return cls() if content is None else msgspec.json.decode(content, type=cls)
        except (msgspec.MsgspecError, UnicodeError):
            raise InvalidBlobError("an object with the outcomes of a batch is damaged or incomplete") from None


DEADLINE = 60.0
"""Seconds that one call of the queue may take: it may read the indexes of many segments, and carry many outcomes."""

MOST_SINGLES = 100_000
"""Largest number of jobs in one batch that are claimed one by one: their rows go through the driver."""

MOST_LEASES = 128
"""Largest number of leases of a batch. The queue has room for 256 entries, and other consumers lease some, too."""

LEAST_ROWS = CHUNK_ROWS
"""Smallest number of jobs of a lease."""


MOST_ROWS = 1_000_000
"""Largest number of jobs of a lease, unless a dead holder has left a larger one."""


def open_queue(url: str, claim_timeout: float, deadline: float = DEADLINE) -> DirectQueue:
    """Return a queue object for one batch or query. It takes a call that ends a batch and claims another.

    Raises:
        InvalidURLError: the URL is wrong.
    """
    limits = Limits(batch_size=2 * (MOST_SINGLES + MOST_LEASES) + 2)
    return connect(url, DirectQueue, limits=limits, stale_timeout=claim_timeout, deadline=deadline)


async def check_queue(queue: DirectQueue) -> None:
    """Check that there is a queue. Claims of a queue that does not exist are no error: they find no jobs.

    Raises:
        QueueMissingError: there is none.
    """
    if (await queue.view()).absent:
        raise QueueMissingError(describe(queue.storage))


def claiming(
    entrypoints: tuple[str, ...] | None,
    jobs: int,
    claim_timeout: float,
    holder: str,
    *,
    through: int | None = None,
    rows: int = MOST_ROWS,
    alone: tuple[str, ...] = (),
) -> ClaimBatch:
    """Return the operation that claims a batch.

    Args:
        entrypoints: of the jobs; None for all.
        jobs: largest number of jobs.
        claim_timeout: seconds that a claim lasts without a heartbeat.
        holder: kept with the jobs while they are claimed.
        through: sequence number of the last job to claim; None for no limit.
        rows: largest number of jobs of a lease.
        alone: entrypoints whose jobs are claimed one by one.
    """
    return ClaimBatch(
        entrypoints,
        jobs,
        singles=MOST_SINGLES,
        leases=MOST_LEASES,
        least=LEAST_ROWS,
        rows=rows,
        alone=alone,
        claim_timeout=claim_timeout,
        holder=holder,
        through=through,
    )


async def claims_held_by(queue: DirectQueue, prefix: str) -> list[Job | Lease]:
    """Return the single jobs and the leases whose holder's name begins with a prefix."""
    jobs, leases = await queue.apply(HeldBy(prefix), LeasesHeldBy(prefix))
    return [*jobs, *leases]


@dataclass(frozen=True)
class ClaimedJobs:
    """The jobs of a partition of a batch, in order.

    Attributes:
        rows: the jobs: as they were claimed by themselves, or the rows of a lease as they were before it.
        claim: the lease; None if there is none.
        awaited: ids of jobs that others of the queue wait for.
    """

    rows: list[JobRecord]
    claim: Lease | None = None
    awaited: Collection[str] = ()

    def job(self, place: int) -> JobRecord:
        """Return a job as it is claimed."""
        row = self.rows[place]
        return row if self.claim is None else self.claim.entry.job_of(row)

    @property
    def failures(self) -> int:
        """Number of failures that a lease adds to those of its rows."""
        return 0 if self.claim is None else self.claim.entry.failures

    @property
    def claim_timeout(self) -> float | None:
        """Seconds that the claims last without a heartbeat."""
        return self.rows[0].claim_timeout if self.claim is None else self.claim.claim_timeout

    async def look(self, queue: DirectQueue) -> tuple[set[str], set[str]]:
        """Return the ids of jobs whose claims are lost, and of single jobs that were cancelled, by a look at the queue.

        Raises:
            StorageError: the queue could not be read.
        """
        view, claim = await queue.view(), self.claim
        if claim is not None:
            held = view.header.segments.get(claim.id)
            is_ours = held is not None and held.is_leased and held.claims == claim.attempt
            return set() if is_ours else {row.id for row in self.rows}, set()
        now = {job.claim: job for job in view.records.values() if job.status is JobStatus.IN_PROGRESS}
        lost = {row.id for row in self.rows if row.claim not in now}
        return lost, {job.id for job in now.values() if job.cancel_requested}


class Held(list[Job | Lease]):
    """The claims of one batch: jobs that were claimed one by one, and leases."""

    @property
    def jobs(self) -> list[Job]:
        """The jobs that were claimed one by one."""
        return [each for each in self if isinstance(each, Job)]

    @property
    def leases(self) -> list[Lease]:
        """The leases."""
        return [each for each in self if isinstance(each, Lease)]

    @property
    def number(self) -> int:
        """Number of jobs."""
        return len(self.jobs) + sum(claim.rows for claim in self.leases)

    def is_full(self, most: int) -> bool:
        """Return True if there may be more jobs, as the batch has reached a largest size."""
        return self.number >= most or len(self.jobs) >= MOST_SINGLES or len(self.leases) >= MOST_LEASES


class Heartbeats:
    """Keeps claims alive, and loses none of the others with one. A loss is seen when the claim is to be ended."""

    def __init__(self, queue: DirectQueue) -> None:
        self._queue = queue
        self._claims: list[Claim] = []
        self._manager: HeartbeatManager | None = None

    async def keep(self, batches: Iterable[Held]) -> None:
        """From now on, keep the claims of these batches alive, and no others."""
        held = [each for batch in batches for each in batch]
        claims = [each.claim for each in held]
        if claims == self._claims:
            return
        manager, self._manager, self._claims = self._manager, None, claims
        if manager is not None:
            await manager.__aexit__(None, None, None)
        if held:
            self._manager = HeartbeatManager(self._queue, held, on_lost="event")
            await self._manager.__aenter__()


def end_of_job(job: Job, outcome: Outcome) -> Operation:
    """Return the operation that ends the claim on a single job. Its process has not ended, or a decision was made."""
    if outcome.kind != "succeeded":
        failure = outcome.failure
        return Nack(job.claim, failure.delay, failure.error, failure.dead, failure.charge, traceback=failure.traceback)
    ack = Ack(job.claim, outcome.result, outcome.keep_result, withheld=outcome.withheld)
    return AllOrNothing((*outcome.enqueues, ack)) if outcome.added else ack


def end_of_lease(claim: Lease, staged: Staged, refused: JQueueError | None = None) -> Operation:
    """Return the operation that ends a lease. Its jobs are done, but for those with an outcome of their own.

    Args:
        claim: the lease.
        staged: these outcomes.
        refused: why the queue refused to enqueue what jobs add: these jobs are handed back.
    """
    failed: dict[str, JobFailure | BaseException | str | None] = {}
    results: dict[str, tuple[Any, Duration | None]] = {}
    added: list[Operation] = []
    for each in staged.outcomes:
        if each.kind != "succeeded":
            failed[each.job_id] = each.failure
        elif each.added and refused is not None:
            failed[each.job_id] = JobFailure(refused, charge=False)
        else:
            added += each.enqueues
            if each.keep_result is not None or each.result is not None:
                results[each.job_id] = each.result, each.keep_result
    end = EndLease(claim, failed, results=results, worked_on=claim.rows - staged.left, withheld=staged.withheld)
    return AllOrNothing((*added, end)) if added else end


async def end_claims(
    held: Held,
    end_of: Callable[[Job | Lease, JQueueError | None], Operation],
    commit: Callable[[Sequence[Operation]], Awaitable[Sequence[Any]]],
) -> Held:
    """End the claims of a batch in one commit, and in a second one the claims whose end the queue has refused.

    Args:
        held: the claims.
        end_of: returns the operation that ends a claim, given why the queue has refused the first one.
        commit: does operations in one commit, each by itself, and returns the result or the refusal of each.

    Returns:
        The lost claims: other workers have their jobs, or the queue has refused both operations.
    """
    lost, refused, left = Held(), dict[str, JQueueError](), list(held)
    while True:
        again = []
        answers = await commit([end_of(each, refused.get(each.id)) for each in left])
        for each, answer in zip(left, answers, strict=True):
            if not isinstance(answer, JQueueError):
                continue
            if each.id in refused or (isinstance(answer, JobNotFoundError) and answer.job_id == each.id):
                lost.append(each)
            else:
                refused[each.id] = answer
                again.append(each)
        if not again:
            return lost
        left = again
