"""The end of a batch: outcomes are turned into operations of the queue, and their results into a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jqueue.domain.errors import InvalidJobError, JobNotFoundError, JQueueError
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.printable import counted
from jqueue.domain.segments import RangeClaim
from jqueue.ports.clock import Entropy
from jqueue.ports.log import logger_of
from jqueue.spark.batch.outcomes import Outcome, OutcomeKind
from jqueue.spark.batch.range_results import RangeResult, end_ranges
from jqueue.spark.batch.report import BatchReport
from jqueue.worker import Worker
from jqueue.worker.processes import ProcessDied
from jqueue.worker.retries import Decision, HandlerTimeout, decide

logger = logger_of("jqueue.spark")

End = Callable[[Sequence[Operation]], Awaitable[list[Any]]]
"""Does operations in one commit, each by itself."""

_ENDED = ("killed", "overdue")
_KINDS: dict[str, OutcomeKind] = {"failed": "retried", "dead": "dead", "snoozed": "snoozed"}


def best_results(results: Iterable[RangeResult]) -> dict[str, RangeResult]:
    """Return the best known result of each range, by its id: that with the most jobs done."""
    best: dict[str, RangeResult] = {}
    for result in results:
        if result.range_id not in best or best[result.range_id].all_done < result.all_done:
            best[result.range_id] = result
    return best


async def settle_all(
    jobs: Sequence[Job],
    ranges: Sequence[RangeClaim],
    known: Mapping[str, Outcome],
    results: Mapping[str, RangeResult],
    worker: Worker,
    end: End,
    entropy: Entropy,
    timeout: float | None = None,
) -> BatchReport:
    """End the claims on jobs and on ranges, by their known outcomes: see `settle` and `end_ranges`."""

    def decide(job: Job, outcome: Outcome) -> Outcome:
        drawn = decided.get(job.id)
        if drawn is None:
            drawn = decided[job.id] = outcome_of_job(job, outcome, worker, entropy, timeout)
        return drawn

    decided: dict[str, Outcome] = {}
    counts = await end_ranges(ranges, results, decide, end)
    report = await settle(jobs, known, worker, end, entropy, timeout) if jobs or not ranges else BatchReport()
    own = {
        name: getattr(report, name) + counts[name]
        for name in (*_KINDS.values(), "done", "cancelled", "handed_back", "lost")
    }
    claimed = len(jobs) + sum(claim.rows for claim in ranges)
    return replace(report, claimed=claimed, killed=report.killed + counts["killed"], **own)


def best_of(outcomes: Iterable[Outcome]) -> dict[str, Outcome]:
    """Return the best known outcome of each job, by its id. If several attempts of a task have done it, one counts."""
    best: dict[str, Outcome] = {}
    for outcome in outcomes:
        known = best.get(outcome.job_id)
        if known is None or (known.kind != "done" and outcome.kind == "done") or known.kind == "handed_back":
            best[outcome.job_id] = outcome
    return best


async def settle(
    jobs: Sequence[Job],
    known: Mapping[str, Outcome],
    worker: Worker,
    end: End,
    entropy: Entropy,
    timeout: float | None = None,
) -> BatchReport:
    """End the claims on jobs in one commit, by the known outcome of each. Jobs without one are handed back unharmed.

    If the queue refuses to enqueue a job with an ack (there is no room, a key is taken), the acked job has failed. Only
    then a second commit says so.

    Args:
        jobs: as they were claimed.
        known: their outcomes, by job id.
        worker: the options of its handlers decide what becomes of jobs that failed here.
        end: does the operations.
        entropy: draws the jitter of pauses.
        timeout: seconds that a handler was given that has no timeout of its own.

    Raises:
        StorageError: the queue could not be written.
    """
    outcomes = [outcome_of_job(job, known.get(job.id), worker, entropy, timeout) for job in jobs]
    counts: Counter[str] = Counter()
    lost: list[Job] = []
    again: list[tuple[Job, Outcome]] = []
    results = await end([outcome.operation() for outcome in outcomes])
    for job, outcome, result in zip(jobs, outcomes, results, strict=True):
        if not isinstance(result, JQueueError):
            counts[outcome.kind] += 1
        elif _is_lost(job, result) or outcome.kind != "done":
            lost.append(job)
        else:
            again.append((job, _decided(job, result, worker, entropy)))
    if again:
        results = await end([outcome.operation() for _, outcome in again])
        for (job, outcome), result in zip(again, results, strict=True):
            if isinstance(result, JQueueError):
                lost.append(job)
            else:
                counts[outcome.kind] += 1
    _tell_of_lost(lost)
    killed = sum(1 for job in jobs if job.id in known and known[job.id].kind in _ENDED)
    return BatchReport(claimed=len(jobs), lost=len(lost), killed=killed, **counts)


def outcome_of_job(
    job: Job, known: Outcome | None, worker: Worker, entropy: Entropy, timeout: float | None = None
) -> Outcome:
    """Return the outcome to tell of a claimed job. The arguments are as in `settle`."""
    if known is None or known.claim != job.claim:
        return Outcome(*job.claim, "handed_back")
    if known.kind == "killed":
        return _decided(job, ProcessDied(known.error), worker, entropy)
    if known.kind == "overdue":
        seconds = worker.handlers[job.entrypoint].options.seconds or timeout
        told = f"timed out after {seconds:g} s, and still ran after it was told to stop: its process was ended"
        return _decided(job, HandlerTimeout(told), worker, entropy)
    return known


def _decided(job: Job, error: BaseException, worker: Worker, entropy: Entropy) -> Outcome:
    """Return the outcome of a job that failed, by the options of its handler."""
    options = worker.handlers[job.entrypoint].options
    rule = options.retry or worker.settings.retry
    decision = decide(error, job, options.max_attempts, options.backoff, entropy.jitter, rule)
    if isinstance(error, InvalidJobError):
        decision = Decision("dead", error=decision.error, dead=True)
    return Outcome(*job.claim, _KINDS[decision.kind], delay=decision.delay, error=decision.error)


def _is_lost(job: Job, refusal: JQueueError) -> bool:
    """Return True if the refusal says that the claim on this very job is over."""
    return isinstance(refusal, JobNotFoundError) and refusal.job_id == job.id


def _tell_of_lost(lost: Sequence[Job]) -> None:
    if lost:
        names = ", ".join(job.id for job in lost[:3]) + (", ..." if len(lost) > 3 else "")
        were = counted(len(lost), "job was", "jobs were")
        logger.warning("%s lost before the batch ended: claimed by another worker, or removed (%s)", were, names)
