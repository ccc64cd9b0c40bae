"""The decisions of a move between two queues: the jobs that move, the features that they lose, and the jobs that stay.

Nothing here reads or writes: each decision is made from one job.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jqueue.domain.in_transit import is_moving
from jqueue.domain.job_options import STORED
from jqueue.domain.models import NO_CLAIM, Job, JobStatus
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


def add_to(tallies: dict[str, Tally], reasons: Iterable[tuple[str, str]]) -> None:
    """Count jobs by reason.

    Args:
        tallies: the counts so far, which are changed.
        reasons: pairs of a reason and a job id.
    """
    for reason, job_id in reasons:
        tallies.setdefault(reason, Tally()).add(job_id)


def merged(*several: Mapping[str, Tally]) -> dict[str, Tally]:
    """Add up counts."""
    total: dict[str, Tally] = {}
    for tallies in several:
        for reason, tally in tallies.items():
            known = total.setdefault(reason, Tally())
            known.count += tally.count
            known.ids = [*known.ids, *tally.ids][:IDS_SHOWN]
    return total


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


class Planner:
    """Decides about the jobs of a queue, one by one.

    Args:
        entrypoints: names of the entrypoints with limits or a pause.
        there: capabilities of the destination.
        now: the time, to tell which delays are over.
        lossy: True if jobs move even if they lose a feature.
        holder: of the claims of this move.
        staying: reasons why jobs stay that could not be moved before, by their ids.

    Attributes:
        stayed: the jobs that were found of those in `staying`, by the reason.
        refused: other jobs that stay, by the reason.
        in_progress: number of jobs in the hands of workers.
        results: number of finished jobs that are kept for their result.
    """

    def __init__(
        self,
        entrypoints: Container[str],
        there: Capabilities,
        now: datetime,
        *,
        lossy: bool,
        holder: str,
        staying: Mapping[str, str],
    ) -> None:
        self.stayed: dict[str, Tally] = {}
        self.refused: dict[str, Tally] = {}
        self.in_progress = 0
        self.results = 0
        self._entrypoints = entrypoints
        self._there = there
        self._now = now
        self._lossy = lossy
        self._holder = holder
        self._staying = staying

    def move_of(self, job: Job) -> Move | None:
        """Return the move of a job. If it does not move, it is counted, and the result is None."""
        decided = self._decided(job)
        if isinstance(decided, tuple):
            add_to(self.refused, ((reason, job.id) for reason in decided))
            return None
        if job.id in self._staying:
            add_to(self.stayed, [(self._staying[job.id], job.id)])
            return None
        return decided

    def _decided(self, job: Job) -> Move | tuple[str, ...] | None:
        """Return the move of a job, or the reasons why it is refused, or None if it is not to move now."""
        resumed = is_moving(job)
        if job.status is JobStatus.COMPLETED:
            self.results += 1
            return None
        if job.status is JobStatus.IN_PROGRESS and not resumed:
            self.in_progress += 1
            return None
        if job.status is JobStatus.DEAD and not self._there.dead_letters:
            return (DEAD,)
        if resumed and job.holder not in (None, self._holder):
            return (ANOTHER_MOVE,)
        move = self._move(job, resumed)
        return move.reasons if move.reasons and not resumed else move

    def _move(self, job: Job, resumed: bool) -> Move:
        lost = tuple(losses(job, self._there, self._now))
        if job.entrypoint in self._entrypoints and not self._there.limits and job.status is not JobStatus.DEAD:
            lost = (*lost, RULES)
        matters = () if self._lossy else tuple(name for name in lost if name not in UNIMPORTANT)
        reasons = tuple(f"{LOSS_TEXTS[name]} would be lost" for name in matters)
        return Move(job, arriving(job, lost, self._there, self._now), resumed, lost, reasons)


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
