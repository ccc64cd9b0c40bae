"""What a worker did in a test: each run of each job, in the order in which they ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from jqueue.worker.report import RunReport, report_of
from jqueue.worker.retries import Kind


class RecordedError(Exception):
    """What a worker recorded with a job when no handler raised it: a payload that cannot be parsed, a timeout."""


class RunawayError(RuntimeError):
    """More jobs ran than they should, and there is still something to do."""


class Ran(NamedTuple):
    """One job that was run, once: a job that is tried three times makes three of these.

    Attributes:
        entrypoint: whose job.
        job_id: which.
        attempt: how often it had been claimed by then.
        outcome: "succeeded", "failed" (and to be tried again), "dead", "snoozed", "handed_back", "cancelled" or "lost".
        result: what the handler returned; one in a process of its own says so only with `keep_result`.
        error: what the handler raised, or `RecordedError`; None if it succeeded.
    """

    entrypoint: str
    job_id: str
    attempt: int
    outcome: Kind
    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class WorkReport:
    """What a worker did: `Ran` after `Ran`. It can be looped over, indexed and counted with `len`.

    Attributes:
        ran: each run of each job.
    """

    ran: tuple[Ran, ...]

    @property
    def counts(self) -> RunReport:
        """How many succeeded, failed and so on."""
        return report_of(Counter(ran.outcome for ran in self.ran))

    @property
    def outcomes(self) -> list[Kind]:
        """How each run ended."""
        return [ran.outcome for ran in self.ran]

    def of(self, entrypoint: str) -> list[Ran]:
        """What ran of one entrypoint."""
        return [ran for ran in self.ran if ran.entrypoint == entrypoint]

    def __len__(self) -> int:
        return len(self.ran)

    def __iter__(self) -> Iterator[Ran]:
        return iter(self.ran)

    def __getitem__(self, place: int) -> Ran:
        return self.ran[place]

    def __str__(self) -> str:
        return str(self.counts)
