"""The plan of a move between two queues: the jobs that move, the features that they lose, and the jobs that stay.

Nothing here reads or writes: the plan is made from values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jqueue.domain.in_transit import is_moving
from jqueue.domain.job_options import STORED
from jqueue.domain.models import NO_CLAIM, Job, JobStatus, QueueState
from jqueue.ports.queue import Capabilities

IDS_SHOWN = 5
"""Number of ids that are named beside a count of jobs."""


def _needs() -> dict[str, dict[str, Any]]:
    needs: dict[str, dict[str, Any]] = {}
    for name, option in STORED.items():
        if name != "id" and option.capability is not None:
            needs.setdefault(option.capability, {})[name] = option.unset
    return {**needs, "errors": {"error": None}}


_NEEDS: Mapping[str, Mapping[str, Any]] = _needs()
"""The fields of a job by the capability that they need, each with its value if that capability is missing."""

RULES = "rules"
"""The pause or the limits of an entrypoint, in the place of a capability."""

LOSS_TEXTS = {
    **{capability: " and ".join(fields) for capability, fields in _NEEDS.items()},
    "priority": "the priority",
    "delay": "the delay",
    "expiry": "the time of expiry",
    "headers": "the headers",
    "unique_keys": "the unique key",
    "limits": "the concurrency key",
    "errors": "the last error",
    RULES: "the pause or the limits of their entrypoint",
}
"""Description of the loss for each missing capability."""

UNIMPORTANT = frozenset({"errors"})
"""Missing capabilities that do not keep a job from moving."""

DEAD = "they are dead, and DEST cannot keep dead jobs"
ANOTHER_MOVE = "an interrupted move to another queue has claimed them: finish that move first"


@dataclass
class Tally:
    """A count of jobs.

    Attributes:
        count: number of jobs.
        ids: of the first few jobs.
    """

    count: int = 0
    ids: list[str] = field(default_factory=list)

    def add(self, job_id: str) -> None:
        """Count one more job."""
        self.count += 1
        if len(self.ids) < IDS_SHOWN:
            self.ids.append(job_id)


def tallied(reasons: Iterable[tuple[str, str]]) -> dict[str, Tally]:
    """Count jobs by reason.

    Args:
        reasons: pairs of a reason and a job id.
    """
    tallies: dict[str, Tally] = {}
    for reason, job_id in reasons:
        tallies.setdefault(reason, Tally()).add(job_id)
    return tallies


@dataclass(frozen=True)
class Move:
    """One job to move.

    Attributes:
        job: the job as it was read.
        arriving: the job as it will be added.
        resumed: True if an interrupted move has claimed it.
        lost: missing capabilities that it needs.
        reasons: reasons why it should stay although a move has begun with it; it is moved only if it has already
            arrived.
    """

    job: Job
    arriving: Job
    resumed: bool
    lost: tuple[str, ...]
    reasons: tuple[str, ...] = ()

    @property
    def is_dead(self) -> bool:
        """True if it moves as a dead job, which no worker can claim."""
        return self.job.status is JobStatus.DEAD


@dataclass(frozen=True)
class Plan:
    """The decisions about the jobs of a queue.

    Attributes:
        moves: the jobs to move, in the order in which they are served.
        refused: the ids of jobs that stay, each with the reasons.
        in_progress: number of jobs in the hands of workers.
        results: number of finished jobs that are kept for their result.
    """

    moves: list[Move]
    refused: dict[str, tuple[str, ...]]
    in_progress: int
    results: int


def plan(state: QueueState, there: Capabilities, now: datetime, *, lossy: bool, holder: str) -> Plan:
    """Decide about each job.

    Args:
        state: of the source.
        there: capabilities of the destination.
        now: the time, to tell which delays are over.
        lossy: True if jobs move even if they lose a feature.
        holder: of the claims of this move.
    """
    moves: list[Move] = []
    refused: dict[str, tuple[str, ...]] = {}
    in_progress = results = 0
    for job in sorted(state.jobs, key=lambda job: (job.priority, job.sequence, job.created_at)):
        resumed = is_moving(job)
        if job.status is JobStatus.COMPLETED:
            results += 1
        elif job.status is JobStatus.IN_PROGRESS and not resumed:
            in_progress += 1
        elif job.status is JobStatus.DEAD and not there.dead_letters:
            refused[job.id] = (DEAD,)
        elif resumed and job.holder not in (None, holder):
            refused[job.id] = (ANOTHER_MOVE,)
        else:
            lost = tuple(losses(job, there, now))
            if job.entrypoint in state.entrypoints and not there.limits and job.status is not JobStatus.DEAD:
                lost = (*lost, RULES)
            matters = () if lossy else tuple(name for name in lost if name not in UNIMPORTANT)
            reasons = tuple(f"{LOSS_TEXTS[name]} would be lost" for name in matters)
            if reasons and not resumed:
                refused[job.id] = reasons
            else:
                moves.append(Move(job, arriving(job, lost, there, now), resumed, lost, reasons))
    return Plan(moves, refused, in_progress, results)


def losses(job: Job, there: Capabilities, now: datetime) -> Iterator[str]:
    """Yield the missing capabilities that a job needs. A delay that is over needs none."""
    for name, without in _NEEDS.items():
        if getattr(there, name):
            continue
        if name == "delay" and (job.status is JobStatus.DEAD or job.run_at is None or job.run_at <= now):
            continue
        if any(getattr(job, field) != value for field, value in without.items()):
            yield name


def arriving(job: Job, lost: Iterable[str], there: Capabilities, now: datetime) -> Job:
    """Return a job as it will be added: without a claim, and without the features that are lost."""
    changes = dict(NO_CLAIM)
    if job.status is JobStatus.IN_PROGRESS:
        changes["status"] = JobStatus.QUEUED
    for name in lost:
        changes.update(_NEEDS.get(name, {}))
    if not there.holders and job.run_at is not None and job.run_at <= now:
        changes["run_at"] = None  # a format may have no place for a time that is over
    return job.evolve(**changes)
