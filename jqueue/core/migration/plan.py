"""What a move of jobs between two queues comes to, before anything is done: which go, what they lose, which stay.

Nothing here reads or writes: it is decided on values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jqueue.domain.job_options import STORED
from jqueue.domain.models import Job, JobStatus, QueueState
from jqueue.domain.moving import is_moving
from jqueue.domain.operations.claims import NO_CLAIM
from jqueue.ports.queue import Capabilities

IDS_SHOWN = 5
"""So many ids are named where jobs are counted."""


def _needs() -> dict[str, dict[str, Any]]:
    needs: dict[str, dict[str, Any]] = {}
    for name, option in STORED.items():
        if name != "id" and option.capability is not None:
            needs.setdefault(option.capability, {})[name] = option.unset
    return {**needs, "errors": {"error": None}}


_NEEDS: Mapping[str, Mapping[str, Any]] = _needs()
"""The capability that each field of a job needs, and what the field is without it."""

RULES = "rules"
"""What holds back the jobs of an entrypoint, which is not theirs alone."""

WORDS = {
    **{capability: " and ".join(fields) for capability, fields in _NEEDS.items()},
    "priority": "the priority",
    "delay": "the time before which they are not to run",
    "expiry": "the time at which they expire",
    "headers": "the headers",
    "unique_keys": "the unique key",
    "limits": "the concurrency key",
    "errors": "the last error",
    RULES: "the pause or the limits of their entrypoint",
}
"""What is lost where a capability is missing."""

UNIMPORTANT = frozenset({"errors"})
"""What no job is kept back for."""

DEAD = "they are dead, and DEST has no place for dead jobs"
ANOTHER_MOVE = "a move to another queue was cut short while it had them: finish that one first"


@dataclass
class Tally:
    """Jobs, counted.

    Attributes:
        count: how many.
        ids: of the first few.
    """

    count: int = 0
    ids: list[str] = field(default_factory=list)

    def add(self, job_id: str) -> None:
        """One more."""
        self.count += 1
        if len(self.ids) < IDS_SHOWN:
            self.ids.append(job_id)


def tallied(reasons: Iterable[tuple[str, str]]) -> dict[str, Tally]:
    """Jobs counted by what is said of them.

    Args:
        reasons: what is said, and a job's id, again and again.
    """
    tallies: dict[str, Tally] = {}
    for reason, job_id in reasons:
        tallies.setdefault(reason, Tally()).add(job_id)
    return tallies


@dataclass(frozen=True)
class Move:
    """One job that goes.

    Attributes:
        job: as it was seen.
        arriving: as it will be added.
        resumed: whether it is claimed by a move that was cut short.
        lost: the capabilities that it would need, and that are missing.
        reasons: why it would not go if it were not on its way already; what has arrived is not brought back.
    """

    job: Job
    arriving: Job
    resumed: bool
    lost: tuple[str, ...]
    reasons: tuple[str, ...] = ()

    @property
    def is_dead(self) -> bool:
        """Whether it moves as a dead job, which nobody can claim."""
        return self.job.status is JobStatus.DEAD


@dataclass(frozen=True)
class Plan:
    """What is to be done with the jobs of a queue.

    Attributes:
        moves: those that go, in the order in which they are served.
        refused: those that stay, each with the reasons.
        in_progress: how many are in the hands of workers.
        results: how many are finished, and kept for their result.
    """

    moves: list[Move]
    refused: dict[str, tuple[str, ...]]
    in_progress: int
    results: int


def plan(state: QueueState, there: Capabilities, now: datetime, *, lossy: bool, holder: str) -> Plan:
    """Decide about each job.

    Args:
        state: of the queue that they leave.
        there: what the queue that they come to can keep.
        now: tells which delays are over.
        lossy: whether jobs go although they lose something.
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
            reasons = tuple(f"{WORDS[name]} would be lost" for name in matters)
            if reasons and not resumed:
                refused[job.id] = reasons
            else:
                moves.append(Move(job, arriving(job, lost, there, now), resumed, lost, reasons))
    return Plan(moves, refused, in_progress, results)


def losses(job: Job, there: Capabilities, now: datetime) -> Iterator[str]:
    """The capabilities that a job needs, and that are missing. A delay that is over needs none."""
    for name, without in _NEEDS.items():
        if getattr(there, name):
            continue
        if name == "delay" and (job.status is JobStatus.DEAD or job.run_at is None or job.run_at <= now):
            continue
        if any(getattr(job, field) != value for field, value in without.items()):
            yield name


def arriving(job: Job, lost: Iterable[str], there: Capabilities, now: datetime) -> Job:
    """A job as it will be added: without a claim, and without what is lost."""
    changes = dict(NO_CLAIM)
    if job.status is JobStatus.IN_PROGRESS:
        changes["status"] = JobStatus.QUEUED
    for name in lost:
        changes.update(_NEEDS.get(name, {}))
    if not there.holders and job.run_at is not None and job.run_at <= now:
        changes["run_at"] = None  # a format may have no place for a time that is over
    return job.evolve(**changes)
