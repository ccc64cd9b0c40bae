"""From what is known of the jobs of a batch to what the queue is told of each, and what it then came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from jqueue.domain.counting import counted
from jqueue.domain.errors import InvalidJobError, JobNotFoundError, JQueueError
from jqueue.domain.models import Job
from jqueue.domain.operations import Operation
from jqueue.ports.clock import Entropy
from jqueue.ports.log import logger_of
from jqueue.spark.batch.outcomes import Kind, Outcome
from jqueue.spark.batch.report import BatchReport
from jqueue.worker import Worker
from jqueue.worker.processes import ProcessDied
from jqueue.worker.retries import Decision, HandlerTimeout, decide

logger = logger_of("jqueue.spark")

End = Callable[[Sequence[Operation]], Awaitable[list[Any]]]
"""Does operations in one commit, each for itself."""

_ENDED = ("killed", "overdue")
_KINDS: dict[str, Kind] = {"failed": "retried", "dead": "dead", "snoozed": "snoozed"}


def best_of(outcomes: Iterable[Outcome]) -> dict[str, Outcome]:
    """What is known of each job, by its id. Several attempts of a task may have done it: once is enough."""
    best: dict[str, Outcome] = {}
    for outcome in outcomes:
        known = best.get(outcome.job_id)
        if known is None or (known.kind != "done" and outcome.kind == "done") or known.kind == "handed_back":
            best[outcome.job_id] = outcome
    return best


async def settle(
    jobs: Sequence[Job], known: Mapping[str, Outcome], worker: Worker, end: End, entropy: Entropy
) -> BatchReport:
    """End the claims on jobs, in one commit: by what is known of each, and unharmed if nothing is.

    What goes with an ack and is refused (there is no room for a job, a key is taken) is a failure of the job: then, and
    only then, a second commit tells so.

    Args:
        jobs: as they were claimed.
        known: what became of them, by their ids.
        worker: whose handlers say what becomes of those that failed here.
        end: ends them.
        entropy: draws pauses.

    Raises:
        StorageError: the queue cannot be told.
    """
    outcomes = [_outcome(job, known.get(job.id), worker, entropy) for job in jobs]
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


def _outcome(job: Job, known: Outcome | None, worker: Worker, entropy: Entropy) -> Outcome:
    """What becomes of a job that was claimed."""
    if known is None or known.claim != job.claim:
        return Outcome(*job.claim, "handed_back")
    if known.kind == "killed":
        return _decided(job, ProcessDied(known.error), worker, entropy)
    if known.kind == "overdue":
        seconds = worker.handlers[job.entrypoint].options.seconds
        told = f"timed out after {seconds:g} s, and went on when it was told to stop: its process was ended"
        return _decided(job, HandlerTimeout(told), worker, entropy)
    return known


def _decided(job: Job, error: BaseException, worker: Worker, entropy: Entropy) -> Outcome:
    """What becomes of a job that failed, as its handler's options say."""
    options = worker.handlers[job.entrypoint].options
    decision = decide(error, job, options.max_attempts, options.backoff, entropy.jitter)
    if isinstance(error, InvalidJobError):
        decision = Decision("dead", error=decision.error, dead=True)
    return Outcome(*job.claim, _KINDS[decision.kind], delay=decision.delay, error=decision.error)


def _is_lost(job: Job, refusal: JQueueError) -> bool:
    """Whether it says that the claim on this very job is over."""
    return isinstance(refusal, JobNotFoundError) and refusal.job_id == job.id


def _tell_of_lost(lost: Sequence[Job]) -> None:
    if lost:
        names = ", ".join(job.id for job in lost[:3]) + (", ..." if len(lost) > 3 else "")
        logger.warning("%s no longer ours when the batch ended (%s)", counted(len(lost), "job was", "jobs were"), names)
