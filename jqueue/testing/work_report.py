"""Report of a worker's run in a test: each run of each job, in the order in which the runs ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from jqueue.worker.retries import OutcomeKind
from jqueue.worker.run import RunReport


class RecordedError(Exception):
    """Error that a worker recorded with a job although no handler raised it: an unreadable payload, a timeout."""


class RunawayError(RuntimeError):
    """More jobs ran than allowed, or the clock jumped too often, and there is still something to do."""


class Ran(NamedTuple):
    """One run of one job: a job that is tried three times makes three of these.

    Attributes:
        entrypoint: entrypoint of the job.
        job_id: id of the job.
        attempt: number of times the job had been claimed by then.
        outcome: "succeeded", "failed" (and to be tried again), "dead", "snoozed", "handed_back", "cancelled" or "lost".
        result: value that the handler returned; for a handler in a process of its own, only with `keep_result`.
        error: exception that the handler raised, or `RecordedError`; None if it succeeded.
    """

    entrypoint: str
    job_id: str
    attempt: int
    outcome: OutcomeKind
    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class WorkReport:
    """All runs of a worker, as `Ran` tuples. It can be looped over, indexed and counted with `len`.

    Attributes:
        ran: each run of each job.
    """

    ran: tuple[Ran, ...]

    @property
    def counts(self) -> RunReport:
        """Number of runs for each outcome."""
        return RunReport(**Counter[str](ran.outcome for ran in self.ran), worn=False)

    @property
    def outcomes(self) -> list[OutcomeKind]:
        """Outcome of each run."""
        return [ran.outcome for ran in self.ran]

    def of(self, entrypoint: str) -> list[Ran]:
        """Return the runs of one entrypoint."""
        return [ran for ran in self.ran if ran.entrypoint == entrypoint]

    def __len__(self) -> int:
        return len(self.ran)

    def __iter__(self) -> Iterator[Ran]:
        return iter(self.ran)

    def __getitem__(self, place: int) -> Ran:
        return self.ran[place]

    def __str__(self) -> str:
        return str(self.counts)
